"""Limits of a server's connections, and the timeouts of clients.

1. At most `connections_max` connections are open. A further one is answered with 503 and closed; the others stay.
2. The request line and headers have at most `request_head_bytes_max` bytes, and arrive within `request_head_s`. A
   connection that sends nothing is closed as well. The same number bounds the bytes of a body without content: the
   extensions of a chunk, and trailers. Trailers are ignored, because a header decides only if all of the head is known.
3. While a client sends a body or receives a response, it pauses for at most `request_pause_s`. Computing the response
   may take longer: a client that waits for a change is not slow.
4. A connection stays open for `keep_alive_s` after a response, and the response says so (`Keep-Alive`), so that a
   client does not send its next request on a connection that the server is about to close.
5. A response of up to `_JOIN_BYTES_MAX` is one write, head and body together, and the socket's send buffer is large
   enough for it. The kernel sends what it accepted even if the process is killed, so that a client gets the whole
   response or none: clients retry a request without a response, but some do not retry one whose body ends early.
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

_RETRY_AFTER_S = 5
_SAFE = ("GET", "HEAD", "OPTIONS")
_READ_ONLY = ("/v1/query", "/v1/shape")
"""Addresses whose POST changes nothing."""
_STOPPING = "the server is stopping"
_TRANSPORT = "evertide.transport"
_JOIN_BYTES_MAX = 400 * 1024
"""Up to this size, the blocks of a response are written together."""
_SEND_BUFFER_BYTES = 208 * 1024
"""Linux reserves twice as much, which holds `_JOIN_BYTES_MAX`, and permits it by default (`net.core.wmem_max`). The
buffer of a new connection accepts less than 80 KiB over Ethernet."""


class _ActiveRequest:
    def __init__(self, scope: Scope) -> None:
        self.is_read_only = scope["method"] in _SAFE or scope["path"] in _READ_ONLY
        self.has_body = False
        """Whether the whole body has arrived."""
        self.is_receiving = False
        """Whether the handler waits for more of the body."""
        self.has_started = False
        """Whether some of the response was sent."""

    @property
    def may_have_changed(self) -> bool:
        return not self.is_receiving and not self.is_read_only


class ClientTimeouts:
    """Ends a request whose client neither sends nor receives; and, when the server stops, the active requests."""

    def __init__(self, app: ASGIApp, pause_s: float) -> None:
        self._app = app
        self._pause_s = pause_s
        self._active: dict[asyncio.Task[Any], _ActiveRequest] = {}

    def end_reads(self) -> None:
        """Cancel the requests that cannot have changed anything: reads, and those whose body is incomplete."""
        for task, active in [*self._active.items()]:
            if not active.may_have_changed:
                task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        active = _ActiveRequest(scope)

        async def receive_in_time() -> Message:
            if active.has_body:  # from now on, a message only means that the client disconnected
                return await receive()
            active.is_receiving = True
            try:
                async with asyncio.timeout(self._pause_s):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, headers={"Connection": "close"}) from None
            active.has_body = not message.get("more_body", False)
            active.is_receiving = not active.has_body
            return message

        async def send_in_time(message: Message) -> None:
            active.has_started = True
            try:
                async with asyncio.timeout(self._pause_s):
                    await send(message)
            except TimeoutError:
                _abort_connection(scope)
                raise ClientDisconnect from None

        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - each request runs in a task
        self._active[task] = active
        try:
            await self._app(scope, receive_in_time, send_in_time)
        except asyncio.CancelledError:  # the server stops
            if active.has_started:
                _abort_connection(scope)
                await asyncio.sleep(0)
                await asyncio.sleep(0)  # until the protocol knows that the connection is lost
            else:
                where = f"{scope['method']} {scope['path']}"
                await _answer_stop(where, active)(scope, receive_in_time, send)
        finally:
            del self._active[task]


def _answer_stop(where: str, active: _ActiveRequest) -> JSONResponse:
    if active.may_have_changed:
        error: EvertideError = OutcomeUnknown(path=where, why=_STOPPING)
        return JSONResponse(error_to_json(error), 504, {"connection": "close"})
    message = f"{where}: the request was ended, because {_STOPPING}"
    remedy = "Nothing was changed; retry when the server is back."
    content = {"error_code": "stopping", "message": message, "remedy": remedy}
    return JSONResponse(content, 503, {"connection": "close", "retry-after": str(_RETRY_AFTER_S)})


def _abort_connection(scope: Scope) -> None:
    transport = scope.get("extensions", {}).get(_TRANSPORT)
    if transport is not None:
        transport.abort()


def _grow_send_buffer(transport: Any, size: int) -> None:
    """Let the kernel accept this many bytes in one write. Only if needed, because it disables automatic growth."""
    bound = transport.get_extra_info("socket")
    if bound is not None and bound.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < min(size, 2 * _SEND_BUFFER_BYTES):
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)


def make_protocol(settings: Settings) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol, with the limits of the settings."""

    return type("Limited", (_LimitedProtocol,), {"settings": settings})


class _JoiningTransport:
    """The transport of one response, as uvicorn's cycle uses it. Joins what the response writes in one go (rule 5)."""

    def __init__(self, protocol: _LimitedProtocol) -> None:
        self._transport = protocol.transport
        self._cycle = protocol.cycle
        self._loop = protocol.loop
        self._keep_alive_s = protocol.timeout_keep_alive
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._has_head = False
        self._is_split = False
        """Whether a part of the response was written before its end."""

    def write(self, data: bytes) -> None:
        if not self._cycle.response_started:  # 100 Continue
            self._transport.write(data)
            return
        if not self._has_head:
            self._has_head = True
            data = self._add_keep_alive(data)
        if self._pending_bytes + len(data) > _JOIN_BYTES_MAX:
            self.flush()
            self._is_split = True
            self._transport.write(data)
            return
        if not self._pending:
            self._loop.call_soon(self.flush)  # a stream may not send anything else for a long time
        self._pending.append(data)
        self._pending_bytes += len(data)

    def flush(self) -> None:
        pending, size = self._pending, self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        if pending:
            if self._cycle.response_complete and not self._is_split:
                _grow_send_buffer(self._transport, size)
            self._is_split = True
            self._transport.write(b"".join(pending))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _add_keep_alive(self, head: bytes) -> bytes:
        if not self._cycle.keep_alive:
            return head
        headers = f"connection: keep-alive\r\nkeep-alive: timeout={int(self._keep_alive_s)}\r\n\r\n"
        return head.removesuffix(b"\r\n") + headers.encode()


class _LimitedProtocol(HttpToolsProtocol):
    settings = Settings()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        keep_alive_s: Any = self.settings.keep_alive_s  # uvicorn's option takes only integers, its timer any number
        self.timeout_keep_alive = keep_alive_s
        self._head_bytes = 0
        self._empty_bytes = 0
        """Received since the last content of the body."""
        self._head_timer: asyncio.TimerHandle | None = None
        """Runs until the head of a request has arrived."""
        self._rest_timer: asyncio.TimerHandle | None = None
        """Runs while the rest of a body arrives after the response was sent."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.settings.connections_max:
            self._refuse(503, "too_many_connections", "The server has too many connections", "Retry later.")
        else:
            self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._empty_bytes += len(data)
        super().data_received(data)
        bytes_max = self.settings.request_head_bytes_max
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > bytes_max:
                self._refuse(431, "head_too_large", "The head of the request is too large", "Send smaller headers.")
        elif self._empty_bytes > bytes_max:  # the response may be under way
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_timer is not None:  # else a trailer
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_timers()
        self._empty_bytes = 0
        super().on_headers_complete()
        scope: Any = self.scope
        scope.setdefault("extensions", {})[_TRANSPORT] = self.transport
        cycle: Any = self.cycle  # its task has not started yet
        cycle.transport = _JoiningTransport(self)

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._empty_bytes = 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stop_timers()
        self._empty_bytes = 0

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
        self._head_timer = self.loop.call_later(self.settings.request_head_s, self._refuse_slow_head)

    def _stop_timers(self) -> None:
        for timer in (self._head_timer, self._rest_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._rest_timer = None

    def _refuse_slow_head(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._refuse(408, "request_timeout", "The request did not arrive in time", "Retry, without pauses.")

    def _refuse(self, status: int, code: str, message: str, remedy: str) -> None:
        self._stop_timers()
        body = msgspec.json.encode({"error_code": code, "message": message, "remedy": remedy})
        head = (
            f"HTTP/1.1 {status} {message}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"retry-after: {_RETRY_AFTER_S}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
