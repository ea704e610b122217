"""Map columns of a collection to columns of a PostgreSQL table, and convert their values.

| column | created as | may also be |
|---|---|---|
| TINYINT, SMALLINT, INT, BIGINT | smallint, smallint, integer, bigint | a larger one, numeric |
| DECIMAL | numeric of the same digits | numeric with more digits, or without a limit |
| FLOAT, DOUBLE | real, double precision | FLOAT: double precision |
| STRING | text | varchar, uuid, json, jsonb, if every value is valid there |
| BOOLEAN, BINARY, DATE | boolean, bytea, date | |
| TIMESTAMP, TIMESTAMP_NTZ, TIME, INTERVAL | timestamptz, timestamp, time, interval | |
| ARRAY of these | an array of that type | an array of a type that can hold the elements |
| STRUCT, MAP, VARIANT, ARRAY of those or of arrays | jsonb (`evertide.sinks.json_rows`) | json |

A column that would round or truncate a value is refused. Values are sent as the texts that PostgreSQL writes for them,
both in a statement and by COPY.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from evertide.json_values import is_variant
from evertide.rows.columns import to_array
from evertide.sinks.json_rows import to_json_rows

_ANY_LENGTH = -1
_MICROS = (_ANY_LENGTH, 6)
_JSON = ("jsonb", "json")
_SIMPLE: dict[Any, tuple[str, tuple[str, ...]]] = {
    pa.int8(): ("smallint", ("int2", "int4", "int8", "numeric")),
    pa.int16(): ("smallint", ("int2", "int4", "int8", "numeric")),
    pa.int32(): ("integer", ("int4", "int8", "numeric")),
    pa.int64(): ("bigint", ("int8", "numeric")),
    pa.float32(): ("real", ("float4", "float8")),
    pa.float64(): ("double precision", ("float8",)),
    pa.bool_(): ("boolean", ("bool",)),
    pa.string(): ("text", ("text", "varchar", "uuid", *_JSON)),
    pa.binary(): ("bytea", ("bytea",)),
    pa.date32(): ("date", ("date",)),
    pa.timestamp("us", "UTC"): ("timestamptz", ("timestamptz",)),
    pa.timestamp("us"): ("timestamp", ("timestamp",)),
    pa.time64("ns"): ("time", ("time",)),
    pa.time64("us"): ("time", ("time",)),
    pa.duration("us"): ("interval", ("interval",)),
    pa.null(): ("text", ("text",)),
}
_YEAR = re.compile(r"(-?\d+)(-\d\d-\d\d.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the target table."""

    name: str
    shown: str
    """The type as in SQL."""
    modifier: int
    type: str
    """The name of the type, or of an array's elements."""
    is_array: bool
    is_domain: bool
    needs_value: bool
    """Whether the column is NOT NULL and has no default."""
    is_computed: bool

    @property
    def cast(self) -> str:
        """The type that texts are cast to. A cast to `varchar(5)` would truncate; the column refuses a longer text."""
        if self.type != "varchar":
            return self.shown
        return "varchar[]" if self.is_array else "varchar"


def choose_column_type(kind: Any) -> str | None:
    """The type that a column is created with; None if a table cannot store it."""
    if kinds.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if kind in _SIMPLE:
        return _SIMPLE[kind][0]
    if is_variant(kind) or kinds.is_nested(kind):
        inner = [choose_column_type(kind.field(at).type) for at in range(kind.num_fields)]
        if None in inner:
            return None
        return f"{inner[0]}[]" if _is_array(kind) else "jsonb"
    return None


def _is_array(kind: Any) -> bool:
    """Whether the type becomes an array. Nested lists do not, as PostgreSQL's arrays are rectangular."""
    return kinds.is_list(kind) and not kinds.is_nested(kind.value_type) and kind.value_type != pa.null()


def can_hold(column: TargetColumn, kind: Any) -> bool:
    """Whether a column can hold every value of the type exactly."""
    if column.is_domain:
        return False
    if column.is_array or _is_array(kind):
        return column.is_array and _is_array(kind) and _fits(column.type, column.modifier, kind.value_type)
    if kinds.is_nested(kind):
        return column.type in _JSON
    return _fits(column.type, column.modifier, kind)


def _fits(type_name: str, modifier: int, kind: Any) -> bool:
    if kinds.is_decimal(kind) or (type_name == "numeric" and kind in _SIMPLE):
        return type_name == "numeric" and _has_digits(modifier, kind)
    if type_name not in _SIMPLE[kind][1]:
        return False
    return type_name in ("varchar", "bpchar") or modifier in _MICROS


def _has_digits(modifier: int, kind: Any) -> bool:
    if not kinds.is_decimal(kind):
        return modifier == _ANY_LENGTH and kinds.is_integer(kind)
    precision, scale = (modifier - 4) >> 16, (((modifier - 4) & 0x7FF) ^ 1024) - 1024
    return modifier == _ANY_LENGTH or (scale >= kind.scale and precision - scale >= kind.precision - kind.scale)


def to_texts(column: Any) -> pa.Array:
    """Convert values to the texts that PostgreSQL writes for them; NULL stays NULL."""
    array = to_array(column)
    kind = array.type
    if kinds.is_string(kind):
        return array
    convert = next((make for is_kind, make in _TEXTS if is_kind(kind)), None)
    return pc.cast(array, pa.string()) if convert is None else convert(array)


def _map_values(array: pa.Array, convert: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if each is None else convert(each) for each in array.to_pylist()], pa.string())


def _bytes(array: pa.Array) -> pa.Array:
    return _map_values(array, lambda value: "\\x" + value.hex())


def _days(array: pa.Array) -> pa.Array:
    """Dates and timestamps, including years that Arrow and Python cannot write."""
    unit, kind = ("D", "<M8[D]") if kinds.is_date(array.type) else ("us", "<M8[us]")
    numbers = pc.fill_null(array.cast(pa.int32() if unit == "D" else pa.int64()).cast(pa.int64()), 0)
    found = np.datetime_as_string(numbers.to_numpy().astype(kind))
    written = [_format_bc(text) if text.startswith(("-", "0000-")) else text for text in found.tolist()]
    return pa.array(written, pa.string(), mask=pc.is_null(array).to_numpy(zero_copy_only=False))


def _format_bc(text: str) -> str:
    found = _YEAR.fullmatch(text)
    return text if found is None else f"{1 - int(found[1]):04}{found[2]} BC"


def _durations(array: pa.Array) -> pa.Array:
    return _map_values(array.cast(pa.int64()), _format_duration)


def _format_duration(micros: int) -> str:
    seconds, left = divmod(abs(micros), 1_000_000)
    return f"{'-' if micros < 0 else ''}{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{left:06}"


def _arrays(array: pa.Array) -> pa.Array:
    """Convert the elements of all rows at once."""
    if not _is_array(array.type):
        return _json(array)
    elements = ["NULL" if text is None else _element(text) for text in to_texts(array.flatten()).to_pylist()]
    arrays, at = [], 0
    for length in pc.list_value_length(array).to_pylist():
        arrays.append(None if length is None else "{" + ",".join(elements[at : at + length]) + "}")
        at += length or 0
    return pa.array(arrays, pa.string())


def _element(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _json(array: pa.Array) -> pa.Array:
    rows = to_json_rows(pa.table({"c": array}))
    values = (row["c"] for row in rows)
    return pa.array([None if value is None else msgspec.json.encode(value).decode() for value in values], pa.string())


_TEXTS: tuple[tuple[Callable[[Any], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (kinds.is_binary, _bytes),
    (lambda kind: kinds.is_date(kind) or kinds.is_timestamp(kind), _days),
    (kinds.is_duration, _durations),
    (kinds.is_list, _arrays),
    (kinds.is_nested, _json),
)
