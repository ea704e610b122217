"""A column of rows that the executors condense: how rows are grouped by it, what is measured, and how it is decoded.

`evertide.plan.fragment.condenser` has the rules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.plan.catalyst.catalyst import Catalyst
from evertide.rows.columns import Bools, Longs, Words, read_wide_words
from evertide.rows.conform import list_fields

_LIMB_BITS = 24
_LIMBS = {pa.int8(): 1, pa.int16(): 1, pa.int32(): 2, pa.int64(): 3}
_LONG_DIGITS_MAX = 18
_SUM_DIGITS_MAX = 28
"""Spark's sum of a decimal has ten digits more, and at most 38."""
_INTEGER_BITS_MAX = 53
"""Integers of up to this number of bits are exact as doubles."""


class ColumnUse(Enum):
    """What the reader needs of a column."""

    VALUE = "value"
    SUM = "sum"
    SUM_AS_DOUBLE = "sum as double"
    """The sum of the values, each of them cast to double."""
    COUNT = "count"


def is_summed(kind: Any) -> bool:
    """Whether values of an Arrow type can be summed in limbs."""
    return kind in _LIMBS or kind in _FLOATS or (pa.types.is_decimal128(kind) and kind.precision <= _SUM_DIGITS_MAX)


def make_condensed_column(catalyst: Catalyst, field: Any, use: ColumnUse) -> CondensedColumn:
    """The column for a use. The caller sums only types that `is_summed`."""
    is_float = field.type in _FLOATS
    if use is ColumnUse.VALUE:
        return GroupedFloats(catalyst, field) if is_float else GroupedValues(catalyst, field)
    if use is ColumnUse.COUNT:
        return CountedValues(catalyst, field)
    if is_float:
        return SummedFloats(catalyst, field)
    return SummedValues(catalyst, field, is_exact_as_double=use is ColumnUse.SUM_AS_DOUBLE)


Rows = Iterable[tuple[Any, Longs]]
"""Rows beside the base: the value of the column, and the diff, in each group."""


@dataclass(frozen=True)
class CondensedColumn(ABC):
    catalyst: Catalyst
    field: Any
    """Of the schema of the rows."""

    is_grouped = False
    """Whether rows are grouped by the column."""
    measures = 0
    """The number of aggregate functions over the column."""

    def group(self, column: Any) -> Any:
        """The expression by which rows are grouped."""
        return column

    def measure(self, column: Any) -> list[Any]:  # noqa: ARG002 - nothing
        """The aggregate functions, as expressions."""
        return []

    @abstractmethod
    def make_base(self, group: Any, count: int) -> Any:
        """The values of the base, from those that the rows are grouped by."""

    def read(self, group: Any, measures: Sequence[Any], count: int) -> Rows | None:  # noqa: ARG002 - nothing
        """The rows beside the base; None if the rows of the run cannot be condensed."""
        return ()

    @abstractmethod
    def restore(self, group: Any, measures: Sequence[Any], count: int) -> Any:
        """The values of the column in groups of one row."""

    def _aggregate(self, name: str, *arguments: Any) -> Any:
        return self.catalyst.aggregate_expression(self.catalyst.expression(f"aggregate.{name}", *arguments))

    def _count(self, column: Any) -> Any:
        return self._aggregate("Count", self.catalyst.seq([column]))

    def _add_up(self, column: Any) -> Any:
        return self._aggregate("Sum", column, self.catalyst.numeric_context)

    def _cut(self, long: Any, at: int, bits: int | None) -> Any:
        """The bits of a BIGINT from `at` on; None for all, with the sign."""
        make = self.catalyst
        found = make.expression("ShiftRight", long, make.literal(at)) if at else long
        return found if bits is None else make.expression("BitwiseAnd", found, make.make_long((1 << bits) - 1))


@dataclass(frozen=True)
class GroupedValues(CondensedColumn):
    """Rows are grouped by the values."""

    is_grouped = True

    def make_base(self, group: Any, count: int) -> Any:  # noqa: ARG002 - of all columns
        return group

    def restore(self, group: Any, measures: Sequence[Any], count: int) -> Any:  # noqa: ARG002 - nothing
        return group


@dataclass(frozen=True)
class CountedValues(CondensedColumn):
    """The values that are not NULL are counted."""

    measures = 1

    def measure(self, column: Any) -> list[Any]:
        return [self._count(column)]

    def make_base(self, group: Any, count: int) -> Any:  # noqa: ARG002 - not grouped
        return pa.nulls(count, self.field.type)

    def read(self, group: Any, measures: Sequence[Any], count: int) -> Rows:  # noqa: ARG002 - not grouped
        [held] = measures
        return [(_make_valid(self.field.type, count), held.to_numpy())]

    def restore(self, group: Any, measures: Sequence[Any], count: int) -> Any:  # noqa: ARG002 - not grouped
        [held] = measures
        nothing = pa.nulls(count, self.field.type)
        is_held = held.to_numpy() > 0
        return pa.concat_arrays([nothing, _make_valid(self.field.type, count)]).take(
            pa.array(np.arange(count) + count * is_held)
        )


def _make_valid(kind: Any, count: int) -> Any:
    """Values of an Arrow type that are not NULL. Spark's First of a text would make it sort all rows."""
    if pa.types.is_struct(kind):
        return pa.Array.from_buffers(kind, count, [None], children=[_make_valid(each.type, count) for each in kind])
    children = [pa.nulls(0, each.type) for each in list_fields(kind)] if pa.types.is_nested(kind) else None
    values = pa.nulls(count, kind).buffers()[1 : kind.num_buffers]
    return pa.Array.from_buffers(kind, count, [None, *values], children=children)


@dataclass(frozen=True)
class SummedValues(CondensedColumn):
    """Integers and decimals are added up in limbs."""

    is_exact_as_double: bool
    """Whether each value must be exact as a double."""

    @property
    def measures(self) -> int:  # type: ignore[override]
        return (1 if self._is_wide else self._limbs) + bool(self.field.nullable) + 2 * self.is_exact_as_double

    def measure(self, column: Any) -> list[Any]:
        make = self.catalyst
        found = [self._aggregate(name, column) for name in ("Min", "Max") if self.is_exact_as_double]
        found += [self._count(column)] if self.field.nullable else []
        if self._is_wide:
            return [*found, self._add_up(column)]
        is_decimal = pa.types.is_decimal(self.field.type)
        long = make.expression("UnscaledValue", column) if is_decimal else make.cast(column, "LongType")
        for place in range(self._limbs):
            bits = _LIMB_BITS if place < self._limbs - 1 else None
            found.append(self._add_up(self._cut(long, _LIMB_BITS * place, bits)))
        return found

    def make_base(self, group: Any, count: int) -> Any:  # noqa: ARG002 - not grouped
        return pa.nulls(count, self.field.type) if self.field.nullable else self._repeat(0, count)

    def read(self, group: Any, measures: Sequence[Any], count: int) -> Rows | None:  # noqa: ARG002 - not grouped
        columns = iter(measures)
        if self.is_exact_as_double and not all([_are_exact(next(columns)), _are_exact(next(columns))]):
            return None
        if self._is_wide and self._has_overflow(measures):
            return None
        return self._read_sums(columns, count)

    def _has_overflow(self, measures: Sequence[Any]) -> bool:
        """Whether Spark's sum of a group with values is NULL, as it exceeds 38 digits."""
        is_null = measures[-1].is_null().to_numpy(zero_copy_only=False)
        return bool((is_null & (measures[-2].to_numpy() > 0)).any() if self.field.nullable else is_null.any())

    def restore(self, group: Any, measures: Sequence[Any], count: int) -> Any:  # noqa: ARG002 - not grouped
        columns = measures[2 * self.is_exact_as_double :]
        is_null = columns[0].to_numpy() == 0 if self.field.nullable else np.zeros(count, np.bool_)
        limbs = columns[bool(self.field.nullable) :]
        if self._is_wide:
            return limbs[0].cast(self.field.type)
        value = np.zeros(count, np.int64)
        for place, limb in enumerate(limbs):
            value += limb.fill_null(0).to_numpy() << (_LIMB_BITS * place)
        return _make_integers(value, is_null, self.field.type)

    def _read_sums(self, columns: Iterator[Any], count: int) -> Rows:
        held: Longs | None = next(columns).to_numpy() if self.field.nullable else None
        for place, diffs in enumerate(self._read_limbs(columns)):
            held = None if held is None else held - diffs
            yield self._repeat(1 << (_LIMB_BITS * place), count), diffs
        if held is not None:
            yield self._repeat(0, count), held

    @cached_property
    def _limbs(self) -> int:
        """The number of limbs. The unit of each is a value of the type."""
        if not pa.types.is_decimal(self.field.type):
            return _LIMBS[self.field.type]
        return next(count for count in range(1, 99) if 1 << (_LIMB_BITS * count) >= 10**self.field.type.precision)

    @cached_property
    def _is_wide(self) -> bool:
        """Whether Spark adds up the values, and the driver cuts the sums into limbs."""
        return bool(pa.types.is_decimal(self.field.type)) and self.field.type.precision > _LONG_DIGITS_MAX

    def _read_limbs(self, columns: Iterator[Any]) -> Iterator[Longs]:
        if not self._is_wide:
            yield from (column.fill_null(0).to_numpy() for column in columns)
            return
        words = read_wide_words(next(columns).fill_null(Decimal(0)))
        for place in range(self._limbs):
            found = _shift(words, _LIMB_BITS * place)
            yield found if place == self._limbs - 1 else found & ((1 << _LIMB_BITS) - 1)

    def _repeat(self, value: int, count: int) -> Any:
        kind = self.field.type
        scalar = Decimal(value).scaleb(-kind.scale) if pa.types.is_decimal(kind) else value
        return pa.repeat(pa.scalar(scalar, kind), count)


def _make_integers(values: Longs, is_null: Bools, kind: Any) -> Any:
    """Integers, or decimals with these unscaled values."""
    found = pa.array(values, mask=is_null)
    if not pa.types.is_decimal(kind):
        return found.cast(kind)
    wide = found.cast(pa.decimal128(_LONG_DIGITS_MAX + 1, 0))
    return pa.Array.from_buffers(kind, len(wide), wide.buffers())


def _are_exact(extremes: Any) -> bool:
    """Whether the least or greatest values of the groups are exact as doubles."""
    found: Longs = extremes.fill_null(0).to_numpy()
    limit = 1 << _INTEGER_BITS_MAX
    return bool(((found >= -limit) & (found <= limit)).all())  # as integers: 2^53 + 1 is 2^53 as a double


def _shift(words: Words, at: int) -> Longs:
    """The bits of integers of two words from `at` on, of which at most 64 differ from the sign."""
    low, high = words[:, 0], words[:, 1].view(np.int64)
    if at >= 64:
        return high >> (at - 64)
    found = (low >> np.uint64(at)).view(np.int64)
    return found | (high << (64 - at)) if at else found


@dataclass(frozen=True)
class _Format:
    """The bits of a float: sign, exponent, mantissa."""

    java: str
    convert: str
    """The method that returns the bits as an integer."""
    exponent: int
    mantissa: int
    kind: Any
    word: Any

    @property
    def special(self) -> int:
        """The exponent of infinity and NaN."""
        return (1 << self.exponent) - 1


_FLOATS = {
    pa.float64(): _Format("java.lang.Double", "doubleTo{}LongBits", 11, 52, np.float64, np.int64),
    pa.float32(): _Format("java.lang.Float", "floatTo{}IntBits", 8, 23, np.float32, np.int32),
}


@dataclass(frozen=True)
class _FloatColumn(CondensedColumn):
    is_grouped = True

    @cached_property
    def format(self) -> _Format:
        return _FLOATS[self.field.type]

    def read_bits(self, column: Any, *, is_raw: bool) -> Any:
        """The bits as a BIGINT with the sign of the float. All NaNs are one unless `is_raw`."""
        bits = self.catalyst.call_static(self.format.java, self.format.convert.format("Raw" * is_raw), column)
        return self.catalyst.cast(bits, "LongType")


@dataclass(frozen=True)
class GroupedFloats(_FloatColumn):
    """Rows are grouped by the bits, since Spark groups floats together that are not bitwise equal."""

    def group(self, column: Any) -> Any:
        return self.read_bits(column, is_raw=True)

    def make_base(self, group: Any, count: int) -> Any:  # noqa: ARG002 - of all columns
        bits = group.cast(pa.from_numpy_dtype(self.format.word))
        return bits.view(self.field.type)

    def restore(self, group: Any, measures: Sequence[Any], count: int) -> Any:  # noqa: ARG002 - nothing
        return self.make_base(group, count)


@dataclass(frozen=True)
class SummedFloats(_FloatColumn):
    """Rows are grouped by sign and exponent, and their mantissas are added up in limbs. NaN and infinity are groups."""

    @property
    def measures(self) -> int:  # type: ignore[override]
        return len(self._places)

    def group(self, column: Any) -> Any:
        """Sign and exponent, a small number; NaN and infinity by their bits, which are no small number."""
        make = self.catalyst
        bits = self.read_bits(column, is_raw=False)
        upper = self._cut(bits, self.format.mantissa, None)
        exponent = self._cut(upper, 0, self.format.exponent)
        is_special = make.expression("EqualTo", exponent, make.make_long(self.format.special))
        return make.expression("If", is_special, bits, upper)

    def measure(self, column: Any) -> list[Any]:
        bits = self.read_bits(column, is_raw=False)
        return [self._add_up(self._cut(bits, at, size)) for at, size in self._places]

    def make_base(self, group: Any, count: int) -> Any:
        """The value with the mantissa 0; NaN and infinity as they are."""
        return self._make_floats(group, np.zeros(count, np.int64))

    def restore(self, group: Any, measures: Sequence[Any], count: int) -> Any:
        mantissa = np.zeros(count, np.int64)
        for (at, _), column in zip(self._places, measures, strict=True):
            mantissa += column.fill_null(0).to_numpy() << at
        return self._make_floats(group, mantissa)

    def _make_floats(self, group: Any, mantissa: Longs) -> Any:
        keys = group.fill_null(0).to_numpy()
        bits = np.where(self._are_special(keys), keys, (keys << self.format.mantissa) | mantissa)
        values = bits.astype(self.format.word).view(self.format.kind)
        return pa.array(values, self.field.type, mask=group.is_null().to_numpy(zero_copy_only=False))

    def read(self, group: Any, measures: Sequence[Any], count: int) -> Rows:
        keys: Longs = group.fill_null(0).to_numpy()
        is_finite = ~self._are_special(keys) & group.is_valid().to_numpy(zero_copy_only=False)
        exponents = np.maximum(keys & self.format.special, 1)
        bias = (1 << (self.format.exponent - 1)) - 1
        signs = np.where(keys < 0, -1.0, 1.0)
        zero = np.zeros(count, np.int64)
        for (at, _), column in zip(self._places, measures, strict=True):
            units = np.ldexp(signs, exponents - bias - self.format.mantissa + at)
            diffs = np.where(is_finite, column.fill_null(0).to_numpy(), 0)
            zero = zero - diffs
            yield pa.array(np.where(is_finite, units, 0).astype(self.format.kind), self.field.type), diffs
        yield pa.array(np.zeros(count, self.format.kind), self.field.type), zero

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        """The first bit and the number of bits of each limb of the mantissa."""
        mantissa = self.format.mantissa
        return [(at, min(_LIMB_BITS, mantissa - at)) for at in range(0, mantissa, _LIMB_BITS)]

    def _are_special(self, keys: Longs) -> Any:
        return (keys >= 1 << (self.format.exponent + 1)) | (keys < -(1 << (self.format.exponent + 1)))
