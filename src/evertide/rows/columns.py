"""Arrow columns as plain numpy arrays: the only module that depends on Arrow's memory layout.

1. Functions return the logical content of an array, whatever its physical form: `remove_encoding` removes encodings
   (dictionary, view, extension), and the other functions respect the offsets of slices.
2. The bytes under a NULL are never used as a value.
3. Arrow's buffers are little endian, on every platform that pyarrow supports and by its IPC format.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words = npt.NDArray[np.uint64]
Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_T = pa.lib


def _select_known_types(names: dict[str, Any]) -> dict[int, Any]:
    """Skip types that the installed version of pyarrow lacks."""
    return {getattr(_T, f"Type_{name}"): value for name, value in names.items() if hasattr(_T, f"Type_{name}")}


FLOATS: dict[int, npt.DTypeLike] = _select_known_types({"HALF_FLOAT": "<f2", "FLOAT": "<f4", "DOUBLE": "<f8"})

NAN: dict[int, tuple[int, int, int]] = _select_known_types(
    {
        "HALF_FLOAT": (0x7FFF, 0x7C00, 0x7E00),
        "FLOAT": (0x7FFF_FFFF, 0x7F80_0000, 0x7FC0_0000),
        "DOUBLE": (0x7FFF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000, 0x7FF8_0000_0000_0000),
    }
)
"""By type: all bits but the sign, the bits of infinity (a NaN has more), and the bits of the canonical NaN."""

FIXED: dict[int, npt.DTypeLike] = _select_known_types(
    {"HALF_FLOAT": "<u2", "FLOAT": "<u4", "DOUBLE": "<u8"}
    | {"INT8": "<i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8"}
    | {"UINT8": "<u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8"}
    | {"DATE32": "<i4", "DATE64": "<i8", "TIME32": "<i4", "TIME64": "<i8", "TIMESTAMP": "<i8", "DURATION": "<i8"}
    | {"INTERVAL_MONTHS": "<i4", "INTERVAL_DAY_TIME": "<i8", "DECIMAL32": "<i4", "DECIMAL64": "<i8"}
)
"""Types whose value fits in one word, and the type to read it as; floats by their bits."""

WIDE: dict[int, int] = _select_known_types({"DECIMAL128": 2, "DECIMAL256": 4, "INTERVAL_MONTH_DAY_NANO": 2})
"""By type, the number of 64-bit words of a value, lowest first."""

BINARY = frozenset(
    (_T.Type_STRING, _T.Type_BINARY, _T.Type_LARGE_STRING, _T.Type_LARGE_BINARY, _T.Type_FIXED_SIZE_BINARY)
)

LISTS = frozenset((_T.Type_LIST, _T.Type_LARGE_LIST, _T.Type_FIXED_SIZE_LIST, _T.Type_MAP))

_SMALL = frozenset((_T.Type_STRING, _T.Type_BINARY, _T.Type_LIST))
_SMALL_OFFSETS_BYTES_MAX = 1 << 30
_VIEWS = frozenset((_T.Type_STRING_VIEW, _T.Type_BINARY_VIEW, _T.Type_LIST_VIEW, _T.Type_LARGE_LIST_VIEW))


def _widen_offsets(kind: Any) -> Any:
    """The type with 64-bit offsets and the same values."""
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
        return pa.large_binary()
    return pa.large_list(kind.value_field)


def remove_encoding(array: Any) -> Any:
    """Return the values without dictionary, view or extension at the top level."""
    while True:
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):
            array = array.storage
        elif kind.id == _T.Type_DICTIONARY:
            array = array.dictionary_decode()
        elif kind.id in _VIEWS:
            array = array.cast(_widen_offsets(kind))
        else:
            return array


def to_array(column: Any) -> Any:
    """Return a column of a table or batch as one array, with 64-bit offsets if it is too large for 32-bit ones."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.nbytes > _SMALL_OFFSETS_BYTES_MAX and column.type.id in _SMALL:
        column = column.cast(_widen_offsets(column.type))
    return column.combine_chunks()


def unpack_bools(buffer: Any, offset: int, length: int) -> Bools:
    """The bits [offset, offset + length) of a buffer as booleans."""
    first = offset // 8
    packed = np.frombuffer(buffer, np.uint8, (offset + length + 7) // 8 - first, first)
    unpacked = np.unpackbits(packed, bitorder="little")[offset - first * 8 :][:length]
    return unpacked.view(np.bool_)


def read_validity(array: Any) -> Bools | None:
    """By row, whether it is not NULL; None if no row is NULL."""
    if array.null_count == 0:
        return None
    if array.type.id == _T.Type_NA:
        return np.zeros(len(array), np.bool_)
    return unpack_bools(array.buffers()[0], array.offset, len(array))


def read_bits(array: Any) -> Any:
    """The values of a type in `FIXED`: integers by value, floats by their bits with one canonical NaN."""
    kind = array.type.id
    dtype = np.dtype(FIXED[kind])
    found = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    if kind in NAN:
        unsigned, infinity, nan = (dtype.type(number) for number in NAN[kind])
        is_nan = (found & unsigned) > infinity
        if is_nan.any():
            return np.where(is_nan, nan, found)
    return found


def read_wide_words(array: Any) -> Words:
    """The values of a type in `WIDE`, one row of words each."""
    width = WIDE[array.type.id]
    found = np.frombuffer(array.buffers()[1], "<u8", len(array) * width, array.offset * width * 8)
    return found.reshape(len(array), width)


def read_lists(array: Any) -> tuple[Longs, Any]:
    """For a type in `LISTS`: n + 1 offsets that start at 0, and the elements that they cover.

    A NULL list may cover elements, too. They have no meaning, but lists that are adjacent have adjacent elements.
    """
    if array.type.id == _T.Type_FIXED_SIZE_LIST:
        size = array.type.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        return np.arange(len(array) + 1, dtype=np.int64) * size, values
    offsets = np.asarray(array.offsets).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - first, array.values.slice(first, last - first)


def read_bytes(array: Any) -> list[bytes]:
    """The values of a type in `BINARY`, NULL as empty bytes."""
    if array.type.id == _T.Type_STRING:
        array = array.view(pa.binary())
    elif array.type.id == _T.Type_LARGE_STRING:
        array = array.view(pa.large_binary())
    values: list[bytes] = array.to_pylist()
    return [value or b"" for value in values] if array.null_count else values


def sort_distinct(numbers: Longs) -> Longs:
    """The distinct numbers, ascending. `numpy.unique` hashes them, which takes up to a hundred times as long."""
    found = np.sort(numbers)
    is_first = np.empty(len(found), np.bool_)
    is_first[:1] = True
    np.not_equal(found[1:], found[:-1], out=is_first[1:])
    return found if is_first.all() else found[is_first]
