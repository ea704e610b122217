"""The ASGI app of a pipeline: all endpoints, shapes, metrics and the console, behind one gate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from evertide.console.routes import make_console_routes
from evertide.errors import EvertideError
from evertide.logs import Ring
from evertide.metrics import Metrics, RequestTimer, make_metrics_route
from evertide.observer import NO_OBSERVER, Observer
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import Runtime, SystemRuntime
from evertide.server.access import Access, Gate
from evertide.server.access.access import warn_of_unusable_restrictions
from evertide.server.endpoints.collections import CollectionEndpoints, ExplainEndpoints
from evertide.server.endpoints.control import ControlEndpoints
from evertide.server.endpoints.events import EventEndpoints
from evertide.server.endpoints.health import LogEndpoints, StatusEndpoints
from evertide.server.endpoints.history import History
from evertide.server.endpoints.journal import JournalEndpoints
from evertide.server.endpoints.push import PushEndpoints
from evertide.server.endpoints.rows import RowEndpoints
from evertide.server.endpoints.shapes import ShapeEndpoints
from evertide.server.endpoints.transactions import OpenTransactions
from evertide.server.http.answers import ErrorGuard, answer_error, answer_http_error
from evertide.server.http.endpoint import EndpointGroup, make_routes
from evertide.server.http.openapi import add_openapi
from evertide.server.query.endpoint import QueryEndpoints
from evertide.shapes.http.openapi import describe_shape_paths
from evertide.shapes.service import ShapeService


def make_app(
    pipeline: Pipeline,
    *,
    runtime: Runtime | None = None,
    shapes: ShapeService | None = None,
    access: Access | None = None,
    metrics: Metrics | None = None,
    observer: Observer = NO_OBSERVER,
    logs: Ring | None = None,
) -> Starlette:
    """The pipeline is open. `Pipeline.run` may run in another thread, but need not: a push commits its own transaction.

    Without `access`, every client may do everything. The app serves `metrics` and `logs`, and notifies the `observer`
    of requests.
    """
    runtime, access = runtime or SystemRuntime(), access or Access()
    warn_of_unusable_restrictions(access, pipeline.collections.members())
    history = History(pipeline.storage, lambda: pipeline.definition, runtime=runtime, settings=pipeline.settings)
    events, open_transactions = EventEndpoints(pipeline, history), OpenTransactions(pipeline, runtime)
    pipeline.watch(events.list_thread_problems)
    queries = QueryEndpoints(pipeline, runtime)
    rows = RowEndpoints(pipeline)
    groups: tuple[EndpointGroup, ...] = (
        StatusEndpoints(pipeline, runtime),
        CollectionEndpoints(pipeline, history),
        ExplainEndpoints(pipeline),
        rows,
        PushEndpoints(pipeline),
        open_transactions,
        queries,
        JournalEndpoints(pipeline, history),
        events,
        ControlEndpoints(pipeline),
        LogEndpoints(logs),
        *([] if shapes is None else [ShapeEndpoints(shapes)]),
    )
    if shapes is not None:
        pipeline.watch_feeds(lambda: [*shapes.problems(), *shapes.list_failures()])
    endpoints = add_openapi(
        (endpoint for group in groups for endpoint in group.endpoints()),
        has_tokens=not access.is_open,
        other_paths=None if shapes is None else describe_shape_paths(),
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        events.start()
        try:
            yield
        finally:
            events.stop()
            open_transactions.close()
            queries.close()

    def drain() -> None:
        """End streams, requests that wait for a change, and queries."""
        events.drain()
        rows.drain()
        queries.close()

    metrics_routes = [] if metrics is None else [make_metrics_route(metrics)]
    shape_routes = [] if shapes is None else [shapes.route()]
    app = Starlette(
        routes=[*make_routes(endpoints), *shape_routes, *metrics_routes, *make_console_routes()],
        middleware=[
            Middleware(RequestTimer, observer=observer, runtime=runtime),
            Middleware(ErrorGuard, runtime=runtime),
            Middleware(Gate, access=access, runtime=runtime),
        ],
        exception_handlers={EvertideError: answer_error, HTTPException: answer_http_error},
        lifespan=lifespan,
    )
    app.state.drain = drain
    return app
