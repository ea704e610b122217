"""`/v1/transactions/begin` and so on: transactions that a client fills and commits in several requests.

1. The rows become visible at the commit, all at once (I4). If the transaction ends in any other way, they are dropped.
2. An open transaction is lost if this process ends; a later request for it gets 404, and the client begins again.
3. At most `open_transactions_max` transactions are open; each holds at most `open_transaction_bytes_max` bytes, and
   expires `open_transaction_s` seconds after its last request.
4. The outcome of the last 1,000 transactions is kept: a repeated commit gets the same answer.
5. The requests of one transaction run one after the other.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from evertide.errors import LimitExceeded, NotAllowedNow, OutcomeUnknown
from evertide.media import JSON
from evertide.pipeline.input.pushes import PushTransaction
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import Runtime
from evertide.server.bodies.bodies import BODIES, BodyReader, check_rows, decode_body, media_type_of
from evertide.server.endpoints.push import (
    HEADERS,
    PushQuery,
    PushResult,
    RowsBody,
    commit_push,
    parse_producer,
    push_response,
)
from evertide.server.http.answers import make_not_found, struct_response
from evertide.server.http.endpoint import BYTES, Endpoint, NoQuery

__all__ = ["OpenTransactions"]

logger = logging.getLogger(__name__)

_THREADS = 32
_ENDED_MAX = 1000


class TransactionState(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    """The commit was interrupted: the rows may or may not be visible."""


class BeginAnswer(msgspec.Struct, frozen=True):
    id: str
    expires_at_s: float


class TransactionAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    state: TransactionState
    rows: int
    bytes: int
    expires_at_s: float | None = None
    time: int | None = None


class TransactionPushAnswer(msgspec.Struct, frozen=True):
    """The rows of this request, and of the transaction so far."""

    rows: int
    total: int
    expires_at_s: float


class _Open:
    def __init__(self, id_: str, pushed: PushTransaction) -> None:
        self.id = id_
        self.pushed = pushed
        self.turn = threading.Lock()
        self.bytes = 0
        self.used_s = 0.0
        self.expires_at_s = 0.0
        self.state = TransactionState.OPEN
        self.result: PushResult | None = None
        """The result of the commit."""


class OpenTransactions:
    """The endpoints, and the open transactions."""

    def __init__(self, pipeline: Pipeline, runtime: Runtime) -> None:
        self._pipeline = pipeline
        self._runtime = runtime
        self._settings = pipeline.settings
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}
        self._ended: OrderedDict[str, _Open] = OrderedDict()
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._body_reader = BodyReader(pipeline.settings)

    def endpoints(self) -> Iterator[Endpoint]:
        area, at = "transactions", "/v1/transactions"
        refusals = (400, 404, 409, 413, 415, 422, 503)
        yield Endpoint(
            "POST", f"{at}/begin", area, "Begin a transaction.", self._begin, {JSON: BeginAnswer}, headers=HEADERS,
            refusals=(400, 422),
        )  # fmt: skip
        yield Endpoint(
            "GET",
            f"{at}/{{id}}",
            area,
            "The state of a transaction.",
            self._state,
            {JSON: TransactionAnswer},
            refusals=(404,),
        )
        yield Endpoint(
            "POST",
            f"{at}/{{id}}/tables/{{table}}/rows",
            area,
            "Push rows, or keys to delete, into a table, as part of the transaction.",
            self._push,
            {JSON: TransactionPushAnswer},
            PushQuery,
            bodies={**dict.fromkeys(BODIES, BYTES), JSON: RowsBody | list[Any]},
            refusals=refusals,
        )
        waits = {202: "The rows are durable, and become visible when the pipeline continues."}
        commit = "Commit the transaction: its rows become visible at once."
        yield Endpoint(
            "POST", f"{at}/{{id}}/commit", area, commit, self._commit, {JSON: PushResult}, statuses=waits,
            refusals=(404, 409, 504),
        )  # fmt: skip
        yield Endpoint(
            "POST",
            f"{at}/{{id}}/abort",
            area,
            "Drop the transaction.",
            self._abort,
            {JSON: TransactionAnswer},
            refusals=(404, 409),
        )

    def close(self) -> None:
        with self._lock:
            open_ = [*self._open.values()]
        for one in open_:
            with one.turn:
                if one.state is TransactionState.OPEN:
                    self._drop(one, TransactionState.ABORTED)

    async def _begin(self, request: Request, _: NoQuery) -> Response:
        producer, sequence = parse_producer(request.headers)
        return await self._in_thread(self._begin_transaction, producer, sequence)

    async def _state(self, request: Request, _: NoQuery) -> Response:
        return await self._in_thread(lambda: struct_response(_answer(self._find(request.path_params["id"]))))

    async def _push(self, request: Request, query: PushQuery) -> Response:
        kind = media_type_of(request, *BODIES)
        one = await anyio.to_thread.run_sync(self._find, request.path_params["id"], limiter=self._threads)
        content = await self._body_reader.read(request, kind)
        return await self._in_thread(self._push_rows, one, request.path_params["table"], kind, content, query.deletes)

    async def _commit(self, request: Request, _: NoQuery) -> Response:
        return await self._in_thread(lambda: self._commit_transaction(self._find(request.path_params["id"])))

    async def _abort(self, request: Request, _: NoQuery) -> Response:
        return await self._in_thread(lambda: self._abort_transaction(self._find(request.path_params["id"])))

    async def _in_thread(self, call: Any, *arguments: Any) -> Response:
        return await anyio.to_thread.run_sync(partial(call, *arguments), limiter=self._threads)

    def _begin_transaction(self, producer: str, sequence: int) -> Response:
        self._expire()
        one = _Open(self._runtime.new_id(), self._pipeline.transaction(producer, sequence))
        with self._lock:
            most = self._settings.open_transactions_max
            if len(self._open) >= most:
                why = f"{most} transactions are open already (open_transactions_max); commit or abort one"
                raise LimitExceeded(where="POST /v1/transactions/begin", why=why)
            self._extend(one)
            self._open[one.id] = one
        return struct_response(BeginAnswer(one.id, one.expires_at_s))

    def _push_rows(self, one: _Open, table: str, kind: str, content: bytes, is_delete: bool) -> Response:  # noqa: FBT001
        with one.turn:
            self._check_open(one)
            if one.bytes + len(content) > self._settings.open_transaction_bytes_max:
                most = self._settings.open_transaction_bytes_max
                why = f"the transaction would exceed {most} bytes (open_transaction_bytes_max); commit it first"
                raise LimitExceeded(where=f"transaction {one.id!r}", why=why)
            most = self._settings.request_decoded_bytes_max
            body = decode_body(content, kind, self._pipeline.engine.tables, table, most, is_delete=is_delete)
            check_rows(body, self._pipeline.engine.tables, table, most)
            before = one.pushed.rows
            one.pushed.push(table, body.rows, deletes=body.deletes)
            one.bytes += len(content)
            self._extend(one)
            return struct_response(TransactionPushAnswer(one.pushed.rows - before, one.pushed.rows, one.expires_at_s))

    def _commit_transaction(self, one: _Open) -> Response:
        with one.turn:
            if one.result is not None:
                return struct_response(msgspec.structs.replace(one.result, is_repeated=True))
            self._check_open(one)
            try:
                with one.pushed:  # offers the rows; they are dropped if that fails
                    pass
                one.result = commit_push(self._pipeline, one.pushed)
            except OutcomeUnknown:
                self._end(one, TransactionState.UNKNOWN)
                raise
            except Exception:  # after any other error, the rows are dropped
                self._end(one, TransactionState.ABORTED)
                raise
            self._end(one, TransactionState.COMMITTED)
            return push_response(self._pipeline, one.result)

    def _abort_transaction(self, one: _Open) -> Response:
        with one.turn:
            if one.state is TransactionState.OPEN:
                self._drop(one, TransactionState.ABORTED)
            elif one.result is not None:
                why = f"the transaction was committed at time {one.result.time}"
                raise NotAllowedNow(where=f"transaction {one.id!r}", why=why)
            return struct_response(_answer(one))

    def _find(self, id_: str) -> _Open:
        self._expire()
        with self._lock:
            one = self._open.get(id_) or self._ended.get(id_)
        if one is None:
            why = "the server does not know it; open transactions are lost when the process ends, so begin another one"
            raise make_not_found(f"transaction {id_!r}", why)
        return one

    @staticmethod
    def _check_open(one: _Open) -> None:
        where = f"transaction {one.id!r}"
        if one.state is TransactionState.UNKNOWN:
            raise OutcomeUnknown(path=where, why="the commit was interrupted")
        if one.state is not TransactionState.OPEN:
            raise NotAllowedNow(where=where, why=f"the transaction is already {one.state}; begin another one")

    def _extend(self, one: _Open) -> None:
        one.used_s = self._runtime.monotonic_s()
        one.expires_at_s = self._runtime.wall_s() + self._settings.open_transaction_s

    def _expire(self) -> None:
        """Drop the transactions without a request for too long, except those with an active one."""
        latest_s = self._runtime.monotonic_s() - self._settings.open_transaction_s
        with self._lock:
            late = [one for one in self._open.values() if one.used_s < latest_s]
        for one in late:
            if one.turn.acquire(blocking=False):
                try:
                    if one.state is TransactionState.OPEN and one.used_s < latest_s:
                        logger.warning("transaction %s expired: dropping its %d rows", one.id, one.pushed.rows)
                        self._drop(one, TransactionState.EXPIRED)
                finally:
                    one.turn.release()

    def _drop(self, one: _Open, state: TransactionState) -> None:
        one.pushed.abort()
        self._end(one, state)

    def _end(self, one: _Open, state: TransactionState) -> None:
        one.state = state
        with self._lock:
            self._open.pop(one.id, None)
            self._ended[one.id] = one
            while len(self._ended) > _ENDED_MAX:
                self._ended.popitem(last=False)


def _answer(one: _Open) -> TransactionAnswer:
    if one.result is not None:
        return TransactionAnswer(one.id, one.state, one.result.rows, one.bytes, time=one.result.time)
    if one.state is TransactionState.OPEN:
        return TransactionAnswer(one.id, one.state, one.pushed.rows, one.bytes, expires_at_s=one.expires_at_s)
    return TransactionAnswer(one.id, one.state, 0, one.bytes)
