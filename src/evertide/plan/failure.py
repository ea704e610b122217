"""Errors of Spark, told to people: the first line of what it says, and the expression that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

__all__ = ["reason", "without_traces"]

_LOGGER = "SQLQueryContextLogger"
"""By which PySpark prints the JVM's whole stack for every error of an expression, whoever handles it."""


def reason(error: Exception) -> str:
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    about = {each.fragment() for each in error.getQueryContext()} if isinstance(error, PySparkException) else set()
    return f"{said}, in {', '.join(sorted(about))}" if about else said


@contextmanager
def without_traces() -> Iterator[None]:
    """What fails in the block is told by its error alone."""
    logger = PySparkLogger.getLogger(_LOGGER)  # by its own class, which PySpark expects to find under that name
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
