"""`BodyMemory`: limits how much memory the bodies of all requests take together.

1. Memory is reserved step by step while a body arrives, and released when the response starts. A client that announces
   a large body and sends little holds little.
2. The decoded size of a body counts as well. A handler reserves it before it decodes (`Reservation.reserve`).
3. A request that finds no memory waits, in order of arrival. After `wait_s` seconds the server answers 503, and the
   request has changed nothing.
4. Waiting requests could deadlock, each holding memory that the others wait for. So one request at a time may exceed
   the limit, and completes. All requests together hold at most the limit plus one request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_STEP_BYTES = 256 * 1024
_RETRY_AFTER_S = 5
_RESERVATION = "evertide.reservation"


class Reservation:
    def __init__(self, memory: BodyMemory, declared: int | None) -> None:
        self._memory = memory
        self._declared = declared
        self._received = 0
        self.bytes = 0

    async def reserve_step(self) -> None:
        """Reserve memory for the next block of the body."""
        wanted = self._received + _STEP_BYTES
        wanted = wanted if self._declared is None else max(self._received, min(wanted, self._declared))
        if wanted > self.bytes:
            await self.reserve(wanted - self.bytes)

    async def reserve(self, size: int) -> None:
        """Raise 503 if no memory is free within `wait_s`."""
        await self._memory.acquire(self, size)

    def count_received(self, size: int, *, is_last: bool) -> None:
        """Count a block of the body, even if it is larger than what was reserved for it."""
        self._received += size
        if is_last or self._received > self.bytes:
            self._memory.release(self, self.bytes - self._received)

    def end(self) -> None:
        self._memory.release(self, self.bytes, is_done=True)


class BodyMemory:
    def __init__(self, app: ASGIApp, bytes_max: int, wait_s: float) -> None:
        self._app = app
        self._bytes_max = bytes_max
        self._wait_s = wait_s
        self._waiting: deque[tuple[Reservation, int, asyncio.Future[None]]] = deque()
        self._over_limit: Reservation | None = None
        """The one request that may exceed the limit."""
        self.bytes = 0
        """Reserved by all requests."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared, is_complete = _read_declared_bytes(scope), False
        reservation = Reservation(self, declared)
        scope.setdefault("extensions", {})[_RESERVATION] = reservation

        async def receive_counted() -> Message:
            nonlocal is_complete
            if is_complete or declared == 0:
                return await receive()
            await reservation.reserve_step()
            message = await receive()
            is_complete = not message.get("more_body", False)
            reservation.count_received(len(message.get("body", b"")), is_last=is_complete)
            return message

        async def release_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                reservation.end()
            await send(message)

        try:
            await self._app(scope, receive_counted, release_and_send)
        finally:
            reservation.end()

    async def acquire(self, reservation: Reservation, size: int) -> None:
        if (not self._waiting or reservation is self._over_limit) and self._try_acquire(reservation, size):
            return
        turn = asyncio.get_running_loop().create_future()
        entry = (reservation, size, turn)
        self._waiting.append(entry)
        self._serve()
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except TimeoutError:
            why = f"the bodies of other requests hold {self.bytes} of {self._bytes_max} bytes (bodies_bytes_max)"
            raise HTTPException(503, why, {"Retry-After": str(_RETRY_AFTER_S), "Connection": "close"}) from None
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._serve()

    def release(self, reservation: Reservation, size: int, *, is_done: bool = False) -> None:
        """A negative size counts what a request received beyond its reservation."""
        self.bytes -= size
        reservation.bytes -= size
        if self.bytes <= self._bytes_max or (is_done and reservation is self._over_limit):
            self._over_limit = None
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._try_acquire(*self._waiting[0][:2]):
            turn = self._waiting.popleft()[2]
            if not turn.done():
                turn.set_result(None)

    def _try_acquire(self, reservation: Reservation, size: int) -> bool:
        if self.bytes + size > self._bytes_max:
            if self._over_limit not in (None, reservation):
                return False
            self._over_limit = reservation
        self.bytes += size
        reservation.bytes += size  # here, because a waiting task may be cancelled before it resumes
        return True


def find_reservation(scope: Scope) -> Reservation | None:
    """None if no `BodyMemory` is in front of the app."""
    reservation: Reservation | None = scope.get("extensions", {}).get(_RESERVATION)
    return reservation


def _read_declared_bytes(scope: Scope) -> int | None:
    """The length that the headers declare: 0 without a body, None if it is not known."""
    headers: dict[bytes, Any] = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None
    declared = headers.get(b"content-length", b"0")
    return int(declared) if declared.isdigit() else None
