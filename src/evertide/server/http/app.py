"""The app: all endpoints behind one gate, and the errors that they share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from evertide.console.routes import console_routes
from evertide.errors import EvertideError
from evertide.logs import Ring
from evertide.metrics import Metrics, RequestTimer, metrics_route
from evertide.observer import NO_OBSERVER, Observer
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import Runtime, SystemRuntime
from evertide.server.access import Access, Gate
from evertide.server.access.restriction_check import tell_what_does_not_fit
from evertide.server.endpoints.collections import Collections
from evertide.server.endpoints.control import Control
from evertide.server.endpoints.events import Events
from evertide.server.endpoints.explain import Explaining
from evertide.server.endpoints.health import Looking
from evertide.server.endpoints.history import History
from evertide.server.endpoints.journal import Journaling
from evertide.server.endpoints.logs import Logs
from evertide.server.endpoints.openapi import described
from evertide.server.endpoints.push import Pushing
from evertide.server.endpoints.rows import Rows
from evertide.server.endpoints.shapes import Shaping
from evertide.server.endpoints.transactions import OpenTransactions
from evertide.server.http.answers import Guard, http_refusal, refused
from evertide.server.http.endpoint import Area, routes_of
from evertide.server.query.endpoint import Querying
from evertide.shapes.http.openapi import shape_paths
from evertide.shapes.service import ShapeService

__all__ = ["make_app"]


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
    """For one pipeline that is open. It may be run beside (`Pipeline.run`), or not: pushes make their transactions.

    Without `access`, whoever reaches it may do everything. `metrics` are served, the requests told to the `observer`,
    and `logs` served to those who may see them.
    """
    runtime, access = runtime or SystemRuntime(), access or Access.open()
    tell_what_does_not_fit(access, pipeline.collections.members())
    history = History(pipeline.storage, lambda: pipeline.definition, runtime=runtime, settings=pipeline.settings)
    events, begun = Events(pipeline, history), OpenTransactions(pipeline, runtime)
    pipeline.watch(events.troubles)
    querying = Querying(pipeline, runtime)
    rows = Rows(pipeline)
    areas: tuple[Area, ...] = (
        Looking(pipeline, runtime),
        Collections(pipeline, history),
        Explaining(pipeline),
        rows,
        Pushing(pipeline),
        begun,
        querying,
        Journaling(pipeline, history),
        events,
        Control(pipeline),
        Logs(logs),
        *([] if shapes is None else [Shaping(shapes)]),
    )
    if shapes is not None:
        pipeline.watch_feeds(shapes.problems)
    endpoints = described(
        (one for area in areas for one in area.endpoints()),
        has_tokens=not access.is_open,
        others=None if shapes is None else shape_paths(),
    )

    @asynccontextmanager
    async def running(_: Starlette) -> AsyncIterator[None]:
        events.start()
        try:
            yield
        finally:
            events.stop()
            begun.close()
            querying.close()

    def drain() -> None:
        """Ends what has no end soon: streams, requests that wait for a change, and queries."""
        events.drain()
        rows.drain()
        querying.close()

    scraped = [] if metrics is None else [metrics_route(metrics)]
    app = Starlette(
        routes=[*routes_of(endpoints), *([shapes.route()] if shapes is not None else []), *scraped, *console_routes()],
        middleware=[
            Middleware(RequestTimer, observer=observer, runtime=runtime),
            Middleware(Guard, runtime=runtime),
            Middleware(Gate, access=access, runtime=runtime),
        ],
        exception_handlers={EvertideError: refused, HTTPException: http_refusal},
        lifespan=running,
    )
    app.state.drain = drain
    return app
