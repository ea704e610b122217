"""Describes errors of Spark in one line, and finds out whether Spark or the system is the cause.

PySpark raises its own classes for most errors that a row or an expression causes. All other errors come as plain py4j
errors: lost executors, out of memory, but also rows that some functions cannot parse. `classify_error` says what such
an error means for Spark; `evertide.flow.blame` finds out whether a row caused it.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException, PythonException
from pyspark.logger import PySparkLogger

from evertide.errors import (
    InvalidInput,
    ScratchUnavailable,
    SparkAway,
    SparkEnded,
    StateInconsistent,
    SystemRefused,
)
from evertide.plan.catalyst.walk import read_list
from evertide.scratch import scratch_directory

_is_silent: ContextVar[bool] = ContextVar("is_silent", default=False)
_CAUSES_MAX = 20
_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""Errors of the operating system for lack of space, files or memory; a row never causes them."""
_REFUSALS = tuple(map(os.strerror, _NUMBERS))
"""Their texts, which the JVM uses as well."""
_TRACEBACK = "Traceback (most recent call last):"
_LOGGER = "SQLQueryContextLogger"
"""The logger to which PySpark writes the JVM's whole stack for every error of an expression."""


def describe_error(error: Exception) -> str:
    """The first line of an error's text, and the SQL fragments that it is about."""
    if isinstance(error, Py4JJavaError):
        return next(iter(str(error.java_exception.toString()).splitlines()), type(error).__name__)
    lines = str(error).splitlines()
    if isinstance(error, PythonException) and _TRACEBACK in lines:  # the function's own error comes after its frames
        last = len(lines) - lines[::-1].index(_TRACEBACK)
        lines = [line for line in lines[last:] if line[:1].strip()] or lines
    text = read_first_line("\n".join(lines)) or type(error).__name__
    about = {each.fragment() for each in error.getQueryContext()} if isinstance(error, PySparkException) else set()
    return f"{text}, in {', '.join(sorted(about))}" if about else text


def may_succeed_again(error: Exception) -> bool:
    """Whether a job that failed may succeed when it is repeated: the cause may be an executor, Python or the storage,
    not only a row or an expression."""
    if isinstance(error, InvalidInput | StateInconsistent):
        return False
    return isinstance(error, PythonException) or not isinstance(error, PySparkException)


def read_first_line(text: object) -> str:
    """The first line of a text that is not blank; empty if there is none."""
    return next((line.strip() for line in str(text).splitlines() if line.strip()), "")


@contextmanager
def classify_errors(context: SparkContext) -> Iterator[None]:
    """Raise `SparkAway`, `SparkEnded` or `ScratchUnavailable` for errors in the block that no row causes."""
    try:
        yield
    except Exception as error:  # raised again, classified
        classified = classify_error(context, error)
        if classified is None:
            raise
        raise classified from error


def classify_error(
    context: SparkContext, error: Exception
) -> SparkAway | SparkEnded | ScratchUnavailable | SystemRefused | None:
    """Classify an error of py4j or of the system; None for any other. A row may still be the cause of a `SparkAway`.

    Without free files or memory, py4j cannot connect to the JVM and raises the error of the system.
    """
    refused: BaseException | None = error
    while isinstance(refused, Py4JNetworkError):
        refused = refused.__cause__ or refused.__context__
    if isinstance(refused, OSError) and refused.errno in _NUMBERS:
        return SystemRefused(path=str(context.master), why=f"{type(refused).__name__}: {refused}")
    if not isinstance(error, Py4JJavaError):
        is_broken = isinstance(error, Py4JNetworkError | ConnectionError)
        why = f"{type(error).__name__}: {describe_error(error)}"
        return SparkEnded(master=str(context.master), why=why) if is_broken else None
    try:
        why = describe_error(error)
        if _is_stopped(context):
            return SparkEnded(master=str(context.master), why=why)
        if _is_file_refused(context, error):
            return ScratchUnavailable(path=scratch_directory(), why=why)
    except (Py4JError, ConnectionError) as lost:
        return SparkEnded(master=str(context.master), why=f"{type(lost).__name__}: {lost}")
    return SparkAway(path=str(context.master), why=why)


def check_spark(context: SparkContext) -> frozenset[str]:
    """Run a minimal job, and return the ids of the executors; raise `SparkAway` or `SparkEnded` if Spark cannot.

    No id is used again after its executor is lost.
    """
    with classify_errors(context):
        numbers = context._jvm.java.util.ArrayList()
        numbers.add(1)
        context._jsc.parallelize(numbers, 1).count()
        scala = context._jsc.sc()
        scala.listenerBus().waitUntilEmpty()  # the status store learns of lost executors from it
        return frozenset(one.id() for one in read_list(scala.statusStore().executorList(True)))  # noqa: FBT003 - active


def _is_file_refused(context: SparkContext, error: Py4JJavaError) -> bool:
    """Whether the system refused a file operation. Spark writes only temporary files here."""
    cause, depth = error.java_exception, 0
    while cause is not None and depth < _CAUSES_MAX:
        if is_instance_of(context._gateway, cause, "java.io.IOException"):
            text = str(cause.getMessage())
            if any(text == each or text.endswith((f"({each})", f": {each}")) for each in _REFUSALS):
                return True
        cause, depth = cause.getCause(), depth + 1
    return False


def _is_stopped(context: SparkContext) -> bool:
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except Py4JError:
        return True


@contextmanager
def silence_traces() -> Iterator[None]:
    """Do not log stack traces of expressions that fail in the block. Other threads log as before."""
    _filter_traces()
    before = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(before)


@cache
def _filter_traces() -> None:
    """Once per process, since PySpark replaces the class of all new loggers for a moment here."""
    PySparkLogger.getLogger(_LOGGER).addFilter(_is_logged)  # PySpark expects a logger of its own class under this name


def _is_logged(_: logging.LogRecord) -> bool:
    return not _is_silent.get()
