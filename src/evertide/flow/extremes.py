"""Min and max of groups, kept at the cost of the change.

The greatest value of a group survives insertions: it is the greater of itself and what came. Only when the delta takes
away a value that is equal to it must the group be looked at. So the state is the extreme value per group, which stands
beside the sums of the same aggregate, and an arrangement of the values by group, each distinct value once with its
count, which is read for such groups only.

Values compare as Spark compares them: NaN is greater than any number, strings by their bytes. (-0.0 and 0.0 are equal
to Spark: plans make them one before they come here.) NULL, and rows that a FILTER leaves out, do not take part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.flow.arrangement import Arrangement
from evertide.flow.bags import diffs_of, settled, with_diffs
from evertide.flow.groups import group_rows
from evertide.shard.changes import DIFF, net
from evertide.shard.columns import Bools, Longs, one_chunk

__all__ = ["VALUE", "Extreme", "values_delta"]

VALUE = "value"
_GROUP = "group"


class Extreme:
    """One MIN or MAX of an aggregate."""

    def __init__(self, *, is_max: bool, keys: tuple[str, ...], values: Arrangement) -> None:
        """`values` has the keys and `VALUE` as columns, by the keys."""
        self._is_max = is_max
        self._keys = keys
        self.values = values
        self._schema = pa.schema([*values.schema, pa.field(DIFF, pa.int64(), nullable=False)])
        self._change: pa.Table | None = None

    def after(self, groups: pa.Table, changed: pa.Table, before: Any) -> Any:
        """The extreme of each group once what `values_delta` made is applied.

        `before` is the extreme of each group so far, NULL if there was none.
        """
        numbers: Longs = changed.column(_GROUP).to_numpy()
        columns = [changed.column(name) for name in (*self.values.schema.names, DIFF)]
        delta = pa.Table.from_arrays(columns, schema=self._schema)
        self._change = delta
        value, diffs = one_chunk(delta.column(VALUE)), diffs_of(delta)
        best, ranks = self._best(before, value, np.where(diffs > 0, numbers, -1))
        stale = self._is_stale(ranks, numbers, diffs < 0, len(before))
        if not stale.any():
            return best
        return self._looked_up(groups, delta, numbers, stale, best)

    def settle(self) -> None:
        if self._change is not None:
            self.values.apply(self._change)
        self.forget()

    def forget(self) -> None:
        self._change = None

    def _best(self, before: Any, value: Any, numbers: Longs) -> tuple[Any, Longs]:
        """Per group the better of `before` and its values (a number of -1 is of no group), and all ranks by row."""
        everything = pa.concat_arrays([before, value])
        ranks = self._ranks(everything)
        count = len(before)
        taking = np.flatnonzero(numbers >= 0)
        top = ranks[:count].copy()
        np.maximum.at(top, numbers[taking], ranks[count:][taking])
        row_of = np.zeros(len(everything) + 1, np.int64)
        row_of[ranks] = np.arange(len(everything))
        chosen = pa.array(row_of[top], mask=top == 0)
        return everything.take(chosen), ranks

    def _ranks(self, values: Any) -> Longs:
        """From 1 on, greater is better, and equal values rank alike; 0 is NULL, the worst there is."""
        ranks: Longs = np.asarray(pc.rank(values, sort_keys="ascending", tiebreaker="dense")).astype(np.int64)
        if not self._is_max:  # a descending rank would put NaN last again
            ranks = len(ranks) + 1 - ranks
        return np.where(np.asarray(values.is_valid()), ranks, 0)

    def _is_stale(self, ranks: Longs, numbers: Longs, is_taken: Bools, count: int) -> Bools:
        """Groups that lose a value equal to their extreme."""
        found = np.zeros(count, np.bool_)
        rows = np.flatnonzero(is_taken)
        lost = ranks[count + rows] == ranks[numbers[rows]]
        found[numbers[rows][lost]] = True
        return found

    def _looked_up(self, groups: pa.Table, delta: pa.Table, numbers: Longs, stale: Bools, best: Any) -> Any:
        wanted = np.flatnonzero(stale)
        of = groups.take(pa.array(wanted)) if self._keys else groups
        known = self.values.lookup(of) if self._keys else self.values.scan()
        own = delta.take(pa.array(np.flatnonzero(stale[numbers])))
        left = net(pa.concat_tables([known.select(own.column_names), own]), self.values.name, is_sorted=False)
        if self._keys:
            both = pa.concat_tables([of, left.select(list(self._keys))])
            places = group_rows(both)[0][len(wanted) :]
        else:
            places = np.zeros(left.num_rows, np.int64)
        nothing = pa.nulls(len(wanted), best.type)
        found, _ = self._best(nothing, one_chunk(left.column(VALUE)), places)
        at = np.arange(len(best))
        at[wanted] = len(best) + np.arange(len(wanted))
        return pa.concat_arrays([best, found]).take(pa.array(at))


def values_delta(keys: pa.Table, value: Any, diffs: Longs, mask: Bools | None, numbers: Longs) -> pa.Table:
    """The rows that take part, each distinct one once: keys, `VALUE`, the number of its group, diff."""
    value = one_chunk(value)
    chosen = np.asarray(value.is_valid()) if mask is None else np.asarray(value.is_valid()) & mask
    rows = pa.array(np.flatnonzero(chosen))
    columns = [*(column.take(rows) for column in keys.columns), value.take(rows), pa.array(numbers[chosen])]
    table = pa.Table.from_arrays(columns, names=[*keys.column_names, VALUE, _GROUP])
    return settled(with_diffs(table, diffs[chosen]), "values")
