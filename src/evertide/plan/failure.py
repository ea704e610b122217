"""Errors of Spark, told to people: the first line of what it says, and the expression that it is about.

PySpark has a class of its own for what a row or an expression makes fail. All else that a job fails of (executors that
were lost, no memory) comes as a plain error of py4j, and has nothing to do with rows: `told_apart`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from evertide.errors import SparkAway, SparkEnded

__all__ = ["reason", "told_apart", "without_traces"]

_LOGGER = "SQLQueryContextLogger"
"""By which PySpark prints the JVM's whole stack for every error of an expression, whoever handles it."""


def reason(error: Exception) -> str:
    if isinstance(error, Py4JJavaError):
        return next(iter(str(error.java_exception.toString()).splitlines()), type(error).__name__)
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    about = {each.fragment() for each in error.getQueryContext()} if isinstance(error, PySparkException) else set()
    return f"{said}, in {', '.join(sorted(about))}" if about else said


@contextmanager
def told_apart(context: SparkContext) -> Iterator[None]:
    """Jobs in the block fail as `SparkAway` or `SparkEnded`, where it is not a row that makes them fail."""
    try:
        yield
    except (Py4JJavaError, Py4JNetworkError, ConnectionError) as error:
        is_answer = isinstance(error, Py4JJavaError)
        why = reason(error) if is_answer else f"{type(error).__name__}: {reason(error)}"
        if not is_answer or _is_stopped(context):
            raise SparkEnded(master=str(context.master), why=why) from error
        raise SparkAway(path=str(context.master), why=why) from error


def _is_stopped(context: SparkContext) -> bool:
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except Py4JError:
        return True


@contextmanager
def without_traces() -> Iterator[None]:
    """What fails in the block is told by its error alone."""
    logger = PySparkLogger.getLogger(_LOGGER)  # by its own class, which PySpark expects to find under that name
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
