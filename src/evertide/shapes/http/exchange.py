"""`Exchange`: answers one shape request, from its definition to the response.

1. Find the collection, then find or create the shape. The answer to a handle that has ended is 409 with the new handle.
2. Serve the snapshot chunk by chunk, and the log from the requested offset on, from memory if possible; anything that
   needs the storage runs in a thread.
3. A live request at the end of the log waits in the event loop, without a thread: it registers its waiter first, then
   checks again, then waits, so that it misses no change.
4. If the feed cannot be read, so that new changes may be unknown, the answer is 503 and the client retries with the
   same offset: an answer never reports up-to-date unless that is certain.
5. If a shape ends while a live request waits, the request is answered at once. A stream just ends: the client learns
   about it from its next request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from evertide.errors import Conflict, EvertideError, InvalidInput, NotAllowedNow, Unavailable, Unexpected
from evertide.runtime import Runtime
from evertide.shapes.http.answers import AnswerBuilder, answer_stream
from evertide.shapes.http.subset import answer_subset
from evertide.shapes.log.live_shape import LiveShape, LogSpan
from evertide.shapes.log.registry import NotFollowed, Shapes
from evertide.shapes.log.row_messages import write_up_to_date
from evertide.shapes.log.shape_definition import ShapeDefinition
from evertide.shapes.options import ShapeOptions
from evertide.shapes.protocol.offsets import BEFORE_ALL, INF, Offset, SnapshotChunk
from evertide.shapes.protocol.requests import (
    KNOWN_ERROR,
    Refusal,
    ShapeRequest,
    refuse_ended,
    refuse_invalid,
    refuse_not_ready,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_S = 0.05
_POLL_MAX_S = 1.0
_BRACKETS = len(b"[]")
_ATTEMPTS = 3
"""Attempts to get a shape or snapshot that is being dropped concurrently."""

_RETRY_AFTER_S = 6
_SPREAD_S = 5


class _Retry(Exception):
    """The shape still exists, but this process dropped it as idle: take it up again."""


class Exchange:
    def __init__(self, shapes: Shapes, admission: Admission) -> None:
        self._shapes = shapes
        self._options = shapes.options
        self._runtime = shapes.runtime
        self._admission = admission
        self._answers = AnswerBuilder(shapes.options, shapes.runtime)
        self._threads = anyio.CapacityLimiter(self._options.threads)
        self._waiting = anyio.CapacityLimiter(self._options.new_clients_max)
        """A separate limit for requests that wait for a snapshot, so that they take no thread from others."""

    async def answer(self, request: Request, shape_request: ShapeRequest) -> Response:
        for _ in range(_ATTEMPTS):
            try:
                return await self._try_answer(request, shape_request)
            except _Retry:
                logger.debug("a shape was dropped as idle during a request for it; loading it again")
        raise refuse_not_ready("The server is loading the shape again; retry")

    async def _try_answer(self, request: Request, shape_request: ShapeRequest) -> Response:
        definition = await self.find_definition(shape_request)
        if shape_request.begins:
            shape = await self._wait_until_ready(lambda: self._shapes.find_or_create(definition))
        else:
            shape = await self._find_by_handle(definition, shape_request.handle)
        if shape_request.subset is not None:
            subset = shape_request.subset
            return await self._read(shape, lambda: answer_subset(self._shapes, shape, shape_request, subset))
        if shape_request.is_now:
            return await self._answer_now(request, shape_request, shape)
        after, chunk = shape_request.offset, self._next_chunk(shape_request.offset, shape)
        if chunk is not None:
            await self._check_in_bounds(shape, chunk.log)
            answer = await self._read(
                shape, lambda: self._answer_chunk(request, shape_request, shape, chunk), self._waiting
            )
            if answer is not None:
                return answer
            after = chunk.log
        await self._check_in_bounds(shape, after)
        if shape_request.is_sse:
            self._shapes.check_followed(shape)
            events = self._admission.count_stream(self._stream_events(shape, after))
            return StreamingResponse(
                events, 200, self._answers.stream_headers(shape_request, shape.handle, self._shapes.find_stale(shape))
            )
        return await self._answer_log(request, shape_request, shape, after)

    def _next_chunk(self, offset: Offset, shape: LiveShape) -> SnapshotChunk | None:
        if offset == BEFORE_ALL:
            return self._shapes.choose_first_chunk(shape)
        chunk = offset.next_chunk
        if chunk is not None and chunk.time is not None and chunk.time <= shape.record.time:
            raise refuse_invalid({"offset": ["out of bounds for this shape"]})
        return chunk

    async def find_definition(self, shape_request: ShapeRequest) -> ShapeDefinition:
        definition = self._shapes.definition_known(shape_request)
        if definition is None:
            definition = await self._wait_until_ready(lambda: self._shapes.find_definition(shape_request))
        return definition

    async def run_in_thread(self, call: Callable[[], T], limiter: anyio.CapacityLimiter | None = None) -> T:
        return await anyio.to_thread.run_sync(call, limiter=limiter or self._threads)

    async def _wait_until_ready(self, call: Callable[[], T]) -> T:
        """Retry for up to `ready_s` while the collection has no content."""
        deadline_s = self._runtime.monotonic_s() + self._options.ready_s
        while True:
            try:
                return await self.run_in_thread(call)
            except Refusal as refusal:
                if refusal.status != 503 or self._shapes.is_ending or self._runtime.monotonic_s() >= deadline_s:
                    raise
            await asyncio.sleep(_POLL_S)

    async def _read(self, shape: LiveShape, call: Callable[[], T], limiter: anyio.CapacityLimiter | None = None) -> T:
        """Read from the shape's collection; if the collection was replaced, the shape has ended."""
        try:
            return await self.run_in_thread(call, limiter)
        except (NotFollowed, Conflict, InvalidInput):
            raise await self._make_end_error(shape.definition, shape.handle) from None

    async def _make_end_error(self, definition: ShapeDefinition, handle: str) -> Exception:
        """The error for a shape that cannot continue. A handle reported as ended must never be issued again."""
        shape = await self._wait_until_ready(lambda: self._shapes.find_or_create(definition))
        return refuse_ended(shape.handle) if shape.handle != handle else _Retry()

    async def _find_by_handle(self, definition: ShapeDefinition, handle: str) -> LiveShape:
        known = self._shapes.live_known(definition)
        if known is None or known.handle != handle:
            known = await self.run_in_thread(lambda: self._shapes.find_by_handle(definition, handle))
        if known is None or known.is_ended:
            raise await self._make_end_error(definition, handle)
        return known

    async def _answer_now(self, request: Request, shape_request: ShapeRequest, shape: LiveShape) -> Response:
        await self._catch_up(shape)
        upper = self._shapes.upper_known(shape)  # read before the last entry: later changes are sent later
        last = await self._read(shape, lambda: self._shapes.find_last_offset(shape))
        headers = self._answers.headers(
            request,
            shape_request,
            shape,
            last,
            is_up_to_date=True,
            has_data=False,
            stale=self._shapes.find_stale(shape),
        )
        return self._answers.messages([], write_up_to_date(max(upper, last.transaction)), headers)

    def _answer_chunk(
        self, request: Request, shape_request: ShapeRequest, shape: LiveShape, chunk: SnapshotChunk
    ) -> Response | None:
        """Answer with a chunk of the snapshot; None if the log follows."""
        why: EvertideError | None = None
        for _ in range(_ATTEMPTS):
            chunks = self._shapes.get_chunks(shape, chunk.time)
            try:
                if not chunks.has(chunk.number):
                    return None
                size = chunks.size(chunk.number)
                blocks = chunks.read_blocks(chunk.number)
            except (NotAllowedNow, Unavailable) as error:  # closed concurrently, or out of disk space
                why = error
                continue
            headers = self._answers.headers(
                request, shape_request, shape, chunk.offset, is_up_to_date=False, has_data=size > 0, stale=""
            )
            return self._answers.answer_not_modified(request, headers) or answer_stream(
                blocks, headers, size + _BRACKETS
            )
        raise why or Unexpected(where="Exchange._answer_chunk", why="no attempt was made")

    async def _answer_log(
        self, request: Request, shape_request: ShapeRequest, shape: LiveShape, after: Offset
    ) -> Response:
        if not shape_request.is_live:
            await self._catch_up(shape)
            if shape.is_ended:
                raise await self._make_end_error(shape.definition, shape.handle)
        span = await self._find_span(shape, after)
        if shape_request.is_live and not span.entries and span.is_all:
            span = await self._wait_for_changes(shape, span, self._options.long_poll_s)
        has_data = bool(span.entries)
        stale = self._shapes.find_stale(shape) if span.is_all else ""
        headers = self._answers.headers(
            request, shape_request, shape, span.end, is_up_to_date=span.is_all, has_data=has_data, stale=stale
        )
        transaction = max(span.end.transaction, 0 if shape_request.is_live and has_data else span.upper)
        last = write_up_to_date(transaction) if span.is_all else None
        entries = [entry.data for entry in span.entries]
        return self._answers.answer_not_modified(request, headers) or self._answers.messages(entries, last, headers)

    async def _check_in_bounds(self, shape: LiveShape, after: Offset) -> None:
        """Wait for an offset beyond this process's feed: another process may have served it."""
        if after <= Offset(self._shapes.upper_known(shape), INF):
            return
        deadline_s = self._runtime.monotonic_s() + self._options.long_poll_s / 2
        wait_s = _POLL_S
        while True:
            await self._catch_up(shape)
            if shape.is_ended:
                raise await self._make_end_error(shape.definition, shape.handle)
            if after <= Offset(self._shapes.upper_known(shape), INF):
                return
            if self._shapes.is_ending:
                raise refuse_not_ready("The server is stopping")
            if self._runtime.monotonic_s() >= deadline_s:
                raise refuse_invalid({"offset": ["out of bounds for this shape"]})
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _POLL_MAX_S)  # many clients may send offsets that do not exist

    async def _catch_up(self, shape: LiveShape) -> None:
        await self._read(shape, lambda: self._shapes.catch_up(shape))

    async def _find_span(self, shape: LiveShape, after: Offset) -> LogSpan:
        known = self._shapes.span_known(shape, after)
        return known if known is not None else await self._read(shape, lambda: self._shapes.read_span(shape, after))

    async def _wait_for_changes(self, shape: LiveShape, empty: LogSpan, timeout_s: float) -> LogSpan:
        """The changes that arrive within `timeout_s`; empty if none do. Raises 409 if the shape ends meanwhile."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._shapes.check_followed(shape)
        shape.waiters.add(waiter)
        try:
            known = self._shapes.span_known(shape, empty.end)
            if known is not None and not known.entries and not shape.is_ended and not self._shapes.is_ending:
                await _wait_at_most(waiter, timeout_s)
        finally:
            shape.waiters.discard(waiter)
        shape.note_use(self._runtime.monotonic_s())
        if shape.is_ended:
            raise await self._make_end_error(shape.definition, shape.handle)
        span = await self._find_span(shape, empty.end)
        if not span.entries:
            self._shapes.check_followed(shape)
        return span

    async def _stream_events(self, shape: LiveShape, after: Offset) -> AsyncIterator[bytes]:
        deadline_s = self._runtime.monotonic_s() + self._options.sse_s
        try:
            span = await self._find_span(shape, after)
            while True:
                for entry in span.entries:
                    yield _encode_event(entry.data)
                if span.is_all and span.entries:  # a client that starts at the end has already received up-to-date
                    yield _encode_event(write_up_to_date(span.end.transaction))
                left_s = deadline_s - self._runtime.monotonic_s()
                if left_s <= 0 or self._shapes.is_ending:
                    return
                if span.is_all:
                    span = await self._wait_for_changes(shape, span, min(left_s, self._options.keep_alive_s))
                    if not span.entries:
                        yield b": keep-alive\n\n"
                else:
                    span = await self._find_span(shape, span.end)
        except (Refusal, _Retry, EvertideError) as error:  # what was sent is valid; the client requests the rest
            logger.info("a stream of shape %s ended: %s", shape.handle, error)


async def _wait_at_most(waiter: Awaitable[None], timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await waiter
    except TimeoutError:
        return


def _encode_event(message: bytes) -> bytes:
    return b"data: " + message + b"\n\n"


class Admission:
    """Limits the number of concurrent shape requests: excess requests get 503 at once, with the time to retry.

    The counts change only in the event loop, so they need no lock.
    """

    def __init__(self, options: ShapeOptions, runtime: Runtime) -> None:
        self._options = options
        self._runtime = runtime
        self.clients = 0
        self.new_clients = 0

    async def count_stream(self, blocks: AsyncIterator[T]) -> AsyncIterator[T]:
        """Count a stream while it lasts. It is never refused: its request was admitted and its headers are sent."""
        self.clients += 1
        try:
            async for block in blocks:
                yield block
        finally:
            self.clients -= 1

    @contextmanager
    def admit(self, *, is_new_client: bool) -> Iterator[None]:
        options = self._options
        if self.clients >= options.clients_max or (is_new_client and self.new_clients >= options.new_clients_max):
            known = {"code": "concurrent_request_limit_exceeded", "message": "Too many requests at the same time"}
            after_s = _RETRY_AFTER_S + int(self._runtime.random() * _SPREAD_S)
            raise Refusal(503, known, {"retry-after": str(after_s), KNOWN_ERROR: "true"})
        self.clients += 1
        self.new_clients += is_new_client
        try:
            yield
        finally:
            self.clients -= 1
            self.new_clients -= is_new_client
