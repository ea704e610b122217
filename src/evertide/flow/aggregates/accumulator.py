"""The interface of accumulators, and functions that read arguments and counts.

An argument is an Arrow array with one value per row, of the type that Spark's analyzer assigned. NULLs, and rows that
the function's FILTER excludes (`mask` is false), are dropped before their values are read, since the memory under a
NULL is undefined.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import InvalidInput, StateInconsistent
from evertide.flow.aggregates import exact
from evertide.flow.aggregates.exact import Doubles
from evertide.flow.aggregates.limbs import GroupedRows
from evertide.rows.columns import FIXED, Bools, Longs, read_validity, read_wide_words, remove_encoding, to_array

DescribeGroup = Callable[[int], str]
"""The description of a group, by its number, for error messages."""


@dataclass(frozen=True)
class Accumulator(ABC):
    """One aggregate function over given types; `state` and `buffer` are the columns of its methods."""

    function: str

    @property
    @abstractmethod
    def state(self) -> tuple[Any, ...]:
        """The fields of the state per group, none of them nullable."""

    @property
    @abstractmethod
    def buffer(self) -> tuple[Any, ...]:
        """The fields of Spark's aggregation buffer, in the order of `aggBufferAttributes`."""

    @abstractmethod
    def accumulate(self, args: Sequence[Any], rows: GroupedRows, mask: Bools | None = None) -> list[Any]:
        """The state of each group over these rows only. `mask`: the rows that the function's FILTER includes."""

    @abstractmethod
    def finish(self, state: Sequence[Any], where: DescribeGroup) -> list[Any]:
        """The buffer of each group. Raises `InvalidInput` for a value out of range, if that is an error in Spark."""

    def merge(self, left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
        """Group by group: the state over the rows of both."""
        return [exact.add(to_state_column(one), to_state_column(other)) for one, other in zip(left, right, strict=True)]

    def make_zero(self, count: int) -> list[Any]:
        """The state of groups without rows."""
        return [exact.make_zeros(count) for _ in self.state]


def make_exact_field(name: str) -> Any:
    return pa.field(name, pa.binary(), nullable=False)


def to_state_column(found: Any) -> Any:
    """A state column as one array of the type that was written, even if Parquet or Spark changed the type."""
    found = remove_encoding(to_array(found))
    return found if found.type == pa.binary() else found.cast(pa.binary())


def select_contributing(
    args: Sequence[Any], rows: GroupedRows, mask: Bools | None
) -> tuple[list[Any], GroupedRows, Any]:
    """The arguments as plain arrays, the contributing rows, and the index of these rows in the arguments."""
    arrays = [remove_encoding(to_array(arg)) for arg in args]
    masks = [valid for array in arrays if (valid := read_validity(array)) is not None]
    if mask is not None:
        masks.append(mask)
    if not masks:
        return arrays, rows, slice(None)
    kept = np.flatnonzero(np.logical_and.reduce(masks))
    return arrays, rows.take(kept), kept


def _read_values(array: Any, dtype: Any) -> Any:
    dtype = np.dtype(dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def to_longs(array: Any) -> Longs:
    """Integers, durations, and decimals of up to 18 digits (unscaled) as int64."""
    if pa.types.is_decimal128(array.type):
        low: Longs = to_words(array)[:, 0].view(np.int64)  # with at most 18 digits, the upper word is only the sign
        return low
    found: Longs = _read_values(array, FIXED[array.type.id]).astype(np.int64, copy=False)
    return found


def to_words(array: Any) -> Any:
    """Unscaled decimals as two words each, the lower first."""
    return read_wide_words(array)


def to_doubles(array: Any) -> Doubles:
    """Integers and floats as doubles, as Spark casts them."""
    if pa.types.is_floating(array.type):
        dtype = "<f8" if pa.types.is_float64(array.type) else "<f4"
        found: Doubles = _read_values(array, dtype).astype(np.float64, copy=False)
        return found
    return to_longs(array).astype(np.float64)


def decode_counts(found: Any, where: DescribeGroup) -> Longs:
    """The number of values of each group, from an encoded state column."""
    found = to_state_column(found)
    if exact.is_zero(found):
        return np.zeros(len(found), np.int64)
    held, fits = exact.decode(found).get_low_words(1)
    numbers = held[:, 0].view(np.int64)
    if not fits.all() or numbers.min() < 0:
        _refuse_count(found, where, int(np.argmin(fits & (numbers >= 0))))
    return numbers


def _refuse_count(found: Any, where: DescribeGroup, group: int) -> None:
    integer, exponent = exact.to_integers(found[group : group + 1])[0]
    count = integer << exponent
    if count < 0:
        why = f"the group has {count} values, since more were removed than were added"
        raise StateInconsistent(where=where(group), why=why)
    raise InvalidInput(where=where(group), why=f"the group has {count} values, which does not fit in 64 bits")


def find_nonzero(found: Any) -> Bools:
    """Which numbers of an encoded state column are not zero."""
    lengths: Longs = np.asarray(pc.binary_length(to_state_column(found)))
    return np.not_equal(lengths, 0)
