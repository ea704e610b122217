"""The groups of an additive aggregate: per group, sums to which a delta adds and from which it takes.

The collection has a row per group: its keys, then the buffers of Catalyst's functions, of which a Map above makes the
result. Kept is the exact state behind the buffers (`evertide.flow.accumulators`), in one arrangement by the keys; that
is also what look-ups by the keys, and scans, are answered from. So a delta costs the groups that it touches, however
many rows they have. Without keys there is one group, from the beginning on, whether or not it has rows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from evertide.errors import InvalidInput
from evertide.flow.accumulators import Accumulator, Accumulators, Mode, Rows, accumulator
from evertide.flow.bags import diffs_of, with_diffs
from evertide.flow.collection import Arrange, Collection
from evertide.flow.groups import group_rows
from evertide.plan.columns import arrow_schema, arrow_type, column_name
from evertide.plan.nodes import Aggregate, Function
from evertide.shard.changes import net
from evertide.shard.columns import Bools

__all__ = ["Totals"]

_MODES: dict[str, Mode] = {"ANSI": "ANSI", "TRY": "TRY", "LEGACY": "LEGACY"}


class Totals(Collection):
    def __init__(self, name: str, node: Aggregate, inputs: Collection, arrange: Arrange) -> None:
        super().__init__(name, arrow_schema(node.output), arrange)
        self.node = node
        self._inputs = inputs
        [child] = node.children
        self._places = {attribute.id: column_name(at) for at, attribute in enumerate(child.output)}
        self._types = {attribute.id: attribute.type for attribute in child.output}
        self._functions = node.functions
        self._sums = Accumulators(tuple(self._accumulator(function) for function in node.functions))
        self.keys = tuple(column_name(at) for at in range(len(node.keys)))
        self._key_schema = pa.schema([self.schema.field(key) for key in self.keys])
        self.state = arrange(name, pa.schema([*self._key_schema, *self._sums.state]), self.keys)
        self._change: pa.Table | None = None

    def _accumulator(self, function: Function) -> Accumulator:
        types = [arrow_type(self._types[argument]) for argument in function.arguments]
        found = accumulator(function.name, types, _MODES[function.mode])
        if found is None:
            raise InvalidInput(where=self.name, why=f"{function.name} of {types} cannot be kept as a sum")
        return found

    def run(self, *, is_first: bool) -> None:
        delta = self._inputs.delta
        if delta.num_rows == 0 and not (is_first and not self.keys):
            return
        keys, added = self._added(delta)
        before, is_there = self._before(keys, added)
        after = self._sums.merge(before, added)
        stays = self._sums.present(after) if self.keys else np.ones(1, np.bool_)
        parts = ((before, is_there, -1), (after, stays, 1))
        self.delta = net(
            pa.concat_tables([_signed(self._finished(keys, state, of), sign) for state, of, sign in parts]),
            self.name,
            is_sorted=False,
        )
        self._change = pa.concat_tables([_signed(_side_by_side(keys, state, of), sign) for state, of, sign in parts])

    def settle(self) -> None:
        if self._change is not None:
            self.state.apply(self._change)
        super().settle()

    def forget(self) -> None:
        super().forget()
        self._change = None

    def need(self, key: tuple[str, ...], columns: tuple[str, ...]) -> None:
        if key and set(key) != set(self.keys):
            super().need(key, columns)

    def lookup(self, key: tuple[str, ...], keys: pa.Table, columns: tuple[str, ...]) -> pa.Table:
        if set(key) != set(self.keys):
            return super().lookup(key, keys, columns)
        return self._shown(self.state.lookup(keys.select(list(self.keys)).cast(self._key_schema)), columns)

    def scan(self, columns: tuple[str, ...]) -> pa.Table:
        return self._shown(self.state.scan(), columns)

    def _shown(self, found: pa.Table, columns: tuple[str, ...]) -> pa.Table:
        """Stored groups as rows of the collection; each is there once."""
        state = found.select(self._sums.state.names)
        rows = self._finished(found.select(list(self.keys)), state, np.ones(found.num_rows, np.bool_))
        return net(_signed(rows.select(list(columns)), 1), self.name, is_sorted=False)

    def _added(self, delta: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The groups that the delta touches, and what it adds to each."""
        keys = delta.select(list(self.keys))
        if self.keys:
            groups, first = group_rows(keys)
            keys, count = keys.take(pa.array(first)).cast(self._key_schema), len(first)
        else:
            groups, count = np.zeros(delta.num_rows, np.int64), 1
        arguments = [[delta.column(self._places[at]) for at in each.arguments] for each in self._functions]
        masks = [self._mask(delta, each.condition) for each in self._functions]
        return keys, self._sums.partial(arguments, Rows(diffs_of(delta), groups, count), masks)

    def _mask(self, delta: pa.Table, condition: int | None) -> Bools | None:
        if condition is None:
            return None
        found: Bools = delta.column(self._places[condition]).fill_null(False).to_numpy()  # noqa: FBT003
        return found.astype(np.bool_)

    def _before(self, keys: pa.Table, added: pa.Table) -> tuple[pa.Table, Bools]:
        """The state of these groups, in their order, and which are there."""
        found = self.state.lookup(keys) if self.keys else self.state.scan()
        state = found.select(self._sums.state.names)
        count = added.num_rows
        places = np.full(count, found.num_rows, np.int64)  # the row after the last is that of no state
        if self.keys and found.num_rows:
            numbers, _ = group_rows(pa.concat_tables([keys, found.select(list(self.keys)).cast(self._key_schema)]))
            places[numbers[count:]] = np.arange(found.num_rows)
        elif found.num_rows:
            places[0] = 0
        is_there = places < found.num_rows
        return pa.concat_tables([state, self._sums.zero(1)]).take(pa.array(places)), is_there

    def _finished(self, keys: pa.Table, state: pa.Table, of: Bools) -> pa.Table:
        """Rows of the collection, for the groups that are there."""
        chosen = pa.array(np.flatnonzero(of))
        keys, state = keys.take(chosen) if self.keys else keys, state.take(chosen)
        buffers = self._sums.finish(state, lambda at: f"{self.name}, group {keys.slice(at, 1).to_pylist()}")
        return pa.Table.from_arrays([*keys.columns, *buffers.columns], schema=self.schema)


def _side_by_side(keys: pa.Table, state: pa.Table, of: Bools) -> pa.Table:
    chosen = pa.array(np.flatnonzero(of))
    columns = [column.take(chosen) for column in (*keys.columns, *state.columns)]
    return pa.Table.from_arrays(columns, schema=pa.schema([*keys.schema, *state.schema]))


def _signed(rows: pa.Table, sign: int) -> pa.Table:
    return with_diffs(rows, np.full(rows.num_rows, sign, np.int64))
