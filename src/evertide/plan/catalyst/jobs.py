"""Spark jobs whose tasks run Python functions, alone or before and after Catalyst's operators.

    map        runs a function over tasks
    spread     a relation whose rows Python tasks read: Catalyst's input
    run        computes a plan, and passes the rows of each partition to a function: Catalyst's output

Rows cross between Python and the JVM as batches of Arrow. A function is called with the number of the task's attempt,
which is unique in the Spark application: Spark may run a task several times, also at the same time. Errors are those of
PySpark and py4j.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from pyspark import RDD, SparkContext, TaskContext
from pyspark.serializers import NoOpSerializer

from evertide.plan.catalyst.catalyst import Catalyst
from evertide.threads.stopping import IsStopping
from evertide.threads.ticker import Ticker

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")
_CANCEL_INTERVAL_S = 0.2


class _Canceller(Ticker):
    def __init__(self, context: SparkContext, tag: str, is_stopping: IsStopping) -> None:
        super().__init__("evertide-cancel-jobs", _CANCEL_INTERVAL_S)
        self._context = context
        self._tag = tag
        self._is_stopping = is_stopping

    def tick(self) -> bool:
        """Keep cancelling: the block may start another job before it notices."""
        if self._is_stopping():
            self._context.cancelJobsWithTag(self._tag)
        return True


class Jobs:
    def __init__(self, catalyst: Catalyst) -> None:
        self._catalyst = catalyst
        self._context = catalyst.context

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at the same time."""
        return int(self._context.defaultParallelism)

    @contextmanager
    def cancelling(self, is_stopping: IsStopping) -> Iterator[None]:
        """Cancel the jobs that this thread starts in the block when `is_stopping`; they fail then."""
        tag = f"evertide-{self._catalyst.make_id().id()}"
        self._context.addJobTag(tag)
        try:
            with _Canceller(self._context, tag, is_stopping):
                yield
        finally:
            self._context.removeJobTag(tag)

    def map(self, work: Callable[[_Task, str], _Result], tasks: Sequence[_Task]) -> list[_Result]:
        """The results in the order of the tasks."""
        found: list[_Result] = self._parallelize(tasks).map(partial(_call, work)).collect()
        return found

    def spread(
        self, read: Callable[[Any], Iterable[bytes]], tasks: Sequence[Any], attributes: Any, struct: Any, size: int
    ) -> Any:
        """A relation with the rows that `read` returns for each task, as messages of Arrow IPC without schema. `size`
        is the number of bytes, for the planner."""
        batches = self._parallelize(tasks).flatMap(read)
        batches._jrdd_deserializer = NoOpSerializer()  # the JVM gets the messages themselves
        return self._catalyst.make_arrow_relation(batches._jrdd, attributes, struct, size)

    def run(
        self, plan: Any, frame: Any, tail: Callable[[Iterator[bytes], str], _Result], partitions: int
    ) -> list[_Result]:
        """What `tail` returns for each partition of the plan's rows. `frame` is from `Catalyst.make_batch_maker`."""
        computed = self._catalyst.compute_batches(plan, frame, partitions)
        batches: RDD[bytes] = RDD(computed, self._context, NoOpSerializer())
        found: list[_Result] = batches.mapPartitions(partial(_call_tail, tail)).collect()
        return found

    def _parallelize(self, tasks: Sequence[_Task]) -> RDD[_Task]:
        return self._context.parallelize(tasks, max(1, len(tasks)))


def _call(work: Callable[[_Task, str], _Result], task: _Task) -> _Result:
    return work(task, _number_attempt())


def _call_tail(tail: Callable[[Iterator[bytes], str], _Result], batches: Iterator[bytes]) -> Iterator[_Result]:
    yield tail(batches, _number_attempt())


def _number_attempt() -> str:
    context = TaskContext.get()
    return f"a{context.taskAttemptId() if context is not None else 0}"
