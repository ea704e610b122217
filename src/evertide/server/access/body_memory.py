"""`Room`: what the bodies of all requests together may take of the memory.

1. Room is taken before a body is read, some at a time as it comes, and given back when its answer begins. A client that
   announces much and sends little holds little.
2. What a body comes to once it is taken apart counts as well: whoever does that says so before (`Held.more`).
3. Who finds no room waits, the first first. After some seconds he is told to come again: 503, and nothing was taken.
4. All who wait might hold what the others wait for. So one of those that hold something may always have more, beyond
   the limit: it gets done, and the next one after it. What is held is the limit, and what one request takes, at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Held", "Room", "held_in"]

_STEP_BYTES = 256 * 1024
_AGAIN_S = 5
_HELD = "evertide.held"


class Held:
    """What one request holds."""

    def __init__(self, room: Room, declared: int | None) -> None:
        self._room = room
        self._declared = declared
        self._received = 0
        self.bytes = 0

    async def next_step(self) -> None:
        """Room for what comes next of a body."""
        wanted = self._received + _STEP_BYTES
        wanted = wanted if self._declared is None else max(self._received, min(wanted, self._declared))
        if wanted > self.bytes:
            await self.more(wanted - self.bytes)

    async def more(self, size: int) -> None:
        """503 if there is none for too long."""
        await self._room.take(self, size)

    def came(self, size: int, *, is_last: bool) -> None:
        """So much of the body; where that was more than there was room for, it counts all the same."""
        self._received += size
        if is_last or self._received > self.bytes:
            self._room.give(self, self.bytes - self._received)

    def end(self) -> None:
        self._room.give(self, self.bytes, is_done=True)


class Room:
    def __init__(self, app: ASGIApp, bytes_max: int, wait_s: float) -> None:
        self._app = app
        self._bytes_max = bytes_max
        self._wait_s = wait_s
        self._waiting: deque[tuple[Held, int, asyncio.Future[None]]] = deque()
        self._favoured: Held | None = None
        """Who may have more than there is."""
        self.bytes = 0
        """What is held."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared, is_whole = _declared(scope), False
        held = Held(self, declared)
        scope.setdefault("extensions", {})[_HELD] = held

        async def receiving() -> Message:
            nonlocal is_whole
            if is_whole or declared == 0:
                return await receive()
            await held.next_step()
            message = await receive()
            is_whole = not message.get("more_body", False)
            held.came(len(message.get("body", b"")), is_last=is_whole)
            return message

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                held.end()
            await send(message)

        try:
            await self._app(scope, receiving, sending)
        finally:
            held.end()

    async def take(self, held: Held, size: int) -> None:
        if (not self._waiting or held is self._favoured) and self._has_room(held, size):
            return
        turn = asyncio.get_running_loop().create_future()
        entry = (held, size, turn)
        self._waiting.append(entry)
        self._serve()
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except TimeoutError:
            why = f"requests hold {self.bytes} bytes, of {self._bytes_max} that there are for all of them"
            raise HTTPException(503, why, {"Retry-After": str(_AGAIN_S), "Connection": "close"}) from None
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._serve()

    def give(self, held: Held, size: int, *, is_done: bool = False) -> None:
        """Back; what is below zero was more than was taken."""
        self.bytes -= size
        held.bytes -= size
        if self.bytes <= self._bytes_max or (is_done and held is self._favoured):
            self._favoured = None
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._has_room(*self._waiting[0][:2]):
            turn = self._waiting.popleft()[2]
            if not turn.done():
                turn.set_result(None)

    def _has_room(self, held: Held, size: int) -> bool:
        if self.bytes + size > self._bytes_max:
            if self._favoured not in (None, held):
                return False
            self._favoured = held
        self.bytes += size
        held.bytes += size  # here, as whoever waited may be cancelled before he hears of it
        return True


def held_in(scope: Scope) -> Held | None:
    """None where nobody counts."""
    found: Held | None = scope.get("extensions", {}).get(_HELD)
    return found


def _declared(scope: Scope) -> int | None:
    """How long a body says that it is: 0 if there is none, None if it does not say."""
    headers: dict[bytes, Any] = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None
    told = headers.get(b"content-length", b"0")
    return int(told) if told.isdigit() else None
