"""Convert rows to JSON values, for sinks that write JSON.

Decimals are texts, so that no digit is lost; times are ISO 8601, with a sign for years beyond 9999; bytes are base64;
durations are texts such as '1 02:03:04.5', which a table accepts. A map with text keys is an object, any other map a
list of pairs. A VARIANT is its JSON value. In a text that is not valid UTF-8, each invalid byte sequence is U+FFFD.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from evertide.json_values import is_variant, to_json_value
from evertide.rows.python_rows import to_python_rows

Row = dict[str, Any]


def to_json_rows(table: pa.Table) -> Iterator[Row]:
    is_text_map = all(kinds.is_string(key) for field in table.schema for key in _map_keys(field.type))
    variants = [field.name for field in table.schema if is_variant(field.type)]
    for row in to_python_rows(table, has_text_maps=is_text_map):
        values = {name: _variant(value) if name in variants else value for name, value in row.items()}
        yield to_json_value(format_durations(values))


def _map_keys(kind: Any) -> Iterator[Any]:
    if kinds.is_map(kind):
        yield kind.key_type
    for at in range(kind.num_fields):
        yield from _map_keys(kind.field(at).type)


def _variant(value: Any) -> Any:
    from pyspark.sql.types import VariantVal  # noqa: PLC0415 - slow to import, and few collections have a VARIANT

    return None if value is None else json.loads(VariantVal(value["value"], value["metadata"]).toJson())


def format_durations(value: Any) -> Any:
    """Replace the durations inside a value by texts that tables accept."""
    if isinstance(value, timedelta):
        micros = value // timedelta(microseconds=1)
        seconds, micros_left = divmod(abs(micros), 1_000_000)
        clock = f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros_left:06}"
        return f"{'-' if micros < 0 else ''}{seconds // 86400} {clock}"
    if isinstance(value, dict):
        return {name: format_durations(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [format_durations(each) for each in value]
    return value
