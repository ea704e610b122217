"""Comparisons in PostgreSQL's order, and the tests built on them (IN, ANY, IS, DISTINCT, GREATEST).

1. NaN equals NaN and is greater than every other number. 0 equals -0.
2. Texts are ordered by code points (the collation "C"), bytes by value.
3. Intervals are ordered by length, with months of 30 days and days of 24 hours.
4. Arrays are ordered by their elements, then by their size; in them NULL equals NULL and is greater than any value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evertide.pgexpr.expressions import FAILURES, Expression, Operation, Scalar, SqlConstant, Vector, call
from evertide.pgexpr.literals import find_shape
from evertide.pgexpr.operators.arithmetic import EXACT, round_numeric
from evertide.pgexpr.types.calendar import interval_order
from evertide.pgexpr.types.columns import ARROW_TYPES
from evertide.pgexpr.types.sqltypes import BOOL, FLOAT4, FLOAT8, INTERVAL, NUMERIC, SqlType
from evertide.pgexpr.types.value_text import write_value

MIRRORED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""The operator with the same meaning when the operands are swapped."""
_SCALARS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_VECTORIZED = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    ">": pc.greater,
    "<=": pc.less_equal,
    ">=": pc.greater_equal,
}
_FLOATS = (FLOAT4, FLOAT8)
Key = Callable[[Any], Any]


def order_key(kind: SqlType) -> Key | None:
    """The function from a value to its sort key; None if the value is its own key."""
    if kind.is_array:
        inner = order_key(kind.element)
        return lambda value: _array_key(value, inner)
    return _KEYS.get(kind)


def _float_key(value: float) -> Any:
    return (0, value) if value == value else (1, 0.0)  # noqa: PLR0124 - false only for NaN


def _numeric_key(value: Decimal) -> Any:
    if value.is_finite():
        return (1, value)
    return (3, 0) if value.is_nan() else (2, 0) if value > 0 else (0, 0)


_KEYS: dict[SqlType, Key] = {FLOAT4: _float_key, FLOAT8: _float_key, NUMERIC: _numeric_key, INTERVAL: interval_order}


def elements(value: list[Any]) -> Iterator[Any]:
    """The elements of an array of any number of dimensions, in order."""
    for each in value:
        if isinstance(each, list):
            yield from elements(each)
        else:
            yield each


def _array_key(value: list[Any], inner: Key | None) -> Any:
    keys = tuple((1, 0) if each is None else (0, each if inner is None else inner(each)) for each in elements(value))
    dims = find_shape(value)
    return keys, len(dims), dims


def make_ordering(name: str, kind: SqlType) -> Callable[[Any, Any], bool]:
    """Compare two values that are not NULL."""
    compare, key = _SCALARS[name], order_key(kind)
    if key is None:
        return compare
    return lambda left, right: bool(compare(key(left), key(right)))


def compare_operation(name: str, kind: SqlType) -> Operation:
    vectorized = _VECTORIZED[name] if kind in ARROW_TYPES else None
    if kind in _FLOATS:
        vectorized = _floats(name)
    elif kind == NUMERIC:
        vectorized = _decimals(name)
    return Operation(name, BOOL, f"({{0}} {name} {{1}})", scalar=make_ordering(name, kind), vectorized=vectorized)


def _floats(name: str) -> Callable[[Any, Any], Any]:
    def equal(left: Any, right: Any) -> Any:
        return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))

    def less(left: Any, right: Any) -> Any:
        return pc.or_(pc.less(left, right), pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))

    comparisons = {
        "=": equal,
        "<>": lambda left, right: pc.invert(equal(left, right)),
        "<": less,
        ">": lambda left, right: less(right, left),
        "<=": lambda left, right: pc.invert(less(right, left)),
        ">=": lambda left, right: pc.invert(less(left, right)),
    }
    return comparisons[name]


def _decimals(name: str) -> Callable[[Any, Any], Any]:
    def compute_arrays(left: Any, right: Any) -> Any:
        """None where Arrow cannot compare: computed values, NaN, more digits than its decimals have."""
        try:
            return None if left is None or right is None else _VECTORIZED[name](left, right)
        except pa.ArrowInvalid:
            return None

    return compute_arrays


def distinct_operation(kind: SqlType) -> Operation:
    equal = compare_operation("=", kind)

    def apply(args: Sequence[Vector], count: int) -> Vector:
        left, right = (arg.is_null() for arg in args)
        same = equal(args, count).as_array()
        return Vector.array(pc.if_else(pc.or_(left, right), pc.xor(left, right), pc.invert(same)), BOOL)

    return Operation("distinct", BOOL, "({0} IS DISTINCT FROM {1})", apply=apply)


def _member_operation(values: Sequence[Any], kind: SqlType) -> Operation:
    """`= ANY` of at least two constants. `facts` are their values."""
    key = order_key(kind)
    known = {(value if key is None else key(value)): value for value in values if value is not None}
    missing = None if any(value is None for value in values) else False
    shown = [known[each] for each in sorted(known)]
    literal = write_value([*shown, *([None] if missing is None else [])], kind.array).replace("'", "''")

    def scalar(value: Any) -> bool | None:
        return True if (value if key is None else key(value)) in known else missing

    def compute_arrays(array: Any) -> Any:
        is_member = pc.is_in(array, value_set=value_set)
        is_member = pc.if_else(is_member, is_member, pa.scalar(missing, pa.bool_()))
        return pc.if_else(pc.is_null(array), pa.scalar(None, pa.bool_()), is_member)

    is_vectorized = kind in ARROW_TYPES and key is None
    value_set = pa.array(shown, ARROW_TYPES[kind]) if is_vectorized else None
    template = "({0} = ANY ('" + literal.replace("{", "{{").replace("}", "}}") + f"'::{kind}[]))"
    return Operation("member", BOOL, template, scalar, compute_arrays if is_vectorized else None, facts=tuple(values))


def normalize_numeric(value: Any) -> Any:
    """Strip trailing zeros from a numeric: comparisons ignore them."""
    if not isinstance(value, Decimal) or not value.is_finite():
        return value
    number = EXACT.normalize(value)
    return round_numeric(number, max(0, -int(number.as_tuple().exponent)))


def one_of(value: Expression, values: Iterable[Any]) -> Expression:
    """An expression that is true if `value` is one of these constants of its own type."""
    key = order_key(value.type)
    known = {None if each is None else key(each) if key else each: normalize_numeric(each) for each in values}
    if len(known) > 1:
        return call(_member_operation(list(known.values()), value.type), value)
    only = next(iter(known.values()), None)
    if only is None:
        return SqlConstant(None if known else False, BOOL)
    return call(compare_operation("=", value.type), value, SqlConstant(only, value.type))


def quantified_operation(compare: Scalar, symbol: str, *, is_all: bool) -> Operation:
    """`x op ANY (array)` and `x op ALL (array)`, where `compare` is `op`."""

    def compare_quantified(value: Any, array: list[Any]) -> bool | None:
        has_null = False
        for each in elements(array):
            result = None if each is None or value is None else _try_compare(compare, value, each)
            if result is not None and result is not is_all:
                return not is_all
            has_null = has_null or result is None
        return None if has_null else is_all

    def apply(args: Sequence[Vector], _: int) -> Vector:
        pairs = zip(args[0].as_values(), args[1].as_values(), strict=True)
        return Vector.values(
            [None if array is None else compare_quantified(value, array) for value, array in pairs], BOOL
        )

    template = f"({{0}} {symbol} {'ALL' if is_all else 'ANY'} ({{1}}))"
    return Operation("quantified", BOOL, template, apply=apply)


def _try_compare(compare: Scalar, value: Any, each: Any) -> bool | None:
    try:
        return bool(compare(value, each))
    except FAILURES:
        return None


def test_operation(what: str) -> Operation:
    """IS NULL for any type; IS TRUE, FALSE and UNKNOWN for booleans."""

    def apply(args: Sequence[Vector], _: int) -> Vector:
        (arg,) = args
        if what in ("null", "unknown"):
            return Vector.array(arg.is_null(), BOOL)
        wanted = what == "true"
        if arg.is_constant:
            return Vector.values([value is wanted for value in arg.as_values()], BOOL)
        array = arg.as_array()
        return Vector.array(pc.fill_null(array if wanted else pc.invert(array), fill_value=False), BOOL)

    return Operation(f"is {what}", BOOL, f"({{0}} IS {what.upper()})", apply=apply)


def extreme_operation(name: str, kind: SqlType) -> Operation:
    """GREATEST and LEAST, which ignore NULL."""
    key = order_key(kind)
    best = max if name == "greatest" else min

    def apply(args: Sequence[Vector], _: int) -> Vector:
        values = []
        for row in zip(*(arg.as_values() for arg in args), strict=True):
            known = [value for value in row if value is not None]
            values.append(best(known, key=key) if known else None)
        return Vector.values(values, kind)

    return Operation(name, kind, f"{name}({{all}})", apply=apply)
