"""`Endpoint`: a method and an address, described once. The routes and the OpenAPI document are made from endpoints.

1. The query parameters are a Struct: names, types, limits and descriptions. An unknown parameter is refused, so that a
   misspelled one is not ignored.
2. A JSON body is a Struct, or any JSON. Bodies of other media types are bytes.
3. An answer is a Struct, or a mapping of media types. Errors have one form (`evertide.server.http.answers`).
4. The handler finds the names in `{}` of the path in `Request.path_params`.
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

S = TypeVar("S", bound=msgspec.Struct)

Handler = Callable[[Request, Any], Awaitable[Response]]
"""Takes the request and its query parameters."""

BYTES = bytes
"""In place of a Struct: content of any form, as its media type says."""

_PARAMS = re.compile(r"params\[(\d+)\]")
_FIELD_PATH = re.compile(r" - at `\$\.?(?P<at>[^`]*)`$")


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No query parameters."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one address, with the types of its parameters and answers."""

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
    """Descriptions of the request headers that the endpoint reads."""
    statuses: Mapping[int, str] = field(default_factory=dict)
    """Descriptions of further statuses whose answer has the same form as that of 200."""
    refusals: tuple[int, ...] = (400,)
    """Statuses of the errors that a client can expect."""


class EndpointGroup(Protocol):
    def endpoints(self) -> Iterable[Endpoint]: ...


def make_routes(endpoints: Iterable[Endpoint]) -> list[Route]:
    """One route per path, so that the refusal of a wrong method lists all methods of the path."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [Route(path, _dispatch(by_method), methods=[*by_method]) for path, by_method in by_path.items()]


def _dispatch(by_method: Mapping[str, Endpoint]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        endpoint = by_method["GET" if request.method == "HEAD" else request.method]
        return await endpoint.handler(request, parse_query(request, endpoint.query))

    return answer


def parse_query(request: Request, kind: type[S]) -> S:
    """`params[1]`, `params[2]` and so on are the parameters of a where clause."""
    given: dict[str, Any] = {}
    params: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        numbered = _PARAMS.fullmatch(name)
        if name in given or (numbered and numbered[1] in params):
            raise InvalidInput(where=f"parameter {name!r}", why="the parameter occurs twice")
        if numbered and "params" in kind.__struct_fields__:
            params[numbered[1]] = value
        else:
            given[name] = value
    if params:
        given["params"] = params
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _make_refusal(error, "parameter", kind) from error


def parse_body(content: bytes, kind: type[S]) -> S:
    try:
        decode_json(msgspec.json.Decoder(), content or b"{}")
        return msgspec.json.decode(content or b"{}", type=kind)
    except RepeatedName as error:
        raise InvalidInput(where="body", why=str(error)) from error
    except msgspec.ValidationError as error:
        raise _make_refusal(error, "body, field", kind) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidInput(where="body", why=f"the body is not JSON: {error}") from error


def _make_refusal(error: msgspec.ValidationError, what: str, kind: type[msgspec.Struct]) -> InvalidInput:
    text = str(error)
    match = _FIELD_PATH.search(text)
    where = f"{what} {match['at']!r}" if match and match["at"] else what
    known = f"; expected one of {', '.join(kind.__struct_encode_fields__)}" if "unknown field" in text else ""
    return InvalidInput(where=where, why=f"{_FIELD_PATH.sub('', text)}{known}")
