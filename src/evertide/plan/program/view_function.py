"""Views that are written in Python: functions that return a DataFrame over tables and views of the pipeline.

A function is called once, when the view is declared, for the plan of its DataFrame:

    @materialized_view
    def expensive(spark):
        return spark.table("bid").where("price > 100")

    Pipeline.open("auctions.sql", storage=..., functions=[expensive])

The argument is the pipeline's session, which knows tables and views by their names. A function without parameters finds
the same session with `SparkSession.active()`, like functions for `pyspark.pipelines`. Tables are empty while plans are
made, so a function must not collect rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import overload

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from evertide.errors import InvalidInput
from evertide.plan.query.spark_errors import explain_error

Function = Callable[..., DataFrame]


@dataclass(frozen=True, slots=True)
class ViewFunction:
    name: str
    function: Callable[..., DataFrame]
    is_materialized: bool = True
    """If false, the view is a name for a query, which becomes part of the queries that read it."""
    properties: Mapping[str, str] = field(default_factory=dict)
    comment: str = ""

    @property
    def where(self) -> str:
        """File and line, for messages."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return f"{self.function!r}" if code is None else f"{code.co_filename}:{code.co_firstlineno}"

    def build_frame(self, session: SparkSession) -> DataFrame:
        """Call the function, and check that it returns a DataFrame of this session."""
        where = f"{self.where}, view {self.name!r}"
        frame = self._call(session, where)
        if not isinstance(frame, DataFrame):
            why = f"the function returns a {type(frame).__name__}, but must return a DataFrame"
            raise InvalidInput(where=where, why=why)
        if not frame.sparkSession._jsparkSession.equals(session._jsparkSession):
            why = "the DataFrame belongs to another session; read tables with the session that the function gets"
            raise InvalidInput(where=where, why=why)
        return frame

    def _call(self, session: SparkSession, where: str) -> object:
        arguments = [session] if inspect.signature(self.function).parameters else []
        try:
            with activate(session):
                return self.function(*arguments)
        except InvalidInput:
            raise  # it already has the place
        except PySparkException as error:
            raise InvalidInput(where=where, why=explain_error(error)) from error
        except Exception as error:  # a user's function may raise anything
            raise InvalidInput(where=where, why=f"the function failed: {type(error).__name__}: {error}") from error


@overload
def materialized_view(function: Function, /) -> ViewFunction: ...


@overload
def materialized_view(
    *, name: str = "", comment: str = "", properties: Mapping[str, str] | None = None
) -> Callable[[Function], ViewFunction]: ...


def materialized_view(
    function: Function | None = None,
    /,
    *,
    name: str = "",
    comment: str = "",
    properties: Mapping[str, str] | None = None,
) -> ViewFunction | Callable[[Function], ViewFunction]:
    """Declare a maintained and stored view, with the function's name or another."""

    def wrap(wrapped: Function) -> ViewFunction:
        called = name or getattr(wrapped, "__name__", "")
        return ViewFunction(called, wrapped, properties=dict(properties or {}), comment=comment)

    return wrap if function is None else wrap(function)


def temporary_view(function: Function, /) -> ViewFunction:
    """Declare a name for a query, which becomes part of the queries that read it."""
    return ViewFunction(getattr(function, "__name__", ""), function, is_materialized=False)


@contextmanager
def activate(session: SparkSession) -> Iterator[None]:
    """Make `session` the active one, also for `SparkSession.builder`, and restore the previous one afterwards."""
    sessions = session._jvm.org.apache.spark.sql.classic.SparkSession
    before, jvm_before = SparkSession._activeSession, sessions.getActiveSession()
    built = SparkSession._instantiatedSession
    SparkSession._activeSession = SparkSession._instantiatedSession = (
        session  # Python has its own variables beside the JVM's
    )
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        SparkSession._activeSession, SparkSession._instantiatedSession = before, built
        if jvm_before.isDefined():
            sessions.setActiveSession(jvm_before.get())
        else:
            sessions.clearActiveSession()
