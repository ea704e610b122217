"""`GroupPlan`: the functions of an additive aggregate over columns, without the plan and without state.

It says what the state of a group is, sums it over rows, adds up states, and converts them to rows of the aggregate. It
can be sent to executors, which sum the rows of their tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.flow.aggregates.accumulators import Accumulator, Accumulators
from evertide.flow.aggregates.extremes import VALUE, find_extremes, make_values_delta
from evertide.flow.aggregates.groups import group_rows
from evertide.flow.aggregates.limbs import GroupedRows
from evertide.flow.leaf_rows import get_diffs
from evertide.rows.columns import Bools
from evertide.rows.conform import conform_table
from evertide.rows.python_rows import to_python_rows


@dataclass(frozen=True)
class SummedFunction:
    arguments: tuple[str, ...]
    """Columns of the input."""
    condition: str | None
    """The column of the input with the condition of FILTER."""
    accumulator: Accumulator


@dataclass(frozen=True)
class ExtremeFunction:
    """MIN or MAX."""

    argument: str
    condition: str | None
    is_max: bool
    kind: Any
    """The Arrow type of the argument."""


@dataclass(frozen=True)
class GroupPlan:
    name: str
    schema: pa.Schema
    """Of the aggregate's rows: keys, then the buffers of the functions."""
    key_columns: tuple[str, ...]
    """Columns of the input."""
    summed: tuple[SummedFunction, ...]
    extremes: tuple[ExtremeFunction, ...]
    buffers: tuple[tuple[bool, int], ...]
    """Per function in the order of the query: whether it is an extreme, and the columns of its buffer."""

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys in the state and in the aggregate's rows, whose first columns they are."""
        return tuple(self.schema.names[: len(self.key_columns)])

    @cached_property
    def key_schema(self) -> pa.Schema:
        return pa.schema([self.schema.field(key) for key in self.keys])

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """All columns of the input that are read."""
        read = [
            *self.key_columns,
            *(name for each in self.summed for name in (*each.arguments, each.condition) if name),
        ]
        read += [name for each in self.extremes for name in (each.argument, each.condition) if name]
        return tuple(dict.fromkeys(read))

    @cached_property
    def sums(self) -> Accumulators:
        return Accumulators(tuple(each.accumulator for each in self.summed))

    @cached_property
    def state_schema(self) -> pa.Schema:
        """Of the state without the keys."""
        best = [pa.field(f"x{at}", each.kind) for at, each in enumerate(self.extremes)]
        return pa.schema([*self.sums.state, *best])

    @cached_property
    def stored_schema(self) -> pa.Schema:
        return pa.schema([*self.key_schema, *self.state_schema])

    @cached_property
    def alike(self) -> tuple[tuple[int, ...], ...]:
        """Positions of extremes with the same argument and condition, which share their values."""
        found: dict[tuple[str, str | None], list[int]] = {}
        for at, each in enumerate(self.extremes):
            found.setdefault((each.argument, each.condition), []).append(at)
        return tuple(map(tuple, found.values()))

    def make_values_schema(self, places: Sequence[int]) -> pa.Schema:
        """Of the values of extremes with the same argument."""
        return pa.schema([*self.key_schema, pa.field(VALUE, self.extremes[places[0]].kind, nullable=False)])

    def name_values(self, places: Sequence[int]) -> str:
        """The name of the arrangement of these values."""
        return f"{self.name}.x{places[0]}"

    def group(self, delta: pa.Table) -> tuple[pa.Table, GroupedRows]:
        """The keys of the groups that the delta touches, and the group of each row."""
        if not self.keys:
            return delta.select([]), GroupedRows(get_diffs(delta), np.zeros(delta.num_rows, np.int64), 1)
        keys = delta.select(list(self.key_columns)).rename_columns(list(self.keys))
        numbers, first = group_rows(keys)
        found = conform_table(keys.take(pa.array(first)), self.key_schema)
        return found, GroupedRows(get_diffs(delta), numbers, len(first))

    def accumulate(self, delta: pa.Table, rows: GroupedRows) -> pa.Table:
        """The sums of each group over these rows only."""
        arguments = [[delta.column(name) for name in each.arguments] for each in self.summed]
        masks = [_read_mask(delta, each.condition) for each in self.summed]
        found: pa.Table = self.sums.accumulate(arguments, rows, masks)
        return found

    def make_values(self, delta: pa.Table, places: Sequence[int], rows: GroupedRows) -> pa.Table:
        """The values that count for extremes with the same argument, with the numbers of their groups."""
        function = self.extremes[places[0]]
        mask = _read_mask(delta, function.condition)
        keys = delta.select(list(self.key_columns)).rename_columns(list(self.keys))
        return make_values_delta(keys, delta.column(function.argument), rows.diffs, mask, rows.groups)

    def find_extremes(self, values: pa.Table, places: Sequence[int], count: int) -> list[Any]:
        """Extremes with the same argument over all values of `count` groups (`make_values`)."""
        return find_extremes([self.extremes[at].is_max for at in places], values, count)

    def make_state(self, sums: pa.Table, best: Sequence[Any]) -> pa.Table:
        """The state of groups from their sums, and from their extremes in order."""
        return pa.Table.from_arrays([*sums.columns, *best], schema=self.state_schema)

    def make_zero(self) -> pa.Table:
        """The state of a group without rows."""
        return self.make_state(self.sums.make_zero(1), [pa.nulls(1, each.kind) for each in self.extremes])

    def find_present(self, state: pa.Table) -> Bools:
        """Which groups exist: those with rows, or the one group of an aggregate without keys."""
        return self.sums.find_present(state) if self.keys else np.ones(1, np.bool_)

    def finish(self, keys: pa.Table, state: pa.Table, of: Bools) -> pa.Table:
        """Rows of the aggregate for the groups in `of`."""
        chosen = pa.array(np.flatnonzero(of))
        keys, state = keys.take(chosen) if self.keys else keys, state.take(chosen)
        sums = self.sums.finish(
            state.select(self.sums.state.names), lambda at: f"{self.name}, group {to_python_rows(keys.slice(at, 1))}"
        )
        summed, best = iter(sums.columns), iter(state.columns[len(self.sums.state) :])
        columns = [next(best if is_extreme else summed) for is_extreme, count in self.buffers for _ in range(count)]
        return pa.Table.from_arrays([*keys.columns, *columns], schema=self.schema)


def _read_mask(delta: pa.Table, condition: str | None) -> Bools | None:
    if condition is None:
        return None
    found: Bools = delta.column(condition).fill_null(False).to_numpy()  # noqa: FBT003
    return found.astype(np.bool_)
