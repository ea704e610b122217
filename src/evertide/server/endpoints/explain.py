"""`/v1/views/{name}/explain`: the operators of a view, how each is maintained, and its state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from evertide.errors import NotAllowedNow
from evertide.flow.explanation.diagrams import render_dot, render_mermaid
from evertide.flow.explanation.explanation import Explanation
from evertide.media import DOT, JSON, MERMAID, TEXT
from evertide.pipeline.pipeline import Pipeline
from evertide.server.endpoints.collections import find_declared_name
from evertide.server.http.answers import answer_json, choose_media
from evertide.server.http.endpoint import BYTES, Endpoint

__all__ = ["ExplainEndpoints"]


class ExplainQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: (
        Annotated[str, msgspec.Meta(description="json, text, mermaid or dot; takes precedence over the Accept header.")]
        | None
    ) = None


class ExplainAnswer(msgspec.Struct, frozen=True):
    """The output of `evertide explain --json`, with the current state."""

    views: list[Any]
    arrangements: list[Any]


class ExplainEndpoints:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def endpoints(self) -> Iterator[Endpoint]:
        answers = {JSON: ExplainAnswer, TEXT: BYTES, MERMAID: BYTES, DOT: BYTES}
        yield Endpoint(
            "GET",
            "/v1/views/{name}/explain",
            "collections",
            "How a view is maintained.",
            self._explain,
            answers,
            ExplainQuery,
            refusals=(400, 404, 406, 409),
        )

    async def _explain(self, request: Request, query: ExplainQuery) -> Response:
        media = choose_media(request, query.format, (JSON, TEXT, MERMAID, DOT))
        explanation = await run_in_threadpool(self._explain_view, request.path_params["name"])
        if media == JSON:
            return answer_json(explanation.to_dict())
        render = {MERMAID: render_mermaid, DOT: render_dot}.get(media, Explanation.text)
        return Response(render(explanation), media_type=media)

    def _explain_view(self, name: str) -> Explanation:
        view = find_declared_name(self._pipeline, name, "view")
        explanations: list[Explanation] = self._pipeline.explain()
        for explanation in explanations:
            if view in explanation.names:
                return explanation.select_view(view)
        why = "the view is not maintained at the moment; GET /v1/status has the reason"
        raise NotAllowedNow(where=f"view {view!r}", why=why)
