"""Arithmetic on numbers as PostgreSQL computes it: sums, products, quotients, powers and bit operations.

1. Integers do not wrap around: a result outside the type's range fails. Division truncates towards zero.
2. numeric is exact. A quotient has at least sixteen significant digits, and no fewer digits after the point than either
   operand, rounded half away from zero.
3. A float operation fails if a finite result overflows, or underflows to zero. float4 results are rounded to float4.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.pgexpr.expressions import Operation
from evertide.pgexpr.types.sqltypes import FLOAT4, FLOAT8, INTEGER_BOUNDS, NUMERIC, SqlType

EXACT = Context(prec=400_000, Emax=999_999, Emin=-999_999, traps=[])
_SIGNIFICANT_DIGITS = 16
_BASE_DIGITS = 4
_SCALE_MAX = 1000
_SUMS: dict[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_CHECKED = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
_UNARY: dict[str, Callable[[Any], Any]] = {"-": operator.neg, "@": abs, "~": operator.invert}
_BITS: dict[str, Callable[[Any, Any], Any]] = {"&": operator.and_, "|": operator.or_, "#": operator.xor}


def binary_operation(name: str, kind: SqlType) -> Operation | None:
    """The operation on two numbers of this type; None if there is none."""
    if kind in INTEGER_BOUNDS:
        scalar, vectorized = _integers(name, kind)
    else:
        scalar, vectorized = (_numerics(name) if kind == NUMERIC else _floats(name, kind)), None
    grows = kind == NUMERIC and name in ("*", "/")
    return scalar and Operation(name, kind, f"({{0}} {name} {{1}})", scalar, vectorized, joins=grows)


def unary_operation(name: str, kind: SqlType) -> Operation | None:
    if name == "|/":
        return Operation(name, FLOAT8, "(|/ {0})", _root) if kind == FLOAT8 else None
    scalar: Callable[[Any], Any] | None
    if kind in INTEGER_BOUNDS:
        compute = _UNARY[name]
        scalar = lambda value: in_range(compute(value), kind)  # noqa: E731 - a def would be longer
    elif kind == NUMERIC:
        scalar = {"-": EXACT.minus, "@": EXACT.abs}.get(name)
    else:
        scalar = None if name == "~" else _UNARY[name]
    return scalar and Operation(name, kind, f"({name} {{0}})", scalar)


def in_range(value: int, kind: SqlType) -> int:
    least, most = INTEGER_BOUNDS[kind]
    if not least <= value <= most:
        raise OverflowError("integer out of range")
    return value


# Integers


def _integers(name: str, kind: SqlType) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    if name in _BITS:
        return _BITS[name], None
    if name == "/":
        return (lambda left, right: in_range(_quotient(left, right), kind)), None
    if name not in _SUMS:
        return None, None
    compute = _SUMS[name]
    return (lambda left, right: in_range(compute(left, right), kind)), _make_vectorized_sum(name, kind)


def _quotient(left: int, right: int) -> int:
    if right == 0:
        raise ZeroDivisionError("division by zero")
    size = abs(left) // abs(right)
    return size if (left < 0) == (right < 0) else -size


def _make_vectorized_sum(name: str, kind: SqlType) -> Callable[[Any, Any], Any]:
    def compute_arrays(left: Any, right: Any) -> Any:
        """None if a row is out of range: then the scalar function computes each row."""
        try:
            result = _CHECKED[name](left, right)
        except pa.ArrowInvalid:
            return None
        bounds, (least, most) = pc.min_max(result).as_py(), INTEGER_BOUNDS[kind]
        is_fit = bounds["min"] is None or least <= bounds["min"] <= bounds["max"] <= most
        return result if is_fit else None

    return compute_arrays


# numeric


def _numerics(name: str) -> Callable[[Decimal, Decimal], Decimal] | None:
    operations = {"+": EXACT.add, "-": EXACT.subtract, "*": _product, "/": _numeric_quotient}
    return operations.get(name)


def _product(left: Decimal, right: Decimal) -> Decimal:
    """numeric has no negative zero."""
    return EXACT.add(EXACT.multiply(left, right), Decimal(0))


def _numeric_quotient(left: Decimal, right: Decimal) -> Decimal:
    if left.is_nan() or right.is_nan():
        return Decimal("NaN")
    if right == 0:
        raise ZeroDivisionError("division by zero")
    if not left.is_finite() or not right.is_finite():
        return Decimal(0) if left.is_finite() else EXACT.divide(left, right)
    scale = _quotient_scale(left, right)
    above, below = EXACT.scaleb(left, scale).as_integer_ratio(), right.as_integer_ratio()
    return Decimal(_round_half_away(above[0] * below[1], above[1] * below[0])).scaleb(-scale, EXACT)


def _round_half_away(above: int, below: int) -> int:
    if below < 0:
        above, below = -above, -below
    size = (2 * abs(above) + below) // (2 * below)
    return size if above >= 0 else -size


def _quotient_scale(left: Decimal, right: Decimal) -> int:
    """PostgreSQL's rule, which counts digits in groups of four."""
    (left_weight, left_first), (right_weight, right_first) = _first_group(left), _first_group(right)
    weight = left_weight - right_weight - (left_first <= right_first)
    scale = _SIGNIFICANT_DIGITS - weight * _BASE_DIGITS
    return min(max(scale, _scale(left), _scale(right), 0), _SCALE_MAX)


def _first_group(number: Decimal) -> tuple[int, int]:
    if number == 0:
        return 0, 0
    weight = number.adjusted() // _BASE_DIGITS
    return weight, int(abs(EXACT.scaleb(number, -weight * _BASE_DIGITS)))


def _scale(number: Decimal) -> int:
    return max(0, -int(number.as_tuple().exponent))


def round_numeric(number: Decimal, scale: int) -> Decimal:
    """Round to `scale` digits after the point, half away from zero."""
    if not number.is_finite():
        return number
    above, below = EXACT.scaleb(number, scale).as_integer_ratio()
    return Decimal(_round_half_away(above, below)).scaleb(-scale, EXACT)


# Floats


def round_to_float4(number: float) -> float:
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(number))


def _floats(name: str, kind: SqlType) -> Callable[[float, float], float] | None:
    compute = {**_SUMS, "/": _float_quotient, "^": _power if kind == FLOAT8 else None}.get(name)
    if compute is None:
        return None

    def scalar(left: float, right: float) -> float:
        result = compute(left, right)
        result = round_to_float4(result) if kind == FLOAT4 else result
        if math.isinf(result) and math.isfinite(left) and math.isfinite(right):
            raise OverflowError("value out of range: overflow")
        if result == 0 and left != 0 and name in "*/^" and _underflows(name, right):
            raise OverflowError("value out of range: underflow")
        return float(result)

    return scalar


def _underflows(name: str, right: float) -> bool:
    return math.isfinite(right) if name == "^" else right != 0 if name == "*" else not math.isinf(right)


def _float_quotient(left: float, right: float) -> float:
    return math.nan if right == 0 and math.isnan(left) else left / right


def _power(left: float, right: float) -> float:
    try:
        return math.pow(left, right)
    except ValueError as error:
        raise ArithmeticError("the power is not a real number") from error


def _root(value: float) -> float:
    if value < 0:
        raise ArithmeticError("cannot take square root of a negative number")
    return math.sqrt(value)
