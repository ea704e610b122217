"""Makes results independent of the order of rows where SQL leaves it open (I15).

Windows and top-k read their rows sorted by the query's columns, then by all other columns, then by the exact form of
each column whose order treats different values as equal (0.0 and -0.0, texts under a collation). Rows that are still
equal are bitwise equal, so any choice among them is the same. Aggregates that depend on order are replaced:

    collect_list(x), collect_set(x)    sorted
    first(x), any_value(x)             the least, NULL first; the least that is not NULL with IGNORE NULLS
    last(x)                            the greatest, likewise
    max_by(x, y), min_by(x, y)         of equal y, the greatest or least x
    mode(x)                            of the most frequent, the least
    listagg(x) WITHIN GROUP (...)      of equal rank, the least first; without an order, sorted
    percentile_approx(x, p)            of the sorted values, the one at p: exact, whatever the accuracy

Between 0.0 and -0.0 the result is always 0.0. Between texts that are equal under a collation, their bytes decide. An
aggregate that cannot be replaced is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evertide.errors import InvalidInput
from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.catalyst.walk import get_kind, read_list, read_option, walk_parts

_ORDER_FREE = frozenset(
    (
        *("Count", "Sum", "Average", "BitAndAgg", "BitOrAgg", "BitXorAgg", "PivotFirst"),
        *("StddevSamp", "StddevPop", "VarianceSamp", "VariancePop", "Skewness", "Kurtosis"),
        *("CovPopulation", "CovSample", "Corr", "RegrReplacement", "RegrSlope", "RegrIntercept", "RegrR2", "RegrSXY"),
        *("HyperLogLogPlusPlus", "CountMinSketchAgg", "BitmapConstructAgg", "BitmapOrAgg", "BitmapAndAgg"),
    )
)
"""Functions whose result does not depend on the order of rows, given that floats are summed exactly."""
_OF_VALUES = frozenset(("Percentile", "PercentileCont", "PercentileDisc"))
"""Functions that return one of their input values; among equal values, any."""


def make_total_order(catalyst: Catalyst, order: list[Any], child: Any, where: str) -> list[Any]:
    """Extend `order` by every other column of `child`, and by the exact forms of columns that need one."""
    columns, forms = [], []
    for attribute in read_list(child.output()):
        form = _make_exact_form(catalyst, attribute)
        if form is not None:
            forms.append(catalyst.make_ascending(form))
        if any(attribute.semanticEquals(by.child()) for by in order):
            continue
        if not catalyst.is_orderable(attribute.dataType()):
            why = (
                f"rows that tie have to be ordered by {attribute.name()!r}, but values of type "
                f"{attribute.dataType().sql()} have no order; leave the column out of this subquery"
            )
            raise InvalidInput(where=where, why=why)
        columns.append(catalyst.make_ascending(attribute))
    return [*order, *columns, *forms]


def _make_exact_form(catalyst: Catalyst, value: Any) -> Any | None:
    """An expression that differs for values that Spark's order treats as equal; None if the type has no such values.

    All NaN are one value in the engine (`evertide.rows.columns`).
    """
    kind_of = value.dataType().json()
    if catalyst.is_collated(value.dataType()):
        return catalyst.cast(value, "BinaryType" if kind_of.startswith('"string') else "StringType")
    return catalyst.cast(value, "StringType") if '"float"' in kind_of or '"double"' in kind_of else None


def _is_from_distinct_rewrite(aggregate: Any) -> bool:
    """Whether Spark's DISTINCT rewrite added this `first`; its group has one value only."""
    function = aggregate.aggregateFunction()
    condition = read_option(aggregate.filter())
    if get_kind(function) != "First" or condition is None:
        return False
    named = [part for part in walk_parts(condition) if get_kind(part) == "AttributeReference"]
    return bool(function.ignoreNulls()) and [part.name() for part in named] == ["gid"]


def canonicalize_aggregate(catalyst: Catalyst, aggregate: Any, where: str) -> Any:
    """Replace an aggregate by an expression that does not depend on the order of rows."""
    function = aggregate.aggregateFunction()
    name = get_kind(function)
    if name in ("Min", "Max"):
        return _take_extreme(catalyst, name, function.child(), read_option(aggregate.filter()))
    if name in _ORDER_FREE:
        return aggregate
    if name in _OF_VALUES:
        return _normalize(catalyst, aggregate)
    if _is_from_distinct_rewrite(aggregate) and catalyst.is_orderable(function.child().dataType()):
        return _take_extreme(catalyst, "Max", function.child(), read_option(aggregate.filter()))
    if name == "ListAgg":
        return _order_listagg(catalyst, aggregate, function)
    if name == "Mode" and catalyst.is_collated(function.child().dataType()):
        what = function.child().dataType().sql()
        why = f"{aggregate.sql()} is ambiguous, since different texts are equal under {what}; use mode(lower(...))"
        raise InvalidInput(where=where, why=why)
    rewrite = _REWRITES.get(name)
    unordered = [child for child in read_list(function.children()) if not catalyst.is_orderable(child.dataType())]
    if unordered:
        what = unordered[0].dataType().sql()
        why = f"{aggregate.sql()} depends on the order of rows, and values of type {what} have no order"
        raise InvalidInput(where=where, why=why)
    if rewrite is None:
        why = f"{aggregate.sql()} may depend on the order of rows, and a table or view has no order"
        raise InvalidInput(where=where, why=why)
    return rewrite(catalyst, aggregate, function)


def sort_collected(catalyst: Catalyst, aggregate: Any) -> Any:
    """Sort a collected array, so that it can be stored without the expression around it."""
    if get_kind(aggregate.aggregateFunction()) not in ("CollectList", "CollectSet"):
        return aggregate
    return _sort_array(catalyst, aggregate)


def _order_listagg(catalyst: Catalyst, aggregate: Any, function: Any) -> Any:
    """Order elements of equal rank by their bytes."""
    what = function.child()
    by = read_list(function.orderExpressions()) or [catalyst.make_ascending(what)]
    is_total = len(by) == 1 and by[0].child().semanticEquals(what) and not catalyst.is_collated(what.dataType())
    total = by if is_total else [*by, catalyst.make_ascending(catalyst.cast(what, "BinaryType"))]
    ordered = function.withOrderingWithinGroup(catalyst.seq(total))
    return catalyst.replace_children(aggregate, [ordered, *read_list(aggregate.children())[1:]])


def _normalize(catalyst: Catalyst, aggregate: Any) -> Any:
    """Apply the function to values with one NaN and one zero."""
    function = aggregate.aggregateFunction()
    children = [child if child.foldable() else catalyst.normalize(child) for child in read_list(function.children())]
    of_normalized = catalyst.replace_children(function, children)
    return catalyst.replace_children(aggregate, [of_normalized, *read_list(aggregate.children())[1:]])


def _sort_list(catalyst: Catalyst, aggregate: Any, function: Any) -> Any:
    [value] = read_list(function.children())
    if catalyst.is_collated(value.dataType()):
        return _sort_by_bytes(catalyst, aggregate, function, value)
    return _sort_array(catalyst, _normalize(catalyst, aggregate))


def _sort_by_bytes(catalyst: Catalyst, aggregate: Any, function: Any, value: Any) -> Any:
    """Collect each text with its bytes, which order equal texts."""
    value = catalyst.normalize(value)
    pair = catalyst.struct([value, _make_exact_form(catalyst, value)])
    condition = _add_not_null(catalyst, value, read_option(aggregate.filter()))
    collected = catalyst.aggregate_expression(catalyst.replace_children(function, [pair]), condition)
    fields = pair.dataType().fields()
    return catalyst.expression("GetArrayStructFields", _sort_array(catalyst, collected), fields[0], 0, 2, False)  # noqa: FBT003


def _sort_array(catalyst: Catalyst, array: Any) -> Any:
    return catalyst.expression("SortArray", array, catalyst.literal(True))  # noqa: FBT003


def _add_not_null(catalyst: Catalyst, value: Any, condition: Any | None) -> Any:
    is_there = catalyst.expression("IsNotNull", value)
    return is_there if condition is None else catalyst.expression("And", condition, is_there)


def _rewrite_extreme(name: str) -> Callable[[Catalyst, Any, Any], Any]:
    def rewrite(catalyst: Catalyst, aggregate: Any, function: Any) -> Any:
        condition = read_option(aggregate.filter())
        if function.ignoreNulls():
            return _take_extreme(catalyst, name, function.child(), condition)
        return _take_extreme_field(catalyst, name, [function.child()], condition)

    return rewrite


def _rewrite_by(name: str) -> Callable[[Catalyst, Any, Any], Any]:
    def rewrite(catalyst: Catalyst, aggregate: Any, function: Any) -> Any:
        value, by = function.valueExpr(), function.orderingExpr()
        condition = _add_not_null(catalyst, by, read_option(aggregate.filter()))
        return _take_extreme_field(catalyst, name, [by, value], condition)

    return rewrite


def _take_extreme_field(catalyst: Catalyst, name: str, fields: list[Any], condition: Any | None) -> Any:
    """The last field of the least or greatest struct of these fields."""
    return catalyst.get_field(_take_extreme(catalyst, name, catalyst.struct(fields), condition), len(fields) - 1)


def _take_extreme(catalyst: Catalyst, name: str, value: Any, condition: Any | None) -> Any:
    value = catalyst.normalize(value)
    if not catalyst.is_collated(value.dataType()):
        return catalyst.aggregate_expression(catalyst.expression(f"aggregate.{name}", value), condition)
    pair = catalyst.struct([value, _make_exact_form(catalyst, value)])
    found = catalyst.expression(f"aggregate.{name}", pair)
    return catalyst.get_field(catalyst.aggregate_expression(found, _add_not_null(catalyst, value, condition)), 0)


def _rewrite_mode(catalyst: Catalyst, aggregate: Any, function: Any) -> Any:
    if function.reverseOpt().isDefined():
        return _normalize(catalyst, aggregate)
    value = catalyst.normalize(function.child())
    mode = catalyst.expression("aggregate.Mode", value, 0, 0, catalyst.make_some(True))  # noqa: FBT003
    return catalyst.aggregate_expression(mode, read_option(aggregate.filter()))


def _rewrite_percentile(catalyst: Catalyst, aggregate: Any, function: Any) -> Any:
    """The element at rank ceil(p * n) of the sorted values, as Spark's sketch returns it while it holds all values."""
    value = catalyst.normalize(function.child())
    collected = catalyst.expression("aggregate.CollectList", value, 0, 0, True)  # noqa: FBT003 - without NULL
    condition = read_option(aggregate.filter())
    listed = catalyst.aggregate_expression(collected, condition, is_distinct=aggregate.isDistinct())
    values = _sort_array(catalyst, listed)
    count = catalyst.expression("Size", values, False)  # noqa: FBT003 - of no array, NULL
    given = function.percentageExpression()
    if given.dataType().json() == '"double"':
        return _take_at(catalyst, values, count, given.eval(None))
    found = [_take_at(catalyst, values, count, share) for share in given.eval(None).toDoubleArray()]
    several = catalyst.expression(
        "CreateArray", catalyst.seq(catalyst.expression("KnownNotNull", one) for one in found)
    )
    is_any = catalyst.expression("GreaterThan", count, catalyst.literal(0))
    none = catalyst.expression("Literal", None, several.dataType())
    return catalyst.expression("If", is_any, several, none)


def _take_at(catalyst: Catalyst, values: Any, count: Any, share: float) -> Any:
    """NULL if there are no values."""
    place = catalyst.literal(0)
    if share > 0:
        real = catalyst.cast(count, "DoubleType")
        context = catalyst.numeric_context
        product = catalyst.expression("Multiply", catalyst.literal(float(share)), real, context)
        rank = catalyst.expression("Ceil", product, False)  # noqa: FBT003 - a BIGINT, which cannot overflow
        place = catalyst.expression("Subtract", rank, catalyst.make_long(1), context)
    return catalyst.expression("GetArrayItem", values, place, False)  # noqa: FBT003 - NULL outside of the array


_REWRITES: dict[str, Callable[[Catalyst, Any, Any], Any]] = {
    "ApproximatePercentile": _rewrite_percentile,
    "CollectList": _sort_list,
    "CollectSet": _sort_list,
    "First": _rewrite_extreme("Min"),
    "Last": _rewrite_extreme("Max"),
    "MaxBy": _rewrite_by("Max"),
    "MinBy": _rewrite_by("Min"),
    "Mode": _rewrite_mode,
}
