"""The ASGI app of a process that serves only shapes.

    /v1/shape    every table and view, by Electric's protocol
    /v1/health   200 active; 202 waiting: no process runs the pipeline, or a part of a collection cannot be read
    /metrics     for Prometheus
    /            200, for liveness checks

The gate and the roles are those of `evertide.server.app`.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from evertide.errors import EvertideError
from evertide.metrics import Metrics, RequestTimer, make_metrics_route
from evertide.observer import NO_OBSERVER, Observer
from evertide.pgexpr.restriction import read_restriction
from evertide.pipeline.reading.reader import StorageReader
from evertide.problem import ComponentState
from evertide.server.access import Access, Gate
from evertide.server.access.access import warn_of_unusable_restrictions
from evertide.server.http.answers import ErrorGuard, answer_error, answer_http_error, answer_json
from evertide.shapes.service import ShapeService

_NOT_ADVANCING = {
    ComponentState.STOPPED,
    ComponentState.REPLAYING,
    ComponentState.FAILED,
    ComponentState.DIVERGED,
    ComponentState.FROZEN,
}
_NOT_CACHED = {"cache-control": "no-cache, no-store, must-revalidate"}


def make_shapes_app(
    reader: StorageReader,
    shapes: ShapeService,
    access: Access | None = None,
    *,
    metrics: Metrics | None = None,
    observer: Observer = NO_OBSERVER,
) -> Starlette:
    """Without `access`, every client may read every shape. The app notifies the `observer` of requests."""
    access = access or Access()
    warn_of_unusable_restrictions(access, reader.collections.members())

    def answer_waiting(request: Request, state: str, why: str) -> Response:
        """If the server has tokens, the answer has no reason, because health needs no token."""
        reason = {"why": why} if read_restriction(request.scope).is_unrestricted else {}
        return answer_json({"status": "waiting", "state": state, **reason}, 202, _NOT_CACHED)

    async def health(request: Request) -> Response:
        status = await run_in_threadpool(reader.status)
        if status.state in _NOT_ADVANCING:
            return answer_waiting(request, status.state, status.why)
        problems = shapes.problems()
        if problems:
            return answer_waiting(request, problems[0].state, problems[0].why)
        return answer_json({"status": "active"}, 200, _NOT_CACHED)

    async def root(_: Request) -> Response:
        return Response()

    metrics_routes = [] if metrics is None else [make_metrics_route(metrics)]
    return Starlette(
        routes=[shapes.route(), Route("/v1/health", health), Route("/", root), *metrics_routes],
        middleware=[
            Middleware(RequestTimer, observer=observer, runtime=reader.runtime),
            Middleware(ErrorGuard, runtime=reader.runtime),
            Middleware(Gate, access=access, runtime=reader.runtime),
        ],
        exception_handlers={EvertideError: answer_error, HTTPException: answer_http_error},
    )
