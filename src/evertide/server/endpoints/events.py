"""`/v1/events`: changes of the pipeline as server-sent events.

    transaction   a transaction was committed
    state         the state of the pipeline changed; also the first event of a stream
    checkpoint    a checkpoint was made
    problem       a new problem

1. A thread follows the commits of all processes and, while a client listens, reads the status once a second. It ends
   with the server.
2. The stream of a client that does not read ends when 1,000 events wait for it. The client reconnects and reads what it
   missed by `/v1/transactions`. Other clients are not delayed.
3. If storage cannot be read, clients get a `problem` of `events` once, and a `state` when it can be read again. The
   transactions in between follow then; none is missing.
4. A comment every 15 seconds keeps proxies from closing the connection. HEAD is answered without a stream.
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

from evertide.errors import EvertideError, Unexpected
from evertide.media import EVENTS
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.status.status import Status
from evertide.problem import ComponentState, Problem
from evertide.server.endpoints.history import History
from evertide.server.endpoints.journal import ReportedProblem, list_problems
from evertide.server.http.answers import answer_head
from evertide.server.http.endpoint import BYTES, Endpoint, NoQuery
from evertide.store.paths import COMMITTED
from evertide.threads.outage_log import OutageLog
from evertide.threads.watched import WatchedThread

logger = logging.getLogger(__name__)

_WAIT_S = 0.5
_STATUS_EVERY_S = 1.0
_COMMENT_EVERY_S = 15.0
_WAITING_MAX = 1000
_LISTENERS_MAX = 200

Listener = asyncio.Queue[bytes | None]


class EventEndpoints:
    def __init__(self, pipeline: Pipeline, history: History) -> None:
        self._pipeline = pipeline
        self._history = history
        self._meta = pipeline.storage.meta
        self._runtime = history.runtime
        self._listeners: dict[Listener, asyncio.AbstractEventLoop] = {}
        self._stopping = threading.Event()
        self._failure = OutageLog(logger, "cannot read the storage for events, will retry", history.runtime)
        self._thread: WatchedThread | None = None
        self._status_read_s = 0.0
        self._last_reported: _ReportedStatus | None = None
        self._is_storage_away = False
        """Whether clients got the problem that storage cannot be read."""

    def endpoints(self) -> Iterator[Endpoint]:
        summary = "Changes of the pipeline as server-sent events."
        yield Endpoint("GET", "/v1/events", "journal", summary, self._stream, {EVENTS: BYTES}, refusals=(503,))

    def start(self) -> None:
        self._thread = WatchedThread("evertide-events", self._run)
        self._thread.start()

    def list_thread_problems(self) -> list[Problem]:
        return [] if self._thread is None else self._thread.list_thread_problems()

    def drain(self) -> None:
        """End all streams, because the server stops."""
        self._stopping.set()
        for listener, loop in [*self._listeners.items()]:
            _call_in(loop, _end_stream, listener)

    def stop(self) -> None:
        self.drain()
        if self._thread is not None:
            self._thread.join()

    async def _stream(self, request: Request, _: NoQuery) -> Response:
        headers = {"Cache-Control": "no-cache"}
        if request.method == "HEAD":
            return answer_head(EVENTS, headers)
        if len(self._listeners) >= _LISTENERS_MAX:
            raise HTTPException(503, f"{_LISTENERS_MAX} clients read events already", {"Retry-After": "5"})
        return StreamingResponse(self._stream_events(), 200, headers, EVENTS)

    async def _stream_events(self) -> AsyncIterator[bytes]:
        listener: Listener = asyncio.Queue(_WAITING_MAX)
        self._listeners[listener] = asyncio.get_running_loop()
        try:
            status = await run_in_threadpool(self._pipeline.status)
            yield _encode_event("state", _describe_state(status))
            while not self._stopping.is_set():
                try:
                    message = await asyncio.wait_for(listener.get(), _COMMENT_EVERY_S)
                except TimeoutError:
                    message = b": still here\n\n"
                if message is None:
                    return
                yield message
        finally:
            self._listeners.pop(listener, None)

    def _run(self) -> None:
        thread = self._thread
        assert thread is not None  # noqa: S101 - this method runs in it
        wait_s = self._pipeline.settings.retry_wait_s
        while not self._stopping.is_set():
            with thread.report_and_retry():
                try:
                    record = self._meta.head(COMMITTED)
                    self._send_new_events()
                    self._failure.end()
                    self._meta.wait(COMMITTED, record.seqno if record is not None else 0, _WAIT_S)
                    wait_s = self._pipeline.settings.retry_wait_s
                    continue
                except EvertideError as error:
                    self._failure.note(error)
                    self._send_problem(error)
                except Exception as error:  # clients get a problem, and the status of the thread has the exception
                    self._send_problem(Unexpected(where="/v1/events", why=f"{type(error).__name__}; the log has more"))
                    raise
            self._stopping.wait(wait_s)
            wait_s = min(2 * wait_s, self._pipeline.settings.retry_wait_max_s)

    def _send_problem(self, error: EvertideError) -> None:
        if not self._is_storage_away:
            self._is_storage_away, self._last_reported = True, None
            now_s = self._runtime.wall_s()
            self._send(
                "problem",
                ReportedProblem("events", ComponentState.STALLED, error.error_code, error.message, error.remedy, now_s),
            )

    def _send_new_events(self) -> None:
        if self._is_storage_away:
            status = self._pipeline.status()
            if status.stored_at_s is None:
                self._is_storage_away = False
                self._send("state", _describe_state(status))
        for transaction in self._history.follow():
            self._send("transaction", transaction)
        now_s = self._runtime.monotonic_s()
        if not self._listeners:
            self._last_reported = None
        elif self._last_reported is None or now_s - self._status_read_s >= _STATUS_EVERY_S:
            self._status_read_s = now_s
            self._send_differences(_ReportedStatus.of(self._pipeline.status()))

    def _send_differences(self, now: _ReportedStatus) -> None:
        before, self._last_reported = self._last_reported, now
        if before is None:
            return
        if now.state != before.state:
            self._send("state", now.state)
        for checkpoint in now.checkpoints:
            if checkpoint not in before.checkpoints:
                self._send("checkpoint", checkpoint)
        for key, problem in now.problems.items():
            if key not in before.problems:
                self._send("problem", problem)

    def _send(self, name: str, facts: Any) -> None:
        message = _encode_event(name, facts)
        for listener, loop in [*self._listeners.items()]:
            _call_in(loop, _enqueue, listener, message)


class _StateFacts(msgspec.Struct, frozen=True):
    state: str
    since_s: float
    why: str
    remedy: str


class _CheckpointFacts(msgspec.Struct, frozen=True):
    number: int
    time: int


class _ReportedStatus(msgspec.Struct, frozen=True):
    state: _StateFacts
    checkpoints: tuple[_CheckpointFacts, ...]
    problems: dict[tuple[str, str], ReportedProblem]

    @classmethod
    def of(cls, status: Status) -> _ReportedStatus:
        checkpoints = tuple(_CheckpointFacts(number, time) for number, time in status.checkpoints)
        return cls(_describe_state(status), checkpoints, {(one.of, one.why): one for one in list_problems(status)})


def _describe_state(status: Status) -> _StateFacts:
    return _StateFacts(status.state, status.since_s, status.why, status.remedy)


def _encode_event(name: str, facts: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(facts) + b"\n\n"


def _call_in(loop: asyncio.AbstractEventLoop, call: Any, *arguments: Any) -> None:
    if not loop.is_closed():
        try:
            loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop was closed meanwhile: no client listens any more
            logger.debug("notified no client: the event loop is closed")


def _enqueue(listener: Listener, message: bytes) -> None:
    if listener.full():
        _end_stream(listener)
    else:
        listener.put_nowait(message)


def _end_stream(listener: Listener) -> None:
    while not listener.empty():
        listener.get_nowait()
    listener.put_nowait(None)
