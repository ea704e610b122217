"""Refuses queries that cannot be maintained, when a view is declared, and names the expression.

A view's delta must be a function of its tables' deltas and its definition (I15). So a view may not depend on the time
of day, the current user, randomness, or an arbitrary choice of rows. It may read only the pipeline's tables and views,
and no value of a row may make it read anything else. The check uses the *analyzed* plan, since the optimizer replaces
the time of day by a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evertide.errors import InvalidInput
from evertide.plan.catalyst.network import has_external_dtds
from evertide.plan.catalyst.walk import get_kind, read_list, walk_expressions, walk_nodes
from evertide.plan.script.catalog import Query, SparkCatalog

_CURRENT = {
    "CurrentDate": "current_date",
    "CurrentTimestamp": "current_timestamp",
    "Now": "now",
    "LocalTimestamp": "localtimestamp",
    "CurrentTime": "current_time",
    "CurrentUser": "current_user",
    "CurrentDatabase": "current_database",
    "CurrentCatalog": "current_catalog",
}
_RANDOM = frozenset(("AesEncrypt",))
"""Random functions that Spark declares deterministic."""
_MANY_ROWS = frozenset(
    (
        *("MapInPandas", "MapInArrow", "PythonMapInArrow", "FlatMapGroupsInPandas", "FlatMapGroupsInArrow"),
        *("FlatMapCoGroupsInPandas", "FlatMapCoGroupsInArrow", "FlatMapGroupsInPandasWithState"),
        *("TransformWithState", "TransformWithStateInPandas", "TransformWithStateInPySpark"),
    )
)
_CONSTANT_LEAVES = {"OneRowRelation", "LocalRelation", "Range", "CTERelationRef"}


def refuse_unmaintainable(query: Query, catalog: SparkCatalog) -> None:
    identify = catalog.session._jvm.java.lang.System.identityHashCode
    limits = {identify(limit) for limit in _find_limits_in_exists(query.analyzed)}
    for node in walk_nodes(query.analyzed):
        if identify(node) not in limits and (why := _check_node(node, catalog)) is not None:
            raise InvalidInput(where=query.locate(node), why=why)
        for expression in walk_expressions(node):
            why = _check_expression(expression) or _check_xml(expression, catalog)
            if why is not None:
                raise InvalidInput(where=query.locate(expression, node), why=why)


def _find_limits_in_exists(plan: Any) -> Iterator[Any]:
    """The constant LIMITs at the end of queries in EXISTS: which rows they select does not matter there."""
    for node in walk_nodes(plan):
        for expression in walk_expressions(node):
            inner = expression.plan() if get_kind(expression) == "Exists" else None
            while inner is not None and get_kind(inner) in ("Project", "SubqueryAlias"):
                inner = inner.child()
            if inner is not None and get_kind(inner) == "GlobalLimit" and inner.limitExpr().foldable():
                yield inner


def _check_node(node: Any, catalog: SparkCatalog) -> str | None:
    name = get_kind(node)
    if name == "Sample":
        return "TABLESAMPLE selects rows at random; filter by a hash of the key instead"
    if name in ("GlobalLimit", "Offset", "Tail") and not (_keeps_all(node) or _is_ordered(node)):
        return "LIMIT and OFFSET without ORDER BY select arbitrary rows; add ORDER BY"
    if name in ("UnionLoop", "UnionLoopRef"):
        return "WITH RECURSIVE cannot be maintained; unroll it to the depth that you need"
    if name in _MANY_ROWS:
        return f"{name} passes many rows at a time to Python; use functions of one row (udf, arrow_udf)"
    if node.children().size() == 0 and name not in _CONSTANT_LEAVES and not catalog.find_leaf(node):
        return f"the query reads {node.simpleString(80)}, which is not a table or view of the pipeline"
    return None


def _keeps_all(node: Any) -> bool:
    """Whether a LIMIT is at least the number of rows below it, such as over an aggregate without groups."""
    if get_kind(node) != "GlobalLimit" or get_kind(node.child()) != "LocalLimit" or not node.limitExpr().foldable():
        return False
    rows_max = node.child().child().maxRows()
    return bool(rows_max.isDefined()) and rows_max.get() <= node.limitExpr().eval(None)


def _is_ordered(node: Any) -> bool:
    """Whether the rows are globally sorted: there is a Sort below, and nothing in between changes the order."""
    below = node.children().apply(0)
    while get_kind(below) in ("GlobalLimit", "LocalLimit", "Offset", "Project", "SubqueryAlias"):
        if any(map(_becomes_join, walk_expressions(below))):
            return False
        below = below.children().apply(0)
    return get_kind(below) == "Sort" and bool(getattr(below, "global")())  # SORT BY sorts each partition separately


def _becomes_join(expression: Any) -> bool:
    """Whether Spark computes the expression by a join, whose rows have no order."""
    name = get_kind(expression)
    return name == "ListQuery" or (name in ("ScalarSubquery", "Exists") and bool(expression.isCorrelated()))


def _check_expression(expression: Any) -> str | None:
    name = get_kind(expression)
    if name in _CURRENT:
        return f"{_CURRENT[name]}() has no fixed value; put the value into a table and read it from there"
    if name in _RANDOM:
        return f"{expression.sql()} is random, so the view could not be recomputed"
    if name in ("PythonUDAF", "PythonUDTF"):
        kind_of = "aggregates rows" if name == "PythonUDAF" else "produces tables"
        return f"{expression.name()} {kind_of} in Python; use functions of one row (udf, arrow_udf)"
    is_cause = not expression.deterministic() and all(
        child.deterministic() for child in read_list(expression.children())
    )
    if is_cause and not _has_plan(expression):
        return f"{expression.sql()} is not deterministic, so the view could not be recomputed"
    return None


def _check_xml(expression: Any, catalog: SparkCatalog) -> str | None:
    """Rows are untrusted. Spark's XPath functions read the DTD that a document names, unless the JVM was started with
    an option that forbids it, as Evertide's own sessions are."""
    if not get_kind(expression).startswith("XPath") or not has_external_dtds(catalog.session):
        return None
    option = "-Djavax.xml.accessExternalDTD="
    return (
        f"{expression.prettyName()}() reads files and addresses that a row names; start the session with {option} in "
        "spark.driver.extraJavaOptions and spark.executor.extraJavaOptions, or use from_xml()"
    )


def _has_plan(expression: Any) -> bool:
    """Whether the expression is a subquery, whose plan is checked operator by operator."""
    return get_kind(expression) in ("ScalarSubquery", "Exists", "ListQuery", "InSubquery", "LateralSubquery")
