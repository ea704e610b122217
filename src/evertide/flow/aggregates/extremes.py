"""Min and max of groups, at a cost that follows the size of the change.

After an insertion, the maximum is the greater of the old maximum and the new value. Only if the delta removes a value
equal to the maximum, the values of the group must be read. So the state is the extreme value per group, beside the sums
of the same aggregate, and an arrangement of the distinct values by group with their counts, which is read for such
groups only. MIN and MAX of the same argument share it.

Values compare as in Spark: NaN is greater than any number, strings compare by bytes. (Plans normalize -0.0 to 0.0
before.) NULL, and rows that a FILTER excludes, do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.flow.aggregates.groups import group_rows
from evertide.flow.leaf_rows import add_diffs, cancel_out, get_diffs
from evertide.flow.state.arrangement import Arrangement
from evertide.rows.changes import DIFF, DIFF_FIELD, consolidate_delta
from evertide.rows.columns import FIXED, FLOATS, Bools, Longs, read_bits, to_array

VALUE = "value"
GROUP = "group"
_WORST = np.iinfo(np.int64).min
_INTEGERS = frozenset(FIXED) - frozenset(FLOATS) - {pa.lib.Type_UINT64, pa.lib.Type_INTERVAL_DAY_TIME}


class Extremes:
    """All MIN and MAX of one argument of an aggregate, which share its values."""

    def __init__(self, *, are_max: tuple[bool, ...], keys: tuple[str, ...], values: Arrangement) -> None:
        """`values` is an arrangement of the keys and `VALUE`, by the keys."""
        self._are_max = are_max
        self._keys = keys
        self.values = values
        self._schema = pa.schema([*values.schema, DIFF_FIELD])
        self._change: pa.Table | None = None

    def update(self, groups: pa.Table, changed: pa.Table, previous: Sequence[Any]) -> list[Any]:
        """The extremes of each group after the delta `changed` (from `make_values_delta`).

        `previous` has the extremes of each group before, NULL if there was none.
        """
        numbers: Longs = changed.column(GROUP).to_numpy()
        columns = [changed.column(name) for name in (*self.values.schema.names, DIFF)]
        delta = pa.Table.from_arrays(columns, schema=self._schema)
        self._change = delta
        value, diffs = to_array(delta.column(VALUE)), get_diffs(delta)
        codes = _encode_order([*previous, value])
        found = []
        for is_max, before, code in zip(self._are_max, previous, codes, strict=False):
            best = _ExtremeChooser(before, code, value, codes[-1], is_max=is_max)
            stale = best.find_lost(numbers, diffs < 0)
            extreme = best.choose(np.where(diffs > 0, numbers, -1))
            found.append(
                self._look_up(groups, delta, numbers, stale, extreme, is_max=is_max) if stale.any() else extreme
            )
        return found

    def prepare(self) -> list[Callable[[], None]]:
        """See `CircuitCollection.prepare`."""
        calls = [] if self._change is None else [self.values.prepare(self._change)]
        return [*calls, self.forget]

    def forget(self) -> None:
        self._change = None

    def _look_up(
        self, groups: pa.Table, delta: pa.Table, numbers: Longs, stale: Bools, best: Any, *, is_max: bool
    ) -> Any:
        wanted = np.flatnonzero(stale)
        of = groups.take(pa.array(wanted)) if self._keys else groups
        known = self.values.lookup(of) if self._keys else self.values.scan()
        own = delta.take(pa.array(np.flatnonzero(stale[numbers])))
        left = consolidate_delta(
            pa.concat_tables([known.select(own.column_names), own]), self.values.name, is_sorted=False
        )
        if self._keys:
            both = pa.concat_tables([of, left.select(list(self._keys))])
            places = group_rows(both)[0][len(wanted) :]
        else:
            places = np.zeros(left.num_rows, np.int64)
        nothing, value = pa.nulls(len(wanted), best.type), to_array(left.column(VALUE))
        previous_codes, codes = _encode_order([nothing, value])
        found = _ExtremeChooser(nothing, previous_codes, value, codes, is_max=is_max).choose(places)
        at = np.arange(len(best))
        at[wanted] = len(best) + np.arange(len(wanted))
        return pa.concat_arrays([best, found]).take(pa.array(at))


def find_extremes(are_max: Sequence[bool], values: pa.Table, count: int) -> list[Any]:
    """The extremes of `count` groups over all their values (`make_values_delta`), each with a positive diff."""
    value, numbers = to_array(values.column(VALUE)), values.column(GROUP).to_numpy()
    nothing = pa.nulls(count, value.type)
    previous, codes = _encode_order([nothing, value])
    choosers = [_ExtremeChooser(nothing, previous, value, codes, is_max=is_max) for is_max in are_max]
    return [each.choose(numbers) for each in choosers]


class _ExtremeChooser:
    """Chooses per group between the extreme so far and new values, by their codes."""

    def __init__(self, before: Any, previous_codes: Longs, value: Any, codes: Longs, *, is_max: bool) -> None:
        self._before = before
        self._value = value
        self._is_there = np.asarray(before.is_valid())
        self._previous_codes = np.where(self._is_there, previous_codes if is_max else ~previous_codes, _WORST)
        self._codes = codes if is_max else ~codes

    def choose(self, numbers: Longs) -> Any:
        """The extreme per group, NULL without a value. Rows with the number -1 do not count."""
        taking = np.flatnonzero(numbers >= 0)
        numbers, codes = numbers[taking], self._codes[taking]
        top = self._previous_codes.copy()
        np.maximum.at(top, numbers, codes)
        is_there = self._is_there.copy()
        is_there[numbers] = True
        rows = np.arange(len(top))
        best = np.flatnonzero(codes == top[numbers])
        rows[numbers[best]] = len(top) + taking[best]
        return pa.concat_arrays([self._before, self._value]).take(pa.array(rows, mask=~is_there))

    def find_lost(self, numbers: Longs, is_taken: Bools) -> Bools:
        """Which groups lose a value equal to their extreme."""
        found = np.zeros(len(self._previous_codes), np.bool_)
        rows = np.flatnonzero(is_taken)
        of = numbers[rows]
        lost = (self._codes[rows] == self._previous_codes[of]) & self._is_there[of]
        found[of[lost]] = True
        return found


def _encode_order(arrays: Sequence[Any]) -> list[Longs]:
    """Integers in the order of the values; equal values have equal integers, NULL any."""
    if arrays[0].type.id in _INTEGERS:
        return [read_bits(array).astype(np.int64) if len(array) else np.empty(0, np.int64) for array in arrays]
    ranks = np.asarray(pc.rank(pa.concat_arrays(arrays), sort_keys="ascending", tiebreaker="dense")).astype(np.int64)
    ends = np.cumsum([len(array) for array in arrays])
    return np.split(ranks, ends[:-1])


def make_values_delta(keys: pa.Table, value: Any, diffs: Longs, mask: Bools | None, numbers: Longs) -> pa.Table:
    """The rows that count, as a delta of keys, `VALUE` and the number of the group."""
    value = to_array(value)
    names = [*keys.column_names, VALUE, GROUP]
    if mask is None and not value.null_count:
        table = pa.Table.from_arrays([*keys.columns, value, pa.array(numbers)], names=names)
        return cancel_out(add_diffs(table, diffs), "values")
    chosen = np.asarray(value.is_valid()) if mask is None else np.asarray(value.is_valid()) & mask
    rows = pa.array(np.flatnonzero(chosen))
    columns = [*(column.take(rows) for column in keys.columns), value.take(rows), pa.array(numbers[chosen])]
    return cancel_out(add_diffs(pa.Table.from_arrays(columns, names=names), diffs[chosen]), "values")
