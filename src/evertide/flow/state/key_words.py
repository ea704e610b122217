"""Key words: one int64 per row that gives the position of its key in an arrangement.

Keys are equal as Spark groups them: NULL equals NULL, any NaN any NaN, -0.0 equals 0.0, also inside structs and lists;
otherwise bit by bit. Equal keys have equal words. Different keys may share a word, so `compare_keys` compares keys of
found rows: a surplus row could raise an error that the query would not.

Words keep the order of the key's first integer-like column, since new rows mostly have recent ids, dates and times,
which are then in few row groups:

    one column, integer-like        its value
    several, one integer-like       that value shifted up, a hash of the others below it, wrapped around at 64 bits
    none integer-like               a hash of all
    no column at all                0; there is only one key

Integer-like are integers, dates, times, timestamps, durations and decimals of up to 18 digits. Words are stored in
parts: a change of any of this needs a new version of `evertide.flow.state.state_part`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.rows.columns import (
    FIXED,
    FLOATS,
    Bools,
    Longs,
    read_bits,
    read_lists,
    read_validity,
    read_wide_words,
    remove_encoding,
    to_array,
)
from evertide.rows.conform import list_fields, make_validity_buffer
from evertide.rows.digest import compare_values, hash_rows

SHARED_WORD = (1 << 63) - 2
"""The word of NULL in a single integer-like column, and of the two largest values: so that word + 1 never wraps."""

_NARROW_HASH_BITS = 16
_DIGITS_64 = 18
_INTERVALS = {pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME}
_INTEGERS = frozenset(FIXED) - frozenset(FLOATS) - _INTERVALS


def hash_keys(columns: pa.Table | pa.RecordBatch) -> Longs:
    """The word of each row, from the key's columns in order."""
    arrays = [remove_encoding(to_array(column)) for column in columns.columns]
    if columns.num_rows == 0 or not arrays:
        return np.zeros(columns.num_rows, np.int64)
    at = next((i for i, array in enumerate(arrays) if _is_integer(array.type)), None)
    if at is None:
        words = _hash_values(arrays)
    elif len(arrays) == 1:
        words = _read_integers(arrays[0])
    else:
        room = max(_NARROW_HASH_BITS, 64 - _find_width(arrays[at].type))
        words = _read_integers(arrays[at]) << room
        words += _hash_values(arrays[:at] + arrays[at + 1 :]) & ((1 << room) - 1)
    return np.minimum(words, SHARED_WORD)


def is_exact(kinds: Sequence[Any]) -> bool:
    """Whether the word is the key: keys of these types that share a word other than `SHARED_WORD` are equal."""
    return len(kinds) == 1 and _is_integer(kinds[0])


def compare_keys(left: Sequence[Any], right: Sequence[Any]) -> Bools:
    """Compare keys row by row, given as columns."""
    equal = np.ones(len(left[0]), np.bool_)
    for one, other in zip(left, right, strict=True):
        equal &= compare_values(canonicalize(one), canonicalize(other))
    return equal


def canonicalize(array: Any) -> Any:
    """Replace -0.0 by 0.0, after which keys are equal if and only if they are bitwise equal."""
    if len(array) == 0 or not _has_floats(array.type):
        return array
    array = remove_encoding(array)
    kind = array.type
    if kind.id in FLOATS:
        return _remove_negative_zero(array)
    buffers = [make_validity_buffer(array)]
    if pa.types.is_struct(kind):
        children = [canonicalize(array.field(i)) for i in range(kind.num_fields)]
    else:
        offsets, values = read_lists(array)
        children = [canonicalize(values)]
        if kind.id != pa.lib.Type_FIXED_SIZE_LIST:
            buffers.append(pa.py_buffer(offsets.astype(np.int64 if pa.types.is_large_list(kind) else np.int32)))
    return pa.Array.from_buffers(kind, len(array), buffers, children=children)


@lru_cache(maxsize=4096)
def _has_floats(kind: Any) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_floats(kind.storage_type)
    return kind.id in FLOATS or any(_has_floats(field.type) for field in list_fields(kind))


def _remove_negative_zero(array: Any) -> Any:
    dtype = np.dtype(FIXED[array.type.id])
    found = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    is_negative_zero = found == dtype.type(1 << (8 * dtype.itemsize - 1))
    if not is_negative_zero.any():
        return array
    values = pa.py_buffer(np.where(is_negative_zero, dtype.type(0), found))
    return pa.Array.from_buffers(array.type, len(array), [make_validity_buffer(array), values])


def _is_integer(kind: Any) -> bool:
    return kind.id in _INTEGERS or (pa.types.is_decimal128(kind) and kind.precision <= _DIGITS_64)


def _find_width(kind: Any) -> int:
    return 64 if pa.types.is_decimal128(kind) else int(kind.bit_width)


def _read_integers(array: Any) -> Longs:
    """The values; NULLs, whose memory is undefined, get `SHARED_WORD`."""
    found: Longs
    if pa.types.is_decimal128(array.type):
        found = read_wide_words(array)[:, 0].view(np.int64)  # with at most 18 digits, the upper word is only the sign
    else:
        found = read_bits(array)
        found = found.view(np.int64) if found.dtype.itemsize == 8 else found.astype(np.int64)
    valid = read_validity(array)
    return found if valid is None else np.where(valid, found, SHARED_WORD)


def _hash_values(arrays: Sequence[Any]) -> Longs:
    table = pa.Table.from_arrays([canonicalize(array) for array in arrays], names=[str(i) for i in range(len(arrays))])
    return hash_rows(table).high.view(np.int64)
