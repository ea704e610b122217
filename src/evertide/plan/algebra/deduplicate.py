"""Rewrites dropDuplicates to a window that keeps the first row of each group, ordered by all other columns.

Spark's optimizer would rewrite it to a group with `first` of each other column, taken from whichever row comes first.
Evertide replaces each `first` by the least value (`evertide.plan.algebra.order`), so the columns of one result would
come from several rows. Hence this rewrite, before the optimizer runs. The order has all columns, so every reader of the
result gets the same row.
"""

from __future__ import annotations

from typing import Any

from evertide.errors import InvalidInput
from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.catalyst.walk import get_kind, read_list, walk_nodes

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"


def rewrite_deduplicates(catalyst: Catalyst, analyzed: Any, where: str) -> Any | None:
    """Replace each Deduplicate of an analyzed plan by a window; None if there is none."""
    found = sum(get_kind(node) == "Deduplicate" for node in walk_nodes(analyzed))
    if not found:
        return None
    rewriter = _Rewriter(catalyst, where)
    rewritten = rewriter.rewrite(analyzed)
    if rewriter.count < found:
        why = "dropDuplicates is not supported in a subquery of an expression; declare its result as a separate view"
        raise InvalidInput(where=where, why=why)
    return rewritten


class _Rewriter:
    def __init__(self, catalyst: Catalyst, where: str) -> None:
        self._catalyst = catalyst
        self._where = where
        self.count = 0

    def rewrite(self, jvm: Any) -> Any:
        before = self.count
        children = [self.rewrite(child) for child in read_list(jvm.children())]
        if self.count > before:
            jvm = self._catalyst.replace_children(jvm, children)
        if get_kind(jvm) != "Deduplicate":
            return jvm
        self.count += 1
        return self._keep_first_rows(jvm)

    def _keep_first_rows(self, jvm: Any) -> Any:
        make, child, keys = self._catalyst, jvm.child(), read_list(jvm.keys())
        ids = {key.exprId().id() for key in keys}
        columns = read_list(child.output())
        others = [column for column in columns if column.exprId().id() not in ids]
        if not others:
            return jvm
        self._refuse_unordered(others)
        order = [make.make_ascending(column) for column in others]
        first, current, rows = (
            make.companion(f"{_EXPRESSIONS}.{name}") for name in ("UnboundedPreceding", "CurrentRow", "RowFrame")
        )
        frame = make.expression("SpecifiedWindowFrame", rows, first, current)
        spec = make.expression("WindowSpecDefinition", make.seq(keys), make.seq(order), frame)
        number = make.alias(make.expression("WindowExpression", make.expression("RowNumber"), spec), "number")
        numbered = make.window([number], make.seq(keys), order, child)
        is_first = make.expression("EqualTo", number.toAttribute(), make.literal(1))
        return make.project(columns, make.filter(is_first, numbered))

    def _refuse_unordered(self, columns: list[Any]) -> None:
        for column in columns:
            if not self._catalyst.is_orderable(column.dataType()):
                why = (
                    f"dropDuplicates has to order rows by {column.name()!r}, but values of type "
                    f"{column.dataType().sql()} have no order; drop the column before"
                )
                raise InvalidInput(where=self._where, why=why)
