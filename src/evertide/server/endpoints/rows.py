"""`GET .../rows`: the content of a collection at one time; `GET .../changes`: its changes between two times.

1. The `Evertide-Time` header has the time of the rows, or the last time of the changes.
2. A client follows a collection by repeated requests for the changes since its last time; with `wait_s`, a request
   waits for the next transaction.
3. The `Evertide-Content` header has an id that changes when a view is computed again. Changes since a time are refused
   if the client names another id: they would not fit to the rows that it has.
4. A restricted token sees only the rows that its restriction allows, in the content and in the changes.
5. HEAD returns only headers: it reads nothing and does not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import anyio
import anyio.to_thread
import msgspec
import pyarrow as pa
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from evertide.errors import EvertideError, Forbidden, InvalidInput, ShardEnded
from evertide.media import ARROW, JSON, LINES
from evertide.pgexpr.restriction import Restriction, read_restriction
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.reading.collections import View
from evertide.pipeline.reading.content import CollectionContent, read_changes
from evertide.rows.changes import DIFF, TIME, make_changes_schema
from evertide.server.endpoints.collections import find_declared_name
from evertide.server.endpoints.content import select_content
from evertide.server.endpoints.formats import ROW_FORMATS, Column, encode_rows
from evertide.server.http.answers import answer_head, answer_stream, choose_media, make_content_headers
from evertide.server.http.endpoint import BYTES, Endpoint
from evertide.shard.shard import Shard
from evertide.sinks.json_rows import to_json_rows

_WAITING_MAX = 256
"""Requests that may wait for the next transaction at the same time, each in a thread."""

_WAIT_S = 0.5
"""How long a waiting request takes to notice that the server stops."""

AsOf = Annotated[int, msgspec.Meta(ge=0, le=2**62, description="The time of the rows; the last one by default.")]
Limit = Annotated[int, msgspec.Meta(ge=0, le=2**62, description="The largest number of rows.")]
Format = Annotated[
    str, msgspec.Meta(description="json, ndjson, csv, arrow or parquet; takes precedence over the Accept header.")
]


class RowsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    as_of: AsOf | None = None
    limit: Limit | None = None
    columns: Annotated[str, msgspec.Meta(description="Names separated by commas; all columns by default.")] = ""
    where: Annotated[str, msgspec.Meta(description="A PostgreSQL expression that selects rows, as for shapes.")] = ""
    params: Annotated[
        dict[str, str], msgspec.Meta(description="The values of $1, $2 and so on: params[1], params[2].")
    ] = {}
    format: Format | None = None


class ChangesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    since: Annotated[int, msgspec.Meta(ge=-1, le=2**62, description="Changes after this time.")]
    until: (
        Annotated[int, msgspec.Meta(ge=0, le=2**62, description="Changes up to this time; the last one by default.")]
        | None
    ) = None
    wait_s: Annotated[
        float, msgspec.Meta(ge=0, le=60, description="How long to wait for a transaction after `since`.")
    ] = 0.0
    content: Annotated[
        str, msgspec.Meta(description="The Evertide-Content header of the rows; other content is refused with 409.")
    ] = ""
    format: (
        Annotated[str, msgspec.Meta(description="ndjson or arrow; takes precedence over the Accept header.")] | None
    ) = None


class RowsAnswer(msgspec.Struct, frozen=True):
    time: int
    columns: list[Column]
    rows: list[list[Any]]


class RowEndpoints:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._waiting = anyio.CapacityLimiter(_WAITING_MAX)
        self._is_stopping = threading.Event()

    def endpoints(self) -> Iterator[Endpoint]:
        rows = {media: RowsAnswer if media == JSON else BYTES for media in ROW_FORMATS}
        refusals = (400, 404, 406, 409, 410)
        for kind in ("table", "view"):
            path, handler = f"/v1/{kind}s/{{name}}/rows", self._make_rows_handler(kind)
            summary = f"The content of a {kind} at one time."
            yield Endpoint("GET", path, "rows", summary, handler, rows, RowsQuery, refusals=refusals)
        for kind in ("table", "view"):
            path, handler = f"/v1/{kind}s/{{name}}/changes", self._make_changes_handler(kind)
            summary = f"The changes of a {kind} between two times."
            answers = {LINES: BYTES, ARROW: BYTES}
            yield Endpoint("GET", path, "rows", summary, handler, answers, ChangesQuery, refusals=refusals)

    def drain(self) -> None:
        """End the requests that wait for a change, because the server stops."""
        self._is_stopping.set()

    def _make_rows_handler(self, kind: str) -> Any:
        async def rows(request: Request, query: RowsQuery) -> Response:
            media = choose_media(request, query.format, ROW_FORMATS)
            read = partial(
                self._select_content, request.path_params["name"], kind, query, read_restriction(request.scope)
            )
            content = await run_in_threadpool(read)
            stale = self._find_stale(content.name) if query.as_of is None else []
            headers = make_content_headers(content.time, stale, content.shard.name)
            if request.method == "HEAD":
                return answer_head(media, headers)
            tables, facts = content.tables(query.limit), {"time": content.time}
            return await answer_stream(encode_rows(media, content.schema, tables, facts), media, headers)

        return rows

    def _select_content(self, name: str, kind: str, query: RowsQuery, restriction: Restriction) -> CollectionContent:
        declared = self._find_declared_name(name, kind, restriction)
        shard, time = self._pipeline.collections.locate(declared, query.as_of)
        columns = [each.strip() for each in query.columns.split(",") if each.strip()]
        allowed = restriction.clause(declared, shard.schema)
        where, params = query.where, query.params
        return select_content(declared, shard, time, columns=columns, where=where, params=params, allowed=allowed)

    def _find_stale(self, name: str) -> list[str]:
        collections = self._pipeline.collections
        return collections.find_stale([collections.view(name).name])

    def _find_declared_name(self, name: str, kind: str, restriction: Restriction) -> str:
        """The error of a restricted token does not list the other collections."""
        restriction.check(name)
        try:
            return find_declared_name(self._pipeline, name, kind)
        except (EvertideError, HTTPException):
            if restriction.is_unrestricted:
                raise
            raise Forbidden(where=f"{kind} {name!r}", why="the token may not read this collection") from None

    def _make_changes_handler(self, kind: str) -> Any:
        async def changes_of(request: Request, query: ChangesQuery) -> Response:
            media = choose_media(request, query.format, (LINES, ARROW))
            if request.method == "HEAD":
                query = msgspec.structs.replace(query, wait_s=0.0)
            read = partial(
                self._select_changes, request.path_params["name"], kind, query, read_restriction(request.scope)
            )
            limiter = self._waiting if query.wait_s else None
            found = await anyio.to_thread.run_sync(read, limiter=limiter)
            headers = make_content_headers(found.last, self._find_stale(request.path_params["name"]), found.shard.name)
            if request.method == "HEAD":
                return answer_head(media, headers)
            tables = found.tables
            blocks = encode_rows(ARROW, found.schema, tables) if media == ARROW else _encode_lines(tables, found.last)
            return await answer_stream(blocks, media, headers)

        return changes_of

    def _select_changes(self, name: str, kind: str, query: ChangesQuery, restriction: Restriction) -> _FoundChanges:
        declared = self._find_declared_name(name, kind, restriction)
        view = self._pipeline.view(declared)
        shard, last = view.locate()
        _check_content(declared, shard, query.content, query.since)
        if query.since > last:
            why = f"time {query.since} is in the future; the last time is {last}"
            raise InvalidInput(where="parameter 'since'", why=why)
        if query.since == last and query.wait_s:
            known = shard.name
            shard, last = self._wait(view, shard, last, query.wait_s)
            _check_content(declared, shard, known, query.since)
            if last == query.since:
                return _FoundChanges(shard, last, iter(()))
        if query.until is not None:
            last = view.as_of(query.until).time if query.until > last else query.until
        lower, upper = query.since + 1, last + 1
        if lower > upper:
            why = f"time {query.until} is before the parameter 'since', which is {query.since}"
            raise InvalidInput(where="parameter 'until'", why=why)
        tables = read_changes(shard, lower, upper) if lower < upper else iter(())
        clause = restriction.clause(declared, shard.schema)
        return _FoundChanges(shard, last, tables if clause is None else map(clause.filter_rows, tables))

    def _wait(self, view: View, shard: Shard, last: int, limit_s: float) -> tuple[Shard, int]:
        """The shard and time of the view, as soon as one differs, or after `limit_s`, or when the server stops.

        A view that is computed again has another shard. Raise an error if storage is away.
        """
        left_s = limit_s
        found, time = shard, last
        while left_s > 0 and not self._is_stopping.is_set() and (found.name, time) == (shard.name, last):
            shard.wait_for_upper(last + 1, min(left_s, _WAIT_S))
            left_s -= _WAIT_S
            found, time = view.locate()
        return found, time


@dataclass(frozen=True)
class _FoundChanges:
    shard: Shard
    last: int
    """The last time of the changes."""
    tables: Iterator[pa.Table]

    @property
    def schema(self) -> pa.Schema:
        return make_changes_schema(self.shard.schema)


def _check_content(name: str, shard: Shard, known: str, since: int) -> None:
    if known and known != shard.name:
        why = f"it was computed again, and its changes do not continue those that were read up to time {since}"
        raise ShardEnded(where=f"view {name!r}", why=why)


def _encode_lines(tables: Iterable[pa.Table], last: int) -> Iterator[bytes]:
    """The form of `evertide subscribe --json`."""
    for table in tables:
        times, diffs = table.column(TIME).to_pylist(), table.column(DIFF).to_pylist()
        rows = to_json_rows(table.drop_columns([TIME, DIFF]))
        entries = zip(times, diffs, rows, strict=True)
        lines = (msgspec.json.encode({"time": time, "diff": diff, "row": row}) for time, diff, row in entries)
        yield b"\n".join(lines) + b"\n"
    yield msgspec.json.encode({"complete": last}) + b"\n"
