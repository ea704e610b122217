"""Convert columns to the exact type that a shard declares.

Two types are *alike* if they hold the same values and differ only in encoding (dictionary, view, 32- or 64-bit offsets)
or in labels (names of list elements, nullability inside). A column of a like type is converted; any other is refused,
because only the caller knows how to convert values. Nullability is checked against the values afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.rows.columns import LISTS, Longs, read_lists, read_validity, remove_encoding

_ENCODINGS = (
    pa.types.is_dictionary,
    pa.types.is_run_end_encoded,
    pa.types.is_union,
    pa.types.is_string_view,
    pa.types.is_binary_view,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_STORED = {
    pa.date64(): pa.int64(),
    pa.time32("s"): pa.int32(),
    pa.month_day_nano_interval(): pa.binary(16),
}


def explain_refusal(kind: Any) -> str | None:
    """Why a shard's column cannot have this type, or None: a shard stores values, not their encodings."""
    if any(is_encoding(kind) for is_encoding in _ENCODINGS):
        return f"{kind} is an encoding or a union: declare the plain type of the values"
    if pa.types.is_struct(kind) and kind.num_fields == 0:
        return "a struct without fields holds nothing that could be stored"
    if isinstance(kind, pa.BaseExtensionType):
        return explain_refusal(kind.storage_type)
    return next(filter(None, (explain_refusal(field.type) for field in list_fields(kind))), None)


def are_alike(left: Any, right: Any) -> bool:
    return left.equals(right) or bool(_find_values_type(left).equals(_find_values_type(right)))


def conform(array: Any, kind: Any) -> Any:
    """Return the values with exactly the type `kind`, which must be alike."""
    return convert_leaves(array, kind, pa.Array.cast)


def conform_table(table: Any, schema: Any) -> Any:
    """Return the rows with exactly the schema's names and types, column by column.

    `Table.cast` refuses a NULL struct that has a NOT NULL field, even if the type does not change.
    """
    columns = [_conform_column(column, kind) for column, kind in zip(table.columns, schema.types, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _conform_column(column: Any, kind: Any) -> Any:
    if not pa.types.is_nested(kind):
        return column.cast(kind)
    return pa.chunked_array([conform(chunk, kind) for chunk in column.chunks], kind)


def reinterpret(array: Any, kind: Any) -> Any:
    """Return the bits with the type `kind`, which has the same layout: for types that a file format lacks."""
    return convert_leaves(array, kind, pa.Array.view)


def find_stored_type(kind: Any) -> Any:
    """The type that a file stores instead: Parquet has no intervals, rounds or rescales seconds and date64, and cannot
    read back fixed-size lists inside a NULL struct. Fields of structs are nullable, because a NULL struct has no
    values."""
    if isinstance(kind, pa.BaseExtensionType):
        return find_stored_type(kind.storage_type)
    if pa.types.is_timestamp(kind) and kind.unit == "s":
        return pa.int64()
    if pa.types.is_nested(kind):
        fields = _make_fields_nullable(kind, find_stored_type)
        return pa.list_(fields[0]) if pa.types.is_fixed_size_list(kind) else make_nested_type(kind, fields)
    return _STORED.get(kind, kind)


def allow_nulls_inside(kind: Any) -> Any:
    """The type with nullable fields in structs, and with strings as the keys of a map of VOID, which is empty: Arrow
    writes no Parquet file of a NULL struct with a NOT NULL field, or of keys without a type."""
    if not pa.types.is_nested(kind):
        return kind
    fields = _make_fields_nullable(kind, allow_nulls_inside)
    if pa.types.is_map(kind) and pa.types.is_null(kind.key_type):
        return pa.map_(pa.string(), fields[0].type.field(1))
    return make_nested_type(kind, fields)


def _make_fields_nullable(kind: Any, convert: Callable[[Any], Any]) -> list[Any]:
    """The fields inside a nested type, of converted types, and nullable in a struct."""
    fields = [field.with_type(convert(field.type)) for field in list_fields(kind)]
    return [field.with_nullable(nullable=True) for field in fields] if pa.types.is_struct(kind) else fields


def make_nested_type(kind: Any, fields: list[Any]) -> Any:
    """A type like `kind` with these fields inside."""
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    if pa.types.is_map(kind):
        entry = fields[0].type
        return pa.map_(entry.field(0).with_nullable(nullable=False), entry.field(1), keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    return pa.large_list(fields[0]) if pa.types.is_large_list(kind) else pa.list_(fields[0])


def convert_leaves(array: Any, kind: Any, leaf: Callable[[Any, Any], Any]) -> Any:
    """Return the array with the type `kind`. `leaf` converts the arrays inside that are not nested."""
    if array.type.equals(kind, check_metadata=True):
        return array
    array = remove_encoding(array)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, convert_leaves(array, kind.storage_type, leaf))
    if pa.types.is_struct(kind):
        children = [convert_leaves(array.field(i), kind.field(i).type, leaf) for i in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(array), [make_validity_buffer(array)], children=children)
    if kind.id in LISTS:
        offsets, values = read_lists(array)
        buffers = [make_validity_buffer(array)]
        if kind.id == pa.lib.Type_FIXED_SIZE_LIST:
            values = _fill(offsets, values, kind.list_size)
        else:
            width = np.int64 if kind.id == pa.lib.Type_LARGE_LIST else np.int32
            buffers.append(pa.py_buffer(offsets.astype(width)))
        children = [convert_leaves(values, list_fields(kind)[0].type, leaf)]
        return pa.Array.from_buffers(kind, len(array), buffers, children=children)
    return array if array.type.equals(kind, check_metadata=True) else leaf(array, kind)


def _fill(offsets: Longs, values: Any, size: int) -> Any:
    """Elements for fixed-size lists: NULL where a NULL list, or a NULL around it, has no elements."""
    lengths = np.diff(offsets)
    there = lengths == size
    if there.all():
        return values
    if (lengths[~there] != 0).any():
        raise pa.ArrowInvalid(f"a list does not have the length {size} of its type")
    rows = offsets[:-1, np.newaxis] + np.arange(size)
    return values.take(pa.array(rows.ravel(), mask=np.repeat(~there, size)))


def find_first_null(array: Any, field: Any) -> int | None:
    """The first row with a NULL where the field, or one inside it, allows none. Fields inside a NULL do not count."""
    if not field.nullable and array.null_count:
        return int(np.argmin(read_validity(array)))  # type: ignore[arg-type]
    if not forbids_null(field.type):
        return None
    array = remove_encoding(array)
    valid = read_validity(array)
    valid = np.ones(len(array), np.bool_) if valid is None else valid
    if pa.types.is_struct(array.type):
        rows = np.flatnonzero(valid)
        children = [array.field(i).take(pa.array(rows)) for i in range(array.type.num_fields)]
    else:
        offsets, values = read_lists(array)
        rows = np.repeat(np.arange(len(array)), np.diff(offsets))
        inside = np.flatnonzero(valid[rows])
        rows, children = rows[inside], [values.take(pa.array(inside))]
    pairs = zip(children, list_fields(array.type), strict=True)
    found = [row for child, inner in pairs if (row := find_first_null(child, inner)) is not None]
    return int(rows[min(found)]) if found else None


def list_fields(kind: Any) -> list[Any]:
    """The fields inside a type: all of a struct, the element of a list, the entry of a map."""
    if pa.types.is_map(kind):
        entry = pa.struct([kind.key_field, kind.item_field])
        return [pa.field("entries", entry, nullable=False)]
    if kind.id in LISTS:
        return [kind.value_field]
    return [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []


@lru_cache(maxsize=4096)
def forbids_null(kind: Any) -> bool:
    """Whether a field somewhere inside this type allows no NULL."""
    if isinstance(kind, pa.BaseExtensionType):
        return forbids_null(kind.storage_type)
    return any(not field.nullable or forbids_null(field.type) for field in list_fields(kind))


def make_validity_buffer(array: Any) -> Any:
    """The validity of an array as a buffer without offset; None if no value is NULL."""
    valid = read_validity(array)
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _find_values_type(kind: Any) -> Any:
    """The same type for all that are alike; extension types stay distinct."""
    if pa.types.is_dictionary(kind):
        return _find_values_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if any(is_list(kind) for is_list in (pa.types.is_large_list, pa.types.is_list_view, pa.types.is_large_list_view)):
        kind = pa.list_(kind.value_type)
    if not pa.types.is_nested(kind) or pa.types.is_union(kind):
        return kind
    return make_nested_type(kind, [_strip_labels(field, kind) for field in list_fields(kind)])


def _strip_labels(field: Any, parent: Any) -> Any:
    """The field without its nullability, and without a name that is only a label; keys of maps never allow NULL."""
    name = field.name if pa.types.is_struct(parent) else "item"
    if not pa.types.is_map(parent):
        return pa.field(name, _find_values_type(field.type))
    key, item = (_find_values_type(inner.type) for inner in field.type)
    return pa.field(name, pa.struct([pa.field("key", key, nullable=False), pa.field("value", item)]))
