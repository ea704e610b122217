"""`CrossOrigin`: lets pages of listed origins use the API (CORS).

1. By default no origin is listed: a page of another origin can read shapes only, and `HostCheck` refuses what it sends
   to a server without tokens.
2. A preflight request of a listed origin is answered before authentication, because browsers send it without a token.
   The answer is the same for every address: methods, and headers that a page may send.
3. Responses to a listed origin name that origin and the headers that a page may read, also if a request is refused or
   the server is starting. They never allow credentials: the server has no cookies, and a page sends its token itself.
4. If any origin is listed, every response of the API has `Vary: Origin`, so that no cache gives the response for one
   origin to another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evertide.errors import InvalidInput
from evertide.media import CONTENT_HEADER, FACTS_HEADER, TIME_HEADER, TXID_HEADER
from evertide.shapes.http.answers import EXPOSED_HEADERS

_API = "/v1/"
_METHODS = "GET, HEAD, POST, DELETE"
_SENT_HEADERS = (
    "Accept, Authorization, Content-Type, Evertide-Producer, Evertide-Sequence, If-None-Match, traceparent, tracestate"
)
_READ_HEADERS = ", ".join(
    (TXID_HEADER, TIME_HEADER, FACTS_HEADER, CONTENT_HEADER, "ETag", "WWW-Authenticate", *EXPOSED_HEADERS.split(","))
)
_PREFLIGHT_AGE_S = 7200
"""How long browsers may remember the answer to a preflight request; Chromium's limit."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")


def parse_origin(text: str) -> str:
    """The origin as browsers send it in the header `Origin`."""
    where = f"origin {text!r}"
    found = text.lower().removesuffix("/")
    if not (found.isascii() and _ORIGIN.fullmatch(found)):
        why = "expected the scheme, host and port of one page, as in https://app.example or http://localhost:5173"
        raise InvalidInput(where=where, why=why)
    try:
        parts = urlsplit(found)
        port = parts.port
    except ValueError as error:
        raise InvalidInput(where=where, why=str(error)) from error
    if not parts.hostname or "*" in parts.hostname:
        raise InvalidInput(where=where, why="expected a host without wildcards; name each origin")
    return found.removesuffix(f":{port}") if port == _DEFAULT_PORTS.get(parts.scheme) else found


class CrossOrigin:
    def __init__(self, app: ASGIApp, origins: Iterable[str]) -> None:
        """`origins` are as `parse_origin` returns them."""
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._origins or scope["type"] != "http" or not scope["path"].startswith(_API):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        origin = request.headers.get("origin")
        is_listed = origin in self._origins

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.add_vary_header("Origin")
                if is_listed:
                    headers["Access-Control-Allow-Origin"] = str(origin)
                    headers["Access-Control-Expose-Headers"] = _READ_HEADERS
            await send(message)

        if is_listed and request.method == "OPTIONS" and "access-control-request-method" in request.headers:
            await _answer_preflight()(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)


def _answer_preflight() -> Response:
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": _SENT_HEADERS,
            "Access-Control-Max-Age": str(_PREFLIGHT_AGE_S),
            "Cache-Control": "no-store",
        },
    )
