"""Rows that come by HTTP: `POST /v1/tables/{name}/rows` and `POST /v1/transactions`.

1. An answer is given after the commit: 200, and the rows are in all views (I7).
2. If the rows are bound, and their transaction cannot be completed now, the answer is 202, with the problem: they are
   durable, and show once the pipeline goes on. Nobody may send them again.
3. Any other answer means that nothing of the request was taken, but for `outcome_unknown` (504).
4. A client that names itself (`Evertide-Producer`) and numbers its requests (`Evertide-Sequence`) may repeat one
   whatever was answered: it is taken once (J10). It sends one after the other, with numbers that go up.
5. Requests that come while a transaction is made are taken together by the next one. Each waits in a thread of its
   own; there are so many of these, and others that look on.
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
from evertide.media import JSON
from evertide.pipeline.input.pushes import PushTransaction
from evertide.pipeline.pipeline import Pipeline
from evertide.server.bodies.bodies import BODIES, Given, Intake, given_in, given_of, type_of, whole_json
from evertide.server.http.answers import told
from evertide.server.http.endpoint import BYTES, Endpoint, NoQuery
from evertide.sources.values.values import show_value

__all__ = ["HEADERS", "TXID_HEADER", "PushQuery", "Pushing", "Taken", "answer_of", "named", "taken"]

TablesIn = Callable[[bytes], Mapping[str, Given]]
"""What a body holds, by table."""

HEADERS = {
    "Evertide-Producer": "Who sends it, if it may be sent again; with Evertide-Sequence.",
    "Evertide-Sequence": "The number of the request, which goes up from one to the next of a producer.",
}

TXID_HEADER = "Evertide-Txid"
"""The number that live shapes tell of the transaction in `txids`."""
_THREADS = 64
_PRODUCER_MAX = 200
_SEQUENCE_MAX = 2**63 - 1


class PushQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    deletes: Annotated[bool, msgspec.Meta(description="The body holds keys, or rows, to delete.")] = False


class Taken(msgspec.Struct, frozen=True, omit_defaults=True):
    """The transaction that holds the rows."""

    time: int
    rows: int
    is_repeated: bool = False
    """It was taken before, and not again."""
    problem: dict[str, Any] | None = None
    """Why the rows do not show yet."""


class RowsBody(msgspec.Struct, frozen=True):
    """For one table. Rows are objects, and so are deletes, or the key itself."""

    rows: list[Any] = []
    deletes: list[Any] = []


class TransactionBody(msgspec.Struct, frozen=True):
    tables: dict[str, RowsBody | list[Any]]


class Pushing:
    """The endpoints."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._intake = Intake(pipeline.settings)

    def endpoints(self) -> Iterator[Endpoint]:
        area, answers, refusals = "rows", {JSON: Taken}, (400, 409, 413, 415, 503, 504)
        waits = {202: "The rows are durable, and show once the pipeline goes on."}
        yield Endpoint(
            "POST",
            "/v1/tables/{name}/rows",
            area,
            "Rows, or keys to delete, for one table: one transaction.",
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
            "Rows for several tables that belong together: one transaction.",
            self._transaction,
            answers,
            bodies={JSON: TransactionBody},
            headers=HEADERS,
            statuses=waits,
            refusals=refusals,
        )

    async def _rows(self, request: Request, query: PushQuery) -> Response:
        kind = type_of(request, *BODIES)
        table, tables = request.path_params["name"], self._pipeline.engine.tables
        read = partial(given_in, kind=kind, tables=tables, table=table, is_delete=query.deletes)
        return await self._answer(request, kind, lambda content: {table: read(content)})

    async def _transaction(self, request: Request, _: NoQuery) -> Response:
        kind = type_of(request, JSON)
        return await self._answer(request, kind, lambda content: _tables(whole_json(content)))

    async def _answer(self, request: Request, kind: str, tables_in: TablesIn) -> Response:
        producer, sequence = named(request.headers)
        content = await self._intake.content(request, kind)
        push = partial(self._push, producer, sequence, content, tables_in)
        return await anyio.to_thread.run_sync(push, limiter=self._threads)

    def _push(self, producer: str, sequence: int, content: bytes, tables_in: TablesIn) -> Response:
        with self._pipeline.transaction(producer, sequence) as pushed:
            for table, one in tables_in(content).items():
                pushed.push(table, one.rows, deletes=one.deletes)
        return answer_of(self._pipeline, taken(self._pipeline, pushed))


def answer_of(pipeline: Pipeline, found: Taken) -> Response:
    headers = {TXID_HEADER: str(pipeline.txid_of(found.time))}
    return told(found, 202 if found.problem else 200, headers)


def taken(pipeline: Pipeline, pushed: PushTransaction) -> Taken:
    """What was offered up is committed. An error says that it was not taken, or that it is not known."""
    if not pushed.rows:
        return Taken(pipeline.time, 0)
    try:
        time = pipeline.take(pushed)
    except EvertideError as error:
        if pushed.time is None:
            raise
        return Taken(pushed.time, pushed.rows, problem=error_to_json(error))
    return Taken(time, pushed.rows, is_repeated=pushed.is_repeated)


def named(headers: Mapping[str, str]) -> tuple[str, int]:
    """Producer and sequence; an empty name if there is none."""
    producer, sequence = headers.get("evertide-producer", ""), headers.get("evertide-sequence", "")
    if not producer and not sequence:
        return "", 0
    if not 0 < len(producer) <= _PRODUCER_MAX:
        why = f"{show_value(producer)} is no name of 1 to {_PRODUCER_MAX} characters; it goes with Evertide-Sequence"
        raise InvalidInput(where="header Evertide-Producer", why=why)
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) < 20 and int(sequence) <= _SEQUENCE_MAX):
        why = f"{show_value(sequence)} is no whole number up to 2^63 - 1; it goes with Evertide-Producer"
        raise InvalidInput(where="header Evertide-Sequence", why=why)
    return producer, int(sequence)


def _tables(value: Any) -> dict[str, Given]:
    tables = value.get("tables") if isinstance(value, dict) and value.keys() == {"tables"} else None
    if not isinstance(tables, dict):
        raise InvalidInput(where="body", why=f'{show_value(value)} is not {{"tables": {{name: {{"rows": [...]}}}}}}')
    return {name: given_of(one, f"body, table {name!r}") for name, one in tables.items()}
