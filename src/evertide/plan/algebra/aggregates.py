"""Splits an Aggregate by how its functions are maintained, and joins the parts by the group's keys.

Each part has exactly one row per group of the Aggregate:

1. *Additive* functions, which a delta can update (count, sum, avg, stddev, min, max, ...). A Map below computes keys
   and arguments, the Aggregate outputs keys and Catalyst's buffers, and a Map above runs Catalyst's final step.
2. DISTINCT functions of one list of arguments. An additive Aggregate without functions makes the arguments distinct,
   and the functions, no longer DISTINCT, are computed over its output. Additive and other functions are separate
   parts, since Catalyst would add floats in the order of rows.
3. All others. Catalyst computes them from all rows of each group that a delta touches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from evertide.errors import InvalidInput
from evertide.plan.algebra.conditions import build_key_condition
from evertide.plan.algebra.nodes import Aggregate, Attribute, EvalMode, Function, Join, JoinType, Map, PlanNode
from evertide.plan.algebra.order import canonicalize_aggregate, sort_collected
from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.catalyst.walk import get_kind, read_list, read_option, walk_parts

_FLOATS = ('"float"', '"double"')
_INTEGERS = ('"byte"', '"short"', '"integer"', '"long"')
_SUMMED = ("Sum", "Average")
_MOMENTS = frozenset(
    (
        *("StddevSamp", "StddevPop", "VarianceSamp", "VariancePop", "Skewness", "Kurtosis"),
        *("CovPopulation", "CovSample", "Corr", "RegrReplacement", "RegrSlope", "RegrIntercept", "RegrR2", "RegrSXY"),
    )
)
_RIGHT_FIRST = frozenset(("RegrSlope", "RegrIntercept"))
"""Functions of two arguments that evaluate the second one first."""


@dataclass(frozen=True, slots=True)
class _FunctionGroup:
    """A part: aggregate expressions of Catalyst that are maintained together."""

    functions: list[Any]
    distinct: tuple[Any, ...] = ()
    """The arguments, if they are DISTINCT."""
    is_additive: bool = False


def to_attribute(attribute: Any) -> Attribute:
    return Attribute(attribute.exprId().id(), attribute.name(), attribute.dataType().json(), bool(attribute.nullable()))


def make_map(catalyst: Catalyst, columns: list[Any], child: PlanNode) -> Map:
    """Project a node to attributes and aliases of Catalyst."""
    passed = {}
    for column in columns:
        source = column.child() if get_kind(column) == "Alias" else column
        if get_kind(source) == "AttributeReference":
            passed[column.exprId().id()] = source.exprId().id()
    jvm = catalyst.project(columns, child.jvm)
    output = tuple(to_attribute(attribute) for attribute in read_list(jvm.output()))
    is_rename_only = len(passed) == len(columns)
    return Map(jvm=jvm, output=output, children=(child,), passed=passed, is_rename_only=is_rename_only)


def make_aggregate(catalyst: Catalyst, jvm: Any, child: PlanNode, where: str) -> PlanNode:
    """Convert a Catalyst Aggregate whose child is already converted."""
    keys, results, child = _move_keys_to_columns(catalyst, jvm, child)
    refuse_collated(catalyst, keys, where)
    refuse_collated(catalyst, _list_distinct_arguments(results), where)
    results = [_canonicalize(catalyst, result, where) for result in results]
    functions = _remove_duplicates(_list_functions(results))
    if not keys and not functions:  # its one row must exist
        functions = [catalyst.count_rows()]
    parts = _group_functions(functions)
    if len(parts) == 1 and not parts[0].is_additive and not parts[0].distinct:
        return _make_recomputed(catalyst, keys, results, child, functions)
    return _join_groups(catalyst, keys, results, child, parts)


def refuse_collated(catalyst: Catalyst, keys: list[Any], where: str) -> None:
    """Refuse collated keys: state needs keys whose equality is bitwise."""
    for key in keys:
        if catalyst.is_collated(key.dataType()):
            why = (
                f"{key.sql()} is {key.dataType().sql()}, under which different texts are equal; group by lower() of it"
            )
            raise InvalidInput(where=where, why=why)


def _list_functions(results: list[Any]) -> list[Any]:
    return [part for result in results for part in walk_parts(result) if get_kind(part) == "AggregateExpression"]


def _list_distinct_arguments(results: list[Any]) -> list[Any]:
    """The arguments of DISTINCT functions, except min and max, for which DISTINCT changes nothing."""
    return [
        argument
        for part in _list_functions(results)
        if part.isDistinct() and get_kind(part.aggregateFunction()) not in ("Min", "Max")
        for argument in read_list(part.aggregateFunction().children())
    ]


def move_keys_below(catalyst: Catalyst, jvm: Any, is_computed: Callable[[Any], bool]) -> Any:
    """Make each key for which `is_computed` holds a column of the Aggregate's input."""
    keys = read_list(jvm.groupingExpressions())
    added = [(key, catalyst.alias(key, "key")) for key in _remove_duplicates(filter(is_computed, keys))]
    swaps = [(key, alias.toAttribute()) for key, alias in added]
    below = catalyst.project([*read_list(jvm.child().output()), *(alias for _, alias in added)], jvm.child())
    return replace_by_columns(catalyst, jvm, swaps, below)


def replace_by_columns(catalyst: Catalyst, jvm: Any, swaps: list[tuple[Any, Any]], below: Any) -> Any:
    """Put an Aggregate on another input, with expressions replaced by columns of it."""
    keys = [substitute(catalyst, key, swaps) for key in read_list(jvm.groupingExpressions())]
    columns = read_list(jvm.aggregateExpressions())
    columns = [_keep_name(catalyst, column, substitute(catalyst, column, swaps)) for column in columns]
    return catalyst.aggregate(keys, columns, below)


def project_above_aggregate(catalyst: Catalyst, jvm: Any) -> Any:
    """Split an Aggregate into one that outputs only keys and functions, and a Project that computes its results."""
    keys = read_list(jvm.groupingExpressions())
    results = read_list(jvm.aggregateExpressions())
    functions = _remove_duplicates(_list_functions(results))
    columns = [catalyst.alias(expression, "value") for expression in (*keys, *functions)]
    swaps = [(before, column.toAttribute()) for before, column in zip((*keys, *functions), columns, strict=True)]
    above = [_keep_name(catalyst, result, substitute(catalyst, result, swaps)) for result in results]
    return catalyst.project(above, catalyst.aggregate(keys, columns, jvm.child()))


def _move_keys_to_columns(catalyst: Catalyst, jvm: Any, child: PlanNode) -> tuple[list[Any], list[Any], PlanNode]:
    """Keys as attributes, the results over them, and a child with these attributes."""
    keys, added = [], []
    for expression in read_list(jvm.groupingExpressions()):
        if get_kind(expression) == "AttributeReference":
            keys.append(expression)
        else:
            added.append((expression, catalyst.alias(expression, "key")))
            keys.append(added[-1][1].toAttribute())
    results = read_list(jvm.aggregateExpressions())
    if added:
        child = make_map(catalyst, [*read_list(child.jvm.output()), *(alias for _, alias in added)], child)
        swaps = [(expression, alias.toAttribute()) for expression, alias in added]
        results = [_keep_name(catalyst, result, substitute(catalyst, result, swaps)) for result in results]
    return _remove_duplicates(keys), results, child


def _keep_name(catalyst: Catalyst, before: Any, after: Any) -> Any:
    """Keep the name and id of a result that was rewritten."""
    if get_kind(after) == "Alias" or (
        get_kind(after) == "AttributeReference" and after.exprId().equals(before.exprId())
    ):
        return after
    return catalyst.alias(after, before.name(), before.exprId())


def _canonicalize(catalyst: Catalyst, expression: Any, where: str) -> Any:
    if get_kind(expression) == "AggregateExpression":
        return canonicalize_aggregate(catalyst, expression, where)
    children = read_list(expression.children())
    return catalyst.replace_children(expression, [_canonicalize(catalyst, child, where) for child in children])


def substitute(catalyst: Catalyst, expression: Any, swaps: list[tuple[Any, Any]]) -> Any:
    for before, after in swaps:
        if expression.semanticEquals(before):
            return after
    children = read_list(expression.children())
    return catalyst.replace_children(expression, [substitute(catalyst, child, swaps) for child in children])


def _remove_duplicates(expressions: Any) -> list[Any]:
    kept: list[Any] = []
    for expression in expressions:
        if not any(expression.semanticEquals(other) for other in kept):
            kept.append(expression)
    return kept


def _group_functions(functions: list[Any]) -> list[_FunctionGroup]:
    additive, other = _FunctionGroup([], is_additive=True), _FunctionGroup([])
    distinct: list[_FunctionGroup] = []
    for expression in functions:
        if expression.isDistinct() and get_kind(expression.aggregateFunction()) not in ("Min", "Max", "ListAgg"):
            _add_distinct(distinct, expression)
        elif _has_inverse(expression):
            additive.functions.append(expression)
        else:
            other.functions.append(expression)
    parts = [part for part in (additive, *distinct, other) if part.functions]
    return parts or [additive]


def _add_distinct(parts: list[_FunctionGroup], expression: Any) -> None:
    arguments = [child for child in read_list(expression.aggregateFunction().children()) if not child.foldable()]
    for part in parts:
        if _has_inverse(part.functions[0]) != _has_inverse(expression):
            continue
        if len(part.distinct) == len(arguments) and all(
            a.semanticEquals(b) for a, b in zip(part.distinct, arguments, strict=True)
        ):
            part.functions.append(expression)
            return
    parts.append(_FunctionGroup([expression], tuple(arguments)))


def _has_inverse(expression: Any) -> bool:
    function = expression.aggregateFunction()
    name = get_kind(function)
    types = [child.dataType().json() for child in read_list(function.children())]
    if name == "Count" or (name in ("Min", "Max") and _is_arrow_ordered(types[0])):
        return True
    if name in _SUMMED:
        return types[0] in (*_INTEGERS, *_FLOATS) or types[0].startswith('"decimal')
    return name in _MOMENTS or name == "BitXorAgg"


def _is_arrow_ordered(data_type: str) -> bool:
    """Whether Arrow orders values of the type as Spark does."""
    known = (*_INTEGERS, *_FLOATS, '"boolean"', '"string"', '"binary"', '"date"', '"timestamp"', '"timestamp_ntz"')
    return data_type in known or data_type.startswith('"decimal')


def _make_recomputed(
    catalyst: Catalyst, keys: list[Any], results: list[Any], child: PlanNode, functions: list[Any]
) -> Aggregate:
    jvm = catalyst.aggregate(keys, results, child.jvm)
    ids = [key.exprId().id() for key in keys]
    passed = {}
    for result in results:
        source = result.child() if get_kind(result) == "Alias" else result
        if get_kind(source) == "AttributeReference" and source.exprId().id() in ids:
            passed[result.exprId().id()] = source.exprId().id()
    return Aggregate(
        jvm=jvm,
        output=tuple(to_attribute(attribute) for attribute in read_list(jvm.output())),
        children=(child,),
        passed=passed,
        keys=tuple(ids),
        names=tuple(expression.sql() for expression in functions),
    )


def _join_groups(
    catalyst: Catalyst, keys: list[Any], results: list[Any], child: PlanNode, parts: list[_FunctionGroup]
) -> PlanNode:
    joined: PlanNode | None = None
    swaps: list[tuple[Any, Any]] = []
    first_keys: list[Any] = []
    for part in parts:
        node, part_keys, columns = _make_group(catalyst, keys, child, part)
        swaps += list(zip(part.functions, columns, strict=True))
        if joined is None:
            joined, first_keys = node, part_keys
            swaps += list(zip(keys, part_keys, strict=True))
        else:
            joined = _join_by_keys(catalyst, joined, node, first_keys, part_keys)
    assert joined is not None  # noqa: S101 - there is at least one part
    columns = [_keep_name(catalyst, result, substitute(catalyst, result, swaps)) for result in results]
    return make_map(catalyst, columns, joined)


def _join_by_keys(
    catalyst: Catalyst, left: PlanNode, right: PlanNode, left_keys: list[Any], right_keys: list[Any]
) -> Join:
    pairs = list(zip(left_keys, right_keys, strict=True))
    is_null_safe = (True,) * len(pairs)
    return Join(
        jvm=catalyst.join(left.jvm, right.jvm, JoinType.INNER, build_key_condition(catalyst, pairs, is_null_safe)),
        output=(*left.output, *right.output),
        children=(left, right),
        join=JoinType.INNER,
        keys=tuple((a.exprId().id(), b.exprId().id()) for a, b in pairs),
        is_null_safe=is_null_safe,
        has_more=False,
    )


def _make_group(
    catalyst: Catalyst, keys: list[Any], child: PlanNode, part: _FunctionGroup
) -> tuple[PlanNode, list[Any], list[Any]]:
    """The part, its keys and one column per function, all with new ids."""
    if part.distinct:
        return _make_distinct(catalyst, keys, child, part)
    if part.is_additive:
        return _make_additive(catalyst, keys, child, part.functions)
    aliases = [catalyst.alias(key, key.name()) for key in keys]
    columns = [catalyst.alias(sort_collected(catalyst, expression), "value") for expression in part.functions]
    node = _make_recomputed(catalyst, keys, [*aliases, *columns], child, part.functions)
    return node, [alias.toAttribute() for alias in aliases], [column.toAttribute() for column in columns]


def _make_distinct(
    catalyst: Catalyst, keys: list[Any], child: PlanNode, part: _FunctionGroup
) -> tuple[PlanNode, list[Any], list[Any]]:
    """With FILTER, arguments count once if any row with them meets the condition, so such rows are counted below."""
    conditions = _remove_duplicates(filter(None, (read_option(expression.filter()) for expression in part.functions)))
    aliases = [catalyst.alias(argument, "argument") for argument in (*part.distinct, *conditions)]
    columns = [alias.toAttribute() for alias in aliases]
    arguments, meets = columns[: len(part.distinct)], columns[len(part.distinct) :]
    below = make_map(catalyst, [*keys, *aliases], child)
    row = catalyst.seq([catalyst.literal(1)])
    counts = [catalyst.aggregate_expression(catalyst.expression("aggregate.Count", row), met) for met in meets]
    inner, inner_keys, counted = _make_additive(catalyst, [*keys, *arguments], below, counts)
    new_keys, new_arguments = inner_keys[: len(keys)], inner_keys[len(keys) :]
    swaps = list(zip(part.distinct, new_arguments, strict=True))
    any_met = [catalyst.expression("GreaterThan", count, catalyst.make_long(0)) for count in counted]
    plain = []
    for expression in part.functions:
        function = substitute(catalyst, expression.aggregateFunction(), swaps)
        function_filter = read_option(expression.filter())
        met = [
            one
            for one, condition in zip(any_met, conditions, strict=True)
            if function_filter is not None and condition.semanticEquals(function_filter)
        ]
        plain.append(catalyst.aggregate_expression(function, met[0] if met else None))
    [outer] = _group_functions(plain)  # all of them are additive, or none is
    return _make_group(catalyst, new_keys, inner, outer)


def _make_additive(
    catalyst: Catalyst, keys: list[Any], child: PlanNode, found: list[Any]
) -> tuple[PlanNode, list[Any], list[Any]]:
    inputs: list[Any] = [catalyst.alias(catalyst.normalize(key), key.name()) for key in keys]
    group = [alias.toAttribute() for alias in inputs]
    functions, finals, buffers = [], [], []
    for expression in found:
        function, final, buffer = _make_function(catalyst, expression, inputs)
        functions.append(function)
        finals.append(catalyst.alias(final, "value"))
        buffers += buffer
    if not inputs:  # Arrow cannot count rows without columns
        inputs.append(catalyst.alias(catalyst.literal(1), "row"))
    below = make_map(catalyst, inputs, child)
    output = tuple(to_attribute(attribute) for attribute in (*group, *buffers))
    node = Aggregate(
        jvm=catalyst.make_empty_relation([*group, *buffers]),
        output=output,
        children=(below,),
        passed={key.exprId().id(): key.exprId().id() for key in group},
        keys=tuple(key.exprId().id() for key in group),
        names=tuple(expression.sql() for expression in found),
        functions=tuple(functions),
        is_additive=True,
    )
    if not found:
        return node, group, []
    above = make_map(catalyst, [*group, *finals], node)
    return above, group, [final.toAttribute() for final in finals]


def _make_function(catalyst: Catalyst, expression: Any, inputs: list[Any]) -> tuple[Function, Any, list[Any]]:
    """The function, its final expression and its buffer. Columns that it reads are added to `inputs`."""
    function = expression.aggregateFunction()
    condition = read_option(expression.filter())
    arguments = [_add_input(catalyst, each, inputs) for each in _list_arguments(catalyst, function, condition)]
    buffer = read_list(function.aggBufferAttributes())
    found = Function(
        name=get_kind(function),
        arguments=tuple(arguments),
        condition=None if condition is None else _add_input(catalyst, condition, inputs),
        mode=_find_eval_mode(function),
        buffer=tuple(to_attribute(attribute) for attribute in buffer),
    )
    return found, function.evaluateExpression(), buffer


def _list_arguments(catalyst: Catalyst, function: Any, condition: Any | None) -> list[Any]:
    """The children of a function; of Count only nullable ones, since it ignores the values.

    As in Spark, an argument is not evaluated for a row that the function ignores: one that does not meet the condition
    of FILTER, or has a NULL in an argument that is evaluated before. It could fail there.
    """
    name = get_kind(function)
    children = [child for child in read_list(function.children()) if name != "Count" or child.nullable()]
    is_reversed = name in _RIGHT_FIRST
    guards, found = [condition] if condition is not None else [], []
    for child in reversed(children) if is_reversed else children:
        found.append(_guard(catalyst, guards, child))
        guards.append(catalyst.expression("IsNotNull", child))
    return found[::-1] if is_reversed else found


def _guard(catalyst: Catalyst, guards: list[Any], value: Any) -> Any:
    """The value where all guards are true, else NULL. A column or a constant, which cannot fail, stays as it is."""
    if not guards or get_kind(value) in ("AttributeReference", "Literal"):
        return value
    condition = reduce(partial(catalyst.expression, "And"), guards)
    return catalyst.expression("If", condition, value, catalyst.expression("Literal", None, value.dataType()))


def _add_input(catalyst: Catalyst, expression: Any, inputs: list[Any]) -> int:
    for alias in inputs:
        if alias.child().semanticEquals(expression):
            return int(alias.exprId().id())
    inputs.append(catalyst.alias(expression, "argument"))
    return int(inputs[-1].exprId().id())


def _find_eval_mode(function: Any) -> EvalMode:
    if get_kind(function) not in _SUMMED:
        return EvalMode.ANSI
    context = function.evalContext() if get_kind(function) == "Sum" else function
    return EvalMode(context.evalMode().toString())
