"""Accumulators that count and add: RowCount, Count, Sum, Average, BitXorAgg.

`ExactSum` adds integers, durations and unscaled decimals as integers. `RealSum` adds floats and doubles exactly; it is
also used for averages of integers, which Spark casts to double first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.errors import InvalidInput
from evertide.flow.aggregates import exact
from evertide.flow.aggregates.accumulator import (
    Accumulator,
    DescribeGroup,
    decode_counts,
    make_exact_field,
    select_contributing,
    to_doubles,
    to_longs,
    to_state_column,
    to_words,
)
from evertide.flow.aggregates.limbs import GroupedRows, sum_longs, sum_products, sum_wide
from evertide.rows.columns import Bools, Words, remove_encoding, to_array


class Layout(Enum):
    """The fields of the buffer, which differ in how they represent a sum of nothing."""

    SUM = ("sum",)
    SUM_IS_EMPTY = ("sum", "isEmpty")
    SUM_COUNT = ("sum", "count")


class Overflow(Enum):
    """The result of a sum that does not fit its type."""

    RAISES = "raises"
    IS_NULL = "is NULL"
    WRAPS = "wraps"


@dataclass(frozen=True)
class RowCount(Accumulator):
    """The number of rows of a group; the group exists while it is not zero."""

    function: str = "RowCount"

    @property
    def state(self) -> tuple[Any, ...]:
        return (make_exact_field("rows"),)

    @property
    def buffer(self) -> tuple[Any, ...]:
        return ()

    def accumulate(self, args: Sequence[Any], rows: GroupedRows, mask: Bools | None = None) -> list[Any]:  # noqa: ARG002 - none
        return [rows.tally]

    def finish(self, state: Sequence[Any], where: DescribeGroup) -> list[Any]:
        decode_counts(state[0], where)
        return []


@dataclass(frozen=True)
class ValueCount(Accumulator):
    """Rows in which no argument is NULL."""

    @property
    def state(self) -> tuple[Any, ...]:
        return (make_exact_field("count"),)

    @property
    def buffer(self) -> tuple[Any, ...]:
        return (pa.field("count", pa.int64(), nullable=False),)

    def accumulate(self, args: Sequence[Any], rows: GroupedRows, mask: Bools | None = None) -> list[Any]:
        return [select_contributing(args, rows, mask)[1].tally]

    def finish(self, state: Sequence[Any], where: DescribeGroup) -> list[Any]:
        return [pa.array(decode_counts(state[0], where))]


@dataclass(frozen=True)
class ExactSum(Accumulator):
    """Sum and Average of integers. `result` is the type of `sum` in the buffer."""

    result: Any
    layout: Layout
    overflow: Overflow

    @property
    def state(self) -> tuple[Any, ...]:
        return make_exact_field("count"), make_exact_field("sum")

    @cached_property
    def buffer(self) -> tuple[Any, ...]:
        return _make_sum_buffer(self.result, self.layout)

    def accumulate(self, args: Sequence[Any], rows: GroupedRows, mask: Bools | None = None) -> list[Any]:
        (array,), rows, kept = select_contributing(args, rows, mask)
        if pa.types.is_decimal128(array.type) and array.type.precision > 18:
            return [rows.tally, sum_wide(to_words(array)[kept], rows)]
        return [rows.tally, sum_longs(to_longs(array)[kept], rows)]

    def finish(self, state: Sequence[Any], where: DescribeGroup) -> list[Any]:
        held = decode_counts(state[0], where)
        is_decimal = pa.types.is_decimal(self.result)
        found, fits = exact.decode(to_state_column(state[1])).get_low_words(2 if is_decimal else 1)
        if is_decimal:
            fits &= _has_digits(found, self.result.precision)
        if self.overflow is Overflow.RAISES and not fits.all():
            self._refuse(state[1], where, int(np.argmin(fits)))
        valid = fits | (self.overflow is Overflow.WRAPS)
        if self.layout is Layout.SUM:
            valid = valid & (held > 0)
        total = _make_array(self.result, found, valid)
        return [total] if self.layout is Layout.SUM else [total, _make_second_field(self.layout, held)]

    def _refuse(self, sums: Any, where: DescribeGroup, group: int) -> None:
        integer, exponent = exact.to_integers(to_state_column(sums)[group : group + 1])[0]
        scale = f" (unscaled, of scale {self.result.scale})" if pa.types.is_decimal(self.result) else ""
        why = f"{self.function} is {integer << exponent}{scale}, which does not fit the type {self.result}"
        raise InvalidInput(where=where(group), why=why)


@dataclass(frozen=True)
class RealSum(Accumulator):
    """Sum and Average of doubles."""

    layout: Layout

    @property
    def state(self) -> tuple[Any, ...]:
        return tuple(
            make_exact_field(name) for name in ("count", "sum", "nan", "positive_infinity", "negative_infinity")
        )

    @cached_property
    def buffer(self) -> tuple[Any, ...]:
        return _make_sum_buffer(pa.float64(), self.layout)

    def accumulate(self, args: Sequence[Any], rows: GroupedRows, mask: Bools | None = None) -> list[Any]:
        (array,), rows, kept = select_contributing(args, rows, mask)
        values = to_doubles(array)[kept]
        finite = np.isfinite(values)
        if finite.all():
            none = exact.make_zeros(rows.count)
            return [rows.tally, sum_products([values], rows), none, none, none]
        apart = (np.isnan(values), values == np.inf, values == -np.inf)
        total = sum_products([values[finite]], rows.take(finite))
        return [rows.tally, total, *(rows.take(which).tally for which in apart)]

    def finish(self, state: Sequence[Any], where: DescribeGroup) -> list[Any]:
        held = decode_counts(state[0], where)
        nan, positive, negative = (decode_counts(found, where) > 0 for found in state[2:])
        found = exact.decode(to_state_column(state[1])).to_doubles()
        found[positive] = np.inf
        found[negative] = -np.inf
        found[nan | (positive & negative)] = np.nan
        if self.layout is Layout.SUM:
            return [pa.array(found, mask=held == 0)]
        return [pa.array(found), _make_second_field(self.layout, held)]


@dataclass(frozen=True)
class Xor(Accumulator):
    """Exclusive or is its own inverse: only whether a diff is odd counts."""

    kind: Any

    @property
    def state(self) -> tuple[Any, ...]:
        return make_exact_field("count"), pa.field("xor", self.kind, nullable=False)

    @property
    def buffer(self) -> tuple[Any, ...]:
        return (pa.field("bit_xor", self.kind),)

    def accumulate(self, args: Sequence[Any], rows: GroupedRows, mask: Bools | None = None) -> list[Any]:
        (array,), rows, kept = select_contributing(args, rows, mask)
        odd = (rows.diffs & 1).astype(np.bool_)
        found = np.zeros(rows.count, np.int64)
        np.bitwise_xor.at(found, rows.groups[odd], to_longs(array)[kept][odd])
        return [rows.tally, self._make_array(found)]

    def merge(self, left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
        one, other = (to_longs(remove_encoding(to_array(state[1]))) for state in (left, right))
        return [*super().merge(left[:1], right[:1]), self._make_array(one ^ other)]

    def make_zero(self, count: int) -> list[Any]:
        return [exact.make_zeros(count), self._make_array(np.zeros(count, np.int64))]

    def finish(self, state: Sequence[Any], where: DescribeGroup) -> list[Any]:
        held = decode_counts(state[0], where)
        return [pa.array(to_longs(remove_encoding(to_array(state[1]))), mask=held == 0).cast(self.kind)]

    def _make_array(self, found: Any) -> Any:
        return pa.array(found).cast(self.kind)


def _make_sum_buffer(result: Any, layout: Layout) -> tuple[Any, ...]:
    total = pa.field("sum", result)
    if layout is Layout.SUM:
        return (total,)
    if layout is Layout.SUM_IS_EMPTY:
        return total, pa.field("isEmpty", pa.bool_(), nullable=False)
    return total, pa.field("count", pa.int64())


def _make_second_field(layout: Layout, held: Any) -> Any:
    return pa.array(held == 0) if layout is Layout.SUM_IS_EMPTY else pa.array(held)


def _has_digits(found: Words, digits: int) -> Bools:
    """Whether integers of two words have at most this number of decimal digits."""
    bound = 10**digits
    low, high = found[:, 0], found[:, 1].view(np.int64)

    def is_less(limit: int) -> Bools:
        limit_high, limit_low = limit >> 64, np.uint64(limit & 0xFFFF_FFFF_FFFF_FFFF)
        under: Bools = (high < limit_high) | ((high == limit_high) & (low < limit_low))
        return under

    return is_less(bound) & ~is_less(1 - bound)


def _make_array(kind: Any, found: Words, valid: Bools) -> Any:
    """An Arrow array over words in its memory layout."""
    mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(found), [mask, pa.py_buffer(np.ascontiguousarray(found))])
