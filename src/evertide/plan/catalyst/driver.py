"""What Spark's driver in this process uses: asked for now and then, by those who watch it. Some milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from evertide.plan.catalyst.session import SparkSession

__all__ = ["DriverUsage", "read_driver_usage"]


@dataclass(frozen=True, slots=True)
class DriverUsage:
    version: str
    jobs: int
    """That were begun since the driver started."""
    memory: dict[tuple[str, str], int]
    """Bytes by area (`heap`, `other`) and kind (`used`, `committed`, `max`, if there is a limit)."""


def read_driver_usage(spark: SparkSession) -> DriverUsage | None:
    """None if the JVM does not answer, which others have to say."""
    try:
        context = spark.sparkContext
        memory = context._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
        found = {}
        for area, use in (("heap", memory.getHeapMemoryUsage()), ("other", memory.getNonHeapMemoryUsage())):
            found[area, "used"], found[area, "committed"] = int(use.getUsed()), int(use.getCommitted())
            if (most := int(use.getMax())) > 0:
                found[area, "max"] = most
        return DriverUsage(context.version, int(context._jsc.sc().dagScheduler().numTotalJobs()), found)
    except (Py4JError, OSError, AttributeError):  # it has ended, or ends at this moment
        return None
