"""Transactions that a client begins, fills and ends, each by a request of its own: `/v1/transactions/begin` and so on.

1. Nothing of one shows anywhere before its commit; then all of it does, at once (I4). An abort, or its end for any
   other reason, drops it.
2. It is kept by this process, and lost with it: whoever asks then is told so, by 404, and begins again.
3. There are so many at most, each takes so many bytes at most, and is kept for so long after its client was last heard
   of. What is over any of these is refused, and said.
4. How one ended is remembered for a while: a commit that is asked for again, because its answer was lost, is answered
   the same.
5. Requests of one transaction are taken one after the other.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
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
from evertide.server.bodies.bodies import BODIES, Intake, given_in, type_of
from evertide.server.endpoints.push import HEADERS, PushQuery, RowsBody, Taken, answer_of, named, taken
from evertide.server.http.answers import no_such, told
from evertide.server.http.endpoint import BYTES, Endpoint, NoQuery

__all__ = ["OpenTransactions"]

logger = logging.getLogger(__name__)

_THREADS = 32
_REMEMBERED = 1000
_UNKNOWN = "unknown"


class Begun(msgspec.Struct, frozen=True):
    id: str
    expires_at_s: float


class Opened(msgspec.Struct, frozen=True, omit_defaults=True):
    """A transaction that was begun."""

    id: str
    state: str
    """`open`, `committed`, `aborted`, `expired`, or `unknown`: nobody knows whether it was committed."""
    rows: int
    bytes: int
    expires_at_s: float | None = None
    time: int | None = None


class Pushed(msgspec.Struct, frozen=True):
    """Rows of this request, and of all so far."""

    rows: int
    total: int
    expires_at_s: float


class _Open:
    def __init__(self, id_: str, pushed: PushTransaction) -> None:
        self.id = id_
        self.pushed = pushed
        self.turn = threading.Lock()
        self.bytes = 0
        self.heard_s = 0.0
        self.expires_at_s = 0.0
        self.ended: Taken | str | None = None
        """How it ended: what was committed, or a word."""


class OpenTransactions:
    """The endpoints, and the transactions that are open."""

    def __init__(self, pipeline: Pipeline, runtime: Runtime) -> None:
        self._pipeline = pipeline
        self._runtime = runtime
        self._settings = pipeline.settings
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}
        self._ended: OrderedDict[str, _Open] = OrderedDict()
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._intake = Intake(pipeline.settings)

    def endpoints(self) -> Iterator[Endpoint]:
        area, at = "transactions", "/v1/transactions"
        refusals = (400, 404, 409, 413, 415, 422, 503)
        yield Endpoint(
            "POST", f"{at}/begin", area, "Begin a transaction.", self._begin, {JSON: Begun}, headers=HEADERS,
            refusals=(400, 422),
        )  # fmt: skip
        yield Endpoint(
            "GET", f"{at}/{{id}}", area, "What became of a transaction.", self._look, {JSON: Opened}, refusals=(404,)
        )
        yield Endpoint(
            "POST",
            f"{at}/{{id}}/tables/{{table}}/rows",
            area,
            "Rows, or keys to delete, for a table: part of the transaction.",
            self._push,
            {JSON: Pushed},
            PushQuery,
            bodies={**dict.fromkeys(BODIES, BYTES), JSON: RowsBody | list[Any]},
            refusals=refusals,
        )
        waits = {202: "The rows are durable, and show once the pipeline goes on."}
        commit = "All of it becomes visible at once."
        yield Endpoint(
            "POST", f"{at}/{{id}}/commit", area, commit, self._commit, {JSON: Taken}, statuses=waits,
            refusals=(404, 409, 504),
        )  # fmt: skip
        yield Endpoint(
            "POST", f"{at}/{{id}}/abort", area, "Forget all of it.", self._abort, {JSON: Opened}, refusals=(404, 409)
        )

    def close(self) -> None:
        """What is still open is dropped."""
        with self._lock:
            left = [*self._open.values()]
        for one in left:
            with one.turn:
                if one.ended is None:
                    self._drop(one, "aborted")

    async def _begin(self, request: Request, _: NoQuery) -> Response:
        producer, sequence = named(request.headers)
        return await self._aside(self._begun, producer, sequence)

    async def _look(self, request: Request, _: NoQuery) -> Response:
        return await self._aside(lambda: told(_told(self._found(request.path_params["id"]))))

    async def _push(self, request: Request, query: PushQuery) -> Response:
        kind = type_of(request, *BODIES)
        one = await anyio.to_thread.run_sync(self._found, request.path_params["id"], limiter=self._threads)
        content = await self._intake.content(request, kind)
        return await self._aside(self._pushed, one, request.path_params["table"], kind, content, query.deletes)

    async def _commit(self, request: Request, _: NoQuery) -> Response:
        return await self._aside(lambda: self._committed(self._found(request.path_params["id"])))

    async def _abort(self, request: Request, _: NoQuery) -> Response:
        return await self._aside(lambda: self._aborted(self._found(request.path_params["id"])))

    async def _aside(self, call: Any, *given: Any) -> Response:
        return await anyio.to_thread.run_sync(partial(call, *given), limiter=self._threads)

    # In threads

    def _begun(self, producer: str, sequence: int) -> Response:
        self._sweep()
        one = _Open(self._runtime.new_id(), self._pipeline.transaction(producer, sequence))
        with self._lock:
            most = self._settings.open_transactions_max
            if len(self._open) >= most:
                why = f"{most} transactions are open, which is all that there may be: commit or abort one"
                raise LimitExceeded(where="POST /v1/transactions/begin", why=why)
            self._heard(one)
            self._open[one.id] = one
        return told(Begun(one.id, one.expires_at_s))

    def _pushed(self, one: _Open, table: str, kind: str, content: bytes, is_delete: bool) -> Response:  # noqa: FBT001
        with one.turn:
            self._check_open(one)
            if one.bytes + len(content) > self._settings.open_transaction_bytes_max:
                most = self._settings.open_transaction_bytes_max
                why = f"it would take more than {most} bytes: commit it, and begin another one"
                raise LimitExceeded(where=f"transaction {one.id!r}", why=why)
            given = given_in(content, kind, self._pipeline.engine.tables, table, is_delete=is_delete)
            before = one.pushed.rows
            one.pushed.push(table, given.rows, deletes=given.deletes)
            one.bytes += len(content)
            self._heard(one)
            return told(Pushed(one.pushed.rows - before, one.pushed.rows, one.expires_at_s))

    def _committed(self, one: _Open) -> Response:
        with one.turn:
            if isinstance(one.ended, Taken):
                return told(msgspec.structs.replace(one.ended, is_repeated=True))
            self._check_open(one)
            try:
                with one.pushed:  # offers it up; it is dropped if that fails
                    pass
                found = taken(self._pipeline, one.pushed)
            except OutcomeUnknown:
                self._end(one, _UNKNOWN)
                raise
            except Exception:  # whatever it was, its rows are dropped
                self._end(one, "aborted")
                raise
            self._end(one, found)
            return answer_of(self._pipeline, found)

    def _aborted(self, one: _Open) -> Response:
        with one.turn:
            if one.ended is None:
                self._drop(one, "aborted")
            elif isinstance(one.ended, Taken):
                why = f"the transaction was committed at time {one.ended.time}"
                raise NotAllowedNow(where=f"transaction {one.id!r}", why=why)
            return told(_told(one))

    # Inside

    def _found(self, id_: str) -> _Open:
        self._sweep()
        with self._lock:
            found = self._open.get(id_) or self._ended.get(id_)
        if found is None:
            why = "there is none: begin one; those that were open are lost when the process ends"
            raise no_such(f"transaction {id_!r}", why)
        return found

    @staticmethod
    def _check_open(one: _Open) -> None:
        if one.ended is not None:
            where, how = f"transaction {one.id!r}", "committed" if isinstance(one.ended, Taken) else one.ended
            if how == _UNKNOWN:
                raise OutcomeUnknown(path=where, why="the commit was interrupted")
            raise NotAllowedNow(where=where, why=f"the transaction is already {how}; begin another one")

    def _heard(self, one: _Open) -> None:
        one.heard_s = self._runtime.monotonic_s()
        one.expires_at_s = self._runtime.wall_s() + self._settings.open_transaction_s

    def _sweep(self) -> None:
        """Ends those that nobody was heard of for too long; one that is just being used is not among them."""
        latest_s = self._runtime.monotonic_s() - self._settings.open_transaction_s
        with self._lock:
            late = [one for one in self._open.values() if one.heard_s < latest_s]
        for one in late:
            if one.turn.acquire(blocking=False):
                try:
                    if one.ended is None and one.heard_s < latest_s:
                        logger.warning("transaction %s expired, and its %d rows are dropped", one.id, one.pushed.rows)
                        self._drop(one, "expired")
                finally:
                    one.turn.release()

    def _drop(self, one: _Open, how: str) -> None:
        one.pushed.abort()
        self._end(one, how)

    def _end(self, one: _Open, how: Taken | str) -> None:
        one.ended = how
        with self._lock:
            self._open.pop(one.id, None)
            self._ended[one.id] = one
            while len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)


def _told(one: _Open) -> Opened:
    ended, rows = one.ended, one.pushed.rows
    if isinstance(ended, Taken):
        return Opened(one.id, "committed", ended.rows, one.bytes, time=ended.time)
    if ended is not None:
        return Opened(one.id, ended, 0, one.bytes)
    return Opened(one.id, "open", rows, one.bytes, expires_at_s=one.expires_at_s)
