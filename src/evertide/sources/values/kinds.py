"""Types as SQL names them, and descriptions of their values, for messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from evertide.json_values import is_variant
from evertide.rows.char_types import read_declared_type

__all__ = ["INTEGERS", "describe_values", "is_variant", "name_column_type", "sql_name", "variant_json"]

INTEGERS: dict[Any, tuple[int, int]] = {
    kind: (-(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1)
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
}
"""Smallest and largest value."""

_NAMES = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    pa.timestamp("us", "UTC"): "TIMESTAMP",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
    pa.duration("us"): "INTERVAL DAY TO SECOND",
    pa.time64("ns"): "TIME",
}

_EXPECTED: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (kinds.is_floating, "a number, or 'NaN', 'Infinity', '-Infinity'"),
    (kinds.is_boolean, "true or false"),
    (kinds.is_string, "a text"),
    (kinds.is_binary, "bytes, or their base64"),
    (kinds.is_date, "a date as in '2026-01-31'"),
    (kinds.is_duration, "days and time as in '1 02:03:04.5'"),
    (kinds.is_time, "a time of day as in '10:20:30.5', to the microsecond"),
    (kinds.is_map, "a mapping, or a list of pairs, without repeated keys"),
    (kinds.is_list, "a list"),
)


def sql_name(kind: Any) -> str:
    """The name of the type in CREATE TABLE."""
    if kinds.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if is_variant(kind):
        return "VARIANT"
    if kinds.is_map(kind):
        return f"MAP<{sql_name(kind.key_type)}, {sql_name(kind.item_type)}>"
    if kinds.is_list(kind):
        return f"ARRAY<{sql_name(kind.value_type)}>"
    if kinds.is_struct(kind):
        return "STRUCT<" + ", ".join(f"{field.name}: {sql_name(field.type)}" for field in kind) + ">"
    return _NAMES.get(kind, str(kind))


def name_column_type(field: pa.Field) -> str:
    """The name of the column's type in CREATE TABLE, CHAR and VARCHAR included."""
    declared = read_declared_type(field)
    return sql_name(field.type) if declared is None else _name_declared(field.type, declared)


def _name_declared(kind: Any, declared: Any) -> str:
    """`declared` is the type in Spark's JSON form, parsed."""
    if isinstance(declared, str):
        return declared.upper() if kinds.is_string(kind) else sql_name(kind)
    if kinds.is_map(kind):
        key = _name_declared(kind.key_type, declared["keyType"])
        return f"MAP<{key}, {_name_declared(kind.item_type, declared['valueType'])}>"
    if kinds.is_list(kind):
        return f"ARRAY<{_name_declared(kind.value_type, declared['elementType'])}>"
    types = [_name_declared(field.type, each["type"]) for field, each in zip(kind, declared["fields"], strict=True)]
    return "STRUCT<" + ", ".join(f"{field.name}: {name}" for field, name in zip(kind, types, strict=True)) + ">"


def describe_values(kind: Any) -> str:
    """What a value of this type looks like, for messages."""
    if kind in INTEGERS:
        least, most = INTEGERS[kind]
        return f"a whole number from {least} to {most}"
    if kinds.is_decimal(kind):
        before, after = kind.precision - kind.scale, kind.scale
        return f"a number with at most {before} digits before the point and {after} after it"
    if kinds.is_timestamp(kind):
        zone = "without a zone" if kind.tz is None else "UTC unless an offset is given"
        return f"a time as in '2026-01-31 10:20:30.5', to the microsecond, {zone}"
    if is_variant(kind):
        return "a JSON value"
    if kinds.is_struct(kind):
        return "a mapping with the fields " + ", ".join(repr(field.name) for field in kind)
    return next((text for is_kind, text in _EXPECTED if is_kind(kind)), f"a value of type {kind}")


def variant_json(value: bytes, metadata: bytes) -> str:
    """Times inside the value are written in UTC."""
    from pyspark.sql.types import VariantVal  # noqa: PLC0415 - slow to import, and few tables have a VARIANT

    text: str = VariantVal(value, metadata).toJson("UTC")
    return text
