"""Run work of a source on Spark's executors.

A source knows neither the pipeline nor the Spark session. A source that can distribute work implements `Distributed`,
and receives `Executors` when it is opened, if there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")


class WorkFailed(Exception):
    """The executors could not do the work; the text is the reason."""


class Executors(Protocol):
    @property
    def are_remote(self) -> bool:
        """Whether they run on other machines and use none of this machine's processors."""
        ...

    def map(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """Return the results in order. Spark repeats a task whose executor is lost. Raises `WorkFailed`."""
        ...


@runtime_checkable
class Distributed(Protocol):
    def distribute(self, executors: Executors) -> None:
        """Use these executors from now on, in the thread that offers and reads."""
        ...


class SparkExecutors:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def are_remote(self) -> bool:
        master = str(self._spark.sparkContext.master)
        return master != "local" and not master.startswith("local[")

    def map(self, work: Callable[[Task], Result], tasks: Sequence[Task]) -> list[Result]:
        try:
            results: list[Result] = self._spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()
        except Exception as error:  # Spark raises errors of py4j, which this package does not import
            lines = (line for line in str(error).splitlines() if "Exception" in line or "Error" in line)
            raise WorkFailed(f"{type(error).__name__}: {next(lines, str(error)).strip()[:300]}") from error
        return results
