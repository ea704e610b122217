"""Statistics of a part's columns, and what they prove about a predicate.

A `Range` bounds the values of one flat column in one part, both ends inclusive; None is an unknown end. Bounds are
never too narrow, because a reader would then skip rows:

1. a string or binary longer than 64 is cut: low down, high up to the next string of that length, or unknown;
2. NaN is greater than any number: with a NaN, high is unknown;
3. -0.0 and 0.0 are equal in SQL: a bound of zero is the outer one of the two;
4. dates, times, timestamps, durations are integers in the unit of their type, decimals their digits as text;
5. nested columns have no range, intervals have no order: only their NULLs are counted;
6. with a text that is not valid UTF-8, which a predicate may compare in another form, both ends are unknown.

A NULL satisfies no comparison. A value that cannot be compared exactly (another type, NaN, a naive time against a zone)
may match: statistics only ever exclude.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import InvalidInput
from evertide.rows.columns import BINARY, FIXED, FLOATS, LISTS, read_bits, read_validity, remove_encoding
from evertide.rows.utf8 import is_valid_utf8

OPERATORS = frozenset(("=", "<", "<=", ">", ">=", "is null", "is not null"))

_LENGTH_MAX = 64
_INTERVALS = (pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME, pa.lib.Type_INTERVAL_MONTH_DAY_NANO)
_UNKNOWN = object()


class Range(msgspec.Struct, frozen=True, array_like=True):
    """low and high are int, float, str, bytes, bool or None."""

    low: Any
    high: Any
    nulls: int


@dataclass(frozen=True, slots=True)
class Predicate:
    """`column op value`. Times are integers in the column's unit or Python's own; decimals `Decimal` or int."""

    column: str
    op: str
    value: Any = None

    def __post_init__(self) -> None:
        if self.op not in OPERATORS:
            raise InvalidInput(
                where=f"predicate on {self.column!r}", why=f"{self.op!r} is not one of {sorted(OPERATORS)}"
            )


def compute_range(array: Any) -> Range | None:  # noqa: PLR0911 - one per kind of type
    """Return the range of a column; None for nested types."""
    array = remove_encoding(array)
    kind, nulls = array.type, array.null_count
    if kind.id in LISTS or kind.id == pa.lib.Type_STRUCT:
        return None
    if nulls == len(array) or kind.id in _INTERVALS:
        return Range(None, None, nulls)
    if kind.id in FLOATS:
        return Range(*_float_bounds(array), nulls)
    if kind.id in FIXED:
        return Range(*_integer_bounds(array), nulls)
    if not is_valid_utf8(array):
        return Range(None, None, nulls)
    bounds = pc.min_max(array)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if pa.types.is_decimal(kind):
        return Range(str(low), str(high), nulls)
    if kind.id in BINARY:
        return Range(low[:_LENGTH_MAX], _shorten_upwards(high), nulls)
    return Range(low, high, nulls)


def range_may_match(found: Range, rows: int, kind: Any, predicate: Predicate) -> bool:
    """Return whether a column with this range and type may have a row that satisfies the predicate."""
    if predicate.op == "is null":
        return found.nulls > 0
    if found.nulls == rows:
        return False
    if predicate.op == "is not null":
        return True
    if predicate.value is None:
        return False
    value = _to_comparable(predicate.value, kind)
    if value is _UNKNOWN:
        return True
    low, high = found.low, found.high
    if pa.types.is_decimal(kind):
        low, high = (None if bound is None else Decimal(bound) for bound in (low, high))
    return _may_compare(predicate.op, low, high, value)


def _may_compare(op: str, low: Any, high: Any, value: Any) -> bool:
    if op in ("=", "<=") and low is not None and low > value:
        return False
    if op in ("=", ">=") and high is not None and high < value:
        return False
    if op == "<" and low is not None:
        return bool(low < value)
    if op == ">" and high is not None:
        return bool(high > value)
    return True


def _float_bounds(array: Any) -> tuple[float | None, float | None]:
    """-0.0 as low and 0.0 as high, so that both are inside if they are ordered by bits."""
    numbers = _valid(array, read_bits(array).view(FLOATS[array.type.id]))
    is_nan = np.isnan(numbers)
    any_nan = bool(is_nan.any())
    numbers = numbers[~is_nan] if any_nan else numbers
    if len(numbers) == 0:
        return None, None
    low, high = float(numbers.min()), float(numbers.max())
    return -0.0 if low == 0 else low, None if any_nan else 0.0 if high == 0 else high


def _integer_bounds(array: Any) -> tuple[int | str, int | str]:
    numbers = _valid(array, read_bits(array))
    low, high = int(numbers.min()), int(numbers.max())
    if pa.types.is_decimal(array.type):
        return _format_decimal(low, array.type.scale), _format_decimal(high, array.type.scale)
    return low, high


def _valid(array: Any, values: Any) -> Any:
    valid = read_validity(array)
    return values if valid is None else values[valid]


def _format_decimal(unscaled: int, scale: int) -> str:
    digits = tuple(int(digit) for digit in str(abs(unscaled)))
    return str(Decimal((int(unscaled < 0), digits, -scale)))


def _shorten_upwards(high: str | bytes) -> str | bytes | None:
    """Return a bound of at most 64 characters or bytes that is not below `high`; None if there is none."""
    if len(high) <= _LENGTH_MAX:
        return high
    for end in range(_LENGTH_MAX, 0, -1):
        last: int = ord(high[end - 1 : end])
        if isinstance(high, bytes):
            if last < 0xFF:
                return high[: end - 1] + bytes([last + 1])
        elif last < 0x10FFFF:
            # Surrogates are no characters, and cannot be written as UTF-8.
            return high[: end - 1] + chr(0xE000 if last == 0xD7FF else last + 1)
    return None


def _to_comparable(value: Any, kind: Any) -> Any:
    """Convert the value to the form of the column's bounds; `_UNKNOWN` unless that is exact."""
    if isinstance(kind, pa.BaseExtensionType):
        return _to_comparable(value, kind.storage_type)
    if pa.types.is_temporal(kind) and isinstance(value, date | datetime | time | timedelta):
        return _to_temporal(value, kind)
    if isinstance(value, bool):
        return value if pa.types.is_boolean(kind) else _UNKNOWN
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    exact = (
        (isinstance(value, int) and (pa.types.is_integer(kind) or pa.types.is_temporal(kind)))
        or (isinstance(value, float) and pa.types.is_floating(kind) and value == value)  # noqa: PLR0124 - not NaN
        or (isinstance(value, str) and text)
        or (isinstance(value, bytes) and kind.id in BINARY and not text)
    )
    if exact:
        return value
    if pa.types.is_decimal(kind) and isinstance(value, int | Decimal) and Decimal(value).is_finite():
        return Decimal(value)
    return _UNKNOWN


def _to_temporal(value: Any, kind: Any) -> Any:
    """Convert the value only if the type returns the same value: it may round, or have no zone."""
    try:
        scalar = pa.scalar(value, kind)
        return scalar.value if scalar.as_py() == value else _UNKNOWN
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return _UNKNOWN
