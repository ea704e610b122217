"""Replaces or detects invalid UTF-8 in text columns.

A STRING of Spark may hold any bytes, and a collection keeps them exactly. Where a format needs UTF-8 (JSON, PostgreSQL,
a Python str), each invalid byte sequence becomes U+FFFD, as with Spark's `make_valid_utf8`. Different texts may then be
equal: code that identifies rows by such texts must tell the rows apart by their bytes, or refuse them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as kinds

from evertide.rows.columns import Longs
from evertide.rows.conform import convert_leaves, list_fields, make_nested_type, reinterpret
from evertide.rows.digest import hash_rows


def is_valid_utf8(rows: Any) -> bool:
    """Whether all texts in an array, a column or a table are valid, those inside nested values included."""
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return all(map(is_valid_utf8, rows.columns))
    if _find_bytes_type(rows.type) == rows.type:  # other values may be invalid for other reasons
        return True
    try:
        rows.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def replace_invalid_utf8(rows: Any) -> Any:
    """The same array, column or table if all texts are valid, which is nearly always the case."""
    if isinstance(rows, pa.Table):
        stored = rows.columns
        columns = [replace_invalid_utf8(column) for column in stored]
        is_same = all(new is old for new, old in zip(columns, stored, strict=True))
        return rows if is_same else pa.Table.from_arrays(columns, schema=rows.schema)
    if is_valid_utf8(rows):
        return rows
    if isinstance(rows, pa.ChunkedArray):
        return pa.chunked_array([replace_invalid_utf8(chunk) for chunk in rows.chunks], rows.type)
    return convert_leaves(reinterpret(rows, _find_bytes_type(rows.type)), rows.type, _decode)


def find_invalid_rows(rows: pa.Table) -> Longs:
    """The rows that have a text that is not valid."""
    valid = replace_invalid_utf8(rows)
    if valid is rows:
        return np.empty(0, np.int64)
    stored, replaced = hash_rows(rows), hash_rows(valid)
    return np.flatnonzero((stored.high != replaced.high) | (stored.low != replaced.low))


def convert_texts_to_bytes(rows: pa.Table) -> pa.Table:
    """The rows with binaries in place of strings, for a comparison that is exact."""
    schema = pa.schema([field.with_type(_find_bytes_type(field.type)) for field in rows.schema])
    columns = [
        pa.chunked_array([reinterpret(chunk, field.type) for chunk in column.chunks], field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _decode(array: Any, kind: Any) -> Any:
    values = (None if value is None else value.decode("utf-8", "replace") for value in array.to_pylist())
    return pa.array(values, kind)


@lru_cache(maxsize=4096)
def _find_bytes_type(kind: Any) -> Any:
    """The type with binaries in place of strings."""
    if kinds.is_string(kind):
        return pa.binary()
    if kinds.is_large_string(kind):
        return pa.large_binary()
    fields = [field.with_type(_find_bytes_type(field.type)) for field in list_fields(kind)]
    return make_nested_type(kind, fields) if fields else kind
