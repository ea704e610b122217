"""The addresses that there are, a line each, and the errors that all of them share."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from evertide.errors import EvertideError
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import Runtime, SystemRuntime
from evertide.server.answers import Guard, http_refusal, refused
from evertide.server.looking import Looking
from evertide.server.pushing import Pushing
from evertide.shapes.service import ShapeService

__all__ = ["make_app"]


def make_app(pipeline: Pipeline, *, runtime: Runtime | None = None, shapes: ShapeService | None = None) -> Starlette:
    """For one pipeline that is open. It may be run beside (`Pipeline.run`), or not: pushes make their transactions."""
    looking, pushing = Looking(pipeline), Pushing(pipeline)
    return Starlette(
        routes=[
            Route("/v1/health", looking.health),
            Route("/v1/status", looking.status),
            Route("/v1/checkpoints", looking.checkpoints, methods=["GET", "POST"]),
            Route("/v1/tables/{table}/rows", pushing.rows, methods=["POST"]),
            Route("/v1/transactions", pushing.transaction, methods=["POST"]),
            *([shapes.route()] if shapes is not None else []),
        ],
        middleware=[Middleware(Guard, runtime=runtime or SystemRuntime())],
        exception_handlers={EvertideError: refused, HTTPException: http_refusal},
    )
