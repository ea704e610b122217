"""Sample the values that only a scrape needs, from an open pipeline or a storage that another process writes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evertide.pipeline.reading.reader import StorageReader
from evertide.pipeline.status.status import Status
from evertide.shapes.log.registry import Shapes

if TYPE_CHECKING:  # pyspark, not needed to serve shapes
    from evertide.pipeline.pipeline import Pipeline
    from evertide.plan.catalyst.driver import DriverUsage


@dataclass(frozen=True, slots=True)
class ArrangementSize:
    name: str
    rows: int
    bytes: int
    parts: int


@dataclass(frozen=True, slots=True)
class Sample:
    status: Status
    leases: int
    leases_lost: int
    leads: bool = False
    arrangements: tuple[ArrangementSize, ...] = ()
    driver: DriverUsage | None = None
    has_storage: bool = True
    """Whether storage answered; if not, `status` has the last content that it returned."""


@dataclass(frozen=True, slots=True)
class ShapesUsage:
    shapes: int
    clients: int
    """Clients that wait for a change."""
    log_bytes: int
    log_entries: int
    """Entries appended since the process started."""
    failed_feeds: int
    """Collections whose clients get an error instead of changes."""


TakeSample = Callable[[], Sample]


def make_pipeline_sampler(pipeline: Pipeline) -> TakeSample:
    from evertide.pipeline.spark_engine import SparkEngine  # noqa: PLC0415 - pyspark
    from evertide.plan.catalyst.driver import read_driver_usage  # noqa: PLC0415

    leases = pipeline.collections.members().shards.leases

    def take() -> Sample:
        engine = pipeline.engine
        sizes = tuple(
            ArrangementSize(one.name, one.rows, one.bytes, len(one.parts())) for one in pipeline.arrangements()
        )
        status = pipeline.status()
        return Sample(
            status,
            leases.held,
            leases.lost,
            pipeline.leads,
            sizes,
            read_driver_usage(engine.spark) if isinstance(engine, SparkEngine) else None,
            status.stored_at_s is None,
        )

    return take


def make_reader_sampler(reader: StorageReader) -> TakeSample:
    """Samples no arrangements and no Spark driver, which belong to another process."""
    leases = reader.shards.leases
    return lambda: Sample(reader.status(), leases.held, leases.lost)


def measure_shapes(shapes: Shapes) -> ShapesUsage:
    """Reads memory only, never the storage."""
    live = shapes.live()
    clients, size = sum(len(shape.waiters) for shape in live), sum(shape.bytes for shape in live)
    return ShapesUsage(len(live), clients, size, shapes.appended, len(shapes.problems()))
