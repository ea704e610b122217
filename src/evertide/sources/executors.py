"""Work that a source lets others do: the executors of the Spark session that the pipeline runs on.

A source knows neither pipeline nor session. One that has work to spread is `Distributed`, and is given `Executors` when
it is opened, if there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Distributed", "Executors", "SparkExecutors", "WorkFailed"]

Task = TypeVar("Task")
Result = TypeVar("Result")


class WorkFailed(Exception):
    """Why the work could not be done anywhere: for messages."""


class Executors(Protocol):
    @property
    def are_elsewhere(self) -> bool:
        """Whether they have processors of their own, and do not take them from this process."""
        ...

    def map(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """The result of each task, in order. A task whose executor is lost is done again elsewhere. `WorkFailed`."""
        ...


@runtime_checkable
class Distributed(Protocol):
    def distribute(self, executors: Executors) -> None:
        """From now on they may be used, from the thread that offers and reads."""
        ...


class SparkExecutors:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def are_elsewhere(self) -> bool:
        master = str(self._spark.sparkContext.master)
        return master != "local" and not master.startswith("local[")

    def map(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        try:
            found: list[Result] = self._spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()
        except Exception as error:  # what Spark raises here is of py4j, which this room does not know
            said = next(
                (line for line in str(error).splitlines() if "Exception" in line or "Error" in line), str(error)
            )
            raise WorkFailed(f"{type(error).__name__}: {said.strip()[:300]}") from error
        return found
