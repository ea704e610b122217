"""Many JSON records at once, straight into Arrow's columns, where that is sure to give what record by record gives.

Arrow reads all records as one text, an object per line. It is faster by far than an object of Python for each value,
and other threads run meanwhile. But it takes some texts for numbers, and some numbers for others, that
`evertide.sources.values.values` does not; and it does not say which record is a bad one. So:

1. Only tables of plain columns without defaults are read so. Dates and timestamps are read as texts.
2. Every record must begin with `{`, and there must be as many objects as records. So an object is a record: none can
   go on from one record to the next, as no string may have a line end in it, and no column takes an object. (A text
   of nothing but `null` would end the process: Arrow must never see one.)
3. Whatever Arrow refuses, and whatever it may have read in another way (a DOUBLE that a whole number may have become
   inexactly, zero with a sign, a text that is no UTF-8, a DECIMAL with too many digits), is left to the slow way, with
   all records beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from pyarrow import json

from evertide.rows.columns import one_chunk
from evertide.sources.contract import TableDeclaration
from evertide.sources.values.columns import Column, from_texts

__all__ = ["WholeJson"]

_OPEN = ord("{")
_EXACT = 2.0**53
_ZEROS = b"0" * 100
"""A DECIMAL may be written with hundreds of them, which only Arrow allows."""

_AS_THEY_ARE: tuple[Callable[[Any], bool], ...] = (
    kinds.is_signed_integer,
    kinds.is_float64,
    kinds.is_boolean,
    kinds.is_string,
    kinds.is_decimal128,
)
_AS_TEXTS: tuple[Callable[[Any], bool], ...] = (kinds.is_date, kinds.is_timestamp)


class WholeJson:
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

    def __reduce__(self) -> tuple[type[WholeJson], tuple[TableDeclaration]]:
        """An executor makes its own."""
        return WholeJson, (self._declaration,)

    def columns(self, values: Sequence[bytes]) -> dict[str, Column] | None:
        """None: one by one, please."""
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
        found = {field.name: _column(one_chunk(read.column(field.name)), field.type) for field in self._schema}
        return None if None in found.values() else found  # type: ignore[return-value]


def _are_objects(content: bytes, values: Sequence[bytes]) -> bool:
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    starts = np.cumsum(sizes + 1) - sizes - 1
    return bool(sizes.all()) and bool((np.frombuffer(content, np.uint8)[starts] == _OPEN).all())


def _column(array: Any, kind: Any) -> Column | None:
    if any(is_kind(kind) for is_kind in _AS_TEXTS):
        return from_texts(array, kind)
    if kinds.is_float64(kind):
        numbers = pc.drop_null(array).to_numpy()
        is_other = ~(np.abs(numbers) < _EXACT) | ((numbers == 0) & np.signbit(numbers))
        return None if is_other.any() else Column(array)
    return Column(array)
