"""Runs single read-only queries with Spark, over given rows or over stored collections.

The checks use Spark's plans of a query, not its text:

1. The *parsed* plan is checked before names are resolved, since resolving may read files or run a statement. It may
   have only the parts of a SELECT (`_PARSED`), over names of collections and functions that produce rows from their
   arguments, in every place where a subquery can stand (`find_inner_plans`). Relations that are file paths are disabled
   in the session.
2. The session has only the functions that `evertide.plan.query.functions` allows. All others are removed from its
   registry before names are resolved.
3. The *analyzed* plan may have only operators that compute (`_ANALYZED`) over the registered collections, no function
   that calls Java or Python code by name, and none that Spark resolves without its registry (`current_user`).

Anything unknown is refused by its name, so a new kind of statement is refused until it has been reviewed.

The process that runs the query limits its memory, since the JVM reports only that it has none left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from evertide.errors import InvalidInput, LimitExceeded, SparkAway, SparkEnded
from evertide.plan.catalyst.failure import classify_errors, describe_error, silence_traces
from evertide.plan.catalyst.parsed import find_inner_plans
from evertide.plan.catalyst.result_settings import read_result_settings
from evertide.plan.catalyst.session import RULE_OF_LIMIT, TOP_SETTINGS
from evertide.plan.catalyst.walk import get_kind, read_list, read_option, walk_expressions, walk_nodes
from evertide.plan.query.functions import ALLOWED, ALLOWED_IN_FROM, REFUSED
from evertide.plan.query.spark_errors import explain_error, find_offset, find_relations
from evertide.plan.syntax.check import check_syntax
from evertide.rows.char_types import SPARK_KEY
from evertide.rows.conform import conform
from evertide.source_text import QUERY, locate_in_query

Load = Callable[[SparkSession, Sequence[str]], Mapping[str, DataFrame]]
"""Loads collections by name."""
ExplainUnknown = Callable[[str], str]
"""Why no collection has this name; empty if one has."""

_SETTINGS = {
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.optimizer.excludedRules": RULE_OF_LIMIT,
    **TOP_SETTINGS,
}
_SUBSTITUTED = "${"
"""Spark replaces this by settings and environment variables before it parses the text."""

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
"""LogicalRDD and DataSourceV2Relation are the collections; the check of the parsed plan excludes other relations."""
_CALLS = frozenset(
    (
        *("CallMethodViaReflection", "TryReflect", "PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF"),
        *("ScalaAggregator", "ScalaUDAF", "HiveSimpleUDF", "HiveGenericUDF", "HiveGenericUDTF", "HiveUDAFFunction"),
        *("ApplyFunctionExpression", "V2Aggregator", "UserDefinedPythonTableFunction", "SQLFunctionExpression"),
    )
)
_UNREGISTERED = {"CurrentPath": "current_path", "CurrentUser": "current_user"}
"""Functions that Spark resolves without its registry, as names without parentheses."""
_INTEGERS = range(-(1 << 63), 1 << 63)
_NO_MEMORY = "OutOfMemoryError"
"""The JVM's class, and Spark's own."""
_TOO_DEEP = "java.lang.StackOverflowError"
_TOO_COMPLEX = "FAILED_TO_PARSE_TOO_COMPLEX"
"""The parser's error when its stack is exhausted."""
_DEEP = "the expressions are nested too deeply; simplify the query"


def make_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """A DataFrame with the types of the rows; by default, Spark adds the session's zone to times without one."""
    return spark.createDataFrame(rows, from_arrow_schema(rows.schema))


def read_stored(session: SparkSession, options: Mapping[str, str], name: str) -> DataFrame:
    """A stored collection, which Spark reads through `evertide.datasource`."""
    return session.read.format("evertide").options(**options).load(name)


def pad_comparisons(frame: DataFrame, compared_types: Mapping[str, str]) -> DataFrame:
    """The frame whose CHAR columns have the metadata by which Spark pads their comparisons, as in a view.

    `compared_types` has their types, by column.
    """
    if not compared_types:
        return frame
    metadata = {column: {SPARK_KEY: kind} for column, kind in compared_types.items()}
    columns = [(each, col("`" + each.replace("`", "``") + "`")) for each in frame.columns]
    return frame.select(*(column.alias(each, metadata=metadata.get(each, {})) for each, column in columns))


def apply_result_settings(session: SparkSession, results: Mapping[str, str]) -> None:
    """Apply the result settings of another session (`read_result_settings`)."""
    for name, value in results.items():
        if name != "spark":  # the version is not a setting
            session.conf.set(name, value)


def run_query(
    spark: SparkSession,
    text: str,
    load: Load,
    parameters: Sequence[Any] = (),
    *,
    rows_max: int | None = None,
    explain_unknown: ExplainUnknown = lambda _: "",
) -> pa.Table:
    """Run a query; returns at most `rows_max` rows, with the column types of tables."""
    if _SUBSTITUTED in text:  # the parser uses the settings of the active session
        why = f"the text has {_SUBSTITUTED!r}, which Spark would replace by a setting; write concat('$', '{{')"
        raise InvalidInput(where=QUERY, why=why)
    try:
        _check_parameter(list(parameters))
        with silence_traces(), classify_errors(spark.sparkContext):
            session = spark.newSession()
            apply_result_settings(
                session, {**read_result_settings(spark), **_SETTINGS}
            )  # a new session has Spark's defaults
            remove_forbidden_functions(session)
            names = list_relations(session, text, explain_unknown)
            for name, frame in load(session, names).items():
                frame.createOrReplaceTempView(f"`{name}`" if not name.isidentifier() else name)
            found = session.sql(text, args=list(parameters)) if parameters else session.sql(text)
            _check_analyzed(found, text)
            return _collect(found if rows_max is None else found.limit(rows_max))
    except PySparkException as error:
        raise _make_refusal(spark, text, error) from error
    except SparkAway as error:
        if _NO_MEMORY in str(error.__cause__):
            raise LimitExceeded(where=QUERY, why="Spark ran out of memory") from error
        if _TOO_DEEP in error.why:
            raise InvalidInput(where=QUERY, why=_DEEP) from error
        if (refusal := _find_condition(spark, error.__cause__)) is not None:
            raise InvalidInput(where=QUERY, why=refusal) from error
        raise
    except RecursionError as error:
        raise InvalidInput(where=QUERY, why=_DEEP) from error
    except Py4JError as error:  # the JVM is gone
        raise SparkEnded(master=str(spark.sparkContext.master), why=describe_error(error)) from error


def _check_parameter(value: Any) -> None:
    """Refuse a number that py4j cannot pass on: its error looks as if the JVM had ended."""
    if isinstance(value, list | tuple):
        for each in value:
            _check_parameter(each)
    elif isinstance(value, dict):
        raise InvalidInput(where=QUERY, why="a parameter is an object; Spark accepts no objects as parameters")
    elif isinstance(value, int) and value not in _INTEGERS:
        raise InvalidInput(where=QUERY, why=f"the parameter {value} does not fit into a BIGINT; pass it as a text")


def _find_condition(spark: SparkSession, error: BaseException | None) -> str | None:
    """Why Spark refuses the query, if it says so by an error that PySpark does not know; None for any other error."""
    cause = error.java_exception if isinstance(error, Py4JJavaError) else None
    while cause is not None:
        is_spark = is_instance_of(spark.sparkContext._gateway, cause, "org.apache.spark.SparkThrowable")
        if is_spark and cause.getCondition() is not None:
            return str(cause.getMessage()).partition("\n")[0]
        cause = cause.getCause()
    return None


def _collect(frame: DataFrame) -> pa.Table:
    """Collect rows; timestamps have the zone UTC."""
    try:
        declared = to_arrow_schema(frame.schema, timezone="UTC")
    except ValueError as error:  # an array or a map of VOID
        why = f"no table can have the types {frame.schema.simpleString()}; cast the values"
        raise InvalidInput(where=QUERY, why=why) from error
    rows = frame.toArrow()
    columns = [conform(column, kind) for column, kind in zip(rows.columns, declared.types, strict=True)]
    return pa.Table.from_arrays(columns, schema=declared)


def remove_forbidden_functions(session: SparkSession) -> None:
    """Remove all functions but the allowed ones from a session that is only for queries."""
    state = session._jsparkSession.sessionState()
    for registry, allowed in (
        (state.functionRegistry(), ALLOWED),
        (state.tableFunctionRegistry(), ALLOWED_IN_FROM),
    ):
        found = registry.listFunction()
        for place, name in enumerate(found.mkString("\n").split("\n")):  # one call to the JVM for all names
            if _unquote(name) not in allowed:
                registry.dropFunction(found.apply(place))


def _unquote(name: str) -> str:
    """The last part of a name, with or without quotes."""
    return name.replace("`", "").rpartition(".")[2].lower()


def _make_refusal(spark: SparkSession, text: str, error: PySparkException) -> InvalidInput:
    if error.getCondition() == "PARSE_SYNTAX_ERROR":
        try:
            check_syntax(text)  # knows which keyword is misspelled
        except InvalidInput as refusal:
            return refusal
    parser = spark._jsparkSession.sessionState().sqlParser()
    why = _explain_unresolved(error) or explain_error(error, relations=lambda: find_relations(parser, text))
    return InvalidInput(
        where=locate_in_query(text, find_offset(error, text)), why=_DEEP if _TOO_COMPLEX in why else why
    )


def _explain_unresolved(error: PySparkException) -> str | None:
    if error.getCondition() != "UNRESOLVED_ROUTINE":
        return None
    name = _unquote((error.getMessageParameters() or {}).get("routineName", ""))
    return f"{name}() is refused: {REFUSED[name]}" if name in REFUSED else None


def _check_analyzed(frame: DataFrame, text: str) -> None:
    for node in walk_nodes(frame._jdf.queryExecution().analyzed()):
        name = get_kind(node)
        if name not in _ANALYZED:
            raise _refuse(text, node, f"{name} is not allowed; a query may only read tables and views")
        for expression in walk_expressions(node):
            if get_kind(expression) in _CALLS:
                why = f"{expression.prettyName()}() calls code by name, which is not allowed in a query"
                raise _refuse(text, expression, why)
            if (named := _UNREGISTERED.get(get_kind(expression))) is not None:
                raise _refuse(text, expression, f"{named} is refused: {REFUSED[named]}")


def _refuse(text: str, tree: Any, why: str) -> InvalidInput:
    """An error at an operator or an expression."""
    return InvalidInput(where=locate_in_query(text, read_option(tree.origin().startIndex())), why=why)


def list_relations(session: SparkSession, text: str, explain_unknown: ExplainUnknown = lambda _: "") -> list[str]:
    """The relations that a query reads, without those that it defines (WITH)."""
    found = []
    for name, node in _RelationFinder(text).find(session._jsparkSession.sessionState().sqlParser().parsePlan(text)):
        if why := explain_unknown(name):
            raise _refuse(text, node, why)
        found.append(name)
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class _RelationFinder:
    text: str

    def find(self, plan: Any, own: frozenset[str] = frozenset()) -> Iterator[tuple[str, Any]]:
        """The relations and their nodes. A name of WITH hides a collection in the following queries, and in its own if
        it is recursive."""
        name = get_kind(plan)
        inner = self._list_inner(plan, name)
        match name:
            case "UnresolvedWith":
                inner = [plan.child()]  # all others are queries of cteRelations
                for pair in read_list(plan.cteRelations()):
                    named = frozenset([pair._1().lower()])
                    yield from self.find(pair._2(), own | named if plan.allowRecursion() else own)
                    own |= named
            case "UnresolvedRelation":
                if not plan.options().isEmpty():  # Spark would ignore them
                    raise _refuse(self.text, plan, "options of a table are not allowed in a query; remove WITH (...)")
                path = read_list(plan.multipartIdentifier())
                if len(path) > 1 or path[0].lower() not in own:  # a name of WITH has no dot
                    yield ".".join(path), plan
            case "UnresolvedTableValuedFunction":
                function = ".".join(read_list(plan.name()))
                if function.lower() not in ALLOWED_IN_FROM:
                    why = f"{function}() in FROM is not allowed; a query may only read tables and views"
                    raise _refuse(self.text, plan, why)
        for each in inner:
            yield from self.find(each, own)

    def _list_inner(self, plan: Any, name: str) -> list[Any]:
        """The operators directly inside of an allowed operator of a parsed plan."""
        if name not in _PARSED:
            raise _refuse(self.text, plan, f"{name} is not allowed; a query is a SELECT over tables and views")
        inner, unknown = find_inner_plans(plan)
        if unknown:
            why = f"{name} contains {unknown[0]}, which is not allowed; a query is a SELECT over tables and views"
            raise _refuse(self.text, plan, why)
        return inner
