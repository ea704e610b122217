"""`Gate`: every request passes it, and is told who sent it; or is turned back.

1. The role follows from the method and the address as the routes see it, by one table (`roles`).
2. Who is not known gets 401, who is known and may not gets 403 with the role that is needed. Neither says anything of
   what lies behind, nor of the token that was given.
3. A token comes as `Authorization: Bearer TOKEN`, or for shapes as `?secret=TOKEN`. If several are given, all have to
   be the same: otherwise two who read the request might each take another one.
4. The handlers find who asks as `request.state.token`, and what he may see by `restriction_in` (`evertide.shapes.
   where.restriction`). Who was not asked (health, the page) may see nothing, even if a handler were to forget.
5. A stream of events has no end of its own. Whoever may not have it any more, as his token has ended or the tokens
   were changed, is told nothing further: the stream ends before its next piece, which may be a comment.
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
from evertide.server.access.roles import ROLES, SHAPE, Rule, rule_of
from evertide.server.access.token import Token
from evertide.server.http.answers import refused
from evertide.shapes.http.answers import cors

__all__ = ["Gate"]

logger = logging.getLogger(__name__)

_IN_QUERY = ("secret", "api_secret")
_ELSEWHERE = (*_IN_QUERY, "token", "access_token")
_CHALLENGE = 'Bearer realm="evertide"'


class _NotAnyMore(Exception):
    """Whoever listens was let in, and would not be now."""


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
        if scope["type"] != "http":  # there are no others
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope)
        try:
            token = self._admitted(request)
        except (Unauthorized, Forbidden) as error:
            await _turned_back(request, error)(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["token"] = token
        if self._access.is_open:
            UNRESTRICTED.put_in(state)
        else:
            (NOTHING if token is None else token.restriction).put_in(state)
        try:
            await self._app(scope, receive, send if token is None else self._while_admitted(request, token, send))
        except _NotAnyMore as error:
            logger.info("%s %s: the stream ends: %s", request.method, scope["path"], error)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _while_admitted(self, request: Request, token: Token, send: Send) -> Send:
        is_endless = False

        async def sending(message: Message) -> None:
            nonlocal is_endless
            if message["type"] == "http.response.start":
                is_endless = Headers(raw=message["headers"]).get("content-type", "").startswith(EVENTS)
            elif is_endless and message.get("more_body", False):
                try:
                    now = self._admitted(request)
                except (Unauthorized, Forbidden) as error:
                    raise _NotAnyMore(error.why) from error
                if now is None or now.restriction != token.restriction:
                    raise _NotAnyMore(f"token {token.name!r} is restricted to something else now")
            await send(message)

        return sending

    def _admitted(self, request: Request) -> Token | None:
        """Whoever sent it; None if that is not known, and need not be."""
        self._access = self._access.renewed(self._runtime.monotonic_s())
        if self._access.is_open:
            return None
        method, path = request.method, request.scope["path"]
        rule = rule_of(self._roles, method, path)
        if rule.role is None:
            return None
        where = f"{method} {path}"
        token = self._known(request, where)
        if token.role < rule.role:
            why = f"token {token.name!r} has the role {token.role}, and {rule.role} is needed"
            raise Forbidden(where=where, why=why, role=str(rule.role))
        if not token.restriction.is_free and not rule.is_restricted:
            why = f"token {token.name!r} is restricted to collections, and this address tells of others"
            raise Forbidden(where=where, why=why)
        return token

    def _known(self, request: Request, where: str) -> Token:
        given = _given(request, where)
        token = self._access.find(given)
        if token is None:
            raise Unauthorized(where=where, why="the token is not known")
        if token.ends_at_s is not None and token.ends_at_s <= self._runtime.wall_s():
            raise Unauthorized(where=where, why=f"token {token.name!r} has ended")
        return token


def _given(request: Request, where: str) -> str:
    """The token, as text."""
    found = []
    for value in request.headers.getlist("authorization"):
        scheme, _, text = value.partition(" ")
        if scheme.lower() != "bearer" or not text.strip():
            raise Unauthorized(where=where, why="the header Authorization is not `Bearer TOKEN`")
        found.append(text.strip().encode("latin-1"))
    query = [(name, value) for name, value in _query(request) if name in _ELSEWHERE and value]
    if request.scope["path"] == SHAPE:
        found += [value.encode("utf-8", "surrogateescape") for name, value in query if name in _IN_QUERY]
    elif query and not found:
        raise Unauthorized(where=where, why="a token in the address counts for shapes only; it belongs into the header")
    if not found:
        raise Unauthorized(where=where, why="no token was given")
    if len(set(found)) > 1:
        raise Unauthorized(where=where, why="several tokens were given, and not the same")
    return found[0].decode("utf-8", "replace")


def _query(request: Request) -> list[tuple[str, str]]:
    return parse_qsl(request.scope["query_string"].decode("latin-1"), errors="surrogateescape")


def _turned_back(request: Request, error: EvertideError) -> Response:
    answer = refused(request, error)
    if isinstance(error, Unauthorized):
        answer.headers["WWW-Authenticate"] = _CHALLENGE
    elif isinstance(error, Forbidden) and error.role:
        answer.headers["WWW-Authenticate"] = f'{_CHALLENGE}, error="insufficient_scope", scope="{error.role}"'
    answer.headers["Cache-Control"] = "no-store"
    if request.scope["path"] == SHAPE:  # a page of another origin is to see why
        answer.headers.update(cors(request.headers.get("origin")))
    return answer
