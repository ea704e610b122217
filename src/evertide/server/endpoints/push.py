"""`POST /v1/tables/{name}/rows` and `POST /v1/transactions`: push rows, each request in one transaction.

1. The server answers 200 after the commit: the rows are in all views (I7).
2. If the rows are bound, but their transaction cannot be completed now, the answer is 202 with the problem. The rows
   are durable and become visible when the pipeline continues. The client must not send them again.
3. Any other answer means that nothing was written, except `outcome_unknown` (504).
4. A client that sends its name (`Evertide-Producer`) and a sequence number (`Evertide-Sequence`) may repeat a request
   after any answer: it takes effect once (J10). The client sends its requests one after the other, with increasing
   numbers.
5. Requests that arrive during a transaction share the next one. Each waits in one of 64 threads; other endpoints use
   other threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from evertide.errors import EvertideError, InvalidInput
from evertide.json_values import error_to_json
from evertide.media import JSON, TXID_HEADER
from evertide.pipeline.input.pushes import PushTransaction
from evertide.pipeline.pipeline import Pipeline
from evertide.server.bodies.bodies import (
    BODIES,
    BodyReader,
    PushedRows,
    check_rows,
    decode_body,
    decode_json_body,
    parse_rows,
    read_media_type,
)
from evertide.server.http.answers import answer_struct
from evertide.server.http.endpoint import BYTES, Endpoint, NoQuery
from evertide.sources.values.values import show_value

DecodeTables = Callable[[bytes], Mapping[str, PushedRows]]
"""Decodes a body; the rows are by table."""

HEADERS = {
    "Evertide-Producer": "The name of the producer, if it may repeat the request; needs Evertide-Sequence.",
    "Evertide-Sequence": "The number of the request; a producer increases it with each request.",
}

_THREADS = 64
_PRODUCER_MAX = 200
_SEQUENCE_MAX = 2**63 - 1


class PushQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    deletes: Annotated[bool, msgspec.Meta(description="The body has keys, or rows, to delete.")] = False


class PushResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The transaction of the rows."""

    time: int
    rows: int
    txid: int | None
    """The number that shapes list in `txids` with the changes of these rows; null if nothing changed."""
    is_repeated: bool = False
    """Whether an earlier request with the same number took effect instead."""
    problem: dict[str, Any] | None = None
    """Why the rows are not visible yet."""


class RowsBody(msgspec.Struct, frozen=True):
    """Rows of one table. A row is an object; a delete is an object or the key itself."""

    rows: list[Any] = []
    deletes: list[Any] = []


class TransactionBody(msgspec.Struct, frozen=True):
    tables: dict[str, RowsBody | list[Any]]


class PushEndpoints:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._body_reader = BodyReader(pipeline.settings)

    def endpoints(self) -> Iterator[Endpoint]:
        area, answers, refusals = "rows", {JSON: PushResult}, (400, 409, 413, 415, 503, 504)
        waits = {202: "The rows are durable, and become visible when the pipeline continues."}
        yield Endpoint(
            "POST",
            "/v1/tables/{name}/rows",
            area,
            "Push rows, or keys to delete, into one table, in one transaction.",
            self._rows,
            answers,
            PushQuery,
            bodies={**dict.fromkeys(BODIES, BYTES), JSON: RowsBody | list[Any]},
            headers=HEADERS,
            statuses=waits,
            refusals=refusals,
        )
        yield Endpoint(
            "POST",
            "/v1/transactions",
            area,
            "Push rows into several tables, in one transaction.",
            self._transaction,
            answers,
            bodies={JSON: TransactionBody},
            headers=HEADERS,
            statuses=waits,
            refusals=refusals,
        )

    async def _rows(self, request: Request, query: PushQuery) -> Response:
        kind = read_media_type(request, *BODIES)
        table, tables = request.path_params["name"], self._pipeline.engine.tables
        most = self._pipeline.settings.request_decoded_bytes_max
        read = partial(decode_body, kind=kind, tables=tables, table=table, bytes_max=most, is_delete=query.deletes)
        return await self._answer(request, kind, lambda content: {table: read(content)})

    async def _transaction(self, request: Request, _: NoQuery) -> Response:
        kind = read_media_type(request, JSON)
        return await self._answer(request, kind, lambda content: _parse_tables(decode_json_body(content)))

    async def _answer(self, request: Request, kind: str, decode_tables: DecodeTables) -> Response:
        producer, sequence = parse_producer(request.headers)
        content = await self._body_reader.read(request, kind)
        push = partial(self._push, producer, sequence, content, decode_tables)
        return await anyio.to_thread.run_sync(push, limiter=self._threads)

    def _push(self, producer: str, sequence: int, content: bytes, decode_tables: DecodeTables) -> Response:
        with self._pipeline.transaction(producer, sequence) as pushed:
            most = self._pipeline.settings.request_decoded_bytes_max
            for table, rows in decode_tables(content).items():
                check_rows(rows, self._pipeline.engine.tables, table, most)
                pushed.push(table, rows.rows, deletes=rows.deletes)
        return answer_push(commit_push(self._pipeline, pushed))


def answer_push(result: PushResult) -> Response:
    headers = {} if result.txid is None else {TXID_HEADER: str(result.txid)}
    return answer_struct(result, 202 if result.problem else 200, headers)


def commit_push(pipeline: Pipeline, pushed: PushTransaction) -> PushResult:
    """Commit the rows that were offered. An error means that nothing was written, or that the outcome is unknown."""
    if not pushed.rows:
        return PushResult(pipeline.time, 0, None)
    try:
        time = pipeline.take(pushed)
    except EvertideError as error:
        if pushed.time is None:
            raise
        return PushResult(pushed.time, pushed.rows, pipeline.txid_of(pushed), problem=error_to_json(error))
    return PushResult(time, pushed.rows, pipeline.txid_of(pushed), is_repeated=pushed.is_repeated)


def parse_producer(headers: Mapping[str, str]) -> tuple[str, int]:
    """Producer and sequence; the name is empty if the request has none."""
    producer, sequence = headers.get("evertide-producer", ""), headers.get("evertide-sequence", "")
    if not producer and not sequence:
        return "", 0
    if not 0 < len(producer) <= _PRODUCER_MAX:
        why = f"expected a name of 1 to {_PRODUCER_MAX} characters beside Evertide-Sequence, not {show_value(producer)}"
        raise InvalidInput(where="header Evertide-Producer", why=why)
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) < 20 and int(sequence) <= _SEQUENCE_MAX):
        why = f"expected an integer from 0 to 2^63 - 1 beside Evertide-Producer, not {show_value(sequence)}"
        raise InvalidInput(where="header Evertide-Sequence", why=why)
    return producer, int(sequence)


def _parse_tables(value: Any) -> dict[str, PushedRows]:
    tables = value.get("tables") if isinstance(value, dict) and value.keys() == {"tables"} else None
    if not isinstance(tables, dict):
        raise InvalidInput(
            where="body", why=f'expected {{"tables": {{name: {{"rows": [...]}}}}}}, not {show_value(value)}'
        )
    return {name: parse_rows(rows, f"body, table {name!r}") for name, rows in tables.items()}
