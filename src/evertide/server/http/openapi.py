"""The OpenAPI document, made from the same endpoints as the routes, so that both agree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from evertide import __version__
from evertide.media import JSON
from evertide.server.http.endpoint import BYTES, Endpoint, NoQuery

_PATH_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_REF = "#/components/schemas/{name}"

_REFUSALS = {
    400: "The input is wrong; nothing was changed.",
    401: "The request has no valid token.",
    403: "The token does not allow this.",
    404: "The server has nothing at this address.",
    406: "The format is not available.",
    409: "Another writer was first, or the pipeline is paused or read-only; nothing was changed.",
    410: "The requested time is older than the history that is kept.",
    413: "The body is too large.",
    415: "The type of the body is not supported.",
    422: "The request exceeds a limit.",
    429: "Too many requests at the same time.",
    500: "The pipeline has failed and needs an operator, or a bug.",
    502: "A source or a sink cannot be reached.",
    503: "The server is busy, or storage does not answer; retry.",
    504: "The write may or may not have happened.",
    507: "Storage is full.",
}


class ErrorAnswer(msgspec.Struct, frozen=True):
    """An error: what happened, and what to do; further fields are the facts of the error."""

    error_code: str
    message: str
    remedy: str


def describe_api(endpoints: Iterable[Endpoint], *, has_tokens: bool, other_paths: Mapping[str, Any]) -> dict[str, Any]:
    table = [*endpoints]
    kinds: list[Any] = [ErrorAnswer]
    for endpoint in table:
        described = (*endpoint.answers.values(), *endpoint.bodies.values())
        kinds += [kind for kind in described if kind is not BYTES and kind not in kinds]
        if endpoint.query.__struct_fields__ and endpoint.query not in kinds:
            kinds.append(endpoint.query)
    schema_list, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schemas = dict(zip(kinds, schema_list, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in table:
        path = _PATH_PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _describe_operation(endpoint, schemas, components)
    queries = {endpoint.query.__name__ for endpoint in table}
    whole: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "Evertide", "version": __version__, "description": "Incremental SQL views on Apache Spark."},
        "paths": {**paths, **other_paths},
        "components": {"schemas": {name: schema for name, schema in components.items() if name not in queries}},
    }
    if has_tokens:
        whole["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        whole["security"] = [{"token": []}]
    return whole


def _describe_operation(
    endpoint: Endpoint, schemas: Mapping[Any, Any], components: Mapping[str, Any]
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _make_operation_id(endpoint),
        "tags": [endpoint.area],
        "summary": endpoint.summary,
        "parameters": [*_describe_path(endpoint), *_describe_query(endpoint, components), *_describe_headers(endpoint)],
        "responses": _describe_responses(endpoint, schemas),
    }
    if endpoint.bodies:
        content = {media: {"schema": _describe_schema(kind, schemas)} for media, kind in endpoint.bodies.items()}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _make_operation_id(endpoint: Endpoint) -> str:
    words = re.sub(r"[{}]", "", endpoint.path.removeprefix("/v1/").removeprefix("/"))
    return f"{endpoint.method.lower()}_{re.sub(r'[^A-Za-z0-9]+', '_', words)}"


def _describe_path(endpoint: Endpoint) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1}
    return [
        {"name": name, "in": "path", "required": True, "schema": schema, "description": f"The {name}."}
        for name in _PATH_PARAMETER.findall(endpoint.path)
    ]


def _describe_query(endpoint: Endpoint, components: Mapping[str, Any]) -> list[dict[str, Any]]:
    if not endpoint.query.__struct_fields__:
        return []
    schema = components[endpoint.query.__name__]
    required = set(schema.get("required", ()))
    parameters = []
    for name, inner in schema["properties"].items():
        parameter = {"name": name, "in": "query", "required": name in required, "schema": _drop_null(inner)}
        if "description" in inner:
            parameter["description"] = inner["description"]
        if inner.get("type") == "object":
            parameter |= {"style": "deepObject", "explode": True}
        parameters.append(parameter)
    return parameters


def _drop_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """An optional parameter is omitted, never null."""
    kept = {name: value for name, value in schema.items() if name != "default" or value is not None}
    options = [each for each in kept.get("anyOf", ()) if each != {"type": "null"}]
    if len(options) == 1:
        del kept["anyOf"]
        kept |= options[0]
    return kept


def _describe_headers(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": description}
        for name, description in endpoint.headers.items()
    ]


def _describe_responses(endpoint: Endpoint, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    content = {media: {"schema": _describe_schema(kind, schemas)} for media, kind in endpoint.answers.items()}
    responses: dict[str, Any] = {"200": {"description": endpoint.summary, "content": content}}
    for code, description in endpoint.statuses.items():
        responses[str(code)] = {"description": description, "content": content}
    refusal = {"application/json": {"schema": schemas[ErrorAnswer]}}
    for code in (*endpoint.refusals, 401, 403, 500, 503):
        if str(code) not in responses:
            responses[str(code)] = {"description": _REFUSALS[code], "content": refusal}
    return dict(sorted(responses.items()))


def _describe_schema(kind: Any, schemas: Mapping[Any, Any]) -> Any:
    return {} if kind is BYTES else schemas[kind]


def add_openapi(
    endpoints: Iterable[Endpoint], *, has_tokens: bool, other_paths: Mapping[str, Any] | None = None
) -> Iterator[Endpoint]:
    """The endpoints, and the one that describes them and itself. `other_paths` are further paths of the document."""
    table = [*endpoints]
    encoded: list[bytes] = []

    async def describe(_: Request, __: NoQuery) -> Response:
        if not encoded:
            encoded.append(
                msgspec.json.encode(describe_api(table, has_tokens=has_tokens, other_paths=other_paths or {}))
            )
        return Response(encoded[0], media_type=JSON)

    handler: Any = describe
    table.append(Endpoint("GET", "/v1/openapi.json", "status", "This document.", handler, {JSON: BYTES}))
    return iter(table)
