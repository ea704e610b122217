"""`Gate`: every request passes it, and is told who sent it; or is turned back.

1. The role follows from the method and the address as the routes see it, by one table (`roles`).
2. Who is not known gets 401, who is known and may not gets 403 with the role that is needed. Neither says anything of
   what lies behind, nor of the token that was given.
3. A token comes as `Authorization: Bearer TOKEN`, or for shapes as `?secret=TOKEN`. If several are given, all have to
   be the same: otherwise two who read the request might each take another one.
4. The handlers find who asks as `request.state.token`, and what he may see by `restriction_in` (`evertide.shapes.
   restriction`). Who was not asked (health, the page) may see nothing, even if a handler were to forget.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from evertide.errors import EvertideError, Forbidden, Unauthorized
from evertide.runtime import Runtime, SystemRuntime
from evertide.server.access.access import Access
from evertide.server.access.roles import ROLES, SHAPE, Rule, rule_of
from evertide.server.access.token import Token
from evertide.server.answers import refused
from evertide.shapes.answers import cors
from evertide.shapes.restriction import NOTHING, UNRESTRICTED

__all__ = ["Gate"]

_IN_QUERY = ("secret", "api_secret")
_ELSEWHERE = (*_IN_QUERY, "token", "access_token")
_CHALLENGE = 'Bearer realm="evertide"'


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
        await self._app(scope, receive, send)

    def _admitted(self, request: Request) -> Token | None:
        """Whoever sent it; None if that is not known, and need not be."""
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
