"""Spark's driver in this process: its memory and job count, the progress of its tasks, and its scheduler pools.

The pools let transactions run before all tasks of a backfill are done. In a session with `spark.scheduler.mode=FAIR`,
a free core goes to the pool with the fewest running tasks. A session with `FIFO`, Spark's default, ignores pools.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext

from evertide.plan.catalyst.session import SparkSession

BACKFILL_POOL = "evertide-backfill"
"""The pool of backfills; the jobs of transactions are in Spark's default pool."""
_PROPERTY = "spark.scheduler.pool"
_ENDED = (Py4JError, OSError, AttributeError)
"""Spark has ended; the step that needs it raises the error."""


@dataclass(frozen=True, slots=True)
class DriverUsage:
    version: str
    jobs: int
    """Jobs since the driver started."""
    memory: dict[tuple[str, str], int]
    """Bytes by area (`heap`, `other`) and kind (`used`, `committed`, and `max` if there is a limit)."""


def read_driver_usage(spark: SparkSession) -> DriverUsage | None:
    """None if the JVM does not answer; the code that needs it reports that. A reading takes some milliseconds."""
    try:
        context = spark.sparkContext
        memory = context._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
        found = {}
        for area, use in (("heap", memory.getHeapMemoryUsage()), ("other", memory.getNonHeapMemoryUsage())):
            found[area, "used"], found[area, "committed"] = int(use.getUsed()), int(use.getCommitted())
            if (most := int(use.getMax())) > 0:
                found[area, "max"] = most
        return DriverUsage(context.version, int(context._jsc.sc().dagScheduler().numTotalJobs()), found)
    except (Py4JError, OSError, AttributeError):  # the JVM has ended, or is about to
        return None


def read_activity(context: SparkContext) -> object:
    """A value that changes whenever Spark starts or finishes a task. Any thread may call this."""
    tracker = context.statusTracker()
    try:
        found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except (Py4JError, OSError):  # Spark has ended; the step that needs it raises the error
        return None
    return [(one.stageId, one.currentAttemptId, one.numActiveTasks, one.numCompletedTasks) for one in found if one]


@contextmanager
def use_pool(context: SparkContext, pool: str) -> Iterator[None]:
    """Run the jobs that this thread starts in the block in a pool."""
    before: str | None = None
    with suppress(*_ENDED):
        before = context.getLocalProperty(_PROPERTY)
        context.setLocalProperty(_PROPERTY, pool)
    try:
        yield
    finally:
        with suppress(*_ENDED):
            context.setLocalProperty(_PROPERTY, before)  # None removes it
