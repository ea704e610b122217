"""Exact sums of a delta per group, in numpy, without a loop over rows.

Doubles represent integers up to 2^53 exactly, and `np.bincount` is the fastest way to sum them per group in numpy. So

1. the values of all rows are cut into *limbs*: integers of few bits, as doubles, with a common power of two per limb;
2. products (of arguments, and with diffs other than +-1) are computed limb by limb, with carries;
3. each limb is summed per group; sums stay below 2^53, so nothing is rounded;
4. the limbs of each group are combined to one exact number.

Doubles with very different exponents would need many limbs, nearly all zero, so such rows are split into *windows*.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.flow.aggregates.exact import Doubles, encode, is_too_large, sum_terms
from evertide.rows.columns import Longs, Words

_EXACT = 53
_WIDTHS = (40, 32, 24)
_PRODUCT_WIDTH = 24
_WINDOW = 64
_BLOCK_ROWS = 1 << 20

_Terms = list[tuple[Longs, int]]


@dataclass(frozen=True, eq=False)
class GroupedRows:
    """The diffs of the rows of a delta, and the numbers of their groups, below `count`."""

    diffs: Longs
    groups: Longs
    count: int

    def take(self, rows: Any) -> GroupedRows:
        """Only these rows, by number, slice or mask."""
        return GroupedRows(self.diffs[rows], self.groups[rows], self.count)

    @cached_property
    def has_only_ones(self) -> bool:
        return bool((self.diffs == 1).all())

    @cached_property
    def weights(self) -> Doubles:
        return self.diffs.astype(np.float64)

    @cached_property
    def exact_bits(self) -> int:
        """How many bits a value may have so that the sum of value * diff over all rows is exact as a double."""
        return self.unweighted_bits - (_count_bits(self.diffs) if len(self.diffs) else 0)

    @property
    def unweighted_bits(self) -> int:
        """The same without diffs."""
        return _EXACT - len(self.diffs).bit_length()

    @cached_property
    def tally(self) -> Any:
        """The encoded sum of diffs per group."""
        terms: _Terms = []
        for block in _iterate_blocks(self):
            if block.has_only_ones:
                terms.append((np.bincount(block.groups, minlength=self.count), 0))
            else:
                terms += _sum_limbs(_cut_longs(block.diffs, block.unweighted_bits), block, is_weighted=True)
        return encode(sum_terms(terms, self.count))


@dataclass(frozen=True, eq=False)
class _Limbs:
    """The value of row i is the sum over j of values[j][i] * 2^(width j + shift)."""

    values: list[Doubles]
    width: int
    shift: int


def sum_longs(values: Longs, rows: GroupedRows) -> Any:
    """Per group the sum of value * diff, encoded."""
    terms: _Terms = []
    for part, block in _split_blocks(rows):
        limbs = _cut_longs(values[part], block.exact_bits)
        terms += _sum_limbs(limbs, block)
    return encode(sum_terms(terms, rows.count))


def sum_wide(words: Words, rows: GroupedRows) -> Any:
    """The same for integers of 128 bits, given as two words each, the lower first."""
    low, high = words[:, 0], words[:, 1].view(np.int64)
    if np.array_equal(low.view(np.int64) >> 63, high):
        return sum_longs(low.view(np.int64), rows)
    terms: _Terms = []
    for part, block in _split_blocks(rows):
        limbs = _cut_wide(low[part], high[part], _choose_width(block.exact_bits))
        terms += _sum_limbs(limbs, block)
    return encode(sum_terms(terms, rows.count))


def sum_products(factors: Sequence[Doubles], rows: GroupedRows) -> Any:
    """Per group the sum of the product of the factors * diff, encoded. All factors are finite."""
    if is_too_large(_estimate_digits(factors), rows.count):
        return _sum_by_halves(factors, rows)
    terms: _Terms = []
    for part, block in _split_blocks(rows):
        for window in _split_windows([factor[part] for factor in factors]):
            inside = block if isinstance(window, slice) else block.take(window)
            exact_bits = inside.exact_bits if len(factors) == 1 else 0
            cut = [_cut_doubles(factor[part][window], exact_bits) for factor in factors]
            terms += _sum_limbs(reduce(_multiply, cut), inside)
    return encode(sum_terms(terms, rows.count))


def _estimate_digits(factors: Sequence[Doubles]) -> int:
    """An estimate of the number of 32-bit digits of the sums; 0 if one window is enough."""
    ranges = [_find_range(factor) for factor in factors if len(factor)]
    spread = sum(math.frexp(largest)[1] - math.frexp(smallest)[1] for smallest, largest in ranges)
    return spread // 32 if spread > _WINDOW * len(factors) else 0


def _sum_by_halves(factors: Sequence[Doubles], rows: GroupedRows) -> Any:
    half = rows.count // 2
    found = []
    for first, end in ((0, half), (half, rows.count)):
        at = np.flatnonzero((rows.groups >= first) & (rows.groups < end))
        inside = GroupedRows(rows.diffs[at], rows.groups[at] - first, end - first)
        found.append(sum_products([factor[at] for factor in factors], inside))
    return pa.concat_arrays(found)


def _split_blocks(rows: GroupedRows) -> Iterator[tuple[slice, GroupedRows]]:
    """Blocks of rows, which bound memory and the bits of a sum. No rows have no block."""
    for start in range(0, len(rows.diffs), _BLOCK_ROWS):
        part = slice(start, start + _BLOCK_ROWS)
        yield part, (rows if len(rows.diffs) <= _BLOCK_ROWS else rows.take(part))


def _iterate_blocks(rows: GroupedRows) -> Iterator[GroupedRows]:
    return (block for _, block in _split_blocks(rows))


def _split_windows(factors: Sequence[Doubles]) -> Iterator[Any]:
    """Sets of rows in which exponents of a factor differ little. Rows with a factor 0 may be omitted."""
    if all(_is_in_window(factor) for factor in factors):
        yield slice(None)
        return
    rows = np.flatnonzero(np.logical_and.reduce([factor != 0 for factor in factors]))
    keys = np.stack([np.frexp(factor[rows])[1] // _WINDOW for factor in factors])
    _, window = np.unique(keys, axis=1, return_inverse=True)
    order = np.argsort(window.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(window.ravel()))
    yield from (rows[found] for found in np.split(order, ends[:-1]) if len(found))


def _is_in_window(values: Doubles) -> bool:
    smallest, largest = _find_range(values)
    return math.frexp(largest)[1] - math.frexp(smallest)[1] <= _WINDOW


def _find_range(values: Doubles) -> tuple[float, float]:
    """The smallest and largest magnitude that are not zero, or twice 0."""
    magnitudes = np.abs(values)
    largest = float(magnitudes.max())
    smallest = float(magnitudes.min())
    if smallest == 0.0 and largest > 0.0:
        smallest = float(magnitudes.min(where=magnitudes > 0, initial=np.inf))
    return smallest, largest


def _count_bits(values: Longs) -> int:
    """The smallest n such that no magnitude is above 2^n, for at least one value."""
    return (max(int(values.max()), -int(values.min()), 1) - 1).bit_length()


def _choose_width(exact_bits: int) -> int:
    return next((width for width in _WIDTHS if width <= exact_bits), _PRODUCT_WIDTH)


def _cut_longs(values: Longs, exact_bits: int) -> _Limbs:
    bits = _count_bits(values)
    if bits <= exact_bits:
        return _Limbs([values.astype(np.float64)], exact_bits, 0)
    width, at, found = _choose_width(exact_bits), 0, []
    while bits - at > width:
        found.append(((values >> at) & ((1 << width) - 1)).astype(np.float64))
        at += width
    found.append((values >> at).astype(np.float64))
    return _Limbs(found, width, 0)


def _cut_wide(low: Words, high: Longs, width: int) -> _Limbs:
    mask, found = np.int64((1 << width) - 1), []
    for at in range(0, 128, width):
        if at >= 64:
            limb = high >> (at - 64)
        elif at + width <= 64:
            limb = (low >> np.uint64(at)).view(np.int64)
        else:
            limb = (low >> np.uint64(at)).view(np.int64) | (high << (64 - at))
        found.append((limb & mask if at + width < 128 else limb).astype(np.float64))
    return _Limbs(found, width, 0)


def _cut_doubles(values: Doubles, exact_bits: int) -> _Limbs:
    """As integers times a power of two, all exact: dividing by a power of two, cutting, and taking off what was cut."""
    smallest, largest = _find_range(values)
    if largest == 0.0:
        return _Limbs([np.zeros(len(values))], _PRODUCT_WIDTH, 0)
    shift = max(math.frexp(smallest)[1] - _EXACT, -1074) // 8 * 8
    if shift < 0 and largest < 2.0**_EXACT and np.array_equal(np.trunc(values), values):
        shift = 0
    bits = math.frexp(largest)[1] - shift
    rest = np.ldexp(values, -shift) if shift else values
    if bits <= exact_bits:
        return _Limbs([rest], exact_bits, shift)
    width, found = _choose_width(exact_bits), []
    for at in range((bits - 1) // width, 0, -1):
        scale = 2.0 ** (width * at)
        limb = np.trunc(rest * (1.0 / scale))
        rest = rest - limb * scale
        found.append(limb)
    return _Limbs([rest, *reversed(found)], width, shift)


def _multiply(left: _Limbs, right: _Limbs) -> _Limbs:
    """Of limbs of 24 bits: 2^48 per product, and at most 31 of them per place."""
    found: list[Doubles] = []
    carry: Any = 0.0
    scale = 2.0**_PRODUCT_WIDTH
    for place in range(len(left.values) + len(right.values) - 1):
        total = carry
        for at in range(max(0, place - len(right.values) + 1), min(place + 1, len(left.values))):
            total = total + left.values[at] * right.values[place - at]
        carry = np.trunc(total * (1.0 / scale))
        found.append(total - carry * scale)
    return _Limbs([*found, carry], _PRODUCT_WIDTH, left.shift + right.shift)


def _sum_limbs(limbs: _Limbs, rows: GroupedRows, *, is_weighted: bool = False) -> _Terms:
    """Sum each limb per group, times the diff unless `is_weighted`."""
    weights = None
    if not is_weighted and not rows.has_only_ones:
        if limbs.width <= rows.exact_bits:
            weights = rows.weights
        else:
            limbs = _multiply(limbs, _cut_longs(rows.diffs, 0))
    return [
        (
            np.bincount(rows.groups, values if weights is None else values * weights, rows.count).astype(np.int64),
            limbs.shift + limbs.width * at,
        )
        for at, values in enumerate(limbs.values)
    ]
