"""`open_observers`: the metrics, the last log lines and the traces of a long-running command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evertide.logs import Ring
from evertide.observer import NO_OBSERVER, Observer, ObserverGroup
from evertide.runtime import SystemRuntime

if TYPE_CHECKING:
    from evertide.metrics.metrics import Metrics
    from evertide.pipeline.pipeline import Pipeline
    from evertide.pipeline.reading.reader import StorageReader
    from evertide.shapes.service import ShapeService

__all__ = ["Observers", "open_observers"]


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
