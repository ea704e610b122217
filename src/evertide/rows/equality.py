"""Bit-exact equality of values: the equality of digests, decided on the values themselves.

NULL equals NULL, any NaN equals any NaN, -0.0 and 0.0 differ, lists are equal element by element, maps in stored order.
Hashes only propose: rows are merged only if they are equal here, so that a hash collision never loses a row.
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
    bits,
    bools,
    list_values,
    one_chunk,
    plain,
    validity,
    wide_words,
)

__all__ = ["equal_rows", "equal_values"]


def equal_rows(columns: pa.Table, left: Longs, right: Longs) -> Bools:
    """For each i, whether rows left[i] and right[i] are equal in all columns."""
    equal = np.ones(len(left), np.bool_)
    for column in columns.columns:
        equal &= equal_values(one_chunk(column.take(pa.array(left))), one_chunk(column.take(pa.array(right))))
    return equal


def equal_values(left: Any, right: Any) -> Bools:
    """Compare two arrays of the same type and length, row by row."""
    left, right = plain(left), plain(right)
    left_valid, right_valid = validity(left), validity(right)
    if left_valid is None and right_valid is None:
        return _equal_valid(left, right, np.ones(len(left), np.bool_))
    ones = np.ones(len(left), np.bool_)
    left_valid = ones if left_valid is None else left_valid
    right_valid = ones if right_valid is None else right_valid
    both = left_valid & right_valid
    return np.where(both, _equal_valid(left, right, both), left_valid == right_valid)


def _equal_valid(left: Any, right: Any, rows: Bools) -> Bools:
    """Only the results at `rows` count: in other rows one value is NULL, and the result is undefined."""
    kind = left.type.id
    found: Any
    if len(left) == 0 or kind == pa.lib.Type_NA:
        return rows
    if kind in FIXED:
        found = bits(left) == bits(right)
    elif kind == pa.lib.Type_BOOL:
        found = _bools(left) == _bools(right)
    elif kind in WIDE:
        found = (wide_words(left) == wide_words(right)).all(axis=1)
    elif kind in BINARY:
        found = _bools(pc.fill_null(pc.equal(left, right), False))  # noqa: FBT003 - a value, not a switch
    elif kind == pa.lib.Type_STRUCT:
        fields = range(left.type.num_fields)
        found = np.logical_and.reduce([rows, *(equal_values(left.field(i), right.field(i)) for i in fields)])
    elif kind in LISTS:
        found = _equal_lists(left, right, rows)
    else:
        raise TypeError(f"no equality for {left.type}")
    return found  # type: ignore[no-any-return]


def _bools(array: Any) -> Bools:
    return bools(array.buffers()[1], array.offset, len(array))


def _equal_lists(left: Any, right: Any, rows: Bools) -> Bools:
    """Compare lists of the same length element by element, all at once."""
    left_offsets, left_values = list_values(left)
    right_offsets, right_values = list_values(right)
    lengths = np.diff(left_offsets)
    equal: Bools = rows & (lengths == np.diff(right_offsets))
    filled = np.flatnonzero(equal & (lengths > 0))
    if len(filled) == 0:
        return equal
    lengths = lengths[filled]
    starts = np.cumsum(lengths) - lengths
    within = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    elements = equal_values(
        plain(left_values).take(pa.array(within + np.repeat(left_offsets[filled], lengths))),
        plain(right_values).take(pa.array(within + np.repeat(right_offsets[filled], lengths))),
    )
    equal[filled] = np.logical_and.reduceat(elements, starts)
    return equal
