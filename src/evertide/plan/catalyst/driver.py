"""Memory and job count of Spark's driver in this process, for metrics. A reading takes some milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from evertide.plan.catalyst.session import SparkSession

__all__ = ["DriverUsage", "read_driver_usage"]


@dataclass(frozen=True, slots=True)
class DriverUsage:
    version: str
    jobs: int
    """Jobs since the driver started."""
    memory: dict[tuple[str, str], int]
    """Bytes by area (`heap`, `other`) and kind (`used`, `committed`, and `max` if there is a limit)."""


def read_driver_usage(spark: SparkSession) -> DriverUsage | None:
    """None if the JVM does not answer; the code that needs it reports that."""
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
