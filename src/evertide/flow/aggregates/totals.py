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
from evertide.flow.aggregates.accumulators import make_accumulator
from evertide.flow.aggregates.extremes import Extremes
from evertide.flow.aggregates.group_plan import ExtremeFunction, GroupPlan, SummedFunction
from evertide.flow.aggregates.groups import group_rows
from evertide.flow.aggregates.limbs import GroupedRows
from evertide.flow.collection import Arrange, CircuitCollection
from evertide.flow.leaf_rows import add_sign, cancel_out
from evertide.flow.state.arrangement import Arrangement
from evertide.plan.algebra.nodes import Aggregate, Attribute
from evertide.plan.algebra.plan_columns import find_arrow_type, make_arrow_schema, name_column
from evertide.plan.fragment.condensed_column import ColumnUse, is_summed
from evertide.rows.changes import consolidate_delta
from evertide.rows.columns import Bools, to_array
from evertide.rows.conform import conform_table

_NOT_GROUPED = re.compile(r'"(float|double|map|variant)"')
"""Types, in Spark's JSON form, of which Spark groups values together that are not bitwise equal, or none."""
_FLOATS = ('"float"', '"double"')


class Totals(CircuitCollection):
    def __init__(self, name: str, node: Aggregate, inputs: CircuitCollection, arrange: Arrange) -> None:
        self.groups = _plan_groups(name, node)
        super().__init__(name, self.groups.schema, arrange)
        self.node = node
        self.inputs = inputs
        self.keys = self.groups.keys
        self.extremes = tuple(self._make_extremes(places, arrange) for places in self.groups.alike)
        self.state = arrange(name, self.groups.stored_schema, self.keys)
        self._change: pa.Table | None = None
        inputs.set_uses(_find_uses(node))

    def _make_extremes(self, places: Sequence[int], arrange: Arrange) -> Extremes:
        values = arrange(self.groups.name_values(places), self.groups.make_values_schema(places), self.keys)
        are_max = tuple(self.groups.extremes[at].is_max for at in places)
        return Extremes(are_max=are_max, keys=self.keys, values=values)

    def run(self, *, is_first: bool) -> None:
        delta = self.inputs.delta
        if delta.num_rows == 0 and not (is_first and not self.keys):
            return
        keys, rows = self.groups.group(delta)
        before, is_there = self._read_state(keys, rows.count)
        after = self._update(delta, keys, rows, before, is_there)
        parts = ((before, is_there, -1), (after, self.groups.find_present(after), 1))
        finished = [add_sign(self.groups.finish(keys, state, of), sign) for state, of, sign in parts]
        self.delta = cancel_out(pa.concat_tables(finished), self.name)
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
            self.state.lookup(conform_table(keys.select(list(self.keys)), self.groups.key_schema)), columns
        )

    def scan(self, columns: tuple[str, ...]) -> pa.Table:
        return self._finish_stored(self.state.scan(), columns)

    def _finish_stored(self, found: pa.Table, columns: tuple[str, ...]) -> pa.Table:
        """Stored groups as rows of the collection."""
        state = found.select(self.groups.state_schema.names)
        rows = self.groups.finish(found.select(list(self.keys)), state, np.ones(found.num_rows, np.bool_))
        return consolidate_delta(add_sign(rows.select(list(columns)), 1), self.name, is_sorted=False)

    def _update(
        self, delta: pa.Table, keys: pa.Table, rows: GroupedRows, before: pa.Table, is_there: Bools
    ) -> pa.Table:
        sums = self._merge(before.select(self.groups.sums.state.names), is_there, self.groups.accumulate(delta, rows))
        best: dict[int, Any] = {}
        for places, extremes in zip(self.groups.alike, self.extremes, strict=True):
            values = self.groups.make_values(delta, places, rows)
            previous = [to_array(before.column(f"x{at}")) for at in places]
            best.update(zip(places, extremes.update(keys, values, previous), strict=True))
        return self.groups.make_state(sums, [best[at] for at in range(len(best))])

    def _merge(self, before: pa.Table, is_there: Bools, added: pa.Table) -> pa.Table:
        """Add sums to the state. For a new group they are copied, which is cheaper than adding."""
        there = np.flatnonzero(is_there)
        if 2 * len(there) > len(is_there):
            return self.groups.sums.merge(before, added)
        chosen, rows = pa.array(there), np.arange(len(is_there))
        rows[there] = len(is_there) + np.arange(len(there))
        merged = self.groups.sums.merge(before.take(chosen), added.take(chosen))
        return pa.concat_tables([added, merged]).take(pa.array(rows))

    def _read_state(self, keys: pa.Table, count: int) -> tuple[pa.Table, Bools]:
        """The state of these groups, in their order, and which of them exist."""
        found = self.state.lookup(keys) if self.keys else self.state.scan()
        places = np.full(count, found.num_rows, np.int64)  # the row after the last is the zero state
        if self.keys and found.num_rows:
            numbers, _ = group_rows(
                pa.concat_tables([keys, conform_table(found.select(list(self.keys)), self.groups.key_schema)])
            )
            places[numbers[count:]] = np.arange(found.num_rows)
        elif found.num_rows:
            places[0] = 0
        known = conform_table(found.select(self.groups.state_schema.names), self.groups.state_schema)
        return pa.concat_tables([known, self.groups.make_zero()]).take(pa.array(places)), places < found.num_rows


def _plan_groups(name: str, node: Aggregate) -> GroupPlan:
    [child] = node.children
    places = {attribute.id: name_column(at) for at, attribute in enumerate(child.output)}
    kinds = {attribute.id: find_arrow_type(attribute.type) for attribute in child.output}

    def find(at: int | None) -> str | None:
        return None if at is None else places[at]

    summed = []
    for each in node.functions:
        if not each.is_extreme:
            types = [kinds[argument] for argument in each.arguments]
            accumulator = make_accumulator(each.name, types, each.mode)
            if accumulator is None:
                raise Unexpected(where=f"Totals of {name!r}", why=f"there is no accumulator for {each.name} of {types}")
            arguments = tuple(places[argument] for argument in each.arguments)
            summed.append(SummedFunction(arguments, find(each.condition), accumulator))
    extremes = [
        ExtremeFunction(places[each.arguments[0]], find(each.condition), each.name == "Max", kinds[each.arguments[0]])
        for each in node.functions
        if each.is_extreme
    ]
    return GroupPlan(
        name=name,
        schema=make_arrow_schema(node.output),
        key_columns=tuple(places[key] for key in node.keys),
        summed=tuple(summed),
        extremes=tuple(extremes),
        buffers=tuple((each.is_extreme, len(each.buffer)) for each in node.functions),
    )


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


def _join_columns(keys: pa.Table, state: pa.Table, of: Bools) -> pa.Table:
    chosen = pa.array(np.flatnonzero(of))
    columns = [column.take(chosen) for column in (*keys.columns, *state.columns)]
    return pa.Table.from_arrays(columns, schema=pa.schema([*keys.schema, *state.schema]))
