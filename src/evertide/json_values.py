"""Convert values and errors to JSON, identically for the command line and HTTP.

Spark supports dates and timestamps far outside Python's range (years 1 to 9999), and Arrow has nanoseconds. Code that
converts rows from Arrow for output uses `python_rows`: such a date becomes a text as Spark writes it, +10000-01-01, and
so does a time of day finer than a microsecond.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from evertide.errors import EvertideError

__all__ = ["error_from_json", "error_to_json", "is_variant", "one_line", "python_rows", "to_json_value"]


_YEAR_MAX = 9999


def to_json_value(value: Any) -> Any:
    """A JSON value: decimals as texts, so that no digit is lost; times as ISO 8601; bytes as base64."""
    if isinstance(value, dict):
        return {str(key): to_json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json_value(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no NaN and infinities
    if value is None or isinstance(value, bool | int | str):
        return value
    return _scalar_text(value)


def _scalar_text(value: Any) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return f"{value.total_seconds()} s" if isinstance(value, timedelta) else str(value)


def python_rows(table: pa.Table, *, has_text_maps: bool = False) -> list[dict[str, Any]]:
    """Like `to_pylist`, for any year. With `has_text_maps`, maps are dicts."""
    maps = "strict" if has_text_maps else None
    try:
        rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts=maps)
    except (OverflowError, ValueError):
        columns = [_python_values(column, maps) for column in table.columns]
        names = table.schema.names
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return rows


def _python_values(column: Any, maps: str | None) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist(maps_as_pydicts=maps)
    except (OverflowError, ValueError):
        numbers = column.cast(_integer_type(column.type)).to_pylist(maps_as_pydicts=maps)
        return [_format_dates(value, column.type) for value in numbers]
    return values


def _integer_type(kind: Any) -> Any:
    """The type with integers in place of dates and timestamps."""
    if kinds.is_date32(kind):
        return pa.int32()
    if kinds.is_date64(kind) or kinds.is_timestamp(kind) or kinds.is_time64(kind):
        return pa.int64()
    if kinds.is_map(kind):
        return pa.map_(_integer_type(kind.key_type), _integer_type(kind.item_type))
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(_integer_type(field.type)) for field in kind])
    return pa.list_(_integer_type(kind.value_type)) if kinds.is_list(kind) else kind


def _format_dates(value: Any, kind: Any) -> Any:
    """Replace the integers for dates and timestamps in a value of that type by texts."""
    if value is None:
        return None
    if kinds.is_date(kind) or kinds.is_timestamp(kind):
        return _day_text(value, kind)
    if kinds.is_time64(kind):
        return _clock_text(value, kind)
    if kinds.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        formatted = [(_format_dates(key, kind.key_type), _format_dates(item, kind.item_type)) for key, item in pairs]
        return dict(formatted) if isinstance(value, dict) else formatted
    if kinds.is_struct(kind):
        return {field.name: _format_dates(value[field.name], field.type) for field in kind}
    return [_format_dates(each, kind.value_type) for each in value] if kinds.is_list(kind) else value


def _day_text(number: int, kind: Any) -> str:
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


def _clock_text(number: int, kind: Any) -> str:
    """As `isoformat` would write it, with nine digits if six are too few."""
    seconds, nanos = divmod(number * (1 if kind.unit == "ns" else 1000), 1_000_000_000)
    digits = "" if nanos == 0 else f".{nanos:09}" if nanos % 1000 else f".{nanos // 1000:06}"
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{digits}"


def is_variant(kind: Any) -> bool:
    """Spark stores a VARIANT as a struct of two binaries and marks the second."""
    if not kinds.is_struct(kind) or kind.num_fields != 2 or kind.field(1).name != "metadata":
        return False
    return (kind.field(1).metadata or {}).get(b"variant") == b"true"


def error_to_json(error: EvertideError) -> dict[str, Any]:
    """The JSON of an error. No fact has the name of one of these keys."""
    return {
        "error_code": error.error_code,
        "message": one_line(error.message),
        "remedy": error.remedy,
        **to_json_value(error.facts),
    }


def error_from_json(body: Mapping[str, Any]) -> EvertideError | None:
    """The error that `error_to_json` described; None if its code is unknown."""
    kind = _error_kinds().get(str(body.get("error_code")))
    if kind is None:
        return None
    empty: dict[Any, Any] = {"int": 0, "tuple[str, ...]": ()}  # a missing fact is empty
    facts = {field.name: body.get(field.name, empty.get(field.type, "")) for field in fields(kind)}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()})


def _error_kinds(kind: type[EvertideError] = EvertideError) -> dict[str, type[EvertideError]]:
    """The error classes by code; of several with a code, the one that declares it."""
    by_code = {kind.error_code: kind}
    for below in kind.__subclasses__():
        by_code = {**_error_kinds(below), **by_code}
    return by_code


def one_line(text: str) -> str:
    return " ".join(text.split())
