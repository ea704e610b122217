"""Formats numbers, times, states and values for people."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from evertide.json_values import to_json_value

if TYPE_CHECKING:
    from rich.text import Text

_KIB = 1024
_MINUTE_S = 60
_COLOURS = {
    "running": "green",
    "stopped": "yellow",
    "paused": "yellow",
    "hydrating": "yellow",
    "reconnecting": "yellow",
    "replaying": "yellow",
    "warning": "yellow",
    "undeclared": "dim",
}
"""Other states need attention: red."""


def get_colour(state: str) -> str:
    return _COLOURS.get(state, "red")


def format_state(state: str) -> Text:
    from rich.text import Text  # noqa: PLC0415 - slow to import, and no executor needs it

    return Text(state, get_colour(state))


def format_count(count: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_value(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return value
    if isinstance(value, float | Decimal):
        return str(value)
    return (
        json.dumps(to_json_value(value), ensure_ascii=False)
        if isinstance(value, dict | list)
        else str(to_json_value(value))
    )


def format_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < _KIB:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= _KIB
    return f"{size:,.1f} TiB"


def format_seconds(seconds: float) -> str:
    """A duration in its two largest units."""
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s" if seconds else "0 s"
    days, left = divmod(int(seconds), 24 * 60 * _MINUTE_S)
    hours, left = divmod(left, 60 * _MINUTE_S)
    units = {"d": days, "h": hours, "min": left // _MINUTE_S, "s": left % _MINUTE_S}
    return " ".join([f"{count} {unit}" for unit, count in units.items() if count][:2])


def format_time(seconds: float) -> str:
    """A wall-clock time in the local time zone."""
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S") if seconds else "-"


def format_position(text: str, length_max: int = 60) -> str:
    return text if len(text) <= length_max else f"{text[: length_max - 3]}..."
