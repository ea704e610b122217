"""The HTTP server of a running pipeline, for `run` and `demo`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.text import Text

from evertide.cli.output.output import Output
from evertide.cli.running.observers import Observers

if TYPE_CHECKING:
    from evertide.pipeline.pipeline import Pipeline
    from evertide.server.access import ListenOptions
    from evertide.server.http.server import Server

__all__ = ["open_server", "serve_pipeline"]


@contextmanager
def open_server(listen: str, options: ListenOptions) -> Iterator[Server]:
    """Bind before Spark starts, so that errors show at once. Until the app starts, clients get 503 with Retry-After."""
    from evertide.server.http.server import Server  # noqa: PLC0415 - slow to import

    with Server(listen, options) as server:
        yield server.begin()


@contextmanager
def serve_pipeline(
    server: Server,
    pipeline: Pipeline,
    output: Output,
    options: ListenOptions,
    observers: Observers,
    *,
    is_quiet: bool,
    deletion: bool = False,
) -> Iterator[None]:
    """At the end, answer active requests while the pipeline is still open. With `deletion`, clients may end shapes."""
    from evertide.server.http.app import make_app  # noqa: PLC0415 - pyspark
    from evertide.server.http.garbage_collection import tune_garbage_collection  # noqa: PLC0415
    from evertide.shapes.options import ShapeOptions  # noqa: PLC0415
    from evertide.shapes.service import ShapeService  # noqa: PLC0415

    with ShapeService(pipeline.collections, ShapeOptions(deletion=deletion)) as shapes:
        observers.watch(pipeline, shapes)
        for one in (server, shapes):
            pipeline.watch(one.list_thread_problems)
        app = make_app(
            pipeline,
            shapes=shapes,
            access=options.access,
            metrics=observers.metrics,
            observer=observers.observer,
            logs=observers.logs,
        )
        tune_garbage_collection()
        server.start(app)
        try:
            if output.is_json and not is_quiet:
                output.write_line({"event": "listening", "time": pipeline.time, "address": server.address})
            elif not is_quiet:
                output.say(Text(f"listening at {server.address}; the console is {server.address}/"))
            yield
        finally:
            shapes.drain()
            server.stop()
