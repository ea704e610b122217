"""Order where SQL leaves it open (I15): ties are broken by all columns, so that every path gives the same rows.

Windows and top-k see their rows sorted by all columns of the input after those that the query names: rows that are
still equal cannot be told apart, so that any choice among them is the same choice. Aggregates that depend on order
become ones that do not:

    collect_list(x), collect_set(x)    sorted
    first(x), any_value(x)             the least, NULL first; the least that is not NULL with IGNORE NULLS
    last(x)                            the greatest, likewise
    max_by(x, y), min_by(x, y)         of equal y, the greatest or least x
    mode(x)                            of the most frequent, the least

What cannot be made so is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evertide.errors import InvalidInput
from evertide.plan.catalyst import Catalyst
from evertide.plan.scala import optional, sequence
from evertide.plan.walk import kind, within

__all__ = ["canonical_aggregate", "in_order", "is_by_distinct_rewrite", "total_order"]

_ORDER_FREE = frozenset(
    (
        *("Count", "Sum", "Average", "BitAndAgg", "BitOrAgg", "BitXorAgg", "PivotFirst"),
        *("StddevSamp", "StddevPop", "VarianceSamp", "VariancePop", "Skewness", "Kurtosis"),
        *("CovPopulation", "CovSample", "Corr", "RegrReplacement", "RegrSlope", "RegrIntercept", "RegrR2", "RegrSXY"),
        *("Percentile", "PercentileCont", "PercentileDisc", "HyperLogLogPlusPlus", "CountMinSketchAgg"),
        *("BitmapConstructAgg", "BitmapOrAgg", "BitmapAndAgg"),
    )
)
"""Functions of which the multiset of their input decides the result, given that floats are summed exactly."""


def total_order(catalyst: Catalyst, order: list[Any], child: Any, where: str) -> list[Any]:
    """`order`, and then every other column of `child`."""
    columns = []
    for attribute in sequence(child.output()):
        if any(attribute.semanticEquals(by.child()) for by in order):
            continue
        if not catalyst.is_orderable(attribute.dataType()):
            why = (
                f"rows that tie would have to be told apart by {attribute.name()!r}, but values of type "
                f"{attribute.dataType().sql()} have no order: leave the column out of this subquery"
            )
            raise InvalidInput(where=where, why=why)
        columns.append(catalyst.ascending(attribute))
    return [*order, *columns]


def is_by_distinct_rewrite(aggregate: Any) -> bool:
    """Whether this `first` is Spark's own, of a group that holds one value."""
    function = aggregate.aggregateFunction()
    condition = optional(aggregate.filter())
    if kind(function) != "First" or condition is None:
        return False
    named = [part for part in within(condition) if kind(part) == "AttributeReference"]
    return bool(function.ignoreNulls()) and [part.name() for part in named] == ["gid"]


def canonical_aggregate(catalyst: Catalyst, aggregate: Any, where: str) -> Any:
    """An aggregate expression as one that does not depend on the order of rows; it may be wrapped in others."""
    function = aggregate.aggregateFunction()
    name = kind(function)
    if name in ("Min", "Max"):
        return _extreme_of(catalyst, name, function.child(), optional(aggregate.filter()))
    if name in _ORDER_FREE:
        return aggregate
    if is_by_distinct_rewrite(aggregate) and catalyst.is_orderable(function.child().dataType()):
        return _extreme_of(catalyst, "Max", function.child(), optional(aggregate.filter()))
    if name == "ListAgg":
        _check_list(function, where)
        return aggregate
    rewrite = _REWRITES.get(name)
    unordered = [child for child in sequence(function.children()) if not catalyst.is_orderable(child.dataType())]
    if unordered:
        what = unordered[0].dataType().sql()
        why = f"{aggregate.sql()} depends on the order of rows, and values of type {what} have none"
        raise InvalidInput(where=where, why=why)
    if rewrite is None:
        why = f"{aggregate.sql()}: {function.prettyName()} may depend on the order of rows, which a collection has not"
        raise InvalidInput(where=where, why=why)
    return rewrite(catalyst, aggregate, function)


def in_order(catalyst: Catalyst, aggregate: Any) -> Any:
    """What `canonical_aggregate` wrapped, as a value that may be stored by itself: a collected array, sorted."""
    if kind(aggregate.aggregateFunction()) not in ("CollectList", "CollectSet"):
        return aggregate
    return catalyst.expression("SortArray", aggregate, catalyst.literal(True))  # noqa: FBT003


def _check_list(function: Any, where: str) -> None:
    by = [order.child() for order in sequence(function.orderExpressions())]
    what = function.child()
    inner = what.child() if kind(what) == "Cast" else what
    if not any(expression.semanticEquals(what) or expression.semanticEquals(inner) for expression in by):
        why = f"{function.sql()} depends on the order of rows: add WITHIN GROUP (ORDER BY {what.sql()})"
        raise InvalidInput(where=where, why=why)


def _sorted(catalyst: Catalyst, aggregate: Any, function: Any) -> Any:
    [value] = sequence(function.children())
    plain = catalyst.with_children(function, [catalyst.normalized(value)])
    collected = catalyst.with_children(aggregate, [plain, *sequence(aggregate.children())[1:]])
    return catalyst.expression("SortArray", collected, catalyst.literal(True))  # noqa: FBT003


def _extreme(name: str) -> Callable[[Catalyst, Any, Any], Any]:
    def rewrite(catalyst: Catalyst, aggregate: Any, function: Any) -> Any:
        condition = optional(aggregate.filter())
        if function.ignoreNulls():
            return _extreme_of(catalyst, name, function.child(), condition)
        return _of_struct(catalyst, name, [function.child()], condition)

    return rewrite


def _by(name: str) -> Callable[[Catalyst, Any, Any], Any]:
    def rewrite(catalyst: Catalyst, aggregate: Any, function: Any) -> Any:
        value, by = function.valueExpr(), function.orderingExpr()
        condition = catalyst.expression("IsNotNull", by)
        given = optional(aggregate.filter())
        if given is not None:
            condition = catalyst.expression("And", given, condition)
        return _of_struct(catalyst, name, [by, value], condition)

    return rewrite


def _of_struct(catalyst: Catalyst, name: str, fields: list[Any], condition: Any | None) -> Any:
    """The last field of the least or greatest struct of these."""
    named = [part for at, value in enumerate(fields) for part in (catalyst.literal(f"f{at}"), value)]
    struct = catalyst.expression("CreateNamedStruct", catalyst.seq(named))
    found = _extreme_of(catalyst, name, struct, condition)
    return catalyst.expression("GetStructField", found, len(fields) - 1, catalyst.some(f"f{len(fields) - 1}"))


def _extreme_of(catalyst: Catalyst, name: str, value: Any, condition: Any | None) -> Any:
    """Of 0.0 and -0.0, which are equal, the result is always 0.0."""
    made = catalyst.expression(f"aggregate.{name}", catalyst.normalized(value))
    return catalyst.aggregate_expression(made, condition)


def _mode(catalyst: Catalyst, aggregate: Any, function: Any) -> Any:
    if function.reverseOpt().isDefined():
        return aggregate
    made = catalyst.expression("aggregate.Mode", function.child(), 0, 0, catalyst.some(True))  # noqa: FBT003
    return catalyst.aggregate_expression(made, optional(aggregate.filter()))


_REWRITES: dict[str, Callable[[Catalyst, Any, Any], Any]] = {
    "CollectList": _sorted,
    "CollectSet": _sorted,
    "First": _extreme("Min"),
    "Last": _extreme("Max"),
    "MaxBy": _by("Max"),
    "MinBy": _by("Min"),
    "Mode": _mode,
}
