"""`Gate`: admits each request and attaches its token, or refuses it.

1. The role that a request needs follows from its method and address, by one table (`roles`).
2. A request without a valid token gets 401; a token that does not allow the request gets 403 with the role that is
   needed. Neither response reveals anything about the data or about the token that was sent.
3. A token is sent as `Authorization: Bearer TOKEN`, or for shapes as `?secret=TOKEN`. If a request has several, all
   must be equal: otherwise a proxy and this server might each use another one.
4. Handlers read the token from `request.state.token` and the restriction by `read_restriction`
   (`evertide.pgexpr.restriction`). A request that needs no token (health, the page) gets a restriction that
   allows no collection, in case a handler forgets to check.
5. A stream of events has no end. If its token expires or is changed, the stream ends before its next event, which may
   be a comment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evertide.errors import EvertideError, Forbidden, Unauthorized
from evertide.media import EVENTS
from evertide.pgexpr.restriction import NOTHING, UNRESTRICTED
from evertide.runtime import Runtime, SystemRuntime
from evertide.server.access.access import Access
from evertide.server.access.roles import ROLES, SHAPE, Rule, find_rule
from evertide.server.access.token import Token
from evertide.server.http.answers import answer_error
from evertide.shapes.http.answers import make_cors_headers

logger = logging.getLogger(__name__)

_SHAPE_PARAMETERS = ("secret", "api_secret")
_TOKEN_PARAMETERS = (*_SHAPE_PARAMETERS, "token", "access_token")
_CHALLENGE = 'Bearer realm="evertide"'


class _AccessEnded(Exception):
    """A stream was admitted, and would not be admitted now."""


class Gate:
    def __init__(
        self, app: ASGIApp, access: Access, roles: Iterable[Rule] = ROLES, runtime: Runtime | None = None
    ) -> None:
        self._app = app
        self._access = access
        self._roles = tuple(roles)
        self._runtime = runtime or SystemRuntime()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope)
        try:
            token = self._admit(request)
        except (Unauthorized, Forbidden) as error:
            await _refuse(request, error)(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["token"] = token
        if self._access.is_open:
            UNRESTRICTED.put_in(state)
        else:
            (NOTHING if token is None else token.restriction).put_in(state)
        try:
            await self._app(scope, receive, send if token is None else self._send_while_admitted(request, token, send))
        except _AccessEnded as error:
            logger.info("%s %s: ending the stream: %s", request.method, scope["path"], error)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _send_while_admitted(self, request: Request, token: Token, send: Send) -> Send:
        is_endless = False

        async def send_if_admitted(message: Message) -> None:
            nonlocal is_endless
            if message["type"] == "http.response.start":
                is_endless = Headers(raw=message["headers"]).get("content-type", "").startswith(EVENTS)
            elif is_endless and message.get("more_body", False):
                try:
                    now = self._admit(request)
                except (Unauthorized, Forbidden) as error:
                    raise _AccessEnded(error.why) from error
                if now is None or now.restriction != token.restriction:
                    raise _AccessEnded(f"the restriction of token {token.name!r} was changed")
            await send(message)

        return send_if_admitted

    def _admit(self, request: Request) -> Token | None:
        """The token of the request; None if the request needs none."""
        self._access = self._access.reload_if_changed(self._runtime.monotonic_s())
        if self._access.is_open:
            return None
        method, path = request.method, request.scope["path"]
        rule = find_rule(self._roles, method, path)
        if rule.role is None:
            return None
        where = f"{method} {path}"
        token = self._find_token(request, where)
        if token.role < rule.role:
            why = f"token {token.name!r} has the role {token.role}; this request needs the role {rule.role}"
            raise Forbidden(where=where, why=why, role=str(rule.role))
        if not token.restriction.is_unrestricted and not rule.is_restricted:
            why = f"token {token.name!r} is restricted to some collections, but the response would contain others"
            raise Forbidden(where=where, why=why)
        return token

    def _find_token(self, request: Request, where: str) -> Token:
        token = self._access.find(_read_token(request, where))
        if token is None:
            raise Unauthorized(where=where, why="the server does not know the token")
        if token.ends_at_s is not None and token.ends_at_s <= self._runtime.wall_s():
            raise Unauthorized(where=where, why=f"token {token.name!r} has expired")
        return token


def _read_token(request: Request, where: str) -> str:
    texts = []
    for value in request.headers.getlist("authorization"):
        scheme, _, text = value.partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise Unauthorized(where=where, why="the header Authorization is not `Bearer TOKEN`")
        texts.append(text.strip().encode("latin-1"))
    query = [(name, value) for name, value in _parse_query(request) if name in _TOKEN_PARAMETERS and value]
    if request.scope["path"] == SHAPE:
        texts += [value.encode("utf-8", "surrogateescape") for name, value in query if name in _SHAPE_PARAMETERS]
    elif query and not texts:
        raise Unauthorized(where=where, why="a token in the URL is accepted for shapes only; send it in the header")
    if not texts:
        raise Unauthorized(where=where, why="the request has no token")
    if len(set(texts)) > 1:
        raise Unauthorized(where=where, why="the request has several tokens that differ")
    return texts[0].decode("utf-8", "replace")


def _parse_query(request: Request) -> list[tuple[str, str]]:
    return parse_qsl(request.scope["query_string"].decode("latin-1"), errors="surrogateescape")


def _refuse(request: Request, error: EvertideError) -> Response:
    answer = answer_error(request, error)
    if isinstance(error, Unauthorized):
        answer.headers["WWW-Authenticate"] = _CHALLENGE
    elif isinstance(error, Forbidden) and error.role:
        answer.headers["WWW-Authenticate"] = f'{_CHALLENGE}, error="insufficient_scope", scope="{error.role}"'
    answer.headers["Cache-Control"] = "no-store"
    if request.scope["path"] == SHAPE:  # so that a page of another origin can read the reason
        answer.headers.update(make_cors_headers(request.headers.get("origin")))
    return answer
