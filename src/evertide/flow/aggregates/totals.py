"""The groups of an additive aggregate: sums per group that a delta updates.

The collection has a row per group: its keys, then the buffers of Catalyst's functions, from which a Map above computes
the results. The state has the exact sums behind the buffers (`evertide.flow.aggregates.accumulators`), in one
arrangement by the keys, which also answers look-ups by the keys and scans. So a delta costs time per group that it
touches, not per row of the group. Without keys there is always one group. MIN and MAX are kept beside the sums
(`evertide.flow.aggregates.extremes`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.errors import Unexpected
from evertide.flow.aggregates.accumulators import Accumulator, Accumulators, make_accumulator
from evertide.flow.aggregates.extremes import VALUE, Extremes, make_values_delta
from evertide.flow.aggregates.groups import group_rows
from evertide.flow.aggregates.limbs import GroupedRows
from evertide.flow.collection import Arrange, CircuitCollection
from evertide.flow.leaf_rows import add_sign, cancel_out, get_diffs
from evertide.flow.state.arrangement import Arrangement
from evertide.plan.algebra.nodes import Aggregate, Attribute, Function
from evertide.plan.algebra.plan_columns import find_arrow_type, make_arrow_schema, name_column
from evertide.plan.fragment.condensed_column import ColumnUse, is_summed
from evertide.rows.changes import consolidate_delta
from evertide.rows.columns import Bools, to_array
from evertide.rows.conform import conform_table
from evertide.rows.python_rows import to_python_rows

_NOT_GROUPED = re.compile(r'"(float|double|map|variant)"')
"""Types, in Spark's JSON form, of which Spark groups values together that are not bitwise equal, or none."""
_FLOATS = ('"float"', '"double"')


class Totals(CircuitCollection):
    def __init__(self, name: str, node: Aggregate, inputs: CircuitCollection, arrange: Arrange) -> None:
        super().__init__(name, make_arrow_schema(node.output), arrange)
        self.node = node
        self.inputs = inputs
        [child] = node.children
        self._places = {attribute.id: name_column(at) for at, attribute in enumerate(child.output)}
        self._types = {attribute.id: attribute.type for attribute in child.output}
        self.keys = tuple(name_column(at) for at in range(len(node.keys)))
        self._key_schema = pa.schema([self.schema.field(key) for key in self.keys])
        self._summed_functions = tuple(each for each in node.functions if not each.is_extreme)
        self._sums = Accumulators(tuple(self._make_accumulator(function) for function in self._summed_functions))
        self._extreme_functions = tuple(each for each in node.functions if each.is_extreme)
        self._alike = _group_alike(self._extreme_functions)
        self.extremes = tuple(self._make_extremes(places, arrange) for places in self._alike)
        best = [pa.field(f"x{at}", self._find_argument_type(each)) for at, each in enumerate(self._extreme_functions)]
        self._state_schema = pa.schema([*self._sums.state, *best])
        self.state = arrange(name, pa.schema([*self._key_schema, *self._state_schema]), self.keys)
        self._change: pa.Table | None = None
        inputs.set_uses(_find_uses(node))

    def _find_argument_type(self, function: Function) -> Any:
        return find_arrow_type(self._types[function.arguments[0]])

    def _make_extremes(self, places: Sequence[int], arrange: Arrange) -> Extremes:
        functions = [self._extreme_functions[at] for at in places]
        schema = pa.schema([*self._key_schema, pa.field(VALUE, self._find_argument_type(functions[0]), nullable=False)])
        values = arrange(f"{self.name}.x{places[0]}", schema, self.keys)
        return Extremes(are_max=tuple(each.name == "Max" for each in functions), keys=self.keys, values=values)

    def _make_accumulator(self, function: Function) -> Accumulator:
        types = [find_arrow_type(self._types[argument]) for argument in function.arguments]
        found = make_accumulator(function.name, types, function.mode)
        if found is None:
            raise Unexpected(
                where=f"Totals of {self.name!r}", why=f"there is no accumulator for {function.name} of {types}"
            )
        return found

    def run(self, *, is_first: bool) -> None:
        delta = self.inputs.delta
        if delta.num_rows == 0 and not (is_first and not self.keys):
            return
        keys, groups = self._group_delta(delta)
        before, is_there = self._read_state(keys, groups.count)
        after = self._update(delta, keys, groups, before, is_there)
        stays = self._sums.find_present(after) if self.keys else np.ones(1, np.bool_)
        parts = ((before, is_there, -1), (after, stays, 1))
        self.delta = cancel_out(
            pa.concat_tables([add_sign(self._finish(keys, state, of), sign) for state, of, sign in parts]), self.name
        )
        self._change = pa.concat_tables([add_sign(_join_columns(keys, state, of), sign) for state, of, sign in parts])

    def list_arrangements(self) -> Iterator[Arrangement]:
        yield from super().list_arrangements()
        yield self.state
        yield from (extreme.values for extreme in self.extremes)

    def prepare(self) -> list[Callable[[], None]]:
        calls = [] if self._change is None else [self.state.prepare(self._change)]
        calls += [call for extreme in self.extremes for call in extreme.prepare()]
        return [*calls, *super().prepare()]

    def forget(self) -> None:
        super().forget()
        self._change = None
        for extreme in self.extremes:
            extreme.forget()

    def need(self, key: tuple[str, ...], columns: tuple[str, ...]) -> None:
        if key and set(key) != set(self.keys):
            super().need(key, columns)

    def lookup(self, key: tuple[str, ...], keys: pa.Table, columns: tuple[str, ...]) -> pa.Table:
        if set(key) != set(self.keys):
            return super().lookup(key, keys, columns)
        return self._finish_stored(
            self.state.lookup(conform_table(keys.select(list(self.keys)), self._key_schema)), columns
        )

    def scan(self, columns: tuple[str, ...]) -> pa.Table:
        return self._finish_stored(self.state.scan(), columns)

    def _finish_stored(self, found: pa.Table, columns: tuple[str, ...]) -> pa.Table:
        """Stored groups as rows of the collection."""
        state = found.select(self._state_schema.names)
        rows = self._finish(found.select(list(self.keys)), state, np.ones(found.num_rows, np.bool_))
        return consolidate_delta(add_sign(rows.select(list(columns)), 1), self.name, is_sorted=False)

    def _group_delta(self, delta: pa.Table) -> tuple[pa.Table, GroupedRows]:
        """The keys of the groups that the delta touches, and the group of each row."""
        keys = delta.select(list(self.keys))
        if not self.keys:
            return keys, GroupedRows(get_diffs(delta), np.zeros(delta.num_rows, np.int64), 1)
        numbers, first = group_rows(keys)
        return conform_table(keys.take(pa.array(first)), self._key_schema), GroupedRows(
            get_diffs(delta), numbers, len(first)
        )

    def _update(
        self, delta: pa.Table, keys: pa.Table, rows: GroupedRows, before: pa.Table, is_there: Bools
    ) -> pa.Table:
        arguments = [[delta.column(self._places[at]) for at in each.arguments] for each in self._summed_functions]
        masks = [self._read_mask(delta, each.condition) for each in self._summed_functions]
        added = self._sums.accumulate(arguments, rows, masks)
        sums = self._merge(before.select(self._sums.state.names), is_there, added)
        best: dict[int, Any] = {}
        for places, extremes in zip(self._alike, self.extremes, strict=True):
            values = self._make_values(delta, self._extreme_functions[places[0]], rows)
            previous = [to_array(before.column(f"x{at}")) for at in places]
            best.update(zip(places, extremes.update(keys, values, previous), strict=True))
        found = [best[at] for at in range(len(self._extreme_functions))]
        return pa.Table.from_arrays([*sums.columns, *found], schema=self._state_schema)

    def _merge(self, before: pa.Table, is_there: Bools, added: pa.Table) -> pa.Table:
        """Add sums to the state. For a new group they are copied, which is cheaper than adding."""
        there = np.flatnonzero(is_there)
        if 2 * len(there) > len(is_there):
            return self._sums.merge(before, added)
        chosen, rows = pa.array(there), np.arange(len(is_there))
        rows[there] = len(is_there) + np.arange(len(there))
        merged = self._sums.merge(before.take(chosen), added.take(chosen))
        return pa.concat_tables([added, merged]).take(pa.array(rows))

    def _make_values(self, delta: pa.Table, function: Function, rows: GroupedRows) -> pa.Table:
        value = delta.column(self._places[function.arguments[0]])
        mask = self._read_mask(delta, function.condition)
        return make_values_delta(delta.select(list(self.keys)), value, rows.diffs, mask, rows.groups)

    def _read_mask(self, delta: pa.Table, condition: int | None) -> Bools | None:
        if condition is None:
            return None
        found: Bools = delta.column(self._places[condition]).fill_null(False).to_numpy()  # noqa: FBT003
        return found.astype(np.bool_)

    def _read_state(self, keys: pa.Table, count: int) -> tuple[pa.Table, Bools]:
        """The state of these groups, in their order, and which of them exist."""
        found = self.state.lookup(keys) if self.keys else self.state.scan()
        places = np.full(count, found.num_rows, np.int64)  # the row after the last is the zero state
        if self.keys and found.num_rows:
            numbers, _ = group_rows(
                pa.concat_tables([keys, conform_table(found.select(list(self.keys)), self._key_schema)])
            )
            places[numbers[count:]] = np.arange(found.num_rows)
        elif found.num_rows:
            places[0] = 0
        known = conform_table(found.select(self._state_schema.names), self._state_schema)
        return pa.concat_tables([known, self._make_zero()]).take(pa.array(places)), places < found.num_rows

    def _make_zero(self) -> pa.Table:
        best = [pa.nulls(1, self._find_argument_type(function)) for function in self._extreme_functions]
        return pa.Table.from_arrays([*self._sums.make_zero(1).columns, *best], schema=self._state_schema)

    def _finish(self, keys: pa.Table, state: pa.Table, of: Bools) -> pa.Table:
        """Rows of the collection for the groups in `of`."""
        chosen = pa.array(np.flatnonzero(of))
        keys, state = keys.take(chosen) if self.keys else keys, state.take(chosen)
        sums = self._sums.finish(
            state.select(self._sums.state.names), lambda at: f"{self.name}, group {to_python_rows(keys.slice(at, 1))}"
        )
        summed, best = iter(sums.columns), iter(state.columns[len(self._sums.state) :])
        buffers = [
            next(best if function.is_extreme else summed) for function in self.node.functions for _ in function.buffer
        ]
        return pa.Table.from_arrays([*keys.columns, *buffers], schema=self.schema)


def _find_uses(node: Aggregate) -> tuple[ColumnUse, ...] | None:
    """What the aggregate needs of each column of its input; None if the executors cannot group by a column."""
    [child] = node.children
    uses = tuple(_find_use(node, attribute) for attribute in child.output)
    grouped = [each for each, use in zip(child.output, uses, strict=True) if use is ColumnUse.VALUE]
    return uses if all(map(_is_grouped, grouped)) else None


def _is_grouped(column: Attribute) -> bool:
    """Whether the executors can group by the values, bit by bit."""
    return column.type in _FLOATS or not _NOT_GROUPED.search(column.type)


def _find_use(node: Aggregate, column: Attribute) -> ColumnUse:
    readers = [each for each in node.functions if column.id in each.arguments]
    is_condition = any(each.condition == column.id for each in node.functions)
    if column.id in node.keys or is_condition or not readers:
        return ColumnUse.VALUE
    names = {each.name for each in readers}
    if any(len(each.arguments) > 1 for each in readers):
        return ColumnUse.VALUE
    if names == {"Count"}:
        return ColumnUse.COUNT if column.nullable else ColumnUse.VALUE
    kind = find_arrow_type(column.type)
    if not names <= {"Count", "Sum", "Average"} or not is_summed(kind):
        return ColumnUse.VALUE
    return ColumnUse.SUM_AS_DOUBLE if "Average" in names and kind == pa.int64() else ColumnUse.SUM


def _group_alike(functions: Sequence[Function]) -> list[list[int]]:
    """Positions of functions with the same argument and condition."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for at, function in enumerate(functions):
        found.setdefault((function.arguments, function.condition), []).append(at)
    return [*found.values()]


def _join_columns(keys: pa.Table, state: pa.Table, of: Bools) -> pa.Table:
    chosen = pa.array(np.flatnonzero(of))
    columns = [column.take(chosen) for column in (*keys.columns, *state.columns)]
    return pa.Table.from_arrays(columns, schema=pa.schema([*keys.schema, *state.schema]))
