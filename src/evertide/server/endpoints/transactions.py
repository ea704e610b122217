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
from collections.abc import Callable, Iterator
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
from evertide.server.bodies.bodies import BODIES, BodyReader, PushedRows, check_rows, decode_body, read_media_type
from evertide.server.endpoints.push import (
    HEADERS,
    PushQuery,
    PushResult,
    RowsBody,
    answer_push,
    commit_push,
    parse_producer,
)
from evertide.server.http.answers import answer_struct, make_not_found
from evertide.server.http.endpoint import BYTES, Endpoint, NoQuery

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


class _OpenTransaction:
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
        self._open: dict[str, _OpenTransaction] = {}
        self._ended: OrderedDict[str, _OpenTransaction] = OrderedDict()
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._body_reader = BodyReader(pipeline.settings)

    def endpoints(self) -> Iterator[Endpoint]:
        area, path = "transactions", "/v1/transactions"
        refusals = (400, 404, 409, 413, 415, 422, 503)
        yield Endpoint(
            "POST", f"{path}/begin", area, "Begin a transaction.", self._begin, {JSON: BeginAnswer}, headers=HEADERS,
            refusals=(400, 422),
        )  # fmt: skip
        yield Endpoint(
            "GET",
            f"{path}/{{id}}",
            area,
            "The state of a transaction.",
            self._state,
            {JSON: TransactionAnswer},
            refusals=(404,),
        )
        yield Endpoint(
            "POST",
            f"{path}/{{id}}/tables/{{table}}/rows",
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
            "POST", f"{path}/{{id}}/commit", area, commit, self._commit, {JSON: PushResult}, statuses=waits,
            refusals=(404, 409, 504),
        )  # fmt: skip
        yield Endpoint(
            "POST",
            f"{path}/{{id}}/abort",
            area,
            "Drop the transaction.",
            self._abort,
            {JSON: TransactionAnswer},
            refusals=(404, 409),
        )

    def close(self) -> None:
        with self._lock:
            open_ = [*self._open.values()]
        for entry in open_:
            with entry.turn:
                if entry.state is TransactionState.OPEN:
                    self._drop(entry, TransactionState.ABORTED)

    async def _begin(self, request: Request, _: NoQuery) -> Response:
        producer, sequence = parse_producer(request.headers)
        return await self._in_thread(self._begin_transaction, producer, sequence)

    async def _state(self, request: Request, _: NoQuery) -> Response:
        return await self._in_thread(lambda: answer_struct(_answer(self._find(request.path_params["id"]))))

    async def _push(self, request: Request, query: PushQuery) -> Response:
        kind = read_media_type(request, *BODIES)
        entry = await anyio.to_thread.run_sync(self._find, request.path_params["id"], limiter=self._threads)
        content = await self._body_reader.read(request, kind)
        table, tables = request.path_params["table"], self._pipeline.engine.tables
        most = self._settings.request_decoded_bytes_max
        decode = partial(decode_body, content, kind, tables, table, most, is_delete=query.deletes)
        return await self._in_thread(self._push_rows, entry, table, len(content), decode)

    async def _commit(self, request: Request, _: NoQuery) -> Response:
        return await self._in_thread(lambda: self._commit_transaction(self._find(request.path_params["id"])))

    async def _abort(self, request: Request, _: NoQuery) -> Response:
        return await self._in_thread(lambda: self._abort_transaction(self._find(request.path_params["id"])))

    async def _in_thread(self, call: Any, *arguments: Any) -> Response:
        return await anyio.to_thread.run_sync(partial(call, *arguments), limiter=self._threads)

    def _begin_transaction(self, producer: str, sequence: int) -> Response:
        self._expire()
        entry = _OpenTransaction(self._runtime.new_id(), self._pipeline.transaction(producer, sequence))
        with self._lock:
            limit = self._settings.open_transactions_max
            if len(self._open) >= limit:
                why = f"{limit} transactions are open already (open_transactions_max); commit or abort one"
                raise LimitExceeded(where="POST /v1/transactions/begin", why=why)
            self._extend(entry)
            self._open[entry.id] = entry
        return answer_struct(BeginAnswer(entry.id, entry.expires_at_s))

    def _push_rows(self, entry: _OpenTransaction, table: str, size: int, decode: Callable[[], PushedRows]) -> Response:
        with entry.turn:
            self._check_open(entry)
            limit = self._settings.open_transaction_bytes_max
            if entry.bytes + size > limit:
                why = f"the transaction would exceed {limit} bytes (open_transaction_bytes_max); commit it first"
                raise LimitExceeded(where=f"transaction {entry.id!r}", why=why)
            body, before = decode(), entry.pushed.rows
            check_rows(body, self._pipeline.engine.tables, table, self._settings.request_decoded_bytes_max)
            entry.pushed.push(table, body.rows, deletes=body.deletes)
            entry.bytes += size
            self._extend(entry)
            rows = entry.pushed.rows
            return answer_struct(TransactionPushAnswer(rows - before, rows, entry.expires_at_s))

    def _commit_transaction(self, entry: _OpenTransaction) -> Response:
        with entry.turn:
            if entry.result is not None:
                return answer_push(msgspec.structs.replace(entry.result, is_repeated=True))
            self._check_open(entry)
            try:
                with entry.pushed:  # offers the rows; they are dropped if that fails
                    pass
                entry.result = commit_push(self._pipeline, entry.pushed)
            except OutcomeUnknown:
                self._end(entry, TransactionState.UNKNOWN)
                raise
            except Exception:  # after any other error, the rows are dropped
                self._end(entry, TransactionState.ABORTED)
                raise
            self._end(entry, TransactionState.COMMITTED)
            return answer_push(entry.result)

    def _abort_transaction(self, entry: _OpenTransaction) -> Response:
        with entry.turn:
            if entry.state is TransactionState.OPEN:
                self._drop(entry, TransactionState.ABORTED)
            elif entry.result is not None:
                why = f"the transaction was committed at time {entry.result.time}"
                raise NotAllowedNow(where=f"transaction {entry.id!r}", why=why)
            return answer_struct(_answer(entry))

    def _find(self, id_: str) -> _OpenTransaction:
        self._expire()
        with self._lock:
            entry = self._open.get(id_) or self._ended.get(id_)
        if entry is None:
            why = "no transaction has this id; open transactions are lost when the process ends, so begin another"
            raise make_not_found(f"transaction {id_!r}", why)
        return entry

    @staticmethod
    def _check_open(entry: _OpenTransaction) -> None:
        where = f"transaction {entry.id!r}"
        if entry.state is TransactionState.UNKNOWN:
            raise OutcomeUnknown(path=where, why="the commit was interrupted")
        if entry.state is not TransactionState.OPEN:
            raise NotAllowedNow(where=where, why=f"the transaction is already {entry.state}; begin another one")

    def _extend(self, entry: _OpenTransaction) -> None:
        entry.used_s = self._runtime.monotonic_s()
        entry.expires_at_s = self._runtime.wall_s() + self._settings.open_transaction_s

    def _expire(self) -> None:
        """Drop the transactions without a request for too long, except those with an active one."""
        latest_s = self._runtime.monotonic_s() - self._settings.open_transaction_s
        with self._lock:
            late = [entry for entry in self._open.values() if entry.used_s < latest_s]
        for entry in late:
            if entry.turn.acquire(blocking=False):
                try:
                    if entry.state is TransactionState.OPEN and entry.used_s < latest_s:
                        logger.warning("transaction %s expired: dropping its %d rows", entry.id, entry.pushed.rows)
                        self._drop(entry, TransactionState.EXPIRED)
                finally:
                    entry.turn.release()

    def _drop(self, entry: _OpenTransaction, state: TransactionState) -> None:
        entry.pushed.abort()
        self._end(entry, state)

    def _end(self, entry: _OpenTransaction, state: TransactionState) -> None:
        entry.state = state
        with self._lock:
            self._open.pop(entry.id, None)
            self._ended[entry.id] = entry
            while len(self._ended) > _ENDED_MAX:
                self._ended.popitem(last=False)


def _answer(entry: _OpenTransaction) -> TransactionAnswer:
    if entry.result is not None:
        return TransactionAnswer(entry.id, entry.state, entry.result.rows, entry.bytes, time=entry.result.time)
    if entry.state is TransactionState.OPEN:
        return TransactionAnswer(entry.id, entry.state, entry.pushed.rows, entry.bytes, expires_at_s=entry.expires_at_s)
    return TransactionAnswer(entry.id, entry.state, 0, entry.bytes)
