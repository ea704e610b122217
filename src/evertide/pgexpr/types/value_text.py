"""Write a value as PostgreSQL does: ISO dates, UTC, hex bytes, ISO 8601 intervals, floats with the fewest digits.

Values are as in `sqltypes`. The same text is sent to clients, is the result of a cast to text, and stands for a
constant in a canonical clause.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from evertide.pgexpr.types import sqltypes as sql
from evertide.pgexpr.types.calendar import DAY_US, Interval, find_date
from evertide.pgexpr.types.sqltypes import SqlType

_QUOTED = re.compile(r'[{}",\\ \t\n\r\v\f]')
_ESCAPED = re.compile(r'(["\\])')
_DIGITS = {sql.FLOAT4: (6, 9, 2.0**20), sql.FLOAT8: (15, 17, 2.0**52)}
"""The first exponent written in scientific notation, the digits that always suffice, the least value for rule 2 of
`_find_shortest_digits`."""


def write_value(value: Any, kind: SqlType) -> str:
    """The text of a value that is not NULL."""
    if kind.is_array:
        return write_array(value, lambda element: write_element(element, kind.element))
    return _WRITERS[kind](value)


def write_element(value: Any, kind: SqlType) -> str:
    return ("t" if value else "f") if kind == sql.BOOL else write_value(value, kind)


def write_array(values: list[Any], element: Callable[[Any], str]) -> str:
    """`{1,NULL,"a b"}`, with quotes around ambiguous elements. `element` writes an element that is not a list."""
    return "{" + ",".join(_write_in_array(value, element) for value in values) + "}"


def _write_in_array(value: Any, element: Callable[[Any], str]) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return write_array(value, element)
    text = element(value)
    if text == "" or _QUOTED.search(text) or text.upper() == "NULL":
        return '"' + _ESCAPED.sub(r"\\\1", text) + '"'
    return text


# Numbers


def write_float8(value: float) -> str:
    text = repr(value)
    if "e" not in text and -4.5e15 < value < 4.5e15:  # below 2**52: same digits as Python's repr, without an exponent
        size = abs(value)
        if size < 1e15 and (size >= 1e-4 or size == 0):
            return text.removesuffix(".0")
    return _write_float(value, text, sql.FLOAT8)


def write_float4(value: float) -> str:
    return _write_float(value, str(np.float32(value)), sql.FLOAT4)


def _write_float(value: float, shortest: str, kind: SqlType) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    sign = "-" if math.copysign(1, value) < 0 else ""
    if value == 0:
        return f"{sign}0"
    digits, exponent = _find_shortest_digits(abs(value), shortest.lstrip("-"), kind)
    if not -4 <= exponent < _DIGITS[kind][0]:
        rest = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{rest}e{'-' if exponent < 0 else '+'}{abs(exponent):02}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole, rest = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return f"{sign}{whole}.{rest}" if rest else f"{sign}{whole}"


def _find_shortest_digits(value: float, shortest: str, kind: SqlType) -> tuple[str, int]:
    """The digits without trailing zeros, and the exponent of the first digit.

    1. They are the fewest digits that read back as this number, as Python and numpy compute them.
    2. PostgreSQL does not use a decimal exactly halfway between two floats, which reads back only by the tie rule.
    """
    fewest = _split_digits(Decimal(shortest))
    if value < _DIGITS[kind][2]:
        return fewest
    below, above = _find_halfway(value, kind)
    if below < Fraction(Decimal(shortest)) < above:
        return fewest
    for count in range(len(fewest[0]), _DIGITS[kind][1] + 1):
        unit = Fraction(10) ** (fewest[1] - count + 1)
        floor = Fraction(value) // unit * unit
        inside = [each for each in (floor, floor + unit) if below < each < above]
        if inside:
            nearest = min(inside, key=lambda each: abs(each - Fraction(value)))
            return _split_digits(Decimal(nearest.numerator) / Decimal(nearest.denominator))
    return fewest


def _find_halfway(value: float, kind: SqlType) -> tuple[Fraction, Fraction]:
    """The midpoints between the value and its two neighbouring floats."""
    below, above = _find_neighbour(value, 0.0, kind), _find_neighbour(value, math.inf, kind)
    exact = Fraction(value)
    top = Fraction(above) if math.isfinite(above) else exact + (exact - Fraction(below))
    return (exact + Fraction(below)) / 2, (exact + top) / 2


def _find_neighbour(value: float, towards: float, kind: SqlType) -> float:
    if kind == sql.FLOAT8:
        return math.nextafter(value, towards)
    with np.errstate(over="ignore"):
        return float(np.nextafter(np.float32(value), np.float32(towards)))


def _split_digits(number: Decimal) -> tuple[str, int]:
    digits = "".join(map(str, number.as_tuple().digits))
    return digits.rstrip("0") or "0", number.adjusted()


def _write_numeric(value: Decimal) -> str:
    if not value.is_finite():
        return "NaN" if value.is_nan() else "Infinity" if value > 0 else "-Infinity"
    return format(value or value.copy_abs(), "f")  # numeric has no negative zero


# Times


def _write_date(value: int) -> str:
    text, era = _write_day(value)
    return text + era


def _write_day(days: int) -> tuple[str, str]:
    year, month, day = find_date(days)
    return f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02}", "" if year > 0 else " BC"


def _write_time(value: int) -> str:
    seconds, micros = divmod(value, 1_000_000)
    fraction = f".{micros:06}".rstrip("0") if micros else ""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"


def _write_timestamp(value: int, zone: str = "") -> str:
    days, clock = divmod(value, DAY_US)
    text, era = _write_day(days)
    return f"{text} {_write_time(clock)}{zone}{era}"


def _write_timestamptz(value: int) -> str:
    return _write_timestamp(value, "+00")


def _write_interval(value: Interval) -> str:
    months, days, micros = value
    text = _write_parts(months, (12, "Y"), (1, "M")) + _write_parts(days, (1, "D"))
    clock = _write_parts(micros, (3_600_000_000, "H"), (60_000_000, "M"))
    rest = abs(micros) % 60_000_000
    if rest:
        seconds = f"{rest // 1_000_000}.{rest % 1_000_000:06}".rstrip("0").rstrip(".")
        clock += f"{'-' if micros < 0 else ''}{seconds}S"
    return "P" + text + (f"T{clock}" if clock else "") if text or clock else "PT0S"


def _write_parts(number: int, *units: tuple[int, str]) -> str:
    """Each part has the sign of `number`."""
    sign, left, text = "-" if number < 0 else "", abs(number), ""
    for size, letter in units:
        count, left = divmod(left, size)
        text += f"{sign}{count}{letter}" if count else ""
    return text


_WRITERS: dict[SqlType, Callable[[Any], str]] = {
    sql.BOOL: lambda value: "true" if value else "false",
    sql.BYTEA: lambda value: "\\x" + value.hex(),
    sql.DATE: _write_date,
    sql.FLOAT4: write_float4,
    sql.FLOAT8: write_float8,
    sql.INT2: str,
    sql.INT4: str,
    sql.INT8: str,
    sql.INTERVAL: _write_interval,
    sql.NUMERIC: _write_numeric,
    sql.TEXT: str,
    sql.TIME: _write_time,
    sql.TIMESTAMP: _write_timestamp,
    sql.TIMESTAMPTZ: _write_timestamptz,
}
