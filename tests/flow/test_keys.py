"""Key words: equal keys have equal words, close keys have close words; and which keys are equal."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertide.flow.state.key_words import SHARED_WORD, canonicalize, compare_keys, hash_keys, is_exact
from tests.flow.arranging import grouped
from tests.kit.arrow import canonical_rows, reencoded, tables

EXAMPLES = settings(max_examples=60, deadline=None)
NAN_WITH_PAYLOAD = np.array([0x7FF8_0000_0000_0001], np.uint64).view(np.float64)[0]


def words(*columns: Any) -> list[int]:
    found: list[int] = hash_keys(
        pa.Table.from_arrays(list(columns), names=[str(i) for i in range(len(columns))])
    ).tolist()
    return found


@EXAMPLES
@given(st.data())
def test_keys_that_spark_groups_are_equal_and_share_a_word(given_data: st.DataObject) -> None:
    table = given_data.draw(tables())
    other = given_data.draw(reencoded(table))
    found, again = hash_keys(table), hash_keys(other)
    assert found.tolist() == again.tolist(), "the physical form does not matter"
    groups = [grouped(row) for row in canonical_rows(table)]
    rows = range(table.num_rows)
    pairs = [(i, j) for i in rows for j in rows]
    left, right = (pa.array([pair[side] for pair in pairs], pa.int64()) for side in (0, 1))
    columns = [table.column(i).combine_chunks() for i in range(table.num_columns)]
    equal = compare_keys([column.take(left) for column in columns], [column.take(right) for column in columns])
    assert equal.tolist() == [groups[i] == groups[j] for i, j in pairs]
    assert all(found[i] == found[j] for (i, j), same in zip(pairs, equal, strict=True) if same)
    if is_exact([column.type for column in columns]):
        assert all(
            same or found[i] != found[j] or found[i] == SHARED_WORD for (i, j), same in zip(pairs, equal, strict=True)
        )
    assert found.dtype == np.int64
    assert (found <= SHARED_WORD).all(), "every word has a successor"


def test_a_single_integer_is_its_own_word() -> None:
    numbers = [0, 1, -1, 2**63 - 3, -(2**63)]
    assert words(pa.array(numbers, pa.int64())) == numbers
    assert words(pa.array([2**63 - 1, 2**63 - 2, None], pa.int64())) == [SHARED_WORD] * 3
    assert words(pa.array([5, 7], pa.uint8())) == [5, 7]
    assert words(pa.array([19_000, -1], pa.date32())) == [19_000, -1]
    assert words(pa.array([10**15, 10**15 + 1], pa.timestamp("us", "UTC"))) == [10**15, 10**15 + 1]
    amounts = [decimal.Decimal("12.34"), decimal.Decimal("-0.01")]
    assert words(pa.array(amounts, pa.decimal128(18, 2))) == words(pa.array(amounts, pa.decimal64(18, 2))) == [1234, -1]


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us"), pa.decimal128(18, 0)])
def test_close_keys_have_close_words_beside_other_columns(kind: Any) -> None:
    numbers = pa.array([1000 + i // 3 for i in range(300)], pa.int64())
    first = (
        pa.array([decimal.Decimal(number.as_py()) for number in numbers], kind)
        if pa.types.is_decimal(kind)
        else numbers
    )
    first = first.cast(kind)
    found = words(pa.array([f"name {i}" for i in range(300)]), first)
    assert [word >> 16 for word in found] == numbers.to_pylist()
    assert len(set(found)) > 290, "the other columns distinguish them"


def test_narrow_columns_leave_room_for_more_of_the_hash() -> None:
    """Of a status and a name, the name must decide, or each lookup would read a thousand times as many rows."""
    found = words(pa.array([i % 3 for i in range(30_000)], pa.int8()), pa.array([str(i) for i in range(30_000)]))
    assert len(set(found)) == 30_000
    assert {word >> 56 for word in found} == {0, 1, 2}


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_zeros_are_equal_at_any_depth(kind: Any) -> None:
    def both(array: Any) -> tuple[Any, Any]:
        return array.slice(0, 1), array.slice(1, 1)

    zeros = pa.array([np.float16(0.0), np.float16(-0.0)], pa.float16()).cast(kind)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), zeros)
    structs = pa.StructArray.from_arrays([lists, pa.array(["x", "x"])], names=["l", "s"])
    maps = pa.MapArray.from_arrays([0, 1, 2], pa.array(["k", "k"]), zeros)
    fixed = pa.FixedSizeListArray.from_arrays(zeros, 1)
    for array in (zeros, lists, lists.cast(pa.large_list(kind)), structs, maps, fixed):
        left, right = both(array)
        assert words(left) == words(right), array.type
        assert compare_keys([left], [right]).all()
        assert canonicalize(right).equals(left)


def test_nans_are_equal_and_nulls_are_equal() -> None:
    numbers = pa.array(np.array([np.nan, NAN_WITH_PAYLOAD, -np.nan]))
    assert len(set(words(numbers))) == 1
    assert compare_keys([numbers], [numbers.take(pa.array([2, 0, 1]))]).all()
    garbage = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\0"), pa.py_buffer(np.array([5, 6]))])
    assert words(garbage) == [SHARED_WORD] * 2
    assert compare_keys([garbage], [pa.nulls(2, pa.int64())]).all()
    assert not compare_keys([garbage], [pa.array([5, 6])]).any()


def test_words_are_stored_and_must_not_change() -> None:
    names = pa.array(["a", None, "ü"])
    assert words(names) == GOLDEN_NAMES
    assert words(pa.array([7, None, -1]), names) == GOLDEN_PAIRS
    assert words(pa.array([1.5, -0.0, None])) == GOLDEN_FLOATS


GOLDEN_NAMES = [-3294624898082140635, -2942986128384219479, -5127745359478201747]
GOLDEN_PAIRS = [462373, -88407, -7571]
GOLDEN_FLOATS = [-8614124520640452665, -2152535657050944081, -2942986128384219479]


def test_empty_input_has_no_words() -> None:
    assert hash_keys(pa.table({"a": pa.array([], pa.string())})).tolist() == []
    assert hash_keys(pa.table({"a": [1, 2]}).select([])).tolist() == [0, 0]
