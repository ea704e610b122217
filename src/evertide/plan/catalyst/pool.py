"""Spark's pools of jobs: in a session with `spark.scheduler.mode=FAIR`, a core that a task leaves goes to the pool that
has the fewest tasks running. So the jobs of one pool do not wait behind all tasks of another.

A session with `FIFO`, which is Spark's default, ignores the pool of a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext

__all__ = ["BACKFILL_POOL", "use_pool"]

BACKFILL_POOL = "evertide-backfill"
"""The pool of jobs that run beside the transactions, whose jobs are in Spark's default pool."""
_PROPERTY = "spark.scheduler.pool"
_ENDED = (Py4JError, OSError, AttributeError)
"""Spark has ended, which the step that needs it finds out."""


@contextmanager
def use_pool(context: SparkContext, pool: str) -> Iterator[None]:
    """Jobs that this thread starts in the block are in the pool; those of other threads stay where they are."""
    before: str | None = None
    with suppress(*_ENDED):
        before = context.getLocalProperty(_PROPERTY)
        context.setLocalProperty(_PROPERTY, pool)
    try:
        yield
    finally:
        with suppress(*_ENDED):
            context.setLocalProperty(_PROPERTY, before)  # None removes it
