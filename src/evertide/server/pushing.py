"""Rows that come by HTTP: `POST /v1/tables/{table}/rows` and `POST /v1/transactions`.

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

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from evertide.errors import EvertideError, InvalidInput
from evertide.pipeline.pipeline import Pipeline
from evertide.plain import plain_error
from evertide.server.answers import said
from evertide.server.bodies import ARROW, JSON, LINES, Given, content_of, given_in, given_of, type_of, whole_json
from evertide.sources.values import shown

__all__ = ["Pushing"]

TablesIn = Callable[[bytes], Mapping[str, Given]]
"""What a body holds, by table."""

_THREADS = 64
_PRODUCER_MAX = 200
_SEQUENCE_MAX = 2**63 - 1


class Pushing:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def rows(self, request: Request) -> Response:
        kind = type_of(request, JSON, LINES, ARROW)
        table: str = request.path_params["table"]
        return await self._answer(request, lambda content: {table: given_in(content, kind)})

    async def transaction(self, request: Request) -> Response:
        type_of(request, JSON)
        return await self._answer(request, lambda content: _tables(whole_json(content)))

    async def _answer(self, request: Request, tables_in: TablesIn) -> Response:
        producer, sequence = _named(request.headers)
        content = await content_of(request, self._pipeline.settings.request_bytes_max)
        push = partial(self._push, producer, sequence, content, tables_in)
        return await anyio.to_thread.run_sync(push, limiter=self._threads)

    def _push(self, producer: str, sequence: int, content: bytes, tables_in: TablesIn) -> Response:
        with self._pipeline.transaction(producer, sequence) as pushed:
            for table, one in tables_in(content).items():
                pushed.push(table, one.rows, deletes=one.deletes)
        answer = {"time": self._pipeline.time, "rows": pushed.rows}
        if not pushed.rows:
            return said(answer)
        try:
            answer["time"] = self._pipeline.take(pushed)
        except EvertideError as error:
            if pushed.time is None:
                raise
            return said({**answer, "time": pushed.time, "problem": plain_error(error)}, 202)
        return said({**answer, "is_repeated": True} if pushed.is_repeated else answer)


def _named(headers: Mapping[str, str]) -> tuple[str, int]:
    """Producer and sequence; an empty name if there is none."""
    producer, sequence = headers.get("evertide-producer", ""), headers.get("evertide-sequence", "")
    if not producer and not sequence:
        return "", 0
    if not 0 < len(producer) <= _PRODUCER_MAX:
        why = f"{shown(producer)} is no name of 1 to {_PRODUCER_MAX} characters; it goes with Evertide-Sequence"
        raise InvalidInput(where="header Evertide-Producer", why=why)
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) < 20 and int(sequence) <= _SEQUENCE_MAX):
        why = f"{shown(sequence)} is no whole number up to 2^63 - 1; it goes with Evertide-Producer"
        raise InvalidInput(where="header Evertide-Sequence", why=why)
    return producer, int(sequence)


def _tables(value: Any) -> dict[str, Given]:
    tables = value.get("tables") if isinstance(value, dict) and value.keys() == {"tables"} else None
    if not isinstance(tables, dict):
        raise InvalidInput(where="body", why=f'{shown(value)} is not {{"tables": {{name: {{"rows": [...]}}}}}}')
    return {name: given_of(one, f"body, table {name!r}") for name, one in tables.items()}
