"""Convert whole columns of user data to columns of a table.

1. A column is converted by Arrow at once where that is certain to be exact, and value by value otherwise
   (`evertide.sources.values.values` defines the conversion of one value). Both ways give the same result.
2. A value that does not fit is NULL in the array; `misfits` has its row and the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from evertide.rows.columns import remove_encoding, to_array
from evertide.rows.conform import are_alike, conform, find_first_null
from evertide.rows.utf8 import find_invalid_rows, replace_invalid_utf8
from evertide.sources.values.kinds import INTEGERS, sql_name
from evertide.sources.values.values import Misfit, Number, convert_value, parse_value

_FEW = 64
"""At most this many values are converted one by one, instead of bisecting to find the invalid one."""

_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DAY = f"{_YEAR}-[0-9]{{2}}-[0-9]{{2}}"
_DIRECT: tuple[tuple[Callable[[Any], bool], type], ...] = (
    (kinds.is_integer, int),
    (kinds.is_float64, float),
    (kinds.is_boolean, bool),
    (kinds.is_string, str),
    (kinds.is_binary, bytes),
)
"""Python types that Arrow converts directly; it checks the range of integers, and that texts are Unicode."""

_TEXTS: tuple[tuple[Callable[[Any], bool], set[type]], ...] = (
    (kinds.is_date, {str}),
    (kinds.is_timestamp, {str}),
    (kinds.is_decimal, {str, int, float, Number}),
    (kinds.is_floating, {Number}),
)
"""Python types whose values are converted by their text."""

_SAFE: tuple[tuple[Callable[[Any], bool], Callable[[Any], bool]], ...] = (
    (kinds.is_integer, lambda kind: kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind)),
    (kinds.is_floating, lambda kind: kinds.is_integer(kind) or kinds.is_float64(kind)),
    (kinds.is_decimal, kinds.is_decimal),
    (kinds.is_timestamp, kinds.is_timestamp),
    (kinds.is_time, kinds.is_time),
    (kinds.is_duration, kinds.is_duration),
    (kinds.is_null, lambda _: True),
)
"""Pairs of types between which Arrow's cast is exact or fails."""


_PATTERNS: tuple[tuple[Callable[[Any], bool], Callable[[Any], str]], ...] = (
    (kinds.is_integer, lambda _: "^-?[0-9]{1,18}$"),
    (kinds.is_floating, lambda _: r"^-?[0-9]{1,20}(\.[0-9]{1,20})?$"),
    (kinds.is_boolean, lambda _: "^(true|false)$"),
    (kinds.is_decimal, lambda _: r"^-?[0-9]{1,38}(\.[0-9]{1,38})?$"),
    (kinds.is_date, lambda _: f"^{_DAY}$"),
    (
        kinds.is_timestamp,
        lambda kind: rf"^{_DAY}[ T][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]{{1,6}})?{'Z?' if kind.tz else ''}$",
    ),
)


@dataclass(frozen=True, slots=True)
class ConvertedColumn:
    array: Any
    misfits: dict[int, str] = field(default_factory=dict)
    """Why a value does not fit, by row."""


def make_null_column(rows: int, kind: Any) -> ConvertedColumn:
    return ConvertedColumn(pa.nulls(rows, kind))


def from_values(values: Sequence[Any], kind: Any) -> ConvertedColumn:
    """Convert Python or JSON values."""
    types = set(map(type, values)) - {type(None)}
    try:
        if any(is_kind(kind) and types <= {direct} for is_kind, direct in _DIRECT):
            return ConvertedColumn(pa.array(values, kind))
        if any(is_kind(kind) and types <= alike_texts for is_kind, alike_texts in _TEXTS):
            texts = [None if value is None else str(value) for value in values]
            column = from_texts(pa.array(texts, pa.string()), kind)
            if not column.misfits:
                return column
    except (pa.ArrowException, OverflowError, ValueError):
        pass  # a value does not fit: convert one by one to find it
    return _convert_one_by_one(values, range(len(values)), len(values), kind, convert_value)


def _convert_one_by_one(
    values: Sequence[Any], rows: Iterable[int], count: int, kind: Any, convert: Callable[[Any, Any], Any]
) -> ConvertedColumn:
    made: list[Any] = [None] * count
    misfits: dict[int, str] = {}
    for row in rows:
        try:
            made[row] = None if values[row] is None else convert(values[row], kind)
        except Misfit as error:
            misfits[row] = str(error)
    return ConvertedColumn(pa.array(made, kind), misfits)


def from_texts(texts: Any, kind: Any) -> ConvertedColumn:
    """Convert texts, such as the fields of a file; NULL stays NULL."""
    if kinds.is_string(kind):
        return ConvertedColumn(texts)
    pattern = _text_pattern(kind)
    if pattern is None:
        return _convert_one_by_one(texts.to_pylist(), range(len(texts)), len(texts), kind, parse_value)
    usual = pc.fill_null(pc.match_substring_regex(texts, pattern), True)  # noqa: FBT003 - a value, not a switch
    is_usual = np.asarray(usual)
    chosen = texts if is_usual.all() else pc.if_else(usual, texts, None)
    array, failed = _cast_texts(chosen, kind)
    slow = np.union1d(np.flatnonzero(~is_usual), np.array(failed, np.int64))
    if not len(slow):
        return ConvertedColumn(array)
    rest = _convert_one_by_one(texts.take(pa.array(slow)).to_pylist(), range(len(slow)), len(slow), kind, parse_value)
    mask = np.zeros(len(texts), np.bool_)
    mask[slow] = True
    misfits = {int(slow[row]): why for row, why in rest.misfits.items()}
    return ConvertedColumn(pc.replace_with_mask(array, pa.array(mask), rest.array), misfits)


def _text_pattern(kind: Any) -> str | None:
    """Matches texts that Arrow casts to the same value as `parse_value`; the cast may still fail (30 February)."""
    return next((pattern(kind) for is_kind, pattern in _PATTERNS if is_kind(kind)), None)


def _cast_texts(texts: Any, kind: Any) -> tuple[Any, list[int]]:
    """Return the array, and the rows that could not be cast."""
    try:
        return _cast_text(texts, kind), []
    except pa.ArrowException:
        pass
    if len(texts) <= _FEW:
        return pa.nulls(len(texts), kind), np.flatnonzero(np.asarray(texts.is_valid())).tolist()
    half = len(texts) // 2
    left, left_failed = _cast_texts(texts.slice(0, half), kind)
    right, right_failed = _cast_texts(texts.slice(half), kind)
    return pa.concat_arrays([left, right]), left_failed + [half + row for row in right_failed]


def _cast_text(texts: Any, kind: Any) -> Any:
    if kinds.is_timestamp(kind) and kind.tz is not None:
        return pc.utf8_rtrim(texts, "Z").cast(pa.timestamp("us")).cast(kind)
    return texts.cast(kind)


def from_arrow(column: Any, kind: Any) -> ConvertedColumn:
    """Convert an Arrow column of any type."""
    array = to_array(column)
    if are_alike(array.type, kind):
        return _convert_alike(array, kind)
    if kinds.is_timestamp(array.type) and kinds.is_timestamp(kind) and array.type.tz and kind.tz is None:
        return _refuse_all(array, kind)
    if any(is_from(array.type) and is_to(kind) for is_from, is_to in _SAFE):
        try:
            return ConvertedColumn(array.cast(kind))
        except pa.ArrowException:
            pass  # a value does not fit: convert one by one to find it
        if kinds.is_timestamp(array.type) and array.type.unit == "ns":
            return _convert_nanos(array, kind)
    return _convert_by_value(array, kind)


def _convert_by_value(array: Any, kind: Any) -> ConvertedColumn:
    """Convert through Python values, which cannot hold a text that is not valid UTF-8."""
    array = remove_encoding(array)
    column = from_values(replace_invalid_utf8(array).to_pylist(), kind)
    invalid = dict.fromkeys(find_invalid_rows(pa.table({"c": array})).tolist(), "the text is not valid UTF-8")
    return ConvertedColumn(column.array, {**invalid, **column.misfits})


def _convert_alike(array: Any, kind: Any) -> ConvertedColumn:
    """An invalid NULL inside a nested value is rare, so it is located value by value."""
    made = conform(array, kind)
    if not kinds.is_nested(kind) or find_first_null(made, pa.field("column", kind)) is None:
        return ConvertedColumn(made)
    misfits = from_values(replace_invalid_utf8(made).to_pylist(), kind).misfits
    rows = np.arange(len(made))
    return ConvertedColumn(made.take(pa.array(rows, mask=np.isin(rows, [*misfits]))), misfits)


def _refuse_all(array: Any, kind: Any) -> ConvertedColumn:
    rows = np.flatnonzero(np.asarray(array.is_valid()))
    why = f"a time with a zone is not a {sql_name(kind)}; remove the zone first"
    return ConvertedColumn(pa.nulls(len(array), kind), {int(row): why for row in rows})


def _convert_nanos(array: Any, kind: Any) -> ConvertedColumn:
    nanos = array.cast(pa.int64())
    micros = pc.divide(nanos, 1000)
    is_exact = pc.equal(pc.multiply(micros, 1000), nanos)
    rows = np.flatnonzero(~np.asarray(pc.fill_null(is_exact, True)))  # noqa: FBT003 - a value, not a switch
    why = f"a {sql_name(kind)} has microseconds, and this value is finer"
    converted = pc.if_else(is_exact, micros, None).cast(kind)
    return ConvertedColumn(converted, {int(row): f"{nanos[row].as_py()} ns since 1970: {why}" for row in rows})


def is_widened_by(found: Any, kind: Any) -> bool:
    """Whether every value of one type is also a value of the other."""
    if are_alike(found, kind) or kinds.is_null(found):
        return True
    if found in INTEGERS and kind in INTEGERS:
        return bool(found.bit_width <= kind.bit_width)
    if kinds.is_timestamp(found) and kinds.is_timestamp(kind):
        return not (found.tz and kind.tz is None)
    if kinds.is_decimal(found) and kinds.is_decimal(kind):
        return bool(found.scale <= kind.scale and found.precision - found.scale <= kind.precision - kind.scale)
    return bool(kinds.is_floating(found) and kinds.is_float64(kind)) or (kinds.is_time(found) and kinds.is_time(kind))
