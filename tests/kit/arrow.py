"""Hypothesis strategies for Arrow tables, and an oracle for their values.

`schemas` and `tables` cover every type that a shard can hold, nested ones too, with NULL, NaN, -0.0, extremes and many
repeated rows. `reencoded` writes a table in another physical form with the same values: chunks, slices, dictionaries,
views, large offsets, garbage under NULL. `canonical` converts a column to Python values that are equal if and only if
they are equal in a shard. It shares no code with the code under test.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

FLAT_TYPES: list[Any] = [
    *(pa.null(), pa.bool_(), pa.int8(), pa.int32(), pa.int64(), pa.uint16(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal32(7, 2), pa.decimal64(15, 3), pa.decimal128(30, 4), pa.decimal256(60, 5)),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us"), pa.timestamp("ns", "Europe/Berlin")),
    *(pa.duration("s"), pa.duration("us"), pa.month_day_nano_interval()),
]

_DAY_MS = 86_400_000
_NO_DICTIONARY = {kind.id for kind in (pa.null(), pa.float16(), pa.decimal32(1), pa.decimal64(1))}


def types(*, nested: bool = True) -> st.SearchStrategy[Any]:
    flat = st.sampled_from(FLAT_TYPES)
    return st.recursive(flat, _containers, max_leaves=4) if nested else flat


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    element = st.builds(_element, inner, _nullable())
    keys = st.sampled_from([pa.string(), pa.int32()])
    return st.one_of(
        element.map(pa.list_),
        element.map(pa.large_list),
        element.map(lambda field: pa.list_(field, 2)),
        st.lists(st.tuples(inner, _nullable()), min_size=1, max_size=3).map(_struct),
        st.builds(pa.map_, keys, inner),
    )


def _element(kind: Any, nullable: bool) -> Any:
    return pa.field("element", kind, _may_null(kind, nullable))


def _nullable() -> st.SearchStrategy[bool]:
    return st.sampled_from([True, True, False])


def _struct(fields: list[tuple[Any, bool]]) -> Any:
    return pa.struct([pa.field(f"f{i}", kind, _may_null(kind, nullable)) for i, (kind, nullable) in enumerate(fields)])


def _may_null(kind: Any, nullable: bool) -> bool:
    return nullable or pa.types.is_null(kind)


@st.composite
def schemas(draw: st.DrawFn, *, nested: bool = True, columns_max: int = 4) -> Any:
    kinds = draw(st.lists(types(nested=nested), min_size=1, max_size=columns_max))
    return pa.schema([pa.field(f"c{i}", kind, _may_null(kind, draw(_nullable()))) for i, kind in enumerate(kinds)])


@st.composite
def tables(draw: st.DrawFn, schema: Any = None, *, nested: bool = True, rows_max: int = 12) -> Any:
    """Rows come from a small pool, so that some repeat."""
    schema = draw(schemas(nested=nested)) if schema is None else schema
    row = st.tuples(*(values(field.type, nullable=field.nullable) for field in schema))
    pool = draw(st.lists(row, min_size=1, max_size=6))
    rows = draw(st.lists(st.sampled_from(pool), max_size=rows_max))
    arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=schema)


def values(kind: Any, *, nullable: bool = True) -> st.SearchStrategy[Any]:
    """Python values for `pa.array(..., kind)`; times are integers in their unit."""
    found = _nested_values(kind) if pa.types.is_nested(kind) else _flat_values(kind)
    return st.one_of(st.none(), found, found) if nullable else found


def _nested_values(kind: Any) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({f.name: values(f.type, nullable=f.nullable) for f in kind})
    if pa.types.is_map(kind):
        entry = st.tuples(values(kind.key_type, nullable=False), values(kind.item_type))
        return st.lists(entry, max_size=3, unique_by=lambda pair: pair[0])
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
    element = values(kind.value_type, nullable=_may_null(kind.value_type, kind.value_field.nullable))
    return st.lists(element, min_size=size or 0, max_size=size or 3)


def _flat_values(kind: Any) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - one per kind of type
    if pa.types.is_null(kind):
        return st.none()
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_floating(kind):
        width = kind.bit_width
        special = st.sampled_from([0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.0])
        return st.one_of(special, st.floats(width=width)).map(np.float16 if width == 16 else float)
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return _integers(-most, most).map(lambda number: _decimal(number, kind.scale))
    if pa.types.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return st.one_of(st.binary(max_size=6), st.sampled_from([b"\xff" * 65, b"\xfe" * 70, b"a" * 64]))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return st.one_of(st.text(max_size=5), st.sampled_from(["", "\x00", "a" * 64, "a" * 65, "\U0010ffff" * 66]))
    if pa.types.is_interval(kind):
        return st.tuples(*(_integers(-(2**31), 2**31 - 1),) * 2, _integers(-(2**63), 2**63 - 1)).map(pa.MonthDayNano)
    return _integer_values(kind)


def _integer_values(kind: Any) -> st.SearchStrategy[int]:
    if pa.types.is_date64(kind):
        return _integers(-(10**6), 10**6).map(lambda days: days * _DAY_MS)
    if pa.types.is_time(kind):
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        return _integers(0, 86_400 * per_second - 1)
    if pa.types.is_unsigned_integer(kind):
        return _integers(0, 2**kind.bit_width - 1)
    return _integers(-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1)


def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    edges = [number for number in (low, high, 0, 1, -1, 2) if low <= number <= high]
    return st.one_of(st.sampled_from(edges), st.integers(low, high))


def _decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def canonical(array: Any) -> list[Hashable]:
    """Python values that are equal, with equal hashes, if and only if they are equal in a shard."""
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return canonical(array.storage)
    if pa.types.is_dictionary(kind):
        return canonical(array.dictionary_decode())
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        rows = zip(*(canonical(array.field(i)) for i in range(kind.num_fields)), strict=True)
        return [row if there else None for there, row in zip(valid, rows, strict=True)]
    if pa.types.is_nested(kind):
        return [tuple(canonical(array[i].values)) if there else None for i, there in enumerate(valid)]
    found: list[Any] = _readable(array).to_pylist()
    return [_float(value) if isinstance(value, float | np.floating) else value for value in found]


def canonical_rows(table: Any) -> list[tuple[Hashable, ...]]:
    columns = [canonical(column) for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows


def _readable(array: Any) -> Any:
    """Convert to a type with exact Python values: a `datetime` has no nanoseconds, and no year after 9999."""
    kind = array.type
    if pa.types.is_interval(kind):
        return array.view(pa.binary(16))
    if pa.types.is_temporal(kind):
        return array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    return array


def _float(value: Any) -> Hashable:
    return "NaN" if value != value else struct.pack("<d", float(value))  # noqa: PLR0124 - NaN


@st.composite
def reencoded(draw: st.DrawFn, table: Any) -> Any:
    """The same values in the same order, in another physical form."""
    columns = [_column(draw, column.combine_chunks()) for column in table.columns]
    return pa.Table.from_arrays(columns, names=table.schema.names)


def _column(draw: st.DrawFn, array: Any) -> Any:
    forms = [array, _with_garbage(array), _pad(array)]
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        forms += [array.cast(other) for other in (pa.string(), pa.large_string(), pa.string_view())]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        forms += [array.cast(other) for other in (pa.binary(), pa.large_binary(), pa.binary_view())]
    if pa.types.is_list(kind) and array.offset == 0 and len(array):
        offsets = pa.py_buffer(np.asarray(array.offsets).astype(np.int64))
        large = pa.large_list(kind.value_field)
        forms += [pa.Array.from_buffers(large, len(array), [array.buffers()[0], offsets], children=[array.values])]
    if not pa.types.is_nested(kind) and kind.id not in _NO_DICTIONARY:
        forms += [array.dictionary_encode(), array.dictionary_encode(null_encoding="encode")]
    form = draw(st.sampled_from(forms))
    cut = draw(st.integers(0, len(array)))
    return pa.chunked_array([form.slice(0, cut), form.slice(cut)], form.type) if draw(st.booleans()) else form


def _pad(array: Any) -> Any:
    """The array as a slice of a longer one."""
    return pa.concat_arrays([array, array, array]).slice(len(array), len(array))


def _with_garbage(array: Any) -> Any:
    """Put the values of other rows into the memory of NULLs."""
    valid = array.is_valid()
    if array.null_count in (0, len(array)) or pa.types.is_dictionary(array.type) or pa.types.is_union(array.type):
        return array
    donor = int(np.argmax(np.asarray(valid)))
    rows = [i if there else donor for i, there in enumerate(valid.to_pylist())]
    filled = array.take(pa.array(rows))
    if filled.offset or filled.null_count:
        return array
    mask = pa.py_buffer(np.packbits(np.asarray(valid), bitorder="little"))
    own = filled.buffers()[1 : array.type.num_buffers]
    children = _children(filled)
    return pa.Array.from_buffers(array.type, len(array), [mask, *own], children=children)


def _children(array: Any) -> list[Any]:
    if pa.types.is_struct(array.type):
        return [array.field(i) for i in range(array.type.num_fields)]
    return [array.values] if pa.types.is_nested(array.type) else []
