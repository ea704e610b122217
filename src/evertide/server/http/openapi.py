"""The OpenAPI document of the endpoints: made of the same table as the routes, so that it cannot say anything else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from evertide import __version__
from evertide.server.http.endpoint import BYTES, Endpoint

__all__ = ["Refused", "document"]

_PLACE = re.compile(r"\{(\w+)(?::\w+)?\}")
_REF = "#/components/schemas/{name}"

_REFUSALS = {
    400: "The input is not valid; nothing was changed.",
    401: "A token is needed, and this is none.",
    403: "The token does not allow this.",
    404: "Nothing is at this address.",
    406: "It is not given in that format.",
    409: "Another writer was first, or the pipeline is paused or read-only; nothing was changed.",
    410: "The time asked for is not kept any more.",
    413: "The body is too large.",
    415: "The body's type is not known.",
    422: "It would take more than is allowed.",
    429: "Too many at the same time.",
    500: "The process needs somebody to look; or a bug.",
    502: "A source or a sink cannot be reached.",
    503: "Storage does not answer; try again.",
    504: "Nobody knows whether it happened.",
    507: "Storage is full.",
}


class Refused(msgspec.Struct, frozen=True):
    """An error: what happened, what to do, and the facts."""

    error_code: str
    message: str
    remedy: str


def document(endpoints: Iterable[Endpoint], *, has_tokens: bool, others: Mapping[str, Any]) -> dict[str, Any]:
    table = [*endpoints]
    kinds: list[Any] = [Refused]
    for one in table:
        described = (*one.answers.values(), *one.bodies.values())
        kinds += [kind for kind in described if kind is not BYTES and kind not in kinds]
        if one.query.__struct_fields__ and one.query not in kinds:
            kinds.append(one.query)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    told = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for one in table:
        path = _PLACE.sub(r"{\1}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, told, components)
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Evertide", "version": __version__, "description": "Live views on Apache Spark."},
        "paths": {**paths, **others},
        "components": {"schemas": _without(components, {one.query.__name__ for one in table})},
    }
    if has_tokens:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
    return found


def _without(components: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: schema for name, schema in components.items() if name not in names}


def _operation(one: Endpoint, told: Mapping[Any, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": _name(one),
        "tags": [one.area],
        "summary": one.summary,
        "parameters": [*_places(one), *_parameters(one, components), *_headers(one)],
        "responses": _responses(one, told),
    }
    if one.bodies:
        content = {media: {"schema": _schema(kind, told)} for media, kind in one.bodies.items()}
        made["requestBody"] = {"required": True, "content": content}
    return made


def _name(one: Endpoint) -> str:
    words = re.sub(r"[{}]", "", one.path.removeprefix("/v1/").removeprefix("/"))
    return f"{one.method.lower()}_{re.sub(r'[^A-Za-z0-9]+', '_', words)}"


def _places(one: Endpoint) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1}
    return [
        {"name": name, "in": "path", "required": True, "schema": schema, "description": f"The {name}."}
        for name in _PLACE.findall(one.path)
    ]


def _parameters(one: Endpoint, components: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not one.query.__struct_fields__:
        return []
    schema = components[one.query.__name__]
    required = set(schema.get("required", ()))
    found = []
    for name, told in schema["properties"].items():
        made = {"name": name, "in": "query", "required": name in required, "schema": _without_null(told)}
        if "description" in told:
            made["description"] = told["description"]
        if told.get("type") == "object":
            made |= {"style": "deepObject", "explode": True}
        found.append(made)
    return found


def _without_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter is left out rather than null."""
    kept = {name: value for name, value in schema.items() if name != "default" or value is not None}
    options = [each for each in kept.get("anyOf", ()) if each != {"type": "null"}]
    if len(options) == 1:
        del kept["anyOf"]
        kept |= options[0]
    return kept


def _headers(one: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": what}
        for name, what in one.headers.items()
    ]


def _responses(one: Endpoint, told: Mapping[Any, Any]) -> dict[str, Any]:
    content = {media: {"schema": _schema(kind, told)} for media, kind in one.answers.items()}
    answers: dict[str, Any] = {"200": {"description": one.summary, "content": content}}
    for code, what in one.statuses.items():
        answers[str(code)] = {"description": what, "content": content}
    refused = {"application/json": {"schema": told[Refused]}}
    for code in (*one.refusals, 401, 403, 500, 503):
        if str(code) not in answers:
            answers[str(code)] = {"description": _REFUSALS[code], "content": refused}
    return dict(sorted(answers.items()))


def _schema(kind: Any, told: Mapping[Any, Any]) -> Any:
    return {} if kind is BYTES else told[kind]
