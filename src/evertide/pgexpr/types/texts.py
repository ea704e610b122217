"""Describe and write columns as PostgreSQL does, for the schema header and the messages of shapes.

1. `describe_column` describes a column's PostgreSQL type, as in `sqltypes`; an array has `dims`, a DECIMAL precision
   and scale. STRUCT, MAP and VARIANT are jsonb.
2. `write_column` writes values as PostgreSQL does, independent of the machine's time zone and locale. jsonb is compact.
3. An array of arrays may be ragged here, or contain NULL instead of an array, which PostgreSQL does not allow. It is
   written in the same notation, `{{1},{2,3},NULL}`, so that nothing is lost.
4. In jsonb, numbers are JSON numbers with all digits; NaN and infinities are strings; dates and times are ISO 8601;
   bytes are hexadecimal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from evertide.pgexpr.types.columns import combine_column, normalize_array, split_by_row, to_values
from evertide.pgexpr.types.sqltypes import DATE, JSONB, NUMERIC, TIMESTAMP, TIMESTAMPTZ, is_list, type_of
from evertide.pgexpr.types.value_text import write_array, write_value
from evertide.sources.values.kinds import is_variant, variant_json

_YEAR_1_US = -62_135_596_800_000_000
_YEAR_10000_US = 253_402_300_800_000_000
_YEARS = {
    DATE: (_YEAR_1_US // 86_400_000_000, _YEAR_10000_US // 86_400_000_000),
    TIMESTAMP: (_YEAR_1_US, _YEAR_10000_US),
    TIMESTAMPTZ: (_YEAR_1_US, _YEAR_10000_US),
}
_SCALE_MAX = 6
"""Above this scale, Arrow writes small decimals with an exponent."""


def describe_column(field: Any) -> dict[str, Any]:
    """The entry of the header `electric-schema`, without `pk_index`: the key is not known here."""
    kind, dims = field.type, 0
    while is_list(kind):
        kind, dims = kind.value_type, dims + 1
    kind = kind.value_type if kinds.is_dictionary(kind) else kind
    description: dict[str, Any] = {"type": str(type_of(kind))}
    if dims:
        description["dims"] = dims
    if kinds.is_decimal(kind):
        description |= {"precision": kind.precision, "scale": kind.scale}
    if not field.nullable:
        description["not_null"] = True
    return description


def write_column(column: Any) -> list[str | None]:
    array = combine_column(column)
    if is_list(array.type):
        return _write_arrays(array)
    if kinds.is_null(array.type):
        return [None] * len(array)
    kind = type_of(array.type)
    if kind == JSONB:
        return _write_json(array, null=None)
    if kind == NUMERIC and array.type.scale > _SCALE_MAX:
        return _apply_one_by_one(array)
    write = _VECTORIZED.get(kind.name)
    return _apply_one_by_one(array) if write is None else write(array)


def _apply_one_by_one(array: Any) -> list[str | None]:
    kind = type_of(array.type)
    return [None if value is None else write_value(value, kind) for value in to_values(array, kind)]


def _write_by_cast(array: Any) -> list[str | None]:
    written: list[str | None] = array.cast(pa.string()).to_pylist()
    return written


def _write_moments(array: Any) -> list[str | None]:
    """For years of four digits Arrow writes what PostgreSQL does, except for trailing zeros of a fraction."""
    kind = type_of(array.type)
    numbers = normalize_array(array, kind)
    bounds = pc.min_max(numbers).as_py()
    least, most = _YEARS[kind]
    if bounds["min"] is not None and not least <= bounds["min"] <= bounds["max"] < most:
        return _apply_one_by_one(array)
    if kind == DATE:
        return _write_by_cast(array.cast(pa.date32()))
    column = numbers.cast(pa.timestamp("us")).cast(pa.string())
    column = pc.replace_substring_regex(column, r"\.0+$", "")
    column = pc.replace_substring_regex(column, r"(\.\d*[1-9])0+$", r"\1")
    if kind == TIMESTAMPTZ:
        column = pc.binary_join_element_wise(column, "+00", "")
    values: list[str | None] = column.to_pylist()
    return values


_VECTORIZED: dict[str, Callable[[Any], list[str | None]]] = {
    **dict.fromkeys(("bool", "int2", "int4", "int8", "numeric", "text"), _write_by_cast),
    **dict.fromkeys(("date", "timestamp", "timestamptz"), _write_moments),
}


def _write_arrays(array: Any) -> list[str | None]:
    """Write the elements of all rows in one call. Elements that are arrays are not quoted."""
    return [None if row is None else write_array(row, str) for row in _write_elements(array)]


def _write_elements(array: Any) -> list[list[Any] | None]:
    inner = combine_column(array.flatten())
    elements: list[Any]
    if is_list(inner.type):
        elements = _write_elements(inner)
    elif kinds.is_boolean(inner.type):
        elements = pc.if_else(inner, "t", "f").to_pylist()
    else:
        elements = write_column(inner)
    return split_by_row(elements, array)


def _write_json(array: Any, null: str | None = "null") -> list[Any]:
    """`null` is the text for NULL."""
    array = combine_column(array)
    return [null if text is None else text for text in _choose_json_writer(array.type)(array)]


def _choose_json_writer(kind: Any) -> Callable[[Any], list[str | None]]:
    if is_list(kind):
        return _write_json_lists
    if is_variant(kind):
        return _write_json_variants
    if kinds.is_map(kind):
        return _write_json_maps
    if kinds.is_struct(kind):
        return _write_json_structs
    if kinds.is_integer(kind) or kinds.is_boolean(kind) or kinds.is_decimal(kind) or kinds.is_null(kind):
        return write_column
    return _write_json_floats if kinds.is_floating(kind) else _write_json_strings


def _write_json_floats(array: Any) -> list[str | None]:
    return [f'"{text}"' if text in ("NaN", "Infinity", "-Infinity") else text for text in write_column(array)]


def _write_json_strings(array: Any) -> list[str | None]:
    kind = type_of(array.type)
    written = write_column(array)
    if kind in (TIMESTAMP, TIMESTAMPTZ):
        zone = ":00" if kind == TIMESTAMPTZ else ""
        written = [None if text is None else _to_iso(text, zone) for text in written]
    return [None if text is None else _quote(text) for text in written]


def _to_iso(text: str, zone: str) -> str:
    text, era, _ = text.partition(" BC")
    return text.replace(" ", "T", 1) + zone + era


def _quote(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _write_json_lists(array: Any) -> list[str | None]:
    rows = split_by_row(_write_json(array.flatten()), array)
    return [None if row is None else f"[{','.join(row)}]" for row in rows]


def _write_json_structs(array: Any) -> list[str | None]:
    names = [_quote(field.name) for field in array.type]
    fields = [_write_json(child) for child in array.flatten()]
    valid = array.is_valid().to_pylist()
    rows = zip(*fields, strict=True) if fields else (() for _ in valid)
    return [
        "{" + ",".join(f"{name}:{text}" for name, text in zip(names, row, strict=True)) + "}" if is_there else None
        for is_there, row in zip(valid, rows, strict=True)
    ]


def _write_json_maps(array: Any) -> list[str | None]:
    """Keys are written as strings, whatever their type. A map whose keys have become equal is a list of pairs."""
    pair = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
    entries = array.cast(pa.list_(pair))
    pairs = entries.flatten()
    keys, items = write_column(pairs.field(0)), _write_json(pairs.field(1))
    written = [(_quote(key or ""), item) for key, item in zip(keys, items, strict=True)]
    return [None if row is None else _write_json_map(row) for row in split_by_row(written, entries)]


def _write_json_map(pairs: list[tuple[str, str]]) -> str:
    if len(dict(pairs)) < len(pairs):
        return f"[{','.join(f'[{key},{item}]' for key, item in pairs)}]"
    return "{" + ",".join(f"{key}:{item}" for key, item in pairs) + "}"


def _write_json_variants(array: Any) -> list[str | None]:
    return [None if row is None else variant_json(row["value"], row["metadata"]) for row in array.to_pylist()]
