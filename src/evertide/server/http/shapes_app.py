"""The addresses of a process that serves shapes, and nothing else.

/v1/shape    every table and view, by Electric's protocol
/v1/health   200 active; 202 waiting: what is served stands still, as nobody runs the pipeline, or as
             a part of a collection cannot be read
/metrics     for Prometheus
/            200, for those who only ask whether somebody is there

Who may ask is decided by the same gate, and the same table of roles, as for `evertide.server.http.app`.
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
from evertide.metrics import Metrics, RequestTimer, metrics_route
from evertide.observer import NO_OBSERVER, Observer
from evertide.pipeline.reading.reader import Reader
from evertide.server.access import Access, Gate
from evertide.server.access.restriction_check import tell_what_does_not_fit
from evertide.server.http.answers import Guard, http_refusal, refused, said
from evertide.shapes.service import ShapeService

__all__ = ["make_shapes_app"]

_STANDING = {"stopped", "replaying", "failed", "diverged", "frozen"}
_NOT_CACHED = {"cache-control": "no-cache, no-store, must-revalidate"}


def make_shapes_app(
    reader: Reader,
    shapes: ShapeService,
    access: Access | None = None,
    *,
    metrics: Metrics | None = None,
    observer: Observer = NO_OBSERVER,
) -> Starlette:
    """Without `access`, whoever reaches it may read every shape. Requests are told to the `observer`."""
    access = access or Access.open()
    tell_what_does_not_fit(access, reader.collections.members())

    async def health(_: Request) -> Response:
        status = await run_in_threadpool(reader.status)
        if status.state in _STANDING:
            return said({"status": "waiting", "state": status.state, "why": status.why}, 202, _NOT_CACHED)
        standing = shapes.problems()
        if standing:
            return said({"status": "waiting", "state": standing[0].state, "why": standing[0].why}, 202, _NOT_CACHED)
        return said({"status": "active"}, 200, _NOT_CACHED)

    async def here(_: Request) -> Response:
        return Response()

    scraped = [] if metrics is None else [metrics_route(metrics)]
    return Starlette(
        routes=[shapes.route(), Route("/v1/health", health), Route("/", here), *scraped],
        middleware=[
            Middleware(RequestTimer, observer=observer, runtime=reader.runtime),
            Middleware(Guard, runtime=reader.runtime),
            Middleware(Gate, access=access, runtime=reader.runtime),
        ],
        exception_handlers={EvertideError: refused, HTTPException: http_refusal},
    )
