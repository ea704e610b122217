"""`Endpoint`: an address and a method, described once. Routes are made of these, and so is the OpenAPI document.

1. What stands behind `?` is a Struct: names, types, limits and words of the parameters. A parameter that it does not
   know is refused: a misspelt one would be passed over silently otherwise.
2. A JSON body is a Struct, too, or anything that is not described further. Other types of bodies are bytes.
3. An answer is a Struct, or a mapping of media types; errors are the same for all (`evertide.server.http.answers`).
4. The names in `{}` of a path are given to the handler by `Request.path_params`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from evertide.errors import InvalidInput
from evertide.sources.values.strict_json import RepeatedName, decode_json

__all__ = ["BYTES", "Area", "Endpoint", "Handler", "NoQuery", "body_of", "query_of", "routes_of"]

S = TypeVar("S", bound=msgspec.Struct)

Handler = Callable[[Request, Any], Awaitable[Response]]
"""Takes the request, and what stands behind `?`."""

BYTES = bytes
"""In place of a Struct: anything, as its media type says."""

_PARAMS = re.compile(r"params\[(\d+)\]")
_AT = re.compile(r" - at `\$\.?(?P<at>[^`]*)`$")


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing stands behind `?`."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    method: str
    path: str
    area: str
    summary: str
    handler: Handler
    answers: Mapping[str, Any]
    """By media type: a Struct, or bytes."""
    query: type[msgspec.Struct] = NoQuery
    bodies: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of a request that count, and what they say."""
    statuses: Mapping[int, str] = field(default_factory=dict)
    """Answers of the same form that have another code than 200."""
    refusals: tuple[int, ...] = (400,)
    """Codes of the errors that a client can expect."""


class Area(Protocol):
    """Endpoints that belong together."""

    def endpoints(self) -> Iterable[Endpoint]: ...


def routes_of(endpoints: Iterable[Endpoint]) -> list[Route]:
    """One for each path, in order, so that a wrong method is told with all that are right."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for one in endpoints:
        by_path.setdefault(one.path, {})[one.method] = one
    return [Route(path, _dispatch(found), methods=[*found]) for path, found in by_path.items()]


def _dispatch(found: Mapping[str, Endpoint]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        endpoint = found["GET" if request.method == "HEAD" else request.method]
        return await endpoint.handler(request, query_of(request, endpoint.query))

    return answer


def query_of(request: Request, kind: type[S]) -> S:
    """`InvalidInput` names the parameter. `params[1]`, `params[2]` and so on are the parameters of a where clause."""
    given: dict[str, Any] = {}
    params: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        numbered = _PARAMS.fullmatch(name)
        if name in given or (numbered and numbered[1] in params):
            raise InvalidInput(where=f"parameter {name!r}", why="it is given twice")
        if numbered and "params" in kind.__struct_fields__:
            params[numbered[1]] = value
        else:
            given[name] = value
    if params:
        given["params"] = params
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _refusal(error, "parameter", kind) from error


def body_of(content: bytes, kind: type[S]) -> S:
    try:
        decode_json(msgspec.json.Decoder(), content or b"{}")
        return msgspec.json.decode(content or b"{}", type=kind)
    except RepeatedName as error:
        raise InvalidInput(where="body", why=str(error)) from error
    except msgspec.ValidationError as error:
        raise _refusal(error, "body, field", kind) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidInput(where="body", why=f"it is no JSON: {error}") from error


def _refusal(error: msgspec.ValidationError, what: str, kind: type[msgspec.Struct]) -> InvalidInput:
    text = str(error)
    found = _AT.search(text)
    where = f"{what} {found['at']!r}" if found and found["at"] else what
    known = f"; there are {', '.join(kind.__struct_encode_fields__)}" if "unknown field" in text else ""
    return InvalidInput(where=where, why=f"{_AT.sub('', text)}{known or ''}")
