"""Queries that are asked once, by Spark: over rows that are at hand, or over collections as they are stored.

A query is read, and nothing else. It is Spark that says what a text means, so its plans are looked at, not the text:

1. The *parsed* plan, before anything is resolved, as resolving alone may read files or run a statement: it may hold
   nothing but what a SELECT is made of (`_PARSED`), over names of collections and functions that make rows of their
   arguments. A path is no name of a collection; and files as relations are switched off in the session.
2. The session has only the functions that `query_functions` allows: the others are taken out of its registry before
   anything is resolved, however a query may spell their names.
3. The *analyzed* plan: operators that compute (`_ANALYZED`) over the collections that were registered; no function that
   calls Java or Python code by name, and none that Spark resolves without its registry (`current_user`).

What is not known is refused by its name, so a new kind of statement is refused until somebody has looked at it.

What it takes is for the process that it runs in to bound: all that a JVM says about its memory is that there was none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from evertide.errors import InvalidInput, LimitExceeded, SparkAway, SparkEnded
from evertide.plan.catalyst.failure import classify_errors, describe_error, silence_traces
from evertide.plan.catalyst.result_settings import result_settings
from evertide.plan.catalyst.scala import sequence
from evertide.plan.catalyst.walk import expressions, kind, nodes
from evertide.plan.query.functions import ALLOWED, ALLOWED_IN_FROM, REFUSED
from evertide.rows.conform import conform

__all__ = ["Load", "configure", "make_frame", "query", "read_stored", "remove_forbidden_functions"]

Load = Callable[[SparkSession, Sequence[str]], Mapping[str, DataFrame]]
"""Gets collections by their names, as they were declared; an error if there are no such."""

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
_ANALYZED = _BOTH | frozenset(
    ("CTERelationDef", "DataSourceV2Relation", "Deduplicate", "LogicalRDD", "ResolvedHint", "View", "WithCTE")
)
"""LogicalRDD and DataSourceV2Relation are the collections: the parsed plan has no other way to name a relation."""
_CALLS = frozenset(
    (
        *("CallMethodViaReflection", "TryReflect", "PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF"),
        *("ScalaAggregator", "ScalaUDAF", "HiveSimpleUDF", "HiveGenericUDF", "HiveGenericUDTF", "HiveUDAFFunction"),
        *("ApplyFunctionExpression", "V2Aggregator", "UserDefinedPythonTableFunction", "SQLFunctionExpression"),
    )
)
_UNREGISTERED = {"CurrentUser": "current_user"}
"""Functions that Spark finds by their name alone, without parentheses."""
_NO_MEMORY = "java.lang.OutOfMemoryError"
_TOO_DEEP = "java.lang.StackOverflowError"
_TOO_COMPLEX = "FAILED_TO_PARSE_TOO_COMPLEX"
"""The same, if it is the parser that has no stack left."""
_DEEP = "its expressions are nested too deeply"


def make_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """With the types that the columns have: by itself Spark takes a time without a zone for one with the session's."""
    return spark.createDataFrame(rows, from_arrow_schema(rows.schema))


def read_stored(session: SparkSession, options: Mapping[str, str], name: str) -> DataFrame:
    """A collection as it is stored: Spark reads it itself (`evertide.datasource`), as much of it as it has room for."""
    return session.read.format("evertide").options(**options).load(name)


def configure(session: SparkSession, results: Mapping[str, str]) -> None:
    """Settings that decide results, as `result_settings` told them of another session."""
    for name, value in results.items():
        if name != "spark":  # the version, which is no setting
            session.conf.set(name, value)


def query(
    spark: SparkSession, text: str, load: Load, parameters: Sequence[Any] = (), *, rows_max: int | None = None
) -> pa.Table:
    """The answer; at most so many rows of it. Its columns have the types that tables have."""
    if _SUBSTITUTED in text:  # the parser asks the session that is active, whichever that is
        why = f"it holds {_SUBSTITUTED!r}, which Spark takes for a setting or the environment; say concat('$', '{{')"
        raise InvalidInput(where="query", why=why)
    try:
        with silence_traces(), classify_errors(spark.sparkContext):
            session = spark.newSession()
            configure(session, {**result_settings(spark), **_SETTINGS})  # it begins with Spark's defaults
            remove_forbidden_functions(session)
            for name, frame in load(session, _list_relations(session, text)).items():
                frame.createOrReplaceTempView(f"`{name}`" if not name.isidentifier() else name)
            found = session.sql(text, args=list(parameters)) if parameters else session.sql(text)
            _check_analyzed(found)
            return _collect(found if rows_max is None else found.limit(rows_max))
    except PySparkException as error:
        why = _why_unresolved(error) or describe_error(error)
        raise InvalidInput(where="query", why=_DEEP if _TOO_COMPLEX in why else why) from error
    except SparkAway as error:
        if _NO_MEMORY in str(error.__cause__):
            raise LimitExceeded(where="query", why="Spark has no memory left for it") from error
        if _TOO_DEEP in error.why:
            raise InvalidInput(where="query", why=_DEEP) from error
        raise
    except Py4JError as error:  # no answer came: the JVM is gone
        raise SparkEnded(master=str(spark.sparkContext.master), why=describe_error(error)) from error


def _collect(frame: DataFrame) -> pa.Table:
    """Moments are told by UTC, whatever zone they are computed in."""
    rows = frame.toArrow()
    declared = to_arrow_schema(frame.schema, timezone="UTC")
    columns = [conform(column, kind) for column, kind in zip(rows.columns, declared.types, strict=True)]
    return pa.Table.from_arrays(columns, schema=declared)


def remove_forbidden_functions(session: SparkSession) -> None:
    """Take all other functions out of a session that is only for queries."""
    state = session._jsparkSession.sessionState()
    for registry, allowed in (
        (state.functionRegistry(), ALLOWED),
        (state.tableFunctionRegistry(), ALLOWED_IN_FROM),
    ):
        found = registry.listFunction()
        for place, name in enumerate(found.mkString("\n").split("\n")):  # one call, not one for each
            if _unquote(name) not in allowed:
                registry.dropFunction(found.apply(place))


def _unquote(name: str) -> str:
    """The last part of a name, with or without quotes."""
    return name.replace("`", "").rpartition(".")[2].lower()


def _why_unresolved(error: PySparkException) -> str | None:
    if error.getCondition() != "UNRESOLVED_ROUTINE":
        return None
    name = _unquote((error.getMessageParameters() or {}).get("routineName", ""))
    return f"{name}() is refused: {REFUSED[name]}" if name in REFUSED else None


def _check_analyzed(frame: DataFrame) -> None:
    for node in nodes(frame._jdf.queryExecution().analyzed()):
        name = kind(node)
        if name not in _ANALYZED:
            raise InvalidInput(where="query", why=f"{name}: a query reads tables and views, and nothing else")
        for expression in expressions(node):
            if kind(expression) in _CALLS:
                why = f"{expression.prettyName()}() calls code by its name, which no query may"
                raise InvalidInput(where="query", why=why)
            if (named := _UNREGISTERED.get(kind(expression))) is not None:
                raise InvalidInput(where="query", why=f"{named} is refused: {REFUSED[named]}")


def _list_relations(session: SparkSession, text: str) -> list[str]:
    """The relations that it reads, less what it names itself (WITH)."""
    plan = session._jsparkSession.sessionState().sqlParser().parsePlan(text)
    return list(dict.fromkeys(_find_relations(plan, frozenset())))


def _find_relations(plan: Any, own: frozenset[str]) -> Iterator[str]:
    """A name of WITH hides a collection from where it is declared on, and from itself if it is recursive."""
    name = kind(plan)
    if name not in _PARSED:
        why = f"a query is a SELECT over tables and views, and this is, or holds, a {name}"
        raise InvalidInput(where="query", why=why)
    match name:
        case "UnresolvedWith":
            for pair in sequence(plan.cteRelations()):
                named = frozenset([pair._1().lower()])
                yield from _find_relations(pair._2(), own | named if plan.allowRecursion() else own)
                own |= named
        case "UnresolvedRelation":
            path = sequence(plan.multipartIdentifier())
            if len(path) > 1 or path[0].lower() not in own:  # a name with a point in it is never that of a WITH
                yield ".".join(path)
        case "UnresolvedTableValuedFunction":
            function = ".".join(sequence(plan.name()))
            if function.lower() not in ALLOWED_IN_FROM:
                why = f"{function}() in FROM: a query reads tables and views, and nothing else"
                raise InvalidInput(where="query", why=why)
    for child in (*sequence(plan.children()), *sequence(plan.subqueries())):
        yield from _find_relations(child, own)
