"""Which pipeline, or which storage, the metrics of a process are about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evertide.metrics.gauges import Standing
from evertide.metrics.metrics import Metrics
from evertide.metrics.samples import look_at_pipeline, look_at_reader, shapes_use
from evertide.pipeline.reading.reader import Reader
from evertide.runtime import Runtime, SystemRuntime
from evertide.shapes.service import ShapeService

if TYPE_CHECKING:  # pyspark, which a process that serves shapes does without
    from evertide.pipeline.pipeline import Pipeline

__all__ = ["watch_pipeline", "watch_reader"]


def watch_pipeline(
    metrics: Metrics, pipeline: Pipeline, shapes: ShapeService | None = None, *, runtime: Runtime | None = None
) -> None:
    """One that is open. What it does is told by itself, if `metrics` is its observer."""
    used = None if shapes is None else lambda: shapes_use(shapes.shapes)
    standing = Standing(look_at_pipeline(pipeline), runtime or SystemRuntime(), pulse=pipeline.pulse.beat, shapes=used)
    metrics.watch(standing)
    pipeline.watch(standing.troubles)


def watch_reader(metrics: Metrics, reader: Reader, shapes: ShapeService) -> None:
    """A storage that another process writes to."""
    metrics.watch(Standing(look_at_reader(reader), reader.runtime, shapes=lambda: shapes_use(shapes.shapes)))
