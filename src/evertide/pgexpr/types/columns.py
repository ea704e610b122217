"""Convert Arrow columns into the forms that where clauses compute with.

`normalize_array` returns one array for Arrow's own functions, with integers, dates and times as int64.
`to_values` returns a list of Python values, as `sqltypes` describes them.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evertide.pgexpr.types import sqltypes as sql
from evertide.pgexpr.types.calendar import DAY_US
from evertide.pgexpr.types.sqltypes import SqlType
from evertide.rows.utf8 import replace_invalid_utf8

ARROW_TYPES: dict[SqlType, Any] = {
    sql.BOOL: pa.bool_(),
    sql.BYTEA: pa.binary(),
    sql.DATE: pa.int64(),
    sql.FLOAT4: pa.float32(),
    sql.FLOAT8: pa.float64(),
    sql.INT2: pa.int64(),
    sql.INT4: pa.int64(),
    sql.INT8: pa.int64(),
    sql.TEXT: pa.string(),
    sql.TIME: pa.int64(),
    sql.TIMESTAMP: pa.int64(),
    sql.TIMESTAMPTZ: pa.int64(),
}
"""The types that Arrow computes with as PostgreSQL does. Vectors of all other types are lists of values."""

_UNITS = {
    sql.DATE: (pa.date32(), pa.int32()),
    sql.TIME: (pa.time64("us"), pa.int64()),
    sql.INTERVAL: (pa.duration("us"), pa.int64()),
}


def combine_column(column: Any) -> Any:
    """The column as one array, decoded if it was dictionary-encoded, with texts in valid UTF-8."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return replace_invalid_utf8(array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array)


def normalize_array(column: Any, kind: SqlType) -> Any:
    array = combine_column(column)
    if kind in (sql.TIMESTAMP, sql.TIMESTAMPTZ):
        array = array.cast(pa.timestamp("us", array.type.tz), safe=False).cast(pa.int64())
    elif kind in _UNITS:
        unit, number = _UNITS[kind]
        array = array.cast(unit, safe=False).cast(number)
    wanted = ARROW_TYPES.get(kind, pa.int64())
    return array if array.type == wanted else array.cast(wanted)


def to_values(column: Any, kind: SqlType) -> list[Any]:
    if kind.is_array:
        return _to_lists(combine_column(column), kind)
    if kind == sql.INTERVAL:
        return [None if span is None else _split_interval(span) for span in normalize_array(column, kind).to_pylist()]
    array = normalize_array(column, kind) if kind in ARROW_TYPES else combine_column(column)
    if kind == sql.JSONB:
        return [True if valid else None for valid in array.is_valid().to_pylist()]
    values: list[Any] = array.to_pylist()
    return values


def _split_interval(micros: int) -> tuple[int, int, int]:
    """(0, days, microseconds): whole days are counted as days, as Spark shows them."""
    days = abs(micros) // DAY_US * (1 if micros >= 0 else -1)
    return 0, days, micros - days * DAY_US


def _to_lists(array: Any, kind: SqlType) -> list[Any]:
    """Convert the elements of all rows in one call, then split them by row."""
    inner = array.flatten()
    return split_by_row(
        _to_lists(inner, kind) if pa.types.is_nested(inner.type) else to_values(inner, kind.element), array
    )


def split_by_row(elements: list[Any], array: Any) -> list[Any]:
    """Split the elements by row of an array of lists; None where the row is NULL."""
    rows: list[Any] = []
    at = 0
    for length in pc.list_value_length(array).to_pylist():
        rows.append(None if length is None else elements[at : at + length])
        at += length or 0
    return rows
