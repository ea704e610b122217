"""The HTTP server of `run`, `demo` and `shapes`: its options, and its metrics, logs and traces."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from evertide.cli.output.output import Output
from evertide.logs import Ring
from evertide.observer import NO_OBSERVER, Observer, ObserverGroup
from evertide.runtime import SystemRuntime
from evertide.settings import Settings

if TYPE_CHECKING:
    from evertide.metrics.metrics import Metrics
    from evertide.pipeline.pipeline import Pipeline
    from evertide.pipeline.reading.reader import StorageReader
    from evertide.server.access import ListenOptions
    from evertide.server.server import Server
    from evertide.shapes.options import ShapeOptions
    from evertide.shapes.service import ShapeService


@dataclass(frozen=True, slots=True)
class Observers:
    observer: Observer
    metrics: Metrics | None = None
    """None if the command does not listen."""
    logs: Ring | None = None

    def watch(self, pipeline: Pipeline, shapes: ShapeService) -> None:
        if self.metrics is not None:
            from evertide.metrics import watch_pipeline  # noqa: PLC0415 - slow to import

            watch_pipeline(self.metrics, pipeline, shapes)

    def watch_reader(self, reader: StorageReader, shapes: ShapeService) -> None:
        if self.metrics is not None:
            from evertide.metrics import watch_reader  # noqa: PLC0415

            watch_reader(self.metrics, reader, shapes)


@contextmanager
def open_observers(storage: str, *, listens: bool, traces: bool) -> Iterator[Observers]:
    """Without `listens` and `traces`, the observer does nothing and costs nothing."""
    with ExitStack() as stack:
        observers: list[Observer] = []
        metrics, logs = None, None
        if listens:
            from evertide.metrics.metrics import Metrics  # noqa: PLC0415 - slow to import

            observers.append(metrics := Metrics())
            logs = stack.enter_context(Ring(storage))
        if traces:
            from evertide.metrics.traces import open_traces  # noqa: PLC0415 - an extra

            observers.append(spans := open_traces(SystemRuntime()))
            stack.callback(spans.close)
        yield Observers(ObserverGroup(observers) if observers else NO_OBSERVER, metrics, logs)


def make_listen_options(
    *,
    tokens: Path | None = None,
    secret: str = "",
    tls: tuple[Path | None, Path | None, Path | None] = (None, None, None),
    hosts: Sequence[str] | None = None,
    origins: Sequence[str] | None = None,
    insecure: bool = False,
    settings: Settings | None = None,
) -> ListenOptions:
    """Includes the tokens of the environment. `tls` is the certificate, the key, and the authority of the clients."""
    from evertide.server.access import Access, ListenOptions, Tls  # noqa: PLC0415 - slow to import

    return ListenOptions(
        access=Access.load(tokens, os.environ, secret),
        tls=Tls.of(*tls),
        hosts=tuple(hosts or ()),
        origins=tuple(origins or ()),
        is_insecure=insecure,
        settings=settings or Settings(),
    )


@contextmanager
def open_server(listen: str, options: ListenOptions) -> Iterator[Server]:
    """Bind before Spark starts, so that errors show at once. Until the app starts, clients get 503 with Retry-After."""
    from evertide.server.server import Server  # noqa: PLC0415 - slow to import

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
    shape_options: ShapeOptions | None = None,
) -> Iterator[None]:
    """At the end, answer active requests while the pipeline is still open."""
    from evertide.server.app import make_app  # noqa: PLC0415 - pyspark
    from evertide.server.server import tune_garbage_collection  # noqa: PLC0415
    from evertide.shapes.service import ShapeService  # noqa: PLC0415

    with ShapeService(pipeline.collections, shape_options) as shapes:
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
                output.print_message(Text(f"listening at {server.address}; the console is {server.address}/"))
            yield
        finally:
            shapes.drain()
            server.stop()
