"""What a scrape wants to know and nobody is told of: a look at a pipeline, or at a storage from another process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evertide.pipeline.reading.reader import Reader
from evertide.pipeline.status.status import Status
from evertide.shapes.log.registry import Shapes

if TYPE_CHECKING:  # pyspark, which a process that serves shapes does without
    from evertide.pipeline.pipeline import Pipeline
    from evertide.plan.catalyst.driver import DriverUse

__all__ = ["Look", "Seen", "ShapesUse", "Sized", "look_at_pipeline", "look_at_reader", "shapes_use"]


@dataclass(frozen=True, slots=True)
class Sized:
    """An arrangement."""

    name: str
    rows: int
    bytes: int
    parts: int


@dataclass(frozen=True, slots=True)
class Seen:
    status: Status
    leases: int
    leases_lost: int
    leads: bool = False
    arrangements: tuple[Sized, ...] = ()
    driver: DriverUse | None = None


@dataclass(frozen=True, slots=True)
class ShapesUse:
    shapes: int
    clients: int
    """That wait for a change."""
    log_bytes: int
    log_entries: int
    """That were ever appended."""
    standing: int
    """Collections whose clients get an error instead of changes."""


Look = Callable[[], Seen]


def look_at_pipeline(pipeline: Pipeline) -> Look:
    from evertide.pipeline.spark_engine import SparkEngine  # noqa: PLC0415 - pyspark
    from evertide.plan.catalyst.driver import driver_use  # noqa: PLC0415

    leases = pipeline.collections.members().shards.leases

    def look() -> Seen:
        engine = pipeline.engine
        sizes = tuple(Sized(one.name, one.rows, one.bytes, len(one.parts())) for one in pipeline.arrangements())
        return Seen(
            pipeline.status(),
            leases.held,
            leases.lost,
            pipeline.leads,
            sizes,
            driver_use(engine.spark) if isinstance(engine, SparkEngine) else None,
        )

    return look


def look_at_reader(reader: Reader) -> Look:
    """Arrangements and Spark are those of another process."""
    leases = reader.shards.leases
    return lambda: Seen(reader.status(), leases.held, leases.lost)


def shapes_use(shapes: Shapes) -> ShapesUse:
    """From memory only."""
    live = shapes.live()
    clients, size = sum(len(shape.waiters) for shape in live), sum(shape.bytes for shape in live)
    return ShapesUse(len(live), clients, size, shapes.appended, len(shapes.problems()))
