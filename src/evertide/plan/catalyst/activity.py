"""Whether Spark gets on with its jobs, for those who wait for one that takes long."""

from __future__ import annotations

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext

__all__ = ["activity"]


def activity(context: SparkContext) -> object:
    """Another value whenever Spark has begun or finished a task since, in any of its jobs. Any thread may ask."""
    tracker = context.statusTracker()
    try:
        found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except (Py4JError, OSError):  # Spark has ended, which the step that needs it finds out
        return None
    return [(one.stageId, one.currentAttemptId, one.numActiveTasks, one.numCompletedTasks) for one in found if one]
