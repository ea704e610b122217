"""`/v1/views/{name}/explain`: the operators of a view, how each is maintained, and the state behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from evertide.errors import InvalidInput
from evertide.flow.explanation.diagrams import dot, mermaid
from evertide.flow.explanation.explanation import Explanation
from evertide.media import DOT, JSON, MERMAID, TEXT
from evertide.pipeline.pipeline import Pipeline
from evertide.server.endpoints.collections import name_of
from evertide.server.http.answers import said
from evertide.server.http.endpoint import BYTES, Endpoint
from evertide.server.http.media import chosen

__all__ = ["Explaining"]


class ExplainQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: (
        Annotated[str, msgspec.Meta(description="json, text, mermaid or dot: counts before the header Accept.")] | None
    ) = None


class Explained(msgspec.Struct, frozen=True):
    """As `evertide explain --json` says it, with the state that is there."""

    views: list[Any]
    arrangements: list[Any]


class Explaining:
    """The endpoint."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def endpoints(self) -> Iterator[Endpoint]:
        answers = {JSON: Explained, TEXT: BYTES, MERMAID: BYTES, DOT: BYTES}
        yield Endpoint(
            "GET",
            "/v1/views/{name}/explain",
            "collections",
            "How a view is maintained.",
            self._explain,
            answers,
            ExplainQuery,
            refusals=(400, 404, 406),
        )

    async def _explain(self, request: Request, query: ExplainQuery) -> Response:
        media = chosen(request, query.format, (JSON, TEXT, MERMAID, DOT))
        found = await run_in_threadpool(self._explained, request.path_params["name"])
        if media == JSON:
            return said(found.to_dict())
        text = found.text() if media == TEXT else mermaid(found) if media == MERMAID else dot(found)
        return Response(text, media_type=media)

    def _explained(self, name: str) -> Explanation:
        own = name_of(self._pipeline, name, "view")
        explained: list[Explanation] = self._pipeline.explain()
        for found in explained:
            if own in found.names:
                return found.only(own)
        raise InvalidInput(where=f"view {own!r}", why="it is not maintained just now; GET /v1/status says why")
