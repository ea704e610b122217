"""Shows whether Spark makes progress, for code that waits for a long job."""

from __future__ import annotations

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext

__all__ = ["read_activity"]


def read_activity(context: SparkContext) -> object:
    """A value that changes whenever Spark starts or finishes a task. Any thread may call this."""
    tracker = context.statusTracker()
    try:
        found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    except (Py4JError, OSError):  # Spark has ended; the step that needs it raises the error
        return None
    return [(one.stageId, one.currentAttemptId, one.numActiveTasks, one.numCompletedTasks) for one in found if one]
