"""`/v1/openapi.json`: all endpoints, described."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from evertide.media import JSON
from evertide.server.http.endpoint import BYTES, Endpoint, NoQuery
from evertide.server.http.openapi import document

__all__ = ["described"]


def described(
    endpoints: Iterable[Endpoint], *, has_tokens: bool, others: Mapping[str, Any] | None = None
) -> Iterator[Endpoint]:
    """The endpoints, and the one that describes them; that one is described as well.

    `others` are paths of the document that are described elsewhere.
    """
    table = [*endpoints]
    made: list[bytes] = []

    async def describe(_: Request, __: NoQuery) -> Response:
        if not made:
            made.append(msgspec.json.encode(document(table, has_tokens=has_tokens, others=others or {})))
        return Response(made[0], media_type=JSON)

    handler: Any = describe
    table.append(Endpoint("GET", "/v1/openapi.json", "status", "This document.", handler, {JSON: BYTES}))
    return iter(table)
