"""Attach metrics to a pipeline, or to a storage that another process writes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evertide.metrics.gauges import StatusCollector
from evertide.metrics.metrics import Metrics
from evertide.metrics.samples import make_pipeline_sampler, make_reader_sampler, measure_shapes
from evertide.pipeline.reading.reader import StorageReader
from evertide.runtime import Runtime, SystemRuntime
from evertide.shapes.service import ShapeService

if TYPE_CHECKING:  # pyspark, not needed to serve shapes
    from evertide.pipeline.pipeline import Pipeline

__all__ = ["watch_pipeline", "watch_reader"]


def watch_pipeline(
    metrics: Metrics, pipeline: Pipeline, shapes: ShapeService | None = None, *, runtime: Runtime | None = None
) -> None:
    """Sample an open pipeline. Its events are counted only if `metrics` is also its observer."""
    measure = None if shapes is None else lambda: measure_shapes(shapes.shapes)
    collector = StatusCollector(
        make_pipeline_sampler(pipeline), runtime or SystemRuntime(), liveness=pipeline.liveness.report, shapes=measure
    )
    metrics.watch(collector)
    pipeline.watch(collector.list_thread_problems)


def watch_reader(metrics: Metrics, reader: StorageReader, shapes: ShapeService) -> None:
    metrics.watch(
        StatusCollector(make_reader_sampler(reader), reader.runtime, shapes=lambda: measure_shapes(shapes.shapes))
    )
