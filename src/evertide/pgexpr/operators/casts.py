"""Casts from one type to another.

1. `NUMBERS` and `MOMENTS` convert implicitly to their later members; every other cast must be written.
2. A cast to an integer rounds: numeric half away from zero, floats half to even. Out of range fails.
3. A float becomes a numeric with 15 digits (float4: 6).
4. Text casts to numbers, booleans, bytes and arrays of them. Text in a row does not cast to dates and times: their
   meaning would depend on session settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evertide.pgexpr.expressions import Operation
from evertide.pgexpr.literals import read_uuid, read_value
from evertide.pgexpr.operators.arithmetic import in_range, round_numeric, round_to_float4
from evertide.pgexpr.types import sqltypes as sql
from evertide.pgexpr.types.calendar import DAY_US, check_moment
from evertide.pgexpr.types.sqltypes import SqlType
from evertide.pgexpr.types.value_text import write_value

_FROM_TEXT = (*sql.NUMBERS, sql.BOOL, sql.BYTEA)
_NEAR_DAYS = 100_000_000
"""Below this number of days, the microseconds are within the range of every type."""

UUID = Operation("uuid", sql.TEXT, "(({0})::uuid)::text", read_uuid)


def cast_operation(source: SqlType, target: SqlType) -> Operation | None:
    """None if the cast does not exist."""
    scalar = _find_scalar(source, target)
    if scalar is None:
        return None
    return Operation("cast", target, f"({{0}})::{target}", scalar, _find_vectorized(source, target))


def resize_operation(precision: int, scale: int) -> Operation:

    def scalar(value: Decimal) -> Decimal:
        number = round_numeric(value, scale)
        if number.is_infinite() or (number.is_finite() and number and number.adjusted() >= precision - scale):
            raise OverflowError("numeric field overflow")
        return number

    return Operation("sized", sql.NUMERIC, f"({{0}})::numeric({precision},{scale})", scalar)


def _find_scalar(source: SqlType, target: SqlType) -> Callable[[Any], Any] | None:
    if sql.JSONB in (source, source.element):
        return None
    if target == sql.TEXT:
        return lambda value: write_value(value, source)
    if source.is_array or target.is_array:
        return _array_cast(source, target)
    if source == sql.TEXT:
        return (lambda value: read_value(value, target)) if target in _FROM_TEXT else None
    if source in sql.NUMBERS and target in sql.NUMBERS:
        return _number_cast(source, target)
    return _OTHERS.get((source, target))


def _array_cast(source: SqlType, target: SqlType) -> Callable[[Any], Any] | None:
    if source == sql.TEXT:
        return (lambda value: read_value(value, target)) if target.element in (sql.TEXT, *_FROM_TEXT) else None
    if not (source.is_array and target.is_array):
        return None
    inner = _find_scalar(source.element, target.element)
    if inner is None:
        return None

    def each(value: Any) -> Any:
        if isinstance(value, list):
            return [each(item) for item in value]
        return None if value is None else inner(value)

    return each


def _number_cast(source: SqlType, target: SqlType) -> Callable[[Any], Any]:
    if target in sql.INTEGER_BOUNDS:
        return lambda value: in_range(_whole_number(value), target)
    if target == sql.NUMERIC:
        digits = 6 if source == sql.FLOAT4 else 15
        return Decimal if source in sql.INTEGER_BOUNDS else lambda value: read_value(f"{value:.{digits}g}", sql.NUMERIC)
    if source == sql.NUMERIC:
        return lambda value: read_value(write_value(value, sql.NUMERIC), target)
    return float if target == sql.FLOAT8 else _to_float4


def _whole_number(value: Any) -> int:
    if isinstance(value, int):
        return value
    if not math.isfinite(value):
        raise OverflowError("integer out of range")
    return int(round_numeric(value, 0)) if isinstance(value, Decimal) else round(value)


def _to_float4(value: float) -> float:
    if isinstance(value, int):
        number: float = pa.scalar(str(value)).cast(pa.float32()).as_py()  # rounded once
        return number
    number = round_to_float4(value)
    if (math.isinf(number) and not math.isinf(value)) or (number == 0 and value != 0):
        raise OverflowError("value out of range")
    return number


_OTHERS: dict[tuple[SqlType, SqlType], Callable[[Any], Any]] = {
    (sql.BOOL, sql.INT4): int,
    (sql.INT4, sql.BOOL): bool,
    (sql.DATE, sql.TIMESTAMP): lambda value: check_moment(value * DAY_US),
    (sql.DATE, sql.TIMESTAMPTZ): lambda value: check_moment(value * DAY_US),
    (sql.TIMESTAMP, sql.DATE): lambda value: value // DAY_US,
    (sql.TIMESTAMPTZ, sql.DATE): lambda value: value // DAY_US,
    (sql.TIMESTAMP, sql.TIMESTAMPTZ): int,
    (sql.TIMESTAMPTZ, sql.TIMESTAMP): int,
    (sql.TIMESTAMP, sql.TIME): lambda value: value % DAY_US,
    (sql.TIMESTAMPTZ, sql.TIME): lambda value: value % DAY_US,
    (sql.TIME, sql.INTERVAL): lambda value: (0, 0, value),
    (sql.INTERVAL, sql.TIME): lambda value: value[2] % DAY_US,
}


def _find_vectorized(source: SqlType, target: SqlType) -> Callable[[Any], Any] | None:
    is_wider = (
        source in sql.INTEGER_BOUNDS
        and target in sql.INTEGER_BOUNDS
        and sql.NUMBERS.index(source) < sql.NUMBERS.index(target)
    )
    if is_wider or {source, target} == {sql.TIMESTAMP, sql.TIMESTAMPTZ}:
        return lambda array: array
    if target == sql.FLOAT8 and (source in sql.INTEGER_BOUNDS or source == sql.FLOAT4):
        return lambda array: array.cast(pa.float64(), safe=False)
    return _convert_days if source == sql.DATE and target in (sql.TIMESTAMP, sql.TIMESTAMPTZ) else None


def _convert_days(array: Any) -> Any:
    bounds = pc.min_max(array).as_py()
    is_near = bounds["min"] is None or (bounds["min"] > -1_000_000 and bounds["max"] < _NEAR_DAYS)
    return pc.multiply(array, DAY_US) if is_near else None
