"""Scheduler pools, so that transactions do not wait for all tasks of a backfill.

In a session with `spark.scheduler.mode=FAIR`, a free core goes to the pool with the fewest running tasks. A session
with `FIFO`, Spark's default, ignores pools.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext

__all__ = ["BACKFILL_POOL", "use_pool"]

BACKFILL_POOL = "evertide-backfill"
"""The pool of backfills; the jobs of transactions are in Spark's default pool."""
_PROPERTY = "spark.scheduler.pool"
_ENDED = (Py4JError, OSError, AttributeError)
"""Spark has ended; the step that needs it raises the error."""


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
