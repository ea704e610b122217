"""`/v1/openapi.json`: the description of all endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from evertide.media import JSON
from evertide.server.http.endpoint import BYTES, Endpoint, NoQuery
from evertide.server.http.openapi import describe_api

__all__ = ["add_openapi"]


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
