"""`Server`: an app behind a socket, in a thread beside the pipeline.

1. The address is taken when the server is made, long before there is a pipeline: what is wrong with it is said at once.
   From `begin` on, whoever asks is told that the pipeline is being opened (`evertide.server.http.opening`); from
   `start` on it is the app that answers. Without `begin`, connections are refused until `start`.
2. `stop` takes no new requests. Streams, queries and requests that wait for something are ended at once, other reads
   within a second, each with 503 if nothing of the answer was sent. Requests that change something, and have come as a
   whole, are answered, for up to half a minute; then their outcome is not known, and they are told so. The pipeline is
   closed after that, not before.
3. It has no signal handlers: whoever runs the pipeline has them.
4. Who may ask, and how, is said by a `Listening`: what is wrong with its tokens or its TLS is said at once, too.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.lifespan.on import LifespanOn

from evertide.errors import EvertideError, InvalidInput
from evertide.problem import Problem
from evertide.server.access.connections import Patience, protocol_of
from evertide.server.access.listening import Listening
from evertide.server.http.opening import opening
from evertide.threads.watched import WatchedThread

__all__ = ["LOOPBACK", "Server"]

LOOPBACK = "127.0.0.1"

_STOP_LIMIT_S = 30
_READ_LIMIT_S = 1.0
"""How long reads under way may take when the server stops."""
_BACKLOG = 2048


class Server:
    def __init__(self, listen: str = f"{LOOPBACK}:0", listening: Listening | None = None) -> None:
        """`listen` is `HOST:PORT`, `[IPV6]:PORT`, or `:PORT` for this machine only; port 0 is any that is free."""
        self._listen = listen
        self._listening = listening or Listening()
        self._tls = self._listening.tls.context() if self._listening.tls is not None else None
        host, port = _parsed(listen)
        self._socket = _bound(listen, host, port)
        self._uvicorn: _Uvicorn | None = None
        self._thread: WatchedThread | None = None
        self._front = _Front()
        self._drain: Callable[[], None] | None = None
        """Ends what an app streams without an end: it has one as `state.drain`."""
        self.host, self.port = self._socket.getsockname()[:2]
        try:
            self._listening.check(listen, self.host)
        except InvalidInput:
            self._socket.close()
            raise

    @property
    def address(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://[{self.host}]:{self.port}" if ":" in self.host else f"{scheme}://{self.host}:{self.port}"

    def begin(self) -> Self:
        """Connections are taken when this returns."""
        if self._uvicorn is not None:
            return self
        try:
            self._socket.listen(_BACKLOG)  # here, as not every event loop says what goes wrong with it
        except OSError as error:
            raise InvalidInput(where=f"address {self._listen!r}", why=str(error)) from error
        patience = self._listening.wrapped(self._front, self.host)
        self._uvicorn = _Uvicorn(self._config(patience), patience)
        self._thread = WatchedThread("evertide-http", self._uvicorn.run_until_stopped, self._socket)
        self._thread.start()
        self._uvicorn.is_settled.wait()
        if self._uvicorn.error is not None:
            raise InvalidInput(where=f"address {self._listen!r}", why=str(self._uvicorn.error))
        return self

    def troubles(self) -> list[Problem]:
        return [] if self._thread is None else self._thread.troubles()

    def start(self, app: ASGIApp) -> Self:
        """The app answers when this returns."""
        self.begin()
        assert self._uvicorn is not None  # noqa: S101 - it was made, or that failed
        self._drain = getattr(getattr(app, "state", None), "drain", None)
        self._uvicorn.take_up(app)
        self._front.app = app
        return self

    def _config(self, app: ASGIApp) -> uvicorn.Config:
        tls = self._tls
        return uvicorn.Config(
            app,
            http=protocol_of(self._listening.settings),
            lifespan="off",  # the app comes later: see `take_up`
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
            timeout_graceful_shutdown=_STOP_LIMIT_S,
        )

    def stop(self) -> None:
        """May be called twice, and before `start`."""
        if self._uvicorn is not None and self._thread is not None:
            if self._drain is not None:
                self._drain()
            self._uvicorn.end_soon()
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


class _Front:
    """Whoever answers at the moment."""

    def __init__(self) -> None:
        self.app: ASGIApp = opening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, patience: Patience) -> None:
        super().__init__(config)
        self._patience = patience
        self.is_settled = threading.Event()
        """It has started, or cannot."""
        self.error: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._taken_up: LifespanOn | None = None

    def run_until_stopped(self, bound: socket.socket) -> None:
        try:
            self.run([bound])
        except OSError as error:  # somebody else listened first at an address that both had bound
            self.error = error
        finally:
            self.is_settled.set()

    def take_up(self, app: ASGIApp) -> None:
        """Lets an app begin what it does beside its requests; it ends that when the last of them is answered."""
        assert self._loop is not None  # noqa: S101 - it has started
        config = uvicorn.Config(app, lifespan="on", log_config=None)
        config.load()
        lifespan = LifespanOn(config)
        asyncio.run_coroutine_threadsafe(lifespan.startup(), self._loop).result()
        if lifespan.should_exit:
            raise EvertideError
        self._taken_up = lifespan

    def end_soon(self) -> None:
        self.should_exit = True
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it was closed meanwhile: nothing is under way
                loop.call_soon_threadsafe(loop.call_later, _READ_LIMIT_S, self._patience.end_reads)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.is_settled.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self._taken_up is not None:
            await self._taken_up.shutdown()


def _parsed(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise InvalidInput(where=f"address {listen!r}", why="expected HOST:PORT, with a port from 0 to 65535")
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)


def _bound(listen: str, host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise InvalidInput(where=f"address {listen!r}", why=f"the host is not known: {error}") from error
    made = socket.socket(family, kind, proto)
    try:
        # A port that was used a moment ago may be used again; one that somebody listens at may not.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
    except OSError as error:
        made.close()
        why = f"{error.strerror}: choose another port, or 0 for any that is free"
        raise InvalidInput(where=f"address {listen!r}", why=why) from error
    return made
