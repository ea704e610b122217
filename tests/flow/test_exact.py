"""Exact numbers and their sums, against Python's fractions; and their stored encoding, which is pinned."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evertide.flow.aggregates import exact, limbs
from evertide.flow.aggregates.exact import (
    ExactNumbers,
    add,
    decode,
    divide,
    encode,
    is_zero,
    make_zeros,
    sum_terms,
    to_integers,
)
from evertide.flow.aggregates.limbs import GroupedRows, sum_longs, sum_products, sum_wide

EXAMPLES = settings(max_examples=150, deadline=None)
LARGEST = 1.7976931348623157e308
SMALLEST = 5e-324
GROUPS = 3


def fractions(encoded: Any) -> list[Fraction]:
    return [Fraction(integer) * Fraction(2) ** exponent for integer, exponent in to_integers(encoded)]


def nearest(number: Fraction) -> float:
    try:
        return number.numerator / number.denominator
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def bits(values: Iterable[float]) -> list[bytes]:
    return [struct.pack("<d", value) for value in values]


def as_rows(diffs: list[int], groups: list[int], count: int = GROUPS) -> GroupedRows:
    return GroupedRows(np.array(diffs, np.int64), np.array(groups, np.int64), count)


def edges(low: int, high: int) -> st.SearchStrategy[int]:
    return st.one_of(st.sampled_from([low, high, 0, 1, -1]), st.integers(-1000, 1000), st.integers(low, high))


LONGS = edges(-(2**63), 2**63 - 1)
DIFFS = st.one_of(st.sampled_from([1, 1, 1, -1]), st.integers(-300, 300), LONGS)
DOUBLES = st.one_of(
    st.sampled_from(
        [0.0, -0.0, 1.0, SMALLEST, -SMALLEST, LARGEST, -LARGEST, 2.0**53, 2.0**53 + 2, 2.2250738585072014e-308]
    ),
    st.floats(-1000, 1000),
    st.integers(-(2**53), 2**53).map(float),
    st.floats(allow_nan=False, allow_infinity=False),
)


def deltas(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[int, int, Any]]]:
    """Lists of (group, diff, value); all diffs of one kind, as some kinds have a code path of their own."""
    kinds = (st.just(1), st.sampled_from([1, -1]), st.integers(-300, 300), DIFFS)
    groups = st.integers(0, GROUPS - 1)
    return st.one_of(*(st.lists(st.tuples(groups, diffs, values), max_size=30) for diffs in kinds))


def expected(delta: list[tuple[int, int, Any]]) -> list[Fraction]:
    found = [Fraction(0)] * GROUPS
    for group, diff, value in delta:
        found[group] += diff * Fraction(value)
    return found


def unzip(delta: list[tuple[int, int, Any]]) -> tuple[GroupedRows, list[Any]]:
    return as_rows([diff for _, diff, _ in delta], [group for group, _, _ in delta]), [value for _, _, value in delta]


@EXAMPLES
@given(deltas(DOUBLES))
@example([(0, 1, LARGEST), (0, 1, LARGEST), (0, -1, LARGEST)])
@example([(0, 1, 1.0), (0, 1, 2.0**-53), (0, 1, SMALLEST)])
@example([(0, 2**63 - 1, LARGEST), (0, -(2**63), SMALLEST)])
def test_sums_of_doubles_are_exact_and_rounded_once(delta: list[tuple[int, int, float]]) -> None:
    rows, values = unzip(delta)
    found = sum_products([np.array(values, np.float64)], rows)
    assert fractions(found) == expected(delta)
    assert bits(decode(found).to_doubles()) == bits([nearest(number) for number in expected(delta)])


@EXAMPLES
@given(deltas(st.tuples(DOUBLES, DOUBLES)), st.integers(0, 3), st.integers(0, 3))
def test_sums_of_products_are_exact(delta: list[tuple[int, int, tuple[float, float]]], left: int, right: int) -> None:
    rows, pairs = unzip(delta)
    x, y = (np.array([pair[at] for pair in pairs], np.float64) for at in (0, 1))
    factors = [x] * (left + 1) + [y] * right
    products = [(group, diff, Fraction(a) ** (left + 1) * Fraction(b) ** right) for group, diff, (a, b) in delta]
    assert fractions(sum_products(factors, rows)) == expected(products)


@EXAMPLES
@given(deltas(LONGS))
@example([(0, -(2**63), -(2**63))] * 5)
@example([(0, 1, 2**53)] * 3 + [(0, 1, 1)])
def test_sums_of_longs_are_exact_and_detect_overflow(delta: list[tuple[int, int, int]]) -> None:
    rows, values = unzip(delta)
    found = sum_longs(np.array(values, np.int64), rows)
    wanted = [int(number) for number in expected(delta)]
    assert fractions(found) == wanted
    low, fits = decode(found).get_low_words(1)
    assert [int(word) for word in low[:, 0]] == [number % 2**64 for number in wanted]
    assert fits.tolist() == [-(2**63) <= number < 2**63 for number in wanted]


@EXAMPLES
@given(deltas(edges(-(10**38) + 1, 10**38 - 1)))
def test_sums_of_128_bits_are_exact_and_detect_overflow(delta: list[tuple[int, int, int]]) -> None:
    rows, values = unzip(delta)
    raw = b"".join(value.to_bytes(16, "little", signed=True) for value in values)
    found = sum_wide(np.frombuffer(raw, np.uint64).reshape(-1, 2), rows)
    wanted = [int(number) for number in expected(delta)]
    assert fractions(found) == wanted
    low, fits = decode(found).get_low_words(2)
    assert [int(a) + (int(b) << 64) for a, b in low] == [number % 2**128 for number in wanted]
    assert fits.tolist() == [-(2**127) <= number < 2**127 for number in wanted]


@EXAMPLES
@given(deltas(st.just(1)))
def test_tally_is_the_sum_of_diffs(delta: list[tuple[int, int, int]]) -> None:
    assert fractions(unzip(delta)[0].tally) == expected(delta)


@pytest.mark.parametrize("rows", [0, 1, 4096, 4097])
def test_many_equal_terms_do_not_overflow_a_double(rows: int) -> None:
    """The widths of limbs depend on the number of rows: the largest values at each boundary."""
    ones = as_rows([1] * rows, [0] * rows, 1)
    largest = np.full(rows, 2**63 - 1)
    assert fractions(sum_longs(largest, ones)) == [rows * (2**63 - 1)]
    assert fractions(sum_products([np.full(rows, 0.1)], ones)) == [rows * Fraction(0.1)]


@pytest.mark.parametrize("diff", [1, 3, 2**40 + 1])
def test_sums_of_more_rows_than_a_block_are_exact(diff: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = as_rows([diff] * 10, [0, 1] * 5, 2)
    values = np.array([0.1, 1e300, -7.0, 1e-300, 2.0] * 2)
    before = sum_products([values], whole), sum_longs(np.arange(10) << 59, whole), whole.tally
    monkeypatch.setattr(limbs, "_BLOCK_ROWS", 3)
    blocks = as_rows([diff] * 10, [0, 1] * 5, 2)
    assert (sum_products([values], blocks), sum_longs(np.arange(10) << 59, blocks), blocks.tally) == before


GOLDEN: list[tuple[Fraction, str]] = [
    (Fraction(0), ""),
    (Fraction(1), "000001"),
    (Fraction(-1), "0000ff"),
    (Fraction(127), "00007f"),
    (Fraction(128), "00008000"),
    (Fraction(-128), "000080"),
    (Fraction(-129), "00007fff"),
    (Fraction(256), "010001"),
    (Fraction(-256), "0100ff"),
    (Fraction(2**64), "080001"),
    (Fraction(258), "00000201"),
    (Fraction(1, 2), "ffff8000"),
    (Fraction(3, 256), "ffff03"),
    (Fraction(SMALLEST), "79ff40"),
]


@pytest.mark.parametrize(("number", "stored"), GOLDEN, ids=str)
def test_encoding_is_pinned(number: Fraction, stored: str) -> None:
    value = np.array([float(number)])
    found = sum_products([value], as_rows([1], [0], 1))
    assert found.to_pylist() == [bytes.fromhex(stored)]
    assert fractions(found) == [number]
    assert add(make_zeros(1), found) == add(found, make_zeros(1)) == found
    assert add(sum_products([value * 2], as_rows([1], [0], 1)), sum_products([value], as_rows([-1], [0], 1))) == found


@EXAMPLES
@given(st.lists(deltas(DOUBLES), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_adding_has_the_same_result_in_any_order_and_grouping(
    parts: list[list[tuple[int, int, float]]], chance: Any
) -> None:
    def sum_delta(delta: list[tuple[int, int, float]]) -> Any:
        rows, values = unzip(delta)
        return sum_products([np.array(values, np.float64)], rows)

    whole = sum_delta([row for part in parts for row in part])
    shuffled = [sum_delta(part) for part in chance.sample(parts, len(parts))]
    for few, digits in ((64, 1 << 22), (0, 1 << 22), (0, 2)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exact, "_FEW", few)
            patch.setattr(exact, "_DIGITS_MAX", digits)
            total = make_zeros(GROUPS)
            for part in shuffled:
                total = add(total, part)
            assert total == whole
            assert sum_delta([row for part in parts for row in part]) == whole
    assert encode(decode(whole)) == whole


@EXAMPLES
@given(deltas(DOUBLES))
def test_a_sum_and_its_negative_leave_no_byte(delta: list[tuple[int, int, float]]) -> None:
    rows, values = unzip(delta)
    found = sum_products([np.array(values, np.float64)], rows)
    back = sum_products([-np.array(values, np.float64)], rows)
    assert is_zero(add(found, back))
    assert add(found, back) == make_zeros(GROUPS)


def test_slices_are_read_with_their_offset() -> None:
    padded = sum_longs(np.array([5, -300, 2**62, 7]), as_rows([1] * 4, [0, 1, 2, 3], 4))
    part = padded[1:3]
    assert fractions(part) == [-300, 2**62]
    assert fractions(add(part, part)) == [-600, 2**63]
    assert encode(decode(part)) == part
    assert is_zero(pa.concat_arrays([padded, make_zeros(3)])[4:])


def test_empty_input_has_empty_sums() -> None:
    nothing = as_rows([], [], 0)
    assert len(sum_products([np.empty(0)], nothing)) == len(sum_longs(np.empty(0, np.int64), nothing)) == 0
    assert encode(sum_terms((), 2)) == make_zeros(2) == as_rows([], [], 2).tally
    assert ExactNumbers(np.zeros((1, 2), np.int64), 0).to_doubles().tolist() == [0.0, 0.0]


@EXAMPLES
@given(st.integers(-(2**200), 2**200), st.integers(1, 2**70), st.integers(-1300, 1100))
def test_ratio_is_the_nearest_double(numerator: int, denominator: int, exponent: int) -> None:
    number = Fraction(numerator, denominator) * Fraction(2) ** exponent
    assert bits([divide(numerator, denominator, exponent)]) == bits([nearest(number)])
