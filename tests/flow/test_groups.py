"""Groups of a delta against a Python dict, with Spark's equality of keys."""

from __future__ import annotations

import struct
from collections.abc import Hashable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertide.flow.aggregates import groups as module
from evertide.flow.aggregates.groups import group_rows
from evertide.rows.digest import RowHashes
from tests.kit.arrow import canonical_rows, reencoded, tables

EXAMPLES = settings(max_examples=150, deadline=None)
NEGATIVE_ZERO = struct.pack("<d", -0.0)


def positive_zeros(value: Any) -> Hashable:
    """Of `canonical` values: only a float is stored as eight bytes with only the sign bit set."""
    if isinstance(value, tuple):
        return tuple(positive_zeros(each) for each in value)
    return struct.pack("<d", 0.0) if value == NEGATIVE_ZERO else value


def group_by_dict(rows: list[Hashable]) -> tuple[list[int], list[int]]:
    numbers: dict[Hashable, int] = {}
    found = [numbers.setdefault(row, len(numbers)) for row in rows]
    return found, [found.index(number) for number in range(len(numbers))]


def group(keys: pa.Table) -> tuple[list[int], list[int]]:
    groups, first = group_rows(keys)
    return groups.tolist(), first.tolist()


@EXAMPLES
@given(tables(), st.data())
def test_groups_equal_those_of_a_dict(table: Any, data: st.DataObject) -> None:
    keys = data.draw(reencoded(table))
    assert group(keys) == group_by_dict([positive_zeros(row) for row in canonical_rows(table)])


def test_spark_equality() -> None:
    nan, other_nan = np.array([0x7FF8 << 48, 0x7FF8 << 48 | 1], np.uint64).view(np.float64)
    flat = pa.array([nan, 0.0, None, -0.0, other_nan, None, 1.0])
    assert group(pa.table({"k": flat})) == ([0, 1, 2, 1, 0, 2, 3], [0, 1, 2, 6])
    lists = pa.array(
        [[nan, 0.0], [nan, -0.0], None, [None], [None, None], None, [other_nan, 0.0]], pa.list_(pa.float64())
    )
    assert group(pa.table({"k": lists})) == ([0, 0, 1, 2, 3, 1, 0], [0, 2, 3, 4])


def test_no_columns_are_one_group_and_no_rows_are_no_group() -> None:
    assert group(pa.table({"k": pa.array([1, 2])}).select([])) == ([0, 0], [0])
    assert group(pa.table({"k": pa.array([], pa.int64())})) == ([], [])


def test_keys_with_equal_hashes_are_compared_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_hash(table: Any) -> RowHashes:
        same = np.zeros(table.num_rows, np.uint64)
        return RowHashes(same, same)

    monkeypatch.setattr(module, "hash_rows", one_hash)
    keys = pa.table({"k": pa.array([[1], [2], [1], None, [3], [2]], pa.list_(pa.int64()))})
    assert group(keys) == ([0, 1, 0, 2, 3, 1], [0, 1, 3, 4])
