"""Comparing values, as PostgreSQL orders them, and the tests that rest on it.

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

from evertide.pgexpr.expressions import FAILURES, Constant, Expression, Operation, Scalar, Vector, call
from evertide.pgexpr.operators.arithmetic import EXACT, rounded
from evertide.pgexpr.types.calendar import interval_order
from evertide.pgexpr.types.columns import ARROW_TYPES
from evertide.pgexpr.types.output import text_of
from evertide.pgexpr.types.sqltypes import BOOL, FLOAT4, FLOAT8, INTERVAL, NUMERIC, SqlType

__all__ = [
    "MIRRORED",
    "compared",
    "distinct",
    "elements",
    "extreme",
    "normal",
    "one_of",
    "order_key",
    "ordering",
    "quantified",
    "shape",
    "tested",
]

MIRRORED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""What holds if the sides change places."""
_SCALARS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_WHOLE = {
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
    """What stands for a value in comparisons; None: the value itself."""
    if kind.is_array:
        inner = order_key(kind.element)
        return lambda value: _array_key(value, inner)
    return _KEYS.get(kind)


def _float_key(value: float) -> Any:
    return (0, value) if value == value else (1, 0.0)  # noqa: PLR0124 - false for NaN alone


def _numeric_key(value: Decimal) -> Any:
    if value.is_finite():
        return (1, value)
    return (3, 0) if value.is_nan() else (2, 0) if value > 0 else (0, 0)


_KEYS: dict[SqlType, Key] = {
    FLOAT4: _float_key,
    FLOAT8: _float_key,
    NUMERIC: _numeric_key,
    INTERVAL: interval_order,
}


def elements(value: list[Any]) -> Iterator[Any]:
    """Of an array of any number of dimensions, in order."""
    for each in value:
        if isinstance(each, list):
            yield from elements(each)
        else:
            yield each


def shape(value: Any) -> tuple[int, ...]:
    """How many elements there are in each dimension; none has no dimension."""
    return (len(value), *shape(value[0])) if isinstance(value, list) and value else ()


def _array_key(value: list[Any], inner: Key | None) -> Any:
    keys = tuple((1, 0) if each is None else (0, each if inner is None else inner(each)) for each in elements(value))
    dims = shape(value)
    return keys, len(dims), dims


def ordering(name: str, kind: SqlType) -> Callable[[Any, Any], bool]:
    """Of two values that are not NULL."""
    compare, key = _SCALARS[name], order_key(kind)
    if key is None:
        return compare
    return lambda left, right: bool(compare(key(left), key(right)))


def compared(name: str, kind: SqlType) -> Operation:
    """Of two values of this type."""
    whole = _WHOLE[name] if kind in ARROW_TYPES else None
    if kind in _FLOATS:
        whole = _floats(name)
    elif kind == NUMERIC:
        whole = _decimals(name)
    return Operation(name, BOOL, f"({{0}} {name} {{1}})", scalar=ordering(name, kind), whole=whole)


def _floats(name: str) -> Callable[[Any, Any], Any]:
    def equal(left: Any, right: Any) -> Any:
        return pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))

    def less(left: Any, right: Any) -> Any:
        return pc.or_(pc.less(left, right), pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))

    ways = {
        "=": equal,
        "<>": lambda left, right: pc.invert(equal(left, right)),
        "<": less,
        ">": lambda left, right: less(right, left),
        "<=": lambda left, right: pc.invert(less(right, left)),
        ">=": lambda left, right: pc.invert(less(left, right)),
    }
    return ways[name]


def _decimals(name: str) -> Callable[[Any, Any], Any]:
    def whole(left: Any, right: Any) -> Any:
        """None where Arrow cannot: computed values, NaN, too many digits for both together."""
        try:
            return None if left is None or right is None else _WHOLE[name](left, right)
        except pa.ArrowInvalid:
            return None

    return whole


def distinct(kind: SqlType) -> Operation:
    equal = compared("=", kind)

    def apply(args: Sequence[Vector], count: int) -> Vector:
        left, right = (arg.is_null() for arg in args)
        same = equal(args, count).as_array()
        return Vector.array(pc.if_else(pc.or_(left, right), pc.xor(left, right), pc.invert(same)), BOOL)

    return Operation("distinct", BOOL, "({0} IS DISTINCT FROM {1})", apply=apply)


def _member(values: Sequence[Any], kind: SqlType) -> Operation:
    """`= ANY` of constants, two at least. `facts` are their values."""
    key = order_key(kind)
    known = {(value if key is None else key(value)): value for value in values if value is not None}
    missing = None if any(value is None for value in values) else False
    shown = [known[each] for each in sorted(known)]
    literal = text_of([*shown, *([None] if missing is None else [])], kind.array).replace("'", "''")

    def scalar(value: Any) -> bool | None:
        return True if (value if key is None else key(value)) in known else missing

    def whole(array: Any) -> Any:
        found = pc.is_in(array, value_set=value_set)
        found = pc.if_else(found, found, pa.scalar(missing, pa.bool_()))
        return pc.if_else(pc.is_null(array), pa.scalar(None, pa.bool_()), found)

    is_whole = kind in ARROW_TYPES and key is None
    value_set = pa.array(shown, ARROW_TYPES[kind]) if is_whole else None
    template = "({0} = ANY ('" + literal.replace("{", "{{").replace("}", "}}") + f"'::{kind}[]))"
    return Operation("member", BOOL, template, scalar, whole if is_whole else None, facts=tuple(values))


def normal(value: Any) -> Any:
    """A numeric without zeros at the end, which no comparison sees."""
    if not isinstance(value, Decimal) or not value.is_finite():
        return value
    made = EXACT.normalize(value)
    return rounded(made, max(0, -int(made.as_tuple().exponent)))


def one_of(value: Expression, values: Iterable[Any]) -> Expression:
    """Whether it is one of these constants of its own type."""
    key = order_key(value.type)
    known = {None if each is None else key(each) if key else each: normal(each) for each in values}
    if len(known) > 1:
        return call(_member(list(known.values()), value.type), value)
    only = next(iter(known.values()), None)
    if only is None:
        return Constant(None if known else False, BOOL)
    return call(compared("=", value.type), value, Constant(only, value.type))


def quantified(compare: Scalar, symbol: str, *, every: bool) -> Operation:
    """`x op ANY (array)`, `x op ALL (array)`, with `op` of two values."""

    def judged(value: Any, array: list[Any]) -> bool | None:
        unsure = False
        for each in elements(array):
            verdict = None if each is None or value is None else _tried(compare, value, each)
            if verdict is not None and verdict is not every:
                return not every
            unsure = unsure or verdict is None
        return None if unsure else every

    def apply(args: Sequence[Vector], _: int) -> Vector:
        pairs = zip(args[0].as_values(), args[1].as_values(), strict=True)
        return Vector.values([None if array is None else judged(value, array) for value, array in pairs], BOOL)

    template = f"({{0}} {symbol} {'ALL' if every else 'ANY'} ({{1}}))"
    return Operation("quantified", BOOL, template, apply=apply)


def _tried(compare: Scalar, value: Any, each: Any) -> bool | None:
    try:
        return bool(compare(value, each))
    except FAILURES:
        return None


def tested(what: str) -> Operation:
    """IS NULL of anything; IS TRUE, FALSE, UNKNOWN of truth values."""

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


def extreme(name: str, kind: SqlType) -> Operation:
    """GREATEST and LEAST: NULL counts for nothing."""
    key = order_key(kind)
    best = max if name == "greatest" else min

    def apply(args: Sequence[Vector], _: int) -> Vector:
        made = []
        for row in zip(*(arg.as_values() for arg in args), strict=True):
            known = [value for value in row if value is not None]
            made.append(best(known, key=key) if known else None)
        return Vector.values(made, kind)

    return Operation(name, kind, f"{name}({{all}})", apply=apply)
