"""`/v1/events`: what happens, as it happens, as server-sent events.

    transaction   a transaction is in all collections
    state         the pipeline is in another state; also the first event of a stream
    checkpoint    a checkpoint was made
    problem       something is wrong that was not wrong before

1. A thread follows the commits, of whatever process, and looks at the state about once a second while somebody
   listens. It ends with the server.
2. Whoever does not read is let go when too much waits for him: he connects again, and reads what he missed by
   `/v1/transactions`. Nobody else waits for him.
3. If storage cannot be read, listeners get a `problem` of `events`, once, and a `state` when it can be read again. No
   transaction is left out: those that were committed meanwhile are told then.
4. A comment comes every 15 seconds, so that those between keep the connection. HEAD is answered without a stream.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from evertide.errors import EvertideError
from evertide.media import EVENTS
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.status.status import Status
from evertide.problem import Problem
from evertide.server.endpoints.history import History
from evertide.server.endpoints.journal import Trouble, troubles
from evertide.server.http.answers import headed
from evertide.server.http.endpoint import BYTES, Endpoint, NoQuery
from evertide.store.paths import COMMITTED
from evertide.threads.watched import WatchedThread

__all__ = ["Events"]

logger = logging.getLogger(__name__)

_WAIT_S = 0.5
_LOOK_EVERY_S = 1.0
_COMMENT_EVERY_S = 15.0
_WAITING = 1000
"""Events that wait for one who does not read."""
_LISTENERS = 200

Listener = asyncio.Queue[bytes | None]


class Events:
    def __init__(self, pipeline: Pipeline, history: History) -> None:
        self._pipeline = pipeline
        self._history = history
        self._meta = pipeline.storage.meta
        self._runtime = history.runtime
        self._listeners: dict[Listener, asyncio.AbstractEventLoop] = {}
        self._stopping = threading.Event()
        self._thread: WatchedThread | None = None
        self._looked_s = 0.0
        self._known: _Known | None = None
        self._is_away = False
        """Whether listeners were told that storage cannot be read."""

    def endpoints(self) -> Iterator[Endpoint]:
        yield Endpoint(
            "GET",
            "/v1/events",
            "journal",
            "What happens, as it happens.",
            self._stream,
            {EVENTS: BYTES},
            refusals=(503,),
        )

    def start(self) -> None:
        self._thread = WatchedThread("evertide-events", self._run)
        self._thread.start()

    def troubles(self) -> list[Problem]:
        return [] if self._thread is None else self._thread.troubles()

    def drain(self) -> None:
        """All streams end: the server is about to."""
        self._stopping.set()
        for listener, loop in [*self._listeners.items()]:
            _ring(loop, _let_go, listener)

    def stop(self) -> None:
        self.drain()
        if self._thread is not None:
            self._thread.join()

    async def _stream(self, request: Request, _: NoQuery) -> Response:
        headers = {"Cache-Control": "no-cache"}
        if request.method == "HEAD":
            return headed(EVENTS, headers)
        if len(self._listeners) >= _LISTENERS:
            raise HTTPException(503, f"{_LISTENERS} listen already", {"Retry-After": "5"})
        return StreamingResponse(self._events(), 200, headers, EVENTS)

    async def _events(self) -> AsyncIterator[bytes]:
        listener: Listener = asyncio.Queue(_WAITING)
        self._listeners[listener] = asyncio.get_running_loop()
        try:
            status = await run_in_threadpool(self._pipeline.status)
            yield _event("state", _state(status))
            while not self._stopping.is_set():
                try:
                    piece = await asyncio.wait_for(listener.get(), _COMMENT_EVERY_S)
                except TimeoutError:
                    piece = b": still here\n\n"
                if piece is None:
                    return
                yield piece
        finally:
            self._listeners.pop(listener, None)

    # In the thread

    def _run(self) -> None:
        thread = self._thread
        assert thread is not None  # noqa: S101 - it runs this
        wait_s = self._pipeline.settings.retry_wait_s
        while not self._stopping.is_set():
            with thread.retrying():
                try:
                    record = self._meta.head(COMMITTED)
                    self._tick()
                    self._meta.wait(COMMITTED, record.seqno if record is not None else 0, _WAIT_S)
                    wait_s = self._pipeline.settings.retry_wait_s
                    continue
                except EvertideError as error:
                    logger.warning("events are not told for the moment: %s", error)
                    self._tell_away(error)
                except Exception:  # listeners are told, and the thread's owner sees what it was
                    self._tell_away(EvertideError())
                    raise
            self._stopping.wait(wait_s)
            wait_s = min(2 * wait_s, self._pipeline.settings.retry_wait_max_s)

    def _tell_away(self, error: EvertideError) -> None:
        if not self._is_away:
            self._is_away, self._known = True, None
            now_s = self._runtime.wall_s()
            self._tell("problem", Trouble("events", "stalled", error.error_code, error.message, error.remedy, now_s))

    def _tick(self) -> None:
        if self._is_away:
            status = self._pipeline.status()
            if status.stored_at_s is None:
                self._is_away = False
                self._tell("state", _state(status))
        for transaction in self._history.follow():
            self._tell("transaction", transaction)
        now_s = self._runtime.monotonic_s()
        if not self._listeners:
            self._known = None
        elif self._known is None or now_s - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = now_s
            self._look(_Known.of(self._pipeline.status()))

    def _look(self, now: _Known) -> None:
        before, self._known = self._known, now
        if before is None:
            return
        if now.state != before.state:
            self._tell("state", now.state)
        for checkpoint in now.checkpoints:
            if checkpoint not in before.checkpoints:
                self._tell("checkpoint", checkpoint)
        for name, trouble in now.problems.items():
            if name not in before.problems:
                self._tell("problem", trouble)

    def _tell(self, name: str, facts: Any) -> None:
        piece = _event(name, facts)
        for listener, loop in [*self._listeners.items()]:
            _ring(loop, _offer, listener, piece)


class State(msgspec.Struct, frozen=True):
    state: str
    since_s: float
    why: str
    remedy: str


class Checkpoint(msgspec.Struct, frozen=True):
    number: int
    time: int


class _Known(msgspec.Struct, frozen=True):
    state: State
    checkpoints: tuple[Checkpoint, ...]
    problems: dict[tuple[str, str], Trouble]

    @classmethod
    def of(cls, status: Status) -> _Known:
        made = tuple(Checkpoint(number, time) for number, time in status.checkpoints)
        return cls(_state(status), made, {(one.of, one.why): one for one in troubles(status)})


def _state(status: Status) -> State:
    return State(status.state, status.since_s, status.why, status.remedy)


def _event(name: str, facts: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(facts) + b"\n\n"


def _ring(loop: asyncio.AbstractEventLoop, call: Any, *given: Any) -> None:
    if not loop.is_closed():
        try:
            loop.call_soon_threadsafe(call, *given)
        except RuntimeError:  # it was closed meanwhile: nobody listens any more
            logger.debug("the event loop is closed")


def _offer(listener: Listener, piece: bytes) -> None:
    if listener.full():
        _let_go(listener)
    else:
        listener.put_nowait(piece)


def _let_go(listener: Listener) -> None:
    while not listener.empty():
        listener.get_nowait()
    listener.put_nowait(None)
