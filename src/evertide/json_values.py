"""Values and errors as JSON has them, for every way out: the command line and HTTP say the same.

Spark has days and moments far beyond those that Python has (the years 1 to 9999), and Arrow has nanoseconds. Whoever
takes rows out of Arrow to tell of them does it by `python_rows`: such a day is a text, as Spark writes it,
+10000-01-01, and so is a time of day that is finer than a microsecond.
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

__all__ = ["error_of", "is_variant", "one_line", "plain", "plain_error", "python_rows"]


_YEAR_MAX = 9999


def plain(value: Any) -> Any:
    """As JSON has it: decimals as texts, so that no digit is lost; times as ISO 8601; bytes as base64."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # NaN and infinities are no JSON
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
    """As `to_pylist` gives them, whatever the year. With `has_text_maps`, maps are dicts."""
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
        found: list[Any] = column.to_pylist(maps_as_pydicts=maps)
    except (OverflowError, ValueError):
        numbers = column.cast(_numbered(column.type)).to_pylist(maps_as_pydicts=maps)
        return [_dated(value, column.type) for value in numbers]
    return found


def _numbered(kind: Any) -> Any:
    """The type with numbers for days and moments."""
    if kinds.is_date32(kind):
        return pa.int32()
    if kinds.is_date64(kind) or kinds.is_timestamp(kind) or kinds.is_time64(kind):
        return pa.int64()
    if kinds.is_map(kind):
        return pa.map_(_numbered(kind.key_type), _numbered(kind.item_type))
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(_numbered(field.type)) for field in kind])
    return pa.list_(_numbered(kind.value_type)) if kinds.is_list(kind) else kind


def _dated(value: Any, kind: Any) -> Any:
    """A value of that type, with texts for its days and moments."""
    if value is None:
        return None
    if kinds.is_date(kind) or kinds.is_timestamp(kind):
        return _day_text(value, kind)
    if kinds.is_time64(kind):
        return _clock_text(value, kind)
    if kinds.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        told = [(_dated(key, kind.key_type), _dated(item, kind.item_type)) for key, item in pairs]
        return dict(told) if isinstance(value, dict) else told
    if kinds.is_struct(kind):
        return {field.name: _dated(value[field.name], field.type) for field in kind}
    return [_dated(each, kind.value_type) for each in value] if kinds.is_list(kind) else value


def _day_text(number: int, kind: Any) -> str:
    """As `isoformat` would write it; a year has four digits, or a sign before it."""
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
    """Spark keeps a VARIANT as two binaries, and marks the second."""
    if not kinds.is_struct(kind) or kind.num_fields != 2 or kind.field(1).name != "metadata":
        return False
    return (kind.field(1).metadata or {}).get(b"variant") == b"true"


def plain_error(error: EvertideError) -> dict[str, Any]:
    """Facts of the same name as a key of ours do not occur."""
    return {
        "error_code": error.error_code,
        "message": f"{error.what}: {one_line(error.why)}" if hasattr(error, "why") else error.what,
        "remedy": error.remedy,
        **plain(error.facts),
    }


def error_of(told: Mapping[str, Any]) -> EvertideError | None:
    """The error that `plain_error` told of; None if there is none of that code."""
    kind = _errors().get(str(told.get("error_code")))
    if kind is None:
        return None
    empty: dict[Any, Any] = {"int": 0, "tuple[str, ...]": ()}  # a fact that is not told is as empty as can be
    facts = {field.name: told.get(field.name, empty.get(field.type, "")) for field in fields(kind)}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()})


def _errors(kind: type[EvertideError] = EvertideError) -> dict[str, type[EvertideError]]:
    """By code; the class that names it itself."""
    found = {kind.error_code: kind}
    for below in kind.__subclasses__():
        found = {**_errors(below), **found}
    return found


def one_line(text: str) -> str:
    return " ".join(text.split())
