"""Rows that go out: `GET .../rows`, the content at a time, and `GET .../changes`, what changed between two.

1. The header `Evertide-Time` says which time it is: of changes, the last one that they tell of.
2. Whoever follows a collection asks for its changes since the time that he has, again and again; `wait_s` lets him wait
   for the next one.
3. Of what whoever asks is restricted to, the rest is not there for him: neither in the content, nor in the changes.
4. HEAD is answered by the headers alone: nothing is read, and nobody waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
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

from evertide.errors import EvertideError, Forbidden, InvalidInput, Unavailable
from evertide.media import ARROW, JSON, LINES, TIME_HEADER
from evertide.pgexpr.clause import conjoin_both
from evertide.pgexpr.restriction import Restriction, restriction_in
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.reading.collections import View
from evertide.rows.changes import DIFF, TIME, changes_schema
from evertide.server.endpoints.collections import name_of
from evertide.server.endpoints.columns import Column
from evertide.server.endpoints.content import Content, changes, content_of
from evertide.server.endpoints.formats import ROW_FORMATS, pieces
from evertide.server.http.answers import headed, streamed
from evertide.server.http.endpoint import BYTES, Endpoint
from evertide.server.http.media import chosen
from evertide.shard.shard import Shard
from evertide.sinks.json_rows import json_rows

__all__ = ["Format", "Rows", "RowsQuery"]

_WAITING = 256
"""Requests that wait for the next transaction at a time, each in a thread of its own."""

_WAIT_S = 0.5
"""How soon one of them notices that the server stops."""

AsOf = Annotated[int, msgspec.Meta(ge=0, le=2**62, description="At this time; the last one if it is not given.")]
Limit = Annotated[int, msgspec.Meta(ge=0, le=2**62, description="At most so many rows.")]
Format = Annotated[
    str, msgspec.Meta(description="json, ndjson, csv, arrow or parquet: counts before the header Accept.")
]


class RowsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    as_of: AsOf | None = None
    limit: Limit | None = None
    columns: Annotated[str, msgspec.Meta(description="Names with commas between them; all if it is not given.")] = ""
    where: Annotated[str, msgspec.Meta(description="An expression of PostgreSQL, as shapes have them.")] = ""
    params: Annotated[
        dict[str, str], msgspec.Meta(description="What $1, $2 and so on stand for: params[1], params[2].")
    ] = {}
    format: Format | None = None


class ChangesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    since: Annotated[int, msgspec.Meta(ge=-1, le=2**62, description="What changed after this time.")]
    until: (
        Annotated[int, msgspec.Meta(ge=0, le=2**62, description="Up to this time; the last one otherwise.")] | None
    ) = None
    wait_s: Annotated[
        float, msgspec.Meta(ge=0, le=60, description="How long to wait for a transaction after `since`.")
    ] = 0.0
    format: Annotated[str, msgspec.Meta(description="ndjson or arrow: counts before the header Accept.")] | None = None


class RowsAnswer(msgspec.Struct, frozen=True):
    time: int
    columns: list[Column]
    rows: list[list[Any]]


class Rows:
    """The endpoints."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._waiting = anyio.CapacityLimiter(_WAITING)
        self._is_ending = threading.Event()

    def endpoints(self) -> Iterator[Endpoint]:
        rows = {media: RowsAnswer if media == JSON else BYTES for media in ROW_FORMATS}
        refusals = (400, 404, 406, 410)
        for kind in ("table", "view"):
            path, handler = f"/v1/{kind}s/{{name}}/rows", self._handler(kind)
            yield Endpoint(
                "GET", path, "rows", f"The content of a {kind} at a time.", handler, rows, RowsQuery, refusals=refusals
            )
        for kind in ("table", "view"):
            path, handler = f"/v1/{kind}s/{{name}}/changes", self._changes_handler(kind)
            summary = f"What changed in a {kind} after a time, up to another."
            answers = {LINES: BYTES, ARROW: BYTES}
            yield Endpoint("GET", path, "rows", summary, handler, answers, ChangesQuery, refusals=refusals)

    def drain(self) -> None:
        """Let those who wait for a change go: the server is about to stop."""
        self._is_ending.set()

    def _handler(self, kind: str) -> Any:
        async def rows(request: Request, query: RowsQuery) -> Response:
            media = chosen(request, query.format, ROW_FORMATS)
            asked = partial(self._content, request.path_params["name"], kind, query, restriction_in(request.scope))
            content = await run_in_threadpool(asked)
            headers = {TIME_HEADER: str(content.time)}
            if request.method == "HEAD":
                return headed(media, headers)
            found = content.tables(query.limit)
            facts = {"time": content.time}
            return await streamed(pieces(media, content.schema, found, facts), media, headers)

        return rows

    def _content(self, name: str, kind: str, query: RowsQuery, restriction: Restriction) -> Content:
        own = self._own(name, kind, restriction)
        view = self._pipeline.view(own)
        if query.as_of is not None:
            view = view.as_of(query.as_of)
        shard = self._pipeline.collections.members().collection(own)
        columns = [each.strip() for each in query.columns.split(",") if each.strip()]
        found = content_of(view, shard, columns, query.where, query.params)
        return replace(found, where=conjoin_both(restriction.clause(own, shard.schema), found.where))

    def _own(self, name: str, kind: str, restriction: Restriction) -> str:
        """The name as it was declared. Who is restricted is not told which others there are."""
        restriction.check(name)
        try:
            return name_of(self._pipeline, name, kind)
        except (EvertideError, HTTPException):
            if restriction.is_free:
                raise
            raise Forbidden(where=f"{kind} {name!r}", why="there is no such one for this token") from None

    def _changes_handler(self, kind: str) -> Any:
        async def changes_of(request: Request, query: ChangesQuery) -> Response:
            media = chosen(request, query.format, (LINES, ARROW))
            if request.method == "HEAD":
                query = msgspec.structs.replace(query, wait_s=0.0)
            asked = partial(self._changes, request.path_params["name"], kind, query, restriction_in(request.scope))
            limiter = self._waiting if query.wait_s else None
            last, schema, found = await anyio.to_thread.run_sync(asked, limiter=limiter)
            headers = {TIME_HEADER: str(last)}
            if request.method == "HEAD":
                return headed(media, headers)
            told = pieces(ARROW, schema, found) if media == ARROW else _lines(found, last)
            return await streamed(told, media, headers)

        return changes_of

    def _changes(
        self, name: str, kind: str, query: ChangesQuery, restriction: Restriction
    ) -> tuple[int, pa.Schema, Iterator[pa.Table]]:
        """The last time that is told, the columns, and the changes."""
        own = self._own(name, kind, restriction)
        view = self._pipeline.view(own)
        shard = self._pipeline.collections.members().collection(own)
        clause = restriction.clause(own, shard.schema)
        last = view.time
        if query.since > last:
            why = f"time {query.since} is not there yet; the last is {last}"
            raise InvalidInput(where="parameter 'since'", why=why)
        if query.since == last and query.wait_s:
            last = self._wait(view, shard, last, query.wait_s)
            if last == query.since:
                return last, changes_schema(shard.schema), iter(())
        if query.until is not None:
            last = view.as_of(query.until).time if query.until > last else query.until
        lower, upper = query.since + 1, last + 1
        if lower > upper:
            why = f"it lies before since, which is {query.since}"
            raise InvalidInput(where="parameter 'until'", why=why)
        found = changes(shard, lower, upper) if lower < upper else iter(())
        return last, changes_schema(shard.schema), found if clause is None else map(clause.filter_rows, found)

    def _wait(self, view: View, shard: Shard, last: int, limit_s: float) -> int:
        """The time of the view, once it is above `last`, or when the limit is over, or the server stops."""
        left_s = limit_s
        while left_s > 0 and not self._is_ending.is_set() and view.time == last:  # which raises if storage is away
            with suppress(Unavailable):  # nothing came
                shard.wait_for_upper(last + 1, min(left_s, _WAIT_S))
            left_s -= _WAIT_S
        return view.time


def _lines(tables: Iterable[pa.Table], last: int) -> Iterator[bytes]:
    """As `evertide subscribe --json` tells them."""
    for table in tables:
        times, diffs = table.column(TIME).to_pylist(), table.column(DIFF).to_pylist()
        rows = json_rows(table.drop_columns([TIME, DIFF]))
        told = zip(times, diffs, rows, strict=True)
        lines = (msgspec.json.encode({"time": time, "diff": diff, "row": row}) for time, diff, row in told)
        yield b"\n".join(lines) + b"\n"
    yield msgspec.json.encode({"complete": last}) + b"\n"
