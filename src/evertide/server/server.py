"""`Server`: serves an app on a socket, in a thread of its own.

1. The constructor binds the address and reads the TLS files, before the pipeline opens, so that errors show at once.
   From `begin` on, the server answers that the pipeline is opening (`answer_while_opening`); from `start`
   on, the app answers. Without `begin`, connections are refused until `start`.
2. `stop` accepts no new requests. It ends streams, queries and waiting requests at once, and other reads within a
   second, each with 503 if the response has not started. Requests that change something and have arrived completely
   have 30 seconds to finish; after that they are answered with an unknown outcome. The pipeline is closed only then.
3. The server installs no signal handlers; the command does.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import anyio.to_thread
import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.lifespan.on import LifespanOn

from evertide.errors import InvalidInput, Unexpected
from evertide.pipeline.replicas.liveness import find_opening_hang
from evertide.problem import Problem
from evertide.server.access.connections import ClientTimeouts, make_protocol
from evertide.server.access.listen_options import ListenOptions
from evertide.server.http.answers import answer_json
from evertide.threads.watched import WatchedThread

LOOPBACK = "127.0.0.1"

_STOP_LIMIT_S = 30
_READ_LIMIT_S = 1.0
"""How long active reads may take when the server stops."""
_BACKLOG = 2048

_LIVE = "/v1/health/live"
_WHY = "the pipeline is opening"
_STARTING = {
    "status": "starting",
    "error_code": "starting",
    "message": f"The server cannot answer yet: {_WHY}",
    "remedy": "Retry after the number of seconds in the Retry-After header.",
}
_HEADERS = {"Retry-After": "2", "Cache-Control": "no-store"}


async def answer_while_opening(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI app that answers while the pipeline opens.

        /v1/health/live   200: the process makes progress, and a restart would only delay it; 503 if it hangs
        all others        503 with Retry-After, and `"status": "starting"` for health checks

    Opening may take a while: it starts Spark, loads the newest checkpoint and replays the transactions after it.
    Requests need no token meanwhile, because the answers contain nothing else.
    """
    if scope["type"] != "http":
        return
    if Request(scope).url.path == _LIVE and scope["method"] in ("GET", "HEAD"):
        hang = await anyio.to_thread.run_sync(find_opening_hang)  # may call Spark
        content: dict[str, object] = {
            "status": "hangs" if hang else "alive",
            "why": hang or _WHY,
            "remedy": "",
            "views": [],
        }
        answer = answer_json(content, 503 if hang else 200, _HEADERS)
    else:
        answer = answer_json(_STARTING, 503, _HEADERS)
    await answer(scope, receive, send)


_THRESHOLDS = (50_000, 20, 20)


class Server:
    """An HTTP server on one address; it runs in a thread from `begin` or `start` to `stop`."""

    def __init__(self, listen: str = f"{LOOPBACK}:0", listening: ListenOptions | None = None) -> None:
        """`listen` is `HOST:PORT`, `[IPV6]:PORT`, or `:PORT` for this machine only; port 0 means any free port."""
        self._listen = listen
        self._listening = listening or ListenOptions()
        self._tls = self._listening.tls.context() if self._listening.tls is not None else None
        host, port = _parse_address(listen)
        self._socket = _bind(listen, host, port)
        self._uvicorn: _Uvicorn | None = None
        self._thread: WatchedThread | None = None
        self._current_app = _CurrentApp()
        self._drain: Callable[[], None] | None = None
        """Ends the streams of the app: its `state.drain`."""
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
        """The server accepts connections when this returns."""
        if self._uvicorn is not None:
            return self
        try:
            self._socket.listen(_BACKLOG)  # here, because not every event loop reports its errors
        except OSError as error:
            raise InvalidInput(where=f"address {self._listen!r}", why=str(error)) from error
        timeouts = self._listening.wrap(self._current_app, self.host)
        self._uvicorn = _Uvicorn(self._make_config(timeouts), timeouts)
        self._thread = WatchedThread("evertide-http", self._uvicorn.run_until_stopped, self._socket)
        self._thread.start()
        self._uvicorn.has_started_or_failed.wait()
        if self._uvicorn.error is not None:
            raise InvalidInput(where=f"address {self._listen!r}", why=str(self._uvicorn.error))
        return self

    def list_thread_problems(self) -> list[Problem]:
        return [] if self._thread is None else self._thread.list_thread_problems()

    def start(self, app: ASGIApp) -> Self:
        """The app answers when this returns."""
        self.begin()
        assert self._uvicorn is not None  # noqa: S101 - begin() has set it, or raised
        self._drain = getattr(getattr(app, "state", None), "drain", None)
        self._uvicorn.start_lifespan(app)
        self._current_app.switch_to(app)
        return self

    def _make_config(self, app: ASGIApp) -> uvicorn.Config:
        tls = self._tls
        return uvicorn.Config(
            app,
            http=make_protocol(self._listening.settings),
            lifespan="off",  # the app is not known yet: see `start_lifespan`
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ssl_context_factory=None if tls is None else lambda _make_config, _default: tls,
            timeout_graceful_shutdown=_STOP_LIMIT_S,
        )

    def stop(self) -> None:
        """May be called several times, and before `start`."""
        if self._uvicorn is not None and self._thread is not None:
            if self._drain is not None:
                self._drain()
            self._uvicorn.request_stop()
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


class _CurrentApp:
    """Forwards each request to the current app."""

    def __init__(self) -> None:
        self._app: ASGIApp = answer_while_opening

    def switch_to(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, timeouts: ClientTimeouts) -> None:
        super().__init__(config)
        self._timeouts = timeouts
        self.has_started_or_failed = threading.Event()
        self.error: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lifespan: LifespanOn | None = None

    def run_until_stopped(self, bound: socket.socket) -> None:
        try:
            self.run([bound])
        except OSError as error:  # two processes bound the address, and the other one listened first
            self.error = error
        finally:
            self.has_started_or_failed.set()

    def start_lifespan(self, app: ASGIApp) -> None:
        """Start the background work of the app; it ends after the last request."""
        assert self._loop is not None  # noqa: S101 - the server has started
        config = uvicorn.Config(app, lifespan="on", log_config=None)
        config.load()
        lifespan = LifespanOn(config)
        asyncio.run_coroutine_threadsafe(lifespan.startup(), self._loop).result()
        if lifespan.should_exit:
            raise Unexpected(where="Server.start", why="the app did not start; the log has the reason")
        self._lifespan = lifespan

    def request_stop(self) -> None:
        self.should_exit = True
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop was closed meanwhile: no request is active
                loop.call_soon_threadsafe(loop.call_later, _READ_LIMIT_S, self._timeouts.end_reads)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.has_started_or_failed.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self._lifespan is not None:
            await self._lifespan.shutdown()


def _parse_address(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise InvalidInput(where=f"address {listen!r}", why="expected HOST:PORT, with a port from 0 to 65535")
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)


def _bind(listen: str, host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise InvalidInput(where=f"address {listen!r}", why=f"cannot resolve the host: {error}") from error
    bound = socket.socket(family, kind, proto)
    try:
        # A port that was released a moment ago may be used again; one that a process listens on may not.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
    except OSError as error:
        bound.close()
        why = f"{error.strerror}; choose another port, or 0 for any free port"
        raise InvalidInput(where=f"address {listen!r}", why=why) from error
    return bound


def tune_garbage_collection() -> None:
    """Make Python's cyclic garbage collection rarer in a process that serves.

    By default, Python scans all young objects every 700 allocations, and all old ones when they have grown by a
    quarter. While ten thousand clients connected, that took a third of the time. The objects of a started server live
    until its end, so they are excluded from scans; other scans are rare, because the server creates few cycles.

    This applies to the whole process, so only commands call it, never the library.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    atexit.register(gc.unfreeze)  # so that native libraries can run their finalizers
