"""`Client`: a pipeline that another process serves.

    with Client("http://127.0.0.1:8080", token="...") as c:
        c.push("orders", [{"id": 1, "amount": 20}])
        c.query("SELECT * FROM revenue").rows          # an Arrow table
        for time, changes in c.subscribe("revenue"):   # all rows first, then each transaction
            ...

1. Rows go and come as Arrow: every type as it is.
2. What goes wrong is raised as the pipeline itself raises it (`evertide.client.errors`).
3. A client may be shared between threads.
"""

from __future__ import annotations

import ssl
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
import msgspec
import pyarrow as pa

from evertide.client.arrow_stream import batches_of, table_of
from evertide.client.errors import check, told
from evertide.client.transaction import RemoteTransaction
from evertide.errors import InvalidInput
from evertide.json_values import plain
from evertide.media import ARROW, EVENTS, FORMATS, JSON, TIME_HEADER
from evertide.pipeline.reading.query import Answer, Chosen
from evertide.rows.changes import DIFF, TIME
from evertide.sinks.json_rows import spans

__all__ = ["Client"]

_CONNECT_S = 10.0
_WAIT_S = 30.0

Json = dict[str, Any]


class Client:
    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        tls: ssl.SSLContext | str | Path | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        """`tls` is a context, or the file of the authority that signed the server's certificate."""
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        context = tls if isinstance(tls, ssl.SSLContext) or tls is None else _trusting(Path(tls))
        timeout = httpx.Timeout(timeout_s, connect=_CONNECT_S)
        with told(url, is_write=False):
            self._http = httpx.Client(
                base_url=self.url, headers=headers, verify=True if context is None else context, timeout=timeout
            )
        self._paths: dict[str, str] = {}

    # Looking

    def status(self) -> Json:
        """As `evertide status --json` says it."""
        return self._get("/v1/status")

    def health(self) -> Json:
        return self._get("/v1/health")

    def collections(self) -> list[Json]:
        found: list[Json] = self._get("/v1/collections")["collections"]
        self._paths = {one["name"].lower(): f"/v1/{one['kind']}s/{quote(one['name'], safe='')}" for one in found}
        return found

    def graph(self) -> Json:
        return self._get("/v1/graph")

    def explain(self, view: str, form: str = "json") -> Any:
        """A dict; or a text, if `form` is text, mermaid or dot."""
        path = f"/v1/views/{quote(view, safe='')}/explain"
        response = self._ask("GET", path, params={"format": form})
        return msgspec.json.decode(response.content) if form == "json" else response.text

    def transactions(self, before: int | None = None, limit: int = 100) -> list[Json]:
        """The last ones, the newest first."""
        return self._get("/v1/transactions", before=before, limit=limit)["transactions"]  # type: ignore[no-any-return]

    def journal(self, before: int | None = None, limit: int = 100) -> list[Json]:
        """Which input each transaction holds, the newest first."""
        return self._get("/v1/journal", before=before, limit=limit)["records"]  # type: ignore[no-any-return]

    def errors(self, limit: int = 100) -> Json:
        return self._get("/v1/errors", limit=limit)

    def checkpoints(self) -> list[Json]:
        """The newest first."""
        return self._get("/v1/checkpoints")["checkpoints"]  # type: ignore[no-any-return]

    def events(self) -> Generator[tuple[str, Json], None, None]:
        """What happens, as it happens: the name of each event, and its facts. Ends if the server does."""
        with self._streamed("GET", "/v1/events", headers={"Accept": EVENTS}, timeout=httpx.Timeout(60.0)) as response:
            name = ""
            for line in response.iter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, msgspec.json.decode(value)

    # Rows out

    def rows(
        self,
        name: str,
        *,
        as_of: int | None = None,
        columns: Sequence[str] = (),
        where: str = "",
        params: Sequence[str] = (),
        limit: int | None = None,
    ) -> pa.Table:
        """The content of a table or view. Its time is in the schema's metadata, as `evertide.time`."""
        asked = self._rows_asked(as_of, columns, where, params, limit)
        with self._streamed("GET", f"{self._path(name)}/rows", params=asked, headers={"Accept": ARROW}) as response:
            found = table_of(response)
            return found.replace_schema_metadata({"evertide.time": response.headers[TIME_HEADER]})

    def batches(self, name: str, *, as_of: int | None = None, columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """The content, of one time, batch by batch: it need not fit into memory."""
        asked = self._rows_asked(as_of, columns, "", (), None)
        with self._streamed("GET", f"{self._path(name)}/rows", params=asked, headers={"Accept": ARROW}) as response:
            yield from batches_of(response)[1]

    def changes(self, name: str, since: int, until: int | None = None, *, wait_s: float = 0.0) -> tuple[int, pa.Table]:
        """What changed after a time: up to which time, and the changes, with `__time` and `__diff`."""
        asked = _given(since=since, until=until, wait_s=wait_s)
        with self._streamed("GET", f"{self._path(name)}/changes", params=asked, headers={"Accept": ARROW}) as response:
            return int(response.headers[TIME_HEADER]), table_of(response)

    def subscribe(
        self, name: str, since: int | None = None, *, follow: bool = True
    ) -> Generator[tuple[int, pa.Table], None, None]:
        """All rows as changes, unless `since` is given; then what changes, as transactions come.

        Each time with the first time that is not told of yet.
        """
        if since is None:
            content = self.rows(name)
            since = int(content.schema.metadata[b"evertide.time"])
            yield since + 1, _as_changes(content, since)
            if not follow:
                return
        while True:
            reached, found = self.changes(name, since, wait_s=_WAIT_S if follow else 0.0)
            if reached > since:
                yield reached + 1, found
            since = reached
            if not follow:
                return

    def query(
        self,
        sql: str,
        *,
        as_of: int | None = None,
        engine: Chosen | str = Chosen.auto,
        limit: int | None = None,
        parameters: Sequence[Any] = (),
    ) -> Answer:
        body = {"sql": sql, **_given(as_of=as_of, limit=limit), "engine": str(engine)}
        body |= {"parameters": plain(list(parameters))} if parameters else {}
        headers = {"Accept": ARROW, "Content-Type": JSON}
        content = msgspec.json.encode(body)
        with self._streamed("POST", "/v1/query", content=content, headers=headers) as response:
            pairs = (each.partition("=") for each in response.headers["Evertide-Query"].split(", "))
            facts = {name: value for name, _, value in pairs}
            return Answer(
                int(facts["time"]),
                table_of(response),
                facts["is_truncated"] == "true",
                Chosen(facts["engine"]),
                float(facts["took_ms"]),
            )

    # Rows in

    def push(
        self, table: str, rows: Any = (), *, deletes: Any = (), producer: str = "", sequence: int | None = None
    ) -> Json:
        """One transaction: `time` and `rows`. A producer that numbers its pushes may repeat one: it is taken once.

        `OutcomeUnknown` if no answer came: push it again with the same producer and sequence. Without them, look first
        whether the rows are there.
        """
        return self._push("/v1/tables", table, rows, deletes, _named(producer, sequence))

    def push_body(
        self,
        table: str,
        content: bytes,
        form: str,
        *,
        deletes: bool = False,
        producer: str = "",
        sequence: int | None = None,
    ) -> Json:
        """What a file holds: `form` is csv, json (lines), parquet or arrow."""
        headers = {"Content-Type": FORMATS["ndjson" if form == "json" else form], **_named(producer, sequence)}
        path = f"/v1/tables/{quote(table, safe='')}/rows"
        params = {"deletes": "true"} if deletes else {}
        return self._json("POST", path, content=content, params=params, headers=headers)

    def transaction(self, producer: str = "", sequence: int | None = None) -> RemoteTransaction:
        """Rows for several tables that belong together, in as many requests as it takes."""
        begin = partial(self._json, "POST", "/v1/transactions/begin", headers=_named(producer, sequence))
        return RemoteTransaction(begin, self._push, partial(self._json, "POST"))

    # Going on

    def checkpoint(self) -> Json:
        return self._json("POST", "/v1/checkpoints")

    def pause(self) -> Json:
        """The process takes no new transaction until it is resumed."""
        return self._json("POST", "/v1/pause")

    def resume(self) -> Json:
        return self._json("POST", "/v1/resume")

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # Inside

    def _push(self, below: str, table: str, rows: Any, deletes: Any, named: Mapping[str, str] | None = None) -> Json:
        path = f"{below}/{quote(table, safe='')}/rows"
        if hasattr(rows, "toArrow"):
            rows = rows.toArrow()
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if isinstance(deletes, pa.Table | pa.RecordBatch):
            deletes = deletes.to_pylist()
        if isinstance(rows, pa.Table):
            if len(deletes):
                raise InvalidInput(where="deletes", why="Arrow rows go without: push the deletes as a request before")
            content, media = _arrow(rows), ARROW
        else:
            given = {"rows": plain(spans(list(rows))), "deletes": plain(spans(list(deletes)))}
            content, media = msgspec.json.encode(given), JSON
        return self._json("POST", path, content=content, headers={"Content-Type": media, **(named or {})})

    def _path(self, name: str) -> str:
        if name.lower() not in self._paths:
            known = [one["name"] for one in self.collections()]
            if name.lower() not in self._paths:
                why = f"the pipeline has no such collection; it has {sorted(known)}"
                raise InvalidInput(where=f"collection {name!r}", why=why)
        return self._paths[name.lower()]

    @staticmethod
    def _rows_asked(
        as_of: int | None, columns: Sequence[str], where: str, params: Sequence[str], limit: int | None
    ) -> Json:
        asked = _given(as_of=as_of, limit=limit, columns=",".join(columns) or None, where=where or None)
        return {**asked, **{f"params[{at}]": value for at, value in enumerate(params, 1)}}

    def _get(self, path: str, **asked: Any) -> Json:
        return self._json("GET", path, params=_given(**asked))

    def _json(self, method: str, path: str = "", **given: Any) -> Json:
        return msgspec.json.decode(self._ask(method, path, **given).content)  # type: ignore[no-any-return]

    def _ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        with told(f"{method} {self.url}{path}", is_write=method != "GET" and path != "/v1/query"):
            return check(self._http.request(method, path, **given))

    @contextmanager
    def _streamed(self, method: str, path: str, **given: Any) -> Iterator[httpx.Response]:
        with told(f"{method} {self.url}{path}", is_write=False), self._http.stream(method, path, **given) as response:
            yield check(response)


def _named(producer: str, sequence: int | None) -> dict[str, str]:
    return {} if sequence is None else {"Evertide-Producer": producer, "Evertide-Sequence": str(sequence)}


def _given(**asked: Any) -> Json:
    return {name: value for name, value in asked.items() if value is not None}


def _arrow(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _as_changes(content: pa.Table, time: int) -> pa.Table:
    count = content.num_rows
    told_at = pa.repeat(pa.scalar(time, pa.int64()), count)
    return content.append_column(TIME, told_at).append_column(DIFF, pa.repeat(pa.scalar(1, pa.int64()), count))


def _trusting(authority: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(where=str(authority), why=f"it holds no certificate of an authority: {error}") from error
