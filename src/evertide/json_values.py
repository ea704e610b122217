"""Convert values and errors to JSON, identically for the command line and HTTP."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

import pyarrow.types as kinds

from evertide.errors import EvertideError


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


def is_variant(kind: Any) -> bool:
    """Spark stores a VARIANT as a struct of two binaries and marks the second."""
    if not kinds.is_struct(kind) or kind.num_fields != 2 or kind.field(1).name != "metadata":
        return False
    return (kind.field(1).metadata or {}).get(b"variant") == b"true"


def error_to_json(error: EvertideError) -> dict[str, Any]:
    """The JSON of an error. No fact has the name of one of these keys."""
    return {
        "error_code": error.error_code,
        "message": join_lines(error.message),
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


def join_lines(text: str) -> str:
    return " ".join(text.split())
