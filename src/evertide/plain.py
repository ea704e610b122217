"""Values and errors as JSON has them, for every way out: the command line and HTTP say the same."""

from __future__ import annotations

import base64
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

import pyarrow.types as kinds

from evertide.errors import EvertideError

__all__ = ["is_variant", "one_line", "plain", "plain_error"]


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


def one_line(text: str) -> str:
    return " ".join(text.split())
