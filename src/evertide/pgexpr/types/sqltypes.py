"""The PostgreSQL types of where clauses, and the mapping from column types to them.

| column | type | a value in Python |
|---|---|---|
| TINYINT, SMALLINT, INT, BIGINT | int2, int2, int4, int8 | int |
| DECIMAL | numeric | Decimal, with its scale |
| FLOAT, DOUBLE | float4, float8 | float |
| BOOLEAN, STRING, BINARY | bool, text, bytea | bool, str, bytes |
| DATE | date | days since 1970 |
| TIME | time | microseconds since midnight |
| TIMESTAMP_NTZ, TIMESTAMP | timestamp, timestamptz | microseconds since 1970, in UTC |
| INTERVAL DAY TO SECOND | interval | (months, days, microseconds) |
| ARRAY | the element's type, with `is_array` | list |
| STRUCT, MAP, VARIANT | jsonb | opaque: only NULL or not NULL |

1. An array of arrays is an array of the innermost type: PostgreSQL's array types do not fix the number of dimensions.
2. An array whose innermost elements are jsonb or intervals is opaque and has the type jsonb.
3. A quoted literal, a parameter or NULL is `UNKNOWN` until the other operand fixes its type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from evertide.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class SqlType:
    name: str
    is_array: bool = False

    def __str__(self) -> str:
        return f"{self.name}[]" if self.is_array else self.name

    @property
    def element(self) -> SqlType:
        return SqlType(self.name)

    @property
    def array(self) -> SqlType:
        return SqlType(self.name, is_array=True)


BOOL: Final = SqlType("bool")
BYTEA: Final = SqlType("bytea")
DATE: Final = SqlType("date")
FLOAT4: Final = SqlType("float4")
FLOAT8: Final = SqlType("float8")
INT2: Final = SqlType("int2")
INT4: Final = SqlType("int4")
INT8: Final = SqlType("int8")
INTERVAL: Final = SqlType("interval")
JSONB: Final = SqlType("jsonb")
NUMERIC: Final = SqlType("numeric")
TEXT: Final = SqlType("text")
TIME: Final = SqlType("time")
TIMESTAMP: Final = SqlType("timestamp")
TIMESTAMPTZ: Final = SqlType("timestamptz")
UNKNOWN: Final = SqlType("unknown")

INTEGER_BOUNDS = {kind: (-(1 << bits), (1 << bits) - 1) for kind, bits in ((INT2, 15), (INT4, 31), (INT8, 63))}
NUMBERS = (INT2, INT4, INT8, NUMERIC, FLOAT4, FLOAT8)
"""Each converts implicitly to any later one."""
MOMENTS = (DATE, TIMESTAMP, TIMESTAMPTZ)
"""Each converts implicitly to any later one."""

TYPE_NAMES = {
    "bigint": INT8,
    "bool": BOOL,
    "boolean": BOOL,
    "bytea": BYTEA,
    "character varying": TEXT,
    "date": DATE,
    "decimal": NUMERIC,
    "double precision": FLOAT8,
    "float": FLOAT8,
    "float4": FLOAT4,
    "float8": FLOAT8,
    "int": INT4,
    "int2": INT2,
    "int4": INT4,
    "int8": INT8,
    "integer": INT4,
    "interval": INTERVAL,
    "numeric": NUMERIC,
    "real": FLOAT4,
    "smallint": INT2,
    "text": TEXT,
    "time": TIME,
    "time without time zone": TIME,
    "timestamp": TIMESTAMP,
    "timestamp with time zone": TIMESTAMPTZ,
    "timestamp without time zone": TIMESTAMP,
    "timestamptz": TIMESTAMPTZ,
    "varchar": TEXT,
}
"""Type names in a clause. `uuid` is handled apart: a cast to it results in a text."""

_SIMPLE = {
    pa.int8(): INT2,
    pa.int16(): INT2,
    pa.int32(): INT4,
    pa.int64(): INT8,
    pa.float32(): FLOAT4,
    pa.float64(): FLOAT8,
    pa.bool_(): BOOL,
    pa.null(): TEXT,
}


def is_list(kind: Any) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def type_of(kind: Any) -> SqlType:
    if is_list(kind):
        inner = type_of(kind.value_type)
        return JSONB if inner in (JSONB, INTERVAL) else inner.array
    if kinds.is_dictionary(kind):
        return type_of(kind.value_type)
    if kinds.is_timestamp(kind):
        return TIMESTAMP if kind.tz is None else TIMESTAMPTZ
    sql_type = _SIMPLE.get(kind) or next((sql_type for is_kind, sql_type in _FAMILIES if is_kind(kind)), None)
    if sql_type is None:
        raise InvalidInput(where=f"type {kind}", why="where clauses do not support this type")
    return sql_type


def common_type(types: list[SqlType]) -> SqlType | None:
    """The type to which COALESCE, ARRAY and similar convert values of these types; None if there is none."""
    known = [kind for kind in types if kind != UNKNOWN]
    if not known:
        return TEXT
    if all(kind.is_array for kind in known):
        element = common_type([kind.element for kind in known])
        return element and element.array
    for chain in (NUMBERS, MOMENTS):
        if all(kind in chain for kind in known):
            return max(known, key=chain.index)
    return known[0] if len(set(known)) == 1 else None


_FAMILIES = (
    (kinds.is_decimal, NUMERIC),
    (kinds.is_string, TEXT),
    (kinds.is_large_string, TEXT),
    (kinds.is_string_view, TEXT),
    (kinds.is_binary, BYTEA),
    (kinds.is_large_binary, BYTEA),
    (kinds.is_fixed_size_binary, BYTEA),
    (kinds.is_binary_view, BYTEA),
    (kinds.is_date, DATE),
    (kinds.is_time, TIME),
    (kinds.is_duration, INTERVAL),
    (kinds.is_map, JSONB),
    (kinds.is_struct, JSONB),
)
