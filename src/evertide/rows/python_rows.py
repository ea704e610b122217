"""Convert rows of Arrow to Python values, for output.

1. Spark supports dates and timestamps far outside Python's range (years 1 to 9999), and Arrow has nanoseconds. Such a
   date becomes a text as Spark writes it, +10000-01-01, and so does a time of day finer than a microsecond.
2. A STRING of Spark may hold any bytes. In a Python str, each invalid sequence is U+FFFD (`rows.utf8`).
3. A map is a list of pairs, or a dict if the caller asks for it; a list of pairs nevertheless if two keys become equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from evertide.rows.conform import reinterpret
from evertide.rows.utf8 import replace_invalid_utf8

_YEAR_MAX = 9999


def to_python_rows(table: pa.Table, *, has_text_maps: bool = False) -> list[dict[str, Any]]:
    """Like `to_pylist`, for any year and any text. With `has_text_maps`, maps are dicts."""
    maps = "strict" if has_text_maps else None
    try:
        rows: list[dict[str, Any]] = _drop_nanoseconds(table).to_pylist(maps_as_pydicts=maps)
    except (KeyError, OverflowError, ValueError):
        columns = [_to_python_values(column, maps) for column in replace_invalid_utf8(table).columns]
        names = table.schema.names
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return rows


def _to_python_values(column: Any, maps: str | None) -> list[Any]:
    try:
        values: list[Any] = column.cast(_find_micros_type(column.type)).to_pylist(maps_as_pydicts=maps)
    except (KeyError, OverflowError, ValueError):
        kind = _find_integer_type(column.type)
        numbers = [value for chunk in column.chunks for value in reinterpret(chunk, kind).to_pylist()]
        return [_format_value(value, column.type, is_dict=maps is not None) for value in numbers]
    return values


def _drop_nanoseconds(table: pa.Table) -> pa.Table:
    """With microseconds instead; raises `ValueError` if a value is finer.

    If pandas is installed, Arrow would make values of pandas of nanoseconds.
    """
    kinds_found = [_find_micros_type(field.type) for field in table.schema]
    if kinds_found == table.schema.types:
        return table
    columns = [column.cast(kind) for column, kind in zip(table.columns, kinds_found, strict=True)]
    return pa.Table.from_arrays(columns, names=table.schema.names)


def _find_micros_type(kind: Any) -> Any:
    """The type with microseconds in place of nanoseconds."""
    if kinds.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if kinds.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if kinds.is_map(kind):
        return pa.map_(_find_micros_type(kind.key_type), _find_micros_type(kind.item_type))
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(_find_micros_type(field.type)) for field in kind])
    return pa.list_(_find_micros_type(kind.value_type)) if kinds.is_list(kind) else kind


def _find_integer_type(kind: Any) -> Any:
    """The type with integers in place of dates and timestamps."""
    if kinds.is_date32(kind):
        return pa.int32()
    if kinds.is_date64(kind) or kinds.is_timestamp(kind) or kinds.is_time64(kind):
        return pa.int64()
    if kinds.is_map(kind):
        return pa.map_(_find_integer_type(kind.key_type), _find_integer_type(kind.item_type))
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(_find_integer_type(field.type)) for field in kind])
    return pa.list_(_find_integer_type(kind.value_type)) if kinds.is_list(kind) else kind


def _format_value(value: Any, kind: Any, *, is_dict: bool) -> Any:
    """Replace the integers for dates and timestamps inside the value by texts. With `is_dict`, maps are dicts."""
    if value is None:
        return None
    if kinds.is_date(kind) or kinds.is_timestamp(kind):
        return _format_day(value, kind)
    if kinds.is_time64(kind):
        return _format_clock(value, kind)

    def inside(each: Any, inner: Any) -> Any:
        return _format_value(each, inner, is_dict=is_dict)

    if kinds.is_map(kind):
        pairs = [(inside(key, kind.key_type), inside(item, kind.item_type)) for key, item in value]
        return dict(pairs) if is_dict and len({key for key, _ in pairs}) == len(pairs) else pairs
    if kinds.is_struct(kind):
        return {field.name: inside(value[field.name], field.type) for field in kind}
    return [inside(each, kind.value_type) for each in value] if kinds.is_list(kind) else value


def _format_day(number: int, kind: Any) -> str:
    """As `isoformat` would write it; a year has four digits, or a sign."""
    unit: Any = "D" if kinds.is_date32(kind) else "ms" if kinds.is_date64(kind) else kind.unit
    moment, _, fraction = str(np.datetime64(number, unit)).partition(".")
    if kinds.is_date64(kind):
        moment, fraction = moment.partition("T")[0], ""
    behind = len("-01-01T00:00:00" if "T" in moment else "-01-01")
    years, rest = moment[:-behind], moment[-behind:]
    year = int(years)
    sign = "-" if year < 0 else "+" if year > _YEAR_MAX else ""
    zone = "+00:00" if kinds.is_timestamp(kind) and kind.tz else ""
    return f"{sign}{abs(year):04}{rest}{'.' + fraction.ljust(6, '0') if fraction.strip('0') else ''}{zone}"


def _format_clock(number: int, kind: Any) -> str:
    """As `isoformat` would write it, with nine digits if six are too few."""
    seconds, nanos = divmod(number * (1 if kind.unit == "ns" else 1000), 1_000_000_000)
    digits = "" if nanos == 0 else f".{nanos:09}" if nanos % 1000 else f".{nanos // 1000:06}"
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{digits}"
