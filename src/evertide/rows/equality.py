"""Bit-exact equality of values: the equality of digests, decided on the values themselves.

NULL equals NULL, any NaN equals any NaN, -0.0 and 0.0 differ, lists are equal element by element, maps in stored order.
Rows with equal hashes are merged only if they are equal here, so that a hash collision never loses a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.rows.columns import (
    BINARY,
    FIXED,
    LISTS,
    WIDE,
    Bools,
    Longs,
    read_bits,
    read_lists,
    read_validity,
    read_wide_words,
    remove_encoding,
    to_array,
    unpack_bools,
)

__all__ = ["compare_rows", "compare_values"]


def compare_rows(columns: pa.Table, left: Longs, right: Longs) -> Bools:
    """For each i, whether rows left[i] and right[i] are equal in all columns."""
    equal = np.ones(len(left), np.bool_)
    for column in columns.columns:
        equal &= compare_values(to_array(column.take(pa.array(left))), to_array(column.take(pa.array(right))))
    return equal


def compare_values(left: Any, right: Any) -> Bools:
    """Compare two arrays of the same type and length, row by row."""
    left, right = remove_encoding(left), remove_encoding(right)
    left_valid, right_valid = read_validity(left), read_validity(right)
    if left_valid is None and right_valid is None:
        return _compare_valid(left, right, np.ones(len(left), np.bool_))
    ones = np.ones(len(left), np.bool_)
    left_valid = ones if left_valid is None else left_valid
    right_valid = ones if right_valid is None else right_valid
    both = left_valid & right_valid
    return np.where(both, _compare_valid(left, right, both), left_valid == right_valid)


def _compare_valid(left: Any, right: Any, rows: Bools) -> Bools:
    """Only the results at `rows` count: in other rows one value is NULL, and the result is undefined."""
    kind = left.type.id
    found: Any
    if len(left) == 0 or kind == pa.lib.Type_NA:
        return rows
    if kind in FIXED:
        found = read_bits(left) == read_bits(right)
    elif kind == pa.lib.Type_BOOL:
        found = _read_bools(left) == _read_bools(right)
    elif kind in WIDE:
        found = (read_wide_words(left) == read_wide_words(right)).all(axis=1)
    elif kind in BINARY:
        found = _read_bools(pc.fill_null(pc.equal(left, right), False))  # noqa: FBT003 - a value, not a switch
    elif kind == pa.lib.Type_STRUCT:
        fields = range(left.type.num_fields)
        found = np.logical_and.reduce([rows, *(compare_values(left.field(i), right.field(i)) for i in fields)])
    elif kind in LISTS:
        found = _compare_lists(left, right, rows)
    else:
        raise TypeError(f"no equality for {left.type}")
    return found  # type: ignore[no-any-return]


def _read_bools(array: Any) -> Bools:
    return unpack_bools(array.buffers()[1], array.offset, len(array))


def _compare_lists(left: Any, right: Any, rows: Bools) -> Bools:
    """Compare lists of the same length element by element, all at once."""
    left_offsets, left_values = read_lists(left)
    right_offsets, right_values = read_lists(right)
    lengths = np.diff(left_offsets)
    equal: Bools = rows & (lengths == np.diff(right_offsets))
    filled = np.flatnonzero(equal & (lengths > 0))
    if len(filled) == 0:
        return equal
    lengths = lengths[filled]
    starts = np.cumsum(lengths) - lengths
    within = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    elements = compare_values(
        remove_encoding(left_values).take(pa.array(within + np.repeat(left_offsets[filled], lengths))),
        remove_encoding(right_values).take(pa.array(within + np.repeat(right_offsets[filled], lengths))),
    )
    equal[filled] = np.logical_and.reduceat(elements, starts)
    return equal
