"""What cannot be maintained, refused when the view is declared, with the expression named.

A view's delta must be a function of its tables' deltas and its definition (I15). So a view may not ask for the time
of day, for who is asking, for chance, or for "any ten rows"; and it may read nothing but the pipeline's own tables
and views. Nor may a row make it fetch anything. This looks at the *analyzed* plan: the optimized one has already folded
the time of day into a constant."""

from __future__ import annotations

from typing import Any

from evertide.errors import InvalidInput
from evertide.plan.catalyst.network import reads_external_dtds
from evertide.plan.catalyst.scala import sequence
from evertide.plan.catalyst.walk import expressions, kind, nodes
from evertide.plan.program.catalog import Catalog, Query

__all__ = ["refuse_unmaintainable"]

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
"""Which Spark itself calls deterministic."""
_MANY_ROWS = frozenset(
    (
        *("MapInPandas", "MapInArrow", "PythonMapInArrow", "FlatMapGroupsInPandas", "FlatMapGroupsInArrow"),
        *("FlatMapCoGroupsInPandas", "FlatMapCoGroupsInArrow", "FlatMapGroupsInPandasWithState"),
        *("TransformWithState", "TransformWithStateInPandas", "TransformWithStateInPySpark"),
    )
)
_CONSTANT_LEAVES = {"OneRowRelation", "LocalRelation", "Range", "CTERelationRef"}


def refuse_unmaintainable(query: Query, catalog: Catalog) -> None:
    where = f"{query.where}, view {query.name!r}"
    for node in nodes(query.analyzed):
        why = _check_node(node, catalog)
        for expression in expressions(node):
            why = why or _check_expression(expression) or _check_xml(expression, catalog)
        if why is not None:
            raise InvalidInput(where=where, why=why)


def _check_node(node: Any, catalog: Catalog) -> str | None:
    name = kind(node)
    if name == "Sample":
        return "TABLESAMPLE takes rows by chance: filter by a hash of the key instead"
    if name in ("GlobalLimit", "Offset", "Tail") and not _is_ordered(node):
        return "LIMIT and OFFSET without ORDER BY take any rows: say which by ORDER BY"
    if name in ("UnionLoop", "UnionLoopRef"):
        return "WITH RECURSIVE reads its own rows, which is not maintained: unroll it to the depth that is needed"
    if name in _MANY_ROWS:
        return (
            f"{name} hands many rows at a time to Python: only functions of one row (udf, arrow_udf) can be maintained"
        )
    if node.children().size() == 0 and name not in _CONSTANT_LEAVES and not catalog.leaf_of(node):
        return f"it reads {node.simpleString(80)}, which is no table or view of the pipeline"
    return None


def _is_ordered(node: Any) -> bool:
    """Whether the rows come sorted as a whole: a Sort below, with nothing in between that could shuffle them."""
    below = node.children().apply(0)
    while kind(below) in ("GlobalLimit", "LocalLimit", "Offset", "Project", "SubqueryAlias"):
        if any(map(_becomes_join, expressions(below))):
            return False
        below = below.children().apply(0)
    return kind(below) == "Sort" and bool(getattr(below, "global")())  # SORT BY sorts each partition by itself


def _becomes_join(expression: Any) -> bool:
    """Whether Spark computes a subquery by a join, whose rows have no order."""
    name = kind(expression)
    return name == "ListQuery" or (name in ("ScalarSubquery", "Exists") and bool(expression.isCorrelated()))


def _check_expression(expression: Any) -> str | None:
    name = kind(expression)
    if name in _CURRENT:
        return f"{_CURRENT[name]}() differs from one moment to the next: put what it says into a table"
    if name in _RANDOM:
        return f"{expression.sql()} takes something by chance: the view could not be computed again"
    if name in ("PythonUDAF", "PythonUDTF"):
        kind_of = "aggregates rows" if name == "PythonUDAF" else "makes tables"
        return f"{expression.name()} {kind_of} in Python: only functions of one row (udf, arrow_udf) can be maintained"
    to_blame = not expression.deterministic() and all(
        child.deterministic() for child in sequence(expression.children())
    )
    if to_blame and not _has_plan(expression):
        return f"{expression.sql()} is not deterministic: the view could not be computed again"
    return None


def _check_xml(expression: Any, catalog: Catalog) -> str | None:
    """Rows come from anybody. Spark's XPath functions fetch the DTD that a document in a row names, unless the JVM is
    started not to; a session of Evertide's own is."""
    if not kind(expression).startswith("XPath") or not reads_external_dtds(catalog.session):
        return None
    option = "-Djavax.xml.accessExternalDTD="
    return (
        f"{expression.prettyName()}() fetches files and addresses that a row names: start the session with {option} in "
        "spark.driver.extraJavaOptions and spark.executor.extraJavaOptions, or use from_xml()"
    )


def _has_plan(expression: Any) -> bool:
    """A subquery is as deterministic as its plan, whose operators are looked at by themselves."""
    return kind(expression) in ("ScalarSubquery", "Exists", "ListQuery", "InSubquery", "LateralSubquery")
