"""Undoes the rewrite of several DISTINCT aggregates by Spark's optimizer.

If an Aggregate makes several lists of arguments distinct, Spark's optimizer splits it into two: the rows are repeated
once per list with a number (`gid`) and grouped by keys, arguments and number; each function then reads the rows of its
number. The numbers of the lists differ between sessions, so state that holds them could not be stored. The rule cannot
be disabled, so it is undone here:

    Aggregate keys, [count(a') FILTER (WHERE gid = 2), sum(b') FILTER (WHERE gid = 1 AND c'), first(n, true) FILTER
                     (WHERE gid = 0)]
      Aggregate keys, a', b', gid, [max(c) AS c', count(1) AS n]        becomes        Aggregate keys, [
        Expand [keys, NULL, NULL, 0, NULL],                                              count(DISTINCT a),
               [keys, NULL, b, 1, condition],                                            sum(DISTINCT b) FILTER
               [keys, a, NULL, 2, NULL]                                                    (WHERE condition),
                                                                                         count(1)]

A plan that differs from this in any detail is left as it is.
"""

from __future__ import annotations

from typing import Any

from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.catalyst.walk import get_kind, read_list, read_option, walk_parts

Forms = dict[int, dict[int, Any]]
"""By the number of a list: the expression behind each attribute of the Expand."""


def undo_distinct_rewrite(catalyst: Catalyst, outer: Any) -> Any:
    """Restore an Aggregate of Catalyst that was rewritten; any other is returned as it is."""
    inner = outer.child()
    expand = inner.child() if get_kind(inner) == "Aggregate" else None
    if expand is None or get_kind(expand) != "Expand":
        return outer
    gid = _find_gid(expand, read_list(inner.groupingExpressions()))
    if gid is None:
        return outer
    rewritten = _RewrittenAggregate(catalyst, inner, expand, gid)
    found = [part for column in read_list(outer.aggregateExpressions()) for part in walk_parts(column)]
    if not all(rewritten.is_rewritten(part) for part in found if get_kind(part) == "AggregateExpression"):
        return outer
    keys = [rewritten.restore_key(key) for key in read_list(outer.groupingExpressions())]
    columns = [rewritten.restore_column(column) for column in read_list(outer.aggregateExpressions())]
    return catalyst.aggregate(keys, columns, expand.child())


def _find_gid(expand: Any, keys: list[Any]) -> Any | None:
    """The attribute that has the number of the list."""
    forms = [read_list(form) for form in read_list(expand.projections())]
    wanted = {key.exprId().id() for key in keys if get_kind(key) == "AttributeReference" and key.name() == "gid"}
    for at, attribute in enumerate(read_list(expand.output())):
        if attribute.exprId().id() not in wanted or any(get_kind(form[at]) != "Literal" for form in forms):
            continue
        if len({form[at].value() for form in forms}) == len(forms):
            return attribute
    return None


class _RewrittenAggregate:
    def __init__(self, catalyst: Catalyst, inner: Any, expand: Any, gid: Any) -> None:
        self._catalyst = catalyst
        self._gid: int = gid.exprId().id()
        ids = [attribute.exprId().id() for attribute in read_list(expand.output())]
        forms = [dict(zip(ids, read_list(form), strict=True)) for form in read_list(expand.projections())]
        self._forms: Forms = {form[self._gid].value(): form for form in forms}
        self._inner = {column.exprId().id(): column for column in read_list(inner.aggregateExpressions())}

    def is_rewritten(self, aggregate: Any) -> bool:
        number, rest = self._split_condition(aggregate)
        if number not in self._forms or aggregate.isDistinct():
            return False
        inner = (
            self._find_inner(aggregate.aggregateFunction().children().apply(0)) if self._is_first(aggregate) else None
        )
        conditions = [self._find_inner(condition) for condition in rest]
        return (inner is None or get_kind(inner) == "AggregateExpression") and all(
            condition is not None and get_kind(condition.aggregateFunction()) == "Max" for condition in conditions
        )

    def restore_key(self, key: Any) -> Any:
        return self._substitute(key, next(iter(self._forms.values())))

    def restore_column(self, column: Any) -> Any:
        """Restore a result column, with its name."""
        changed = self._restore(column)
        if get_kind(changed) == "Alias" or changed.exprId().equals(column.exprId()):
            return changed
        return self._catalyst.alias(changed, column.name(), column.exprId())

    def _restore(self, expression: Any) -> Any:
        if get_kind(expression) == "AggregateExpression":
            return self._restore_aggregate(expression)
        if get_kind(expression) == "AttributeReference":
            return self.restore_key(expression)
        children = [self._restore(child) for child in read_list(expression.children())]
        return self._catalyst.replace_children(expression, children)

    def _restore_aggregate(self, aggregate: Any) -> Any:
        number, rest = self._split_condition(aggregate)
        form = self._forms[number]
        if self._is_first(aggregate):
            return self._substitute(self._find_inner(aggregate.aggregateFunction().children().apply(0)), form)
        function = self._substitute(aggregate.aggregateFunction(), form)
        condition = None
        for below in map(self._find_inner, rest):
            if below is not None:
                condition = self._substitute(below.aggregateFunction().children().apply(0), form)
        return self._catalyst.aggregate_expression(function, condition, is_distinct=True)

    def _is_first(self, aggregate: Any) -> bool:
        """Whether the function only passes on a result that the inner Aggregate computed without DISTINCT."""
        function = aggregate.aggregateFunction()
        return get_kind(function) == "First" and self._find_inner(function.children().apply(0)) is not None

    def _split_condition(self, aggregate: Any) -> tuple[int, list[Any]]:
        """The number of the list that a function reads, or -1, and the rest of its condition."""
        condition = read_option(aggregate.filter())
        if condition is None:
            return -1, []
        first, *rest = read_list(condition.children()) if get_kind(condition) == "And" else [condition]
        if get_kind(first) != "EqualTo" or len(rest) > 1:
            return -1, []
        left, right = read_list(first.children())
        if get_kind(left) != "AttributeReference" or left.exprId().id() != self._gid or get_kind(right) != "Literal":
            return -1, []
        return right.value(), rest

    def _find_inner(self, attribute: Any) -> Any | None:
        """The function of the inner Aggregate that computes an attribute, if one does."""
        if get_kind(attribute) != "AttributeReference":
            return None
        column = self._inner.get(attribute.exprId().id())
        found = column.child() if column is not None and get_kind(column) == "Alias" else None
        return found if found is not None and get_kind(found) == "AggregateExpression" else None

    def _substitute(self, expression: Any, form: dict[int, Any]) -> Any:
        if get_kind(expression) == "AttributeReference":
            return form.get(expression.exprId().id(), expression)
        children = [self._substitute(child, form) for child in read_list(expression.children())]
        return self._catalyst.replace_children(expression, children)
