"""`Client`: access to a pipeline that another process serves.

    with Client("http://127.0.0.1:8080", token="...") as c:
        c.push("orders", [{"id": 1, "amount": 20}])
        c.query("SELECT * FROM revenue").rows          # an Arrow table
        for time, changes in c.subscribe("revenue"):   # all rows first, then each transaction
            ...

1. Rows are sent and received as Arrow, so every type is preserved.
2. Errors are raised as the pipeline itself raises them (`evertide.client.errors`).
3. Rows of a view that failed or is computed again come with a `StaleViewWarning`; `subscribe` repeats it only when the
   state changes, and raises `ShardEnded` when the view has been computed again.
4. A client may be shared between threads.
"""

from __future__ import annotations

import io
import ssl
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import httpx
import msgspec
import pyarrow as pa

from evertide.client.errors import ServerUnavailable, check_response, translate_errors
from evertide.client.transaction import RemoteTransaction
from evertide.errors import InvalidInput
from evertide.json_values import to_json_value
from evertide.media import ARROW, CONTENT_HEADER, EVENTS, FACTS_HEADER, FORMATS, JSON, STALE_HEADER, TIME_HEADER
from evertide.pipeline.reading.query import Answer, EngineChoice
from evertide.pipeline.reading.stale import StaleNews, make_warning_text, read_stale_header, warn_of_stale
from evertide.rows.changes import DIFF, TIME
from evertide.rows.frames import from_frame
from evertide.rows.utf8 import is_valid_utf8
from evertide.sinks.json_rows import format_durations
from evertide.source_text import marking_text
from evertide.suggestions import list_names

_CONNECT_S = 10.0
_WAIT_S = 30.0

Json = dict[str, Any]


class Client:
    """A connection to a served pipeline; threads may share it."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        tls: ssl.SSLContext | str | Path | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        """`tls` is an SSL context, or the file with the certificate of the server's authority."""
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        context = tls if isinstance(tls, ssl.SSLContext) or tls is None else _trust_authority(Path(tls))
        timeout = httpx.Timeout(timeout_s, connect=_CONNECT_S)
        with translate_errors(url, is_write=False):
            self._http = httpx.Client(
                base_url=self.url, headers=headers, verify=True if context is None else context, timeout=timeout
            )
        self._paths: dict[str, str] = {}

    # Status

    def status(self) -> Json:
        """The same as `evertide status --json`."""
        return self._get("/v1/status")

    def health(self) -> Json:
        return self._get("/v1/health")

    def collections(self) -> list[Json]:
        collections: list[Json] = self._get("/v1/collections")["collections"]
        self._paths = {one["name"].lower(): f"/v1/{one['kind']}s/{quote(one['name'], safe='')}" for one in collections}
        return collections

    def graph(self) -> Json:
        return self._get("/v1/graph")

    def explain(self, view: str, form: str = "json") -> Any:
        """A dict; or a text, if `form` is text, mermaid or dot."""
        path = f"/v1/views/{quote(view, safe='')}/explain"
        response = self._request("GET", path, params={"format": form})
        return msgspec.json.decode(response.content) if form == "json" else response.text

    def transactions(self, before: int | None = None, limit: int = 100) -> list[Json]:
        """The last transactions, newest first."""
        return self._get("/v1/transactions", before=before, limit=limit)["transactions"]  # type: ignore[no-any-return]

    def journal(self, before: int | None = None, limit: int = 100) -> list[Json]:
        """The input of each transaction, newest first."""
        return self._get("/v1/journal", before=before, limit=limit)["records"]  # type: ignore[no-any-return]

    def errors(self, limit: int = 100) -> Json:
        return self._get("/v1/errors", limit=limit)

    def checkpoints(self) -> list[Json]:
        """All checkpoints, newest first."""
        return self._get("/v1/checkpoints")["checkpoints"]  # type: ignore[no-any-return]

    def events(self) -> Generator[tuple[str, Json], None, None]:
        """Events as they happen: the name of each event, and its facts. Ends when the server stops."""
        with self._stream("GET", "/v1/events", headers={"Accept": EVENTS}, timeout=httpx.Timeout(60.0)) as response:
            name = ""
            for line in response.iter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, msgspec.json.decode(value)

    # Reading rows

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
        query = self._row_params(as_of, columns, where, params, limit)
        read = self._read(name, "rows", query)
        _warn(read.stale)
        return read.rows.replace_schema_metadata({"evertide.time": str(read.time)})

    def batches(self, name: str, *, as_of: int | None = None, columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """The content at one time, batch by batch: it need not fit into memory."""
        query = self._row_params(as_of, columns, "", (), None)
        with self._stream("GET", f"{self._path(name)}/rows", params=query, headers={"Accept": ARROW}) as response:
            _warn(_find_stale(response))
            yield from read_batches(response)[1]

    def changes(self, name: str, since: int, until: int | None = None, *, wait_s: float = 0.0) -> tuple[int, pa.Table]:
        """The changes after `since`: the time that they reach, and a table with `__time` and `__diff`."""
        read = self._read(name, "changes", _drop_none(since=since, until=until, wait_s=wait_s))
        _warn(read.stale)
        return read.time, read.rows

    def subscribe(
        self,
        name: str,
        since: int | None = None,
        *,
        follow: bool = True,
        on_stale: Callable[[str], None] | None = None,
    ) -> Generator[tuple[int, pa.Table], None, None]:
        """All rows as changes, unless `since` is given; then the changes of each transaction as it is committed.

        Each item is the first time that is not included yet, and a table of changes. `on_stale` is called with the
        text of a `StaleViewWarning` instead of the warning.
        """
        news, content = StaleNews(), ""
        if since is None:
            first = self._read(name, "rows", {})
            since, content = first.time, first.content
            _warn(news.find_news(first.stale), on_stale)
            yield since + 1, _as_changes(first.rows, since)
            if not follow:
                return
        while True:
            wait_s = _WAIT_S if follow else 0.0
            read = self._read(name, "changes", _drop_none(since=since, wait_s=wait_s, content=content or None))
            _warn(news.find_news(read.stale), on_stale)
            if read.time > since:
                yield read.time + 1, read.rows
            since, content = read.time, read.content
            if not follow:
                return

    def query(
        self,
        sql: str,
        *,
        as_of: int | None = None,
        engine: EngineChoice | str = EngineChoice.auto,
        limit: int | None = None,
        parameters: Sequence[Any] = (),
    ) -> Answer:
        body = {"sql": sql, **_drop_none(as_of=as_of, limit=limit), "engine": str(engine)}
        body |= {"parameters": to_json_value(list(parameters))} if parameters else {}
        headers = {"Accept": ARROW, "Content-Type": JSON}
        content = msgspec.json.encode(body)
        with marking_text(sql), self._stream("POST", "/v1/query", content=content, headers=headers) as response:
            pairs = (each.partition("=") for each in response.headers[FACTS_HEADER].split(", "))
            facts = {name: value for name, _, value in pairs}
            stale = _find_stale(response)
            _warn(stale)
            return Answer(
                int(facts["time"]),
                read_table(response),
                facts["is_truncated"] == "true",
                EngineChoice(facts["engine"]),
                float(facts["took_ms"]),
                stale,
            )

    # Writing rows

    def push(
        self, table: str, rows: Any = (), *, deletes: Any = (), producer: str = "", sequence: int | None = None
    ) -> Json:
        """Push rows as one transaction; returns its `time` and `rows`, and the `txid` that shapes list.

        A producer that numbers its pushes may repeat one: it is applied once. Raises `OutcomeUnknown` if no answer
        arrived: push again with the same producer and sequence. Without them, check first whether the rows are there.
        """
        return self._push("/v1/tables", table, rows, deletes, _producer_headers(producer, sequence))

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
        """Push the content of a file: `form` is csv, json (lines), parquet or arrow."""
        headers = {
            "Content-Type": FORMATS["ndjson" if form == "json" else form],
            **_producer_headers(producer, sequence),
        }
        path = f"/v1/tables/{quote(table, safe='')}/rows"
        params = {"deletes": "true"} if deletes else {}
        return self._call("POST", path, content=content, params=params, headers=headers)

    def transaction(self, producer: str = "", sequence: int | None = None) -> RemoteTransaction:
        """A transaction with rows for several tables, pushed in any number of requests."""
        begin = partial(self._call, "POST", "/v1/transactions/begin", headers=_producer_headers(producer, sequence))
        return RemoteTransaction(begin, self._push, partial(self._call, "POST"))

    # Control

    def checkpoint(self) -> Json:
        return self._call("POST", "/v1/checkpoints")

    def pause(self) -> Json:
        """Stop starting transactions until `resume`."""
        return self._call("POST", "/v1/pause")

    def resume(self) -> Json:
        return self._call("POST", "/v1/resume")

    def retry(self, view: str) -> Json:
        """Recompute a failed view, and wait for the result."""
        return self._call("POST", f"/v1/views/{quote(view, safe='')}/retry")

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # Internals

    def _read(self, name: str, what: str, query: Json) -> _ReadRows:
        """The rows or the changes of a collection."""
        path = f"{self._path(name)}/{what}"
        with self._stream("GET", path, params=query, headers={"Accept": ARROW}) as response:
            time, content = int(response.headers[TIME_HEADER]), response.headers.get(CONTENT_HEADER, "")
            return _ReadRows(read_table(response), time, content, _find_stale(response))

    def _push(
        self, below: str, table: str, rows: Any, deletes: Any, extra_headers: Mapping[str, str] | None = None
    ) -> Json:
        path = f"{below}/{quote(table, safe='')}/rows"
        where = f"table {table!r}"
        rows, deletes = from_frame(rows, where), from_frame(deletes, where)
        if isinstance(deletes, pa.Table):
            if not is_valid_utf8(deletes):
                raise InvalidInput(where="deletes", why="JSON cannot hold a key that is not valid UTF-8")
            deletes = deletes.to_pylist()
        if isinstance(rows, pa.Table):
            if len(deletes):
                raise InvalidInput(
                    where="deletes", why="a push of Arrow rows cannot have deletes; push the deletes first"
                )
            content, media = _encode_arrow(rows), ARROW
        else:
            body = {
                "rows": to_json_value(format_durations(list(rows))),
                "deletes": to_json_value(format_durations(list(deletes))),
            }
            content, media = msgspec.json.encode(body), JSON
        return self._call("POST", path, content=content, headers={"Content-Type": media, **(extra_headers or {})})

    def _path(self, name: str) -> str:
        if name.lower() not in self._paths:
            known = [one["name"] for one in self.collections()]
            if name.lower() not in self._paths:
                why = f"the pipeline has no such collection{list_names(name, sorted(known), 'it has')}"
                raise InvalidInput(where=f"collection {name!r}", why=why)
        return self._paths[name.lower()]

    @staticmethod
    def _row_params(
        as_of: int | None, columns: Sequence[str], where: str, params: Sequence[str], limit: int | None
    ) -> Json:
        query = _drop_none(as_of=as_of, limit=limit, columns=",".join(columns) or None, where=where or None)
        return {**query, **{f"params[{at}]": value for at, value in enumerate(params, 1)}}

    def _get(self, path: str, **params: Any) -> Json:
        return self._call("GET", path, params=_drop_none(**params))

    def _call(self, method: str, path: str = "", **options: Any) -> Json:
        return msgspec.json.decode(self._request(method, path, **options).content)  # type: ignore[no-any-return]

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        is_write = method != "GET"
        with translate_errors(f"{method} {self.url}{path}", is_write=is_write):
            return check_response(self._http.request(method, path, **options), is_write=is_write)

    @contextmanager
    def _stream(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        with (
            translate_errors(f"{method} {self.url}{path}", is_write=False),
            self._http.stream(method, path, **options) as response,
        ):
            yield check_response(response, is_write=False)


class _ReadRows(NamedTuple):
    rows: pa.Table
    time: int
    content: str
    """The id of the stored content; empty from a server of an earlier version."""
    stale: tuple[str, ...]


def _find_stale(response: httpx.Response) -> tuple[str, ...]:
    return read_stale_header(response.headers.get(STALE_HEADER, ""))


def _warn(stale: Iterable[str], on_stale: Callable[[str], None] | None = None) -> None:
    """Call `on_stale`, or warn at the line that called the method of `Client` that calls this."""
    if on_stale is None:
        warn_of_stale(stale)
    else:
        for sentence in stale:
            on_stale(make_warning_text(sentence))


def _producer_headers(producer: str, sequence: int | None) -> dict[str, str]:
    return {} if sequence is None else {"Evertide-Producer": producer, "Evertide-Sequence": str(sequence)}


def _drop_none(**values: Any) -> Json:
    return {name: value for name, value in values.items() if value is not None}


def _encode_arrow(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _as_changes(content: pa.Table, time: int) -> pa.Table:
    count = content.num_rows
    times = pa.repeat(pa.scalar(time, pa.int64()), count)
    return content.append_column(TIME, times).append_column(DIFF, pa.repeat(pa.scalar(1, pa.int64()), count))


def _trust_authority(authority: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(where=str(authority), why=f"cannot read a certificate from the file: {error}") from error


class _ResponseFile(io.RawIOBase):
    """The bytes of a response as a readable file."""

    def __init__(self, response: httpx.Response) -> None:
        self._blocks = response.iter_bytes()
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def read_batches(response: httpx.Response) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    try:
        reader = pa.ipc.open_stream(io.BufferedReader(_ResponseFile(response)))
    except pa.ArrowException as error:
        raise _make_error(response, error) from error
    return reader.schema, _read_batches(reader, response)


def _read_batches(reader: Any, response: httpx.Response) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    except (pa.ArrowException, OSError) as error:
        raise _make_error(response, error) from error


def _make_error(response: httpx.Response, error: Exception) -> ServerUnavailable:
    return ServerUnavailable(path=str(response.request.url), why=f"the answer ended before it was complete: {error}")


def read_table(response: httpx.Response) -> pa.Table:
    schema, batches = read_batches(response)
    return pa.Table.from_batches([*batches], schema)
