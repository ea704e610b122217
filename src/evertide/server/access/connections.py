"""What one client may take of a server's connections and patience.

1. There are so many connections. One more is told so, and closed; those that are there go on.
2. A request's first line and headers are so many bytes at most, and come within so many seconds. A connection that
   says nothing is closed as well.
3. A body comes, and an answer is taken, without a pause of more than so many seconds. The answer itself may take as
   long as it takes: who waits for a change is no slow client.
4. A connection stays open for `keep_alive_s` after an answer, and the answer says so (`Keep-Alive`): a client does not
   send its next request on a connection that the server is about to close.
5. An answer of up to `_JOINED_BYTES` is one write, head and body together, and the socket's send buffer is large enough
   for it. The kernel sends what it took even if the process is killed, so that a client gets the whole answer or none:
   clients retry a request without an answer, but some do not retry one whose body ends early.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from evertide.errors import EvertideError, OutcomeUnknown
from evertide.json_values import error_to_json
from evertide.settings import Settings

__all__ = ["Patience", "protocol_of"]

_AGAIN_S = 5
_SAFE = ("GET", "HEAD", "OPTIONS")
_READING = ("/v1/query", "/v1/shape")
"""Addresses that change nothing by POST."""
_STOPPING = "the server is being stopped"
_COME_AGAIN = "Nothing was changed. Ask again when the server is back."
_TRANSPORT = "evertide.transport"
_JOINED_BYTES = 400 * 1024
"""Up to this size, the pieces of an answer are written together."""
_SEND_BUFFER_BYTES = 208 * 1024
"""Linux reserves twice of it, which holds `_JOINED_BYTES`, and permits it by default (`net.core.wmem_max`). A new
connection takes less than 80 KiB over Ethernet."""


class _Underway:
    """A request that is being answered."""

    def __init__(self, scope: Scope) -> None:
        self.is_reading = scope["method"] in _SAFE or scope["path"] in _READING
        self.is_whole = False
        """Whether its body has come."""
        self.is_receiving = False
        """Whether it waits for more of its body."""
        self.has_begun = False
        """Whether some of the answer was sent."""

    @property
    def may_have_changed(self) -> bool:
        return not self.is_receiving and not self.is_reading


class Patience:
    """Ends a request whose client neither sends nor takes anything; and when the server stops, those under way."""

    def __init__(self, app: ASGIApp, pause_s: float) -> None:
        self._app = app
        self._pause_s = pause_s
        self._underway: dict[asyncio.Task[Any], _Underway] = {}

    def end_reads(self) -> None:
        """All that change nothing, as far as is known: reads, and what has not come as a whole."""
        for task, one in [*self._underway.items()]:
            if not one.may_have_changed:
                task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        one = _Underway(scope)

        async def receiving() -> Message:
            if one.is_whole:  # from now on it only tells that the client went away
                return await receive()
            one.is_receiving = True
            try:
                async with asyncio.timeout(self._pause_s):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, headers={"Connection": "close"}) from None
            one.is_whole = not message.get("more_body", False)
            one.is_receiving = not one.is_whole
            return message

        async def sending(message: Message) -> None:
            one.has_begun = True
            try:
                async with asyncio.timeout(self._pause_s):
                    await send(message)
            except TimeoutError:
                _cut(scope)
                raise ClientDisconnect from None

        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a request is one
        self._underway[task] = one
        try:
            await self._app(scope, receiving, sending)
        except asyncio.CancelledError:  # the server stops
            if one.has_begun:
                _cut(scope)
                await asyncio.sleep(0)
                await asyncio.sleep(0)  # the connection is told to the protocol as lost
            else:
                await _stopping(one)(scope, receiving, send)
        finally:
            del self._underway[task]


def _stopping(one: _Underway) -> JSONResponse:
    if one.may_have_changed:
        error: EvertideError = OutcomeUnknown(path="request", why=_STOPPING)
        return JSONResponse(error_to_json(error), 504, {"connection": "close"})
    known = {"error_code": "stopping", "message": f"The request was ended: {_STOPPING}", "remedy": _COME_AGAIN}
    return JSONResponse(known, 503, {"connection": "close", "retry-after": str(_AGAIN_S)})


def _cut(scope: Scope) -> None:
    transport = scope.get("extensions", {}).get(_TRANSPORT)
    if transport is not None:
        transport.abort()


def _make_room(transport: Any, size: int) -> None:
    """Let the kernel take this many bytes in one write. Only if needed: the buffer no longer grows by itself then."""
    bound = transport.get_extra_info("socket")
    if bound is not None and bound.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < min(size, 2 * _SEND_BUFFER_BYTES):
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)


def protocol_of(settings: Settings) -> type[asyncio.Protocol]:
    """HTTP as uvicorn speaks it, within limits."""

    class Limited(_Limited):
        pass

    Limited.settings = settings
    return Limited


class _Joined:
    """The transport of one answer, as uvicorn's cycle uses it: joins what the answer writes at once."""

    def __init__(self, protocol: _Limited) -> None:
        self._transport = protocol.transport
        self._cycle = protocol.cycle
        self._loop = protocol.loop
        self._keep_alive_s = protocol.timeout_keep_alive
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._has_head = False
        self._is_split = False
        """Whether a part of the answer was written before its end."""

    def write(self, data: bytes) -> None:
        if not self._cycle.response_started:  # 100 Continue
            self._transport.write(data)
            return
        if not self._has_head:
            self._has_head = True
            data = self._head(data)
        if self._held_bytes + len(data) > _JOINED_BYTES:
            self.flush()
            self._is_split = True
            self._transport.write(data)
            return
        if not self._held:
            self._loop.call_soon(self.flush)  # a stream may have nothing more to send for a long time
        self._held.append(data)
        self._held_bytes += len(data)

    def flush(self) -> None:
        held, size = self._held, self._held_bytes
        self._held, self._held_bytes = [], 0
        if held:
            if self._cycle.response_complete and not self._is_split:
                _make_room(self._transport, size)
            self._is_split = True
            self._transport.write(b"".join(held))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _head(self, head: bytes) -> bytes:
        if not self._cycle.keep_alive:
            return head
        told = f"connection: keep-alive\r\nkeep-alive: timeout={int(self._keep_alive_s)}\r\n\r\n"
        return head.removesuffix(b"\r\n") + told.encode()


class _Limited(HttpToolsProtocol):
    settings = Settings()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        keep_alive_s: Any = self.settings.keep_alive_s  # uvicorn's option takes whole seconds only, its timer any
        self.timeout_keep_alive = keep_alive_s
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        """Runs while a head is waited for."""
        self._rest_timer: asyncio.TimerHandle | None = None
        """Runs while a body comes that nobody needs any more, as the answer was given."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.settings.connections_max:
            self._refuse(503, "too_many_connections", "There are too many connections", "Come again later.")
        else:
            self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > self.settings.request_head_bytes_max:
                self._refuse(431, "head_too_large", "The request's head is too large", "Put less into its headers.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._stop_timers()
        super().on_headers_complete()
        scope: Any = self.scope
        scope.setdefault("extensions", {})[_TRANSPORT] = self.transport
        cycle: Any = self.cycle  # its task has not begun to run
        cycle.transport = _Joined(self)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stop_timers()

    def on_response_complete(self) -> None:
        transport: Any = self.cycle.transport
        transport.flush()
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
            self._rest_timer = self.loop.call_later(self.settings.request_head_s, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._stop_timers()
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self.settings.request_head_s, self._too_slow)

    def _stop_timers(self) -> None:
        for timer in (self._head_timer, self._rest_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._rest_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._refuse(408, "request_timeout", "The request did not come in time", "Send it again, at once.")

    def _refuse(self, status: int, code: str, message: str, remedy: str) -> None:
        self._stop_timers()
        body = msgspec.json.encode({"error_code": code, "message": message, "remedy": remedy})
        head = (
            f"HTTP/1.1 {status} {message}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"retry-after: {_AGAIN_S}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
