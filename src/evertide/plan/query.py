"""Queries that are asked once, over rows that are at hand, by Spark.

A query is read, and nothing else. It is Spark that says what a text means, so its plans are looked at, not the text:

1. The *parsed* plan, before anything is resolved, as resolving alone may read files or run a statement: it may hold
   nothing but what a SELECT is made of (`_PARSED`), over names of collections and functions that make rows of their
   arguments. A path is no name of a collection; and files as relations are switched off in the session.
2. The *analyzed* plan: operators that compute (`_ANALYZED`) over the collections that were registered; no function that
   calls Java or Python code by name.

What is not known is refused by its name, so a new kind of statement is refused until somebody has looked at it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from evertide.errors import InvalidInput, LimitExceeded
from evertide.plan.failure import reason, without_traces
from evertide.plan.result_settings import result_settings
from evertide.plan.scala import sequence
from evertide.plan.walk import expressions, kind, nodes

__all__ = ["Load", "frame_of", "query"]

Load = Callable[[Iterable[str]], Mapping[str, pa.Table]]
"""Gets collections by their names; an error if there are no such."""

_SETTINGS = {"spark.sql.runSQLOnFiles": "false", "spark.sql.variable.substitute": "false"}
_SUBSTITUTED = "${"
"""Where Spark would put settings and the environment into the text, before anybody looks at it."""

_BOTH = frozenset(
    (
        *("Aggregate", "AsOfJoin", "CTERelationRef", "Distinct", "Except", "Expand", "Filter", "Generate"),
        *("GlobalLimit", "Intersect", "Join", "LateralJoin", "LocalLimit", "LocalRelation", "Offset"),
        *("OneRowRelation", "PipeOperator", "Pivot", "Project", "Range", "RebalancePartitions", "Repartition"),
        *("RepartitionByExpression", "Sample", "Sort", "SubqueryAlias", "Tail", "Union", "UnionLoop"),
        *("UnionLoopRef", "Unpivot", "Window", "WithWindowDefinition"),
    )
)
_PARSED = _BOTH | frozenset(
    (
        *("ParameterizedQuery", "PosParameterizedQuery", "UnresolvedHaving", "UnresolvedHint"),
        *("UnresolvedInlineTable", "UnresolvedRelation", "UnresolvedSubqueryColumnAliases"),
        *("UnresolvedTVFAliases", "UnresolvedTableValuedFunction", "UnresolvedWith", "UnresolvedOrderBy"),
        "UnresolvedQualify",
    )
)
_ANALYZED = _BOTH | frozenset(("CTERelationDef", "Deduplicate", "LogicalRDD", "ResolvedHint", "View", "WithCTE"))
_MAKERS = frozenset(
    (
        *("collations", "explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode"),
        *("posexplode_outer", "range", "sql_keywords", "stack", "variant_explode", "variant_explode_outer"),
    )
)
"""Functions in FROM that make rows of their arguments alone."""
_CALLS = frozenset(
    (
        *("CallMethodViaReflection", "TryReflect", "PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF"),
        *("ScalaAggregator", "ScalaUDAF", "HiveSimpleUDF", "HiveGenericUDF", "HiveGenericUDTF", "HiveUDAFFunction"),
        *("ApplyFunctionExpression", "V2Aggregator", "UserDefinedPythonTableFunction", "SQLFunctionExpression"),
    )
)


_CANCEL_EVERY_S = 0.5


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    return spark.createDataFrame(rows)


def query(
    spark: SparkSession,
    text: str,
    load: Load,
    parameters: Sequence[Any] = (),
    *,
    rows_max: int | None = None,
    limit_s: float | None = None,
    tag: str = "evertide-query",
) -> pa.Table:
    """The answer; at most so many rows of it. `tag` tells its jobs from those of others, to end them in time."""
    if _SUBSTITUTED in text:  # the parser asks the session that is active, whichever that is
        why = f"it holds {_SUBSTITUTED!r}, which Spark takes for a setting or the environment; say concat('$', '{{')"
        raise InvalidInput(where="query", why=why)
    session = spark.newSession()
    for name, value in {**_kept(spark), **_SETTINGS}.items():
        session.conf.set(name, value)
    try:
        with without_traces():
            for name, rows in load(_names(session, text)).items():
                frame_of(session, rows).createOrReplaceTempView(f"`{name}`" if not name.isidentifier() else name)
            frame = session.sql(text, args=list(parameters)) if parameters else session.sql(text)
            _check_analyzed(frame)
            chosen = frame if rows_max is None else frame.limit(rows_max)
            with _timed(session, limit_s, tag):
                return chosen.toArrow()
    except PySparkException as error:
        raise InvalidInput(where="query", why=reason(error)) from error


def _kept(spark: SparkSession) -> dict[str, str]:
    """Views and queries agree on what rows mean: a new session begins with Spark's defaults."""
    found = result_settings(spark)
    return {name: value for name, value in found.items() if name != "spark"}


def _check_analyzed(frame: DataFrame) -> None:
    for node in nodes(frame._jdf.queryExecution().analyzed()):
        name = kind(node)
        if name not in _ANALYZED:
            raise InvalidInput(where="query", why=f"{name}: a query reads tables and views, and nothing else")
        for expression in expressions(node):
            if kind(expression) in _CALLS:
                why = f"{expression.prettyName()}() calls code by its name, which no query may"
                raise InvalidInput(where="query", why=why)


@contextmanager
def _timed(session: SparkSession, limit_s: float | None, tag: str) -> Iterator[None]:
    """Jobs in the block are ended when their time is up."""
    if limit_s is None:
        yield
        return
    over, done = threading.Event(), threading.Event()
    context = session.sparkContext

    def end() -> None:
        if not done.wait(limit_s):
            over.set()
        while not done.is_set():  # again and again: a job that was about to begin is not there to be ended
            context.cancelJobsWithTag(tag)
            done.wait(_CANCEL_EVERY_S)

    thread = threading.Thread(target=end, name=tag, daemon=True)
    context.addJobTag(tag)
    thread.start()
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if over.is_set():
            raise LimitExceeded(where="query", why=f"it takes longer than {limit_s:g} s") from error
        raise
    finally:
        done.set()
        thread.join()
        context.removeJobTag(tag)


def _names(session: SparkSession, text: str) -> list[str]:
    """The relations that it reads, less what it names itself (WITH)."""
    plan = session._jsparkSession.sessionState().sqlParser().parsePlan(text)
    return list(dict.fromkeys(_read(plan, frozenset())))


def _read(plan: Any, own: frozenset[str]) -> Iterator[str]:
    """A name of WITH hides a collection from where it is declared on, and from itself if it is recursive."""
    name = kind(plan)
    if name not in _PARSED:
        why = f"a query is a SELECT over tables and views, and this is, or holds, a {name}"
        raise InvalidInput(where="query", why=why)
    match name:
        case "UnresolvedWith":
            for pair in sequence(plan.cteRelations()):
                named = frozenset([pair._1().lower()])
                yield from _read(pair._2(), own | named if plan.allowRecursion() else own)
                own |= named
        case "UnresolvedRelation":
            relation = ".".join(sequence(plan.multipartIdentifier()))
            if relation.lower() not in own:
                yield relation
        case "UnresolvedTableValuedFunction":
            function = ".".join(sequence(plan.name()))
            if function.lower() not in _MAKERS:
                why = f"{function}() in FROM: a query reads tables and views, and nothing else"
                raise InvalidInput(where="query", why=why)
    for child in (*sequence(plan.children()), *sequence(plan.subqueries())):
        yield from _read(child, own)
