"""`Measured`: times every request, under the route as it is declared: addresses have no end, routes have."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evertide.observer import Observer, Requested
from evertide.runtime import Runtime

__all__ = ["Measured"]

_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_SHAPE = "/v1/shape"
_GONE = 499
"""The client went away before there was an answer."""


class Measured:
    """Goes outside of all else. What is streamed counts until its last byte."""

    def __init__(self, app: ASGIApp, observer: Observer, runtime: Runtime) -> None:
        self._app = app
        self._observer = observer
        self._clock = runtime.monotonic_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, code = self._clock(), _GONE

        async def sending(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", None) or "other"
            kind = _kind(scope["query_string"]) if route == _SHAPE else ""
            named = next((value for name, value in scope["headers"] if name == b"traceparent"), b"").decode("latin-1")
            self._observer.requested(Requested(method, route, code, began_s, self._clock() - began_s, kind, named))


def _kind(query: bytes) -> str:
    """Of a request for a shape."""
    given = parse_qs(query.decode("latin-1"), max_num_fields=None)
    is_live = given.get("live", [""])[-1] == "true"
    if is_live and "true" in (given.get("live_sse", [""])[-1], given.get("experimental_live_sse", [""])[-1]):
        return "stream"
    if is_live:
        return "live"
    return "snapshot" if given.get("offset", [""])[-1] == "-1" else "log"
