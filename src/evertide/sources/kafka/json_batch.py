"""Convert many JSON records to Arrow columns at once, where the result is certain to equal that of record by record.

Arrow parses all records as one text with an object per line. This is much faster than Python objects for all values,
and lets other threads run. But Arrow accepts some texts and numbers that `evertide.sources.values.values` does not, and
does not report which record is invalid. So:

1. Only tables with simple columns and without defaults are read this way. Dates and timestamps are read as texts.
2. Every record must start with `{`, and the number of objects must equal the number of records. So each object is one
   record: an object cannot span two records, as strings cannot contain line ends and no column has an object. (Arrow
   must never see a text that is only `null`, which would end the process.)
3. If Arrow refuses a record, or may have read it differently (an inexact DOUBLE, a negative zero, invalid UTF-8, a
   DECIMAL with too many digits), all records of the call are converted one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from pyarrow import json

from evertide.rows.columns import to_array
from evertide.sources.contract import TableDeclaration
from evertide.sources.values.columns import ConvertedColumn, from_texts

_OPEN = ord("{")
_EXACT = 2.0**53
_ZEROS = b"0" * 100
"""A DECIMAL may be written with hundreds of zeros; only Arrow accepts it."""

_AS_THEY_ARE: tuple[Callable[[Any], bool], ...] = (
    kinds.is_signed_integer,
    kinds.is_float64,
    kinds.is_boolean,
    kinds.is_string,
    kinds.is_decimal128,
)
_AS_TEXTS: tuple[Callable[[Any], bool], ...] = (kinds.is_date, kinds.is_timestamp)


class JsonBatch:
    def __init__(self, declaration: TableDeclaration) -> None:
        self._declaration = declaration
        self._schema = declaration.schema
        self._is_possible = bool(declaration.schema) and not declaration.defaults
        self._has_decimals = any(kinds.is_decimal(field.type) for field in declaration.schema)
        fields = []
        for field in declaration.schema:
            is_text = any(is_kind(field.type) for is_kind in _AS_TEXTS)
            self._is_possible &= is_text or any(is_kind(field.type) for is_kind in _AS_THEY_ARE)
            fields.append(pa.field(field.name, pa.string() if is_text else field.type))
        self._parsing = json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="error")

    def __reduce__(self) -> tuple[type[JsonBatch], tuple[TableDeclaration]]:
        """Pickle the declaration only: an executor creates its own parse options."""
        return JsonBatch, (self._declaration,)

    def columns(self, values: Sequence[bytes]) -> dict[str, ConvertedColumn] | None:
        """The columns of all records; None if the records must be converted one by one."""
        if not self._is_possible or not values:
            return None
        content = b"\n".join(values)
        if not _are_objects(content, values) or (self._has_decimals and _ZEROS in content):
            return None
        reading = json.ReadOptions(use_threads=False, block_size=len(content) + 1)
        try:
            read = json.read_json(pa.py_buffer(content), reading, self._parsing)
            read.validate(full=True)
        except (pa.ArrowException, UnicodeError):
            return None
        if read.num_rows != len(values):
            return None
        found = {field.name: _column(to_array(read.column(field.name)), field.type) for field in self._schema}
        return None if None in found.values() else found  # type: ignore[return-value]


def _are_objects(content: bytes, values: Sequence[bytes]) -> bool:
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    starts = np.cumsum(sizes + 1) - sizes - 1
    return bool(sizes.all()) and bool((np.frombuffer(content, np.uint8)[starts] == _OPEN).all())


def _column(array: Any, kind: Any) -> ConvertedColumn | None:
    if any(is_kind(kind) for is_kind in _AS_TEXTS):
        return from_texts(array, kind)
    if kinds.is_float64(kind):
        numbers = pc.drop_null(array).to_numpy()
        is_other = ~(np.abs(numbers) < _EXACT) | ((numbers == 0) & np.signbit(numbers))
        return None if is_other.any() else ConvertedColumn(array)
    return ConvertedColumn(array)
