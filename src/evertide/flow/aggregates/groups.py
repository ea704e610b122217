"""Groups the rows of a delta by key, as Spark does.

NULL equals NULL, any NaN any NaN, -0.0 equals 0.0, also inside structs and lists; otherwise keys are equal bit by
bit. Values with equal hashes are always compared: by Arrow's hash table, or for nested values by `compare_rows`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from evertide.flow.state.key_words import canonicalize
from evertide.rows.columns import FIXED, WIDE, Longs, read_bits, read_validity, remove_encoding, to_array
from evertide.rows.digest import compare_rows, hash_rows


def group_rows(keys: pa.Table) -> tuple[Longs, Longs]:
    """The number of each row's group, from 0 in order of appearance, and the first row of each group."""
    found = np.zeros(keys.num_rows, np.int64)
    for at, column in enumerate(keys.columns):
        numbers = _number_values(remove_encoding(canonicalize(to_array(column))))
        found = _combine(found, numbers) if at else numbers
    return found, _find_first_rows(found)


def _combine(left: Longs, right: Longs) -> Longs:
    """Number pairs of numbers. Both are below the number of rows, so a pair fits into 64 bits."""
    return _number(pa.array(left * (right.max() + 1) + right)) if len(right) else right


def _number_values(array: Any) -> Longs:
    kind = array.type.id
    if kind == pa.lib.Type_NA:
        return np.zeros(len(array), np.int64)
    if pa.types.is_nested(array.type):
        return _number_nested(array)
    if len(array) == 0:
        return np.empty(0, np.int64)
    if kind in FIXED:
        valid = read_validity(array)
        return _number(pa.array(read_bits(array), mask=None if valid is None else ~valid))
    return _number(array.view(pa.binary(8 * WIDE[kind])) if kind in WIDE else array)


def _number(array: Any) -> Longs:
    """Number values in order of appearance with Arrow's hash table, including NULL."""
    return np.asarray(array.dictionary_encode(null_encoding="encode").indices).astype(np.int64)


def _find_first_rows(numbers: Longs) -> Longs:
    """The rows whose number is larger than all before, since groups are numbered in order of appearance."""
    if len(numbers) == 0:
        return numbers
    largest = np.maximum.accumulate(numbers)
    return np.flatnonzero(np.concatenate(([True], largest[1:] > largest[:-1])))


def _number_nested(array: Any) -> Longs:
    """Compare rows with the first row of the same hash; rows that differ are compared in another round."""
    table = pa.Table.from_arrays([array], names=["key"])
    hashes = hash_rows(table).high
    alike = np.empty(len(array), np.int64)
    rest = np.arange(len(array))
    while len(rest):
        numbers = _number(pa.array(hashes[rest]))
        first = rest[_find_first_rows(numbers)][numbers]
        equal = compare_rows(table, first, rest)
        alike[rest[equal]] = first[equal]
        rest = rest[~equal]
    return _number(pa.array(alike))
