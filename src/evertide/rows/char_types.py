"""CHAR(n) and VARCHAR(n): the declared types of columns, and the texts that fit them.

Arrow has only strings, so the metadata of a column's field has the rest:

1. `DECLARED`, in a table: the type of CREATE TABLE in Spark's JSON form, if it is CHAR or VARCHAR or has one inside.
   Every value fits it (`fit_char_types`), as when Spark writes a table: a CHAR is padded with spaces; spaces that
   exceed the length are cut off; a longer text does not fit. The length counts Unicode code points.
2. `COMPARED`, in a table or view: the type, as text, by which Spark pads comparisons of the column, if it is CHAR or
   has one inside. A view's column has what Spark derives. Its values need not have the length, as in a UNION.

A text that is not valid UTF-8 fits neither CHAR nor VARCHAR, as its length is not defined.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import InvalidInput
from evertide.rows.columns import LISTS, Longs, read_lists, read_validity, remove_encoding
from evertide.rows.conform import make_validity_buffer
from evertide.rows.utf8 import is_valid_utf8

DECLARED = b"evertide.declared_type"
COMPARED = b"evertide.compared_type"
SPARK_KEY = "__CHAR_VARCHAR_TYPE_STRING"
"""Where Spark has the type, in the metadata of a column of a DataFrame."""
_CHAR_TYPE = re.compile(r"(char|varchar)\((\d+)\)")
_BYTES_MAX = (1 << 31) - 1
"""Of the texts of an Arrow array."""

Misfits = dict[int, str]
"""Why a value does not fit, by row."""


def contains_char_type(declared: Any) -> bool:
    """Whether a type in Spark's JSON form, parsed, is CHAR or VARCHAR or has one inside."""
    return bool(replace_char_types(declared) != declared)


def replace_char_types(declared: Any) -> Any:
    """The type with STRING in place of CHAR and VARCHAR, as it is stored."""
    if isinstance(declared, str):
        return "string" if _CHAR_TYPE.match(declared) else declared
    replaced = dict(declared)
    for part in ("elementType", "keyType", "valueType"):
        if part in declared:
            replaced[part] = replace_char_types(declared[part])
    if "fields" in declared:
        replaced["fields"] = [{**each, "type": replace_char_types(each["type"])} for each in declared["fields"]]
    return replaced


def has_collated_char_type(declared: Any) -> bool:
    """Whether a CHAR or VARCHAR in the type has a collation."""
    if isinstance(declared, str):
        return _CHAR_TYPE.match(declared) is not None and _CHAR_TYPE.fullmatch(declared) is None
    inner = [each["type"] for each in declared.get("fields", ())]
    inner += [declared[part] for part in ("elementType", "keyType", "valueType") if part in declared]
    return any(map(has_collated_char_type, inner))


def add_char_types(schema: pa.Schema, declared: Mapping[str, str], compared: Mapping[str, str]) -> pa.Schema:
    """The schema with the types of these columns in the metadata of its fields."""
    fields = []
    for field in schema:
        given = {DECLARED: declared.get(field.name), COMPARED: compared.get(field.name)}
        metadata = {key: value for key, value in given.items() if value}
        fields.append(field.with_metadata(metadata) if metadata else field)
    return pa.schema(fields)


def remove_char_types(schema: pa.Schema) -> pa.Schema:
    """The schema for a reader outside, to whom the columns are strings."""
    return pa.schema([field.remove_metadata() for field in schema])


def read_declared_type(field: pa.Field) -> Any:
    """The declared type, parsed; None if it has no CHAR or VARCHAR."""
    text = (field.metadata or {}).get(DECLARED)
    return None if text is None else json.loads(text)


def list_compared_types(schema: pa.Schema) -> dict[str, str]:
    """By column, the type by which Spark pads comparisons."""
    found = {field.name: (field.metadata or {}).get(COMPARED) for field in schema}
    return {name: text.decode() for name, text in found.items() if text is not None}


def fit_char_types(array: Any, declared: Any) -> tuple[Any, Misfits]:
    """The values as they are stored, NULL in place of those that do not fit. The same array if nothing changes."""
    array = remove_encoding(array)
    fitted, misfits = _fit(array, declared)
    if not misfits:
        return fitted, misfits
    rows = np.arange(len(fitted))
    return fitted.take(pa.array(rows, mask=np.isin(rows, [*misfits]))), misfits


def _fit(array: Any, declared: Any) -> tuple[Any, Misfits]:
    kind = array.type
    if isinstance(declared, str):
        matched = _CHAR_TYPE.fullmatch(declared)
        return (array, {}) if matched is None else _fit_texts(array, declared.upper(), int(matched[2]))
    if not contains_char_type(declared):
        return array, {}
    if pa.types.is_struct(kind):
        return _fit_struct(array, [each["type"] for each in declared["fields"]])
    if pa.types.is_map(kind):
        entry = {"fields": [{"type": declared["keyType"]}, {"type": declared["valueType"]}]}
        return _fit_lists(array, entry, has_keys=contains_char_type(declared["keyType"]))
    if kind.id in LISTS:
        return _fit_lists(array, declared["elementType"], has_keys=False)
    return array, {}


def _fit_texts(array: Any, name: str, length: int) -> tuple[Any, Misfits]:
    misfits: Misfits = {}
    if not is_valid_utf8(array):
        misfits = _find_invalid(array, name)
        rows = np.arange(len(array))
        array = array.take(pa.array(rows, mask=np.isin(rows, [*misfits])))
    lengths = pc.utf8_length(array)
    longest = pc.max(lengths).as_py() or 0
    if longest > length:
        kept = pc.utf8_length(pc.ascii_rtrim(array, characters=" "))
        for row in np.flatnonzero(np.asarray(pc.fill_null(pc.greater(kept, length), False))).tolist():  # noqa: FBT003
            misfits[row] = f"the text has {kept[row]} characters, and {name} holds at most {length}"
        array = pc.utf8_slice_codeunits(array, 0, length)
    least = pc.min(lengths).as_py()
    if name.startswith("CHAR") and least is not None and least < length:
        _check_size(array, lengths, name, length)
        array = pc.utf8_rpad(array, length, " ")
    return array, misfits


def _check_size(array: Any, lengths: Any, name: str, length: int) -> None:
    """Padding may turn few bytes into more than an Arrow array holds."""
    added = pc.sum(pc.max_element_wise(pc.subtract(length, pc.cast(lengths, pa.int64())), 0)).as_py()
    if array.nbytes + added > _BYTES_MAX:
        why = f"{len(array)} values take more than 2 GiB once they are padded; give fewer rows at once, or use VARCHAR"
        raise InvalidInput(where=name, why=why)


def _find_invalid(array: Any, name: str) -> Misfits:
    found: Misfits = {}
    for row, value in enumerate(array.view(pa.binary()).to_pylist()):
        try:
            (value or b"").decode()
        except UnicodeDecodeError:
            found[row] = f"the text is not valid UTF-8, so its length for {name} is not known"
    return found


def _fit_struct(array: Any, declared: list[Any]) -> tuple[Any, Misfits]:
    valid = read_validity(array)
    misfits: Misfits = {}
    children = [array.field(at) for at in range(len(declared))]
    fitted = [_fit(child, each) for child, each in zip(children, declared, strict=True)]
    for _, found in fitted:
        for row, why in found.items():
            if valid is None or valid[row]:
                misfits.setdefault(row, why)
    if all(new is old for (new, _), old in zip(fitted, children, strict=True)):
        return array, misfits
    buffers = [make_validity_buffer(array)]
    made = pa.Array.from_buffers(array.type, len(array), buffers, children=[each for each, _ in fitted])
    return made, misfits


def _fit_lists(array: Any, declared: Any, *, has_keys: bool) -> tuple[Any, Misfits]:
    """Lists, and maps as lists of entries."""
    offsets, values = read_lists(array)
    fitted, found = _fit(values, declared)
    valid, rows = read_validity(array), np.repeat(np.arange(len(array)), np.diff(offsets))
    misfits: Misfits = {}
    whys = [(int(rows[at]), why) for at, why in found.items()]
    for row, why in whys + (_find_repeated_keys(rows, fitted.field(0)) if has_keys else []):
        if valid is None or valid[row]:
            misfits.setdefault(row, why)
    if fitted is values:
        return array, misfits
    buffers = [make_validity_buffer(array), pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(array.type, len(array), buffers, children=[fitted]), misfits


def _find_repeated_keys(rows: Longs, keys: Any) -> list[tuple[int, str]]:
    """The rows of maps in which two keys became equal, as 'a' and 'a ' of a CHAR(2)."""
    seen: set[tuple[int, str]] = set()
    found = []
    for row, key in zip(rows.tolist(), keys.to_pylist(), strict=True):
        if (row, repr(key)) in seen:
            found.append((row, f"the key {key!r} of the map is repeated, as spaces at the end of a key do not count"))
        seen.add((row, repr(key)))
    return found
