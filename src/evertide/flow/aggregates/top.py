"""The first rows of a collection, in the order of the query (top-k).

The state is the first rows and a reserve behind them, in order. A delta inserts and removes rows in this order. Rows
behind the reserve are unknown, so the reserve shrinks with each removal, and rows behind its end are not inserted,
unless all rows of the input are kept. When the reserve is used up, the whole input is read to fill it again. So the
cost of a delta follows its size, except for one scan after many removals.

Spark decides the order: one small run sorts the kept rows and the new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from evertide.flow.collection import Arrange, CircuitCollection
from evertide.flow.leaf_rows import add_sign, get_diffs
from evertide.flow.state.arrangement import Arrangement
from evertide.plan.algebra.nodes import TopK
from evertide.plan.algebra.plan_columns import make_arrow_schema
from evertide.plan.fragment.fragment import Fragment
from evertide.rows.changes import DIFF, consolidate_delta, expand

_PLACE = "place"


class Top(CircuitCollection):
    def __init__(self, name: str, node: TopK, fragment: Fragment, inputs: CircuitCollection, arrange: Arrange) -> None:
        """`fragment` outputs the first rows of its input, as many as are kept, in order."""
        super().__init__(name, make_arrow_schema(node.output), arrange)
        if node.first is None or node.first.limit is None or node.limit is None:
            raise ValueError("the TopK has no LIMIT")
        self.node = node
        self._shown = slice(node.offset, node.offset + node.limit)
        self.fragment = fragment
        self.inputs = inputs
        self._columns = tuple(self.schema.names)
        inputs.need((), self._columns)
        place = pa.field(_PLACE, pa.int64(), nullable=False)
        self.state = arrange(f"{name}.first", pa.schema([*self.schema, place]), ())
        self._kept: pa.Table | None = None
        """The kept rows in order, read from the state once."""
        self._after: pa.Table | None = None
        self._rows: int | None = None
        self._more = 0

    def run(self, *, is_first: bool) -> None:  # noqa: ARG002 - without input there are no rows
        delta = self.inputs.delta
        if not delta.num_rows:
            return
        before = self._read_kept()
        self._more = int(get_diffs(delta).sum())
        after = self._update(before, delta)
        if after is None:
            return
        self._after = after
        shown = [add_sign(rows[self._shown], sign) for rows, sign in ((before, -1), (after, 1))]
        self.delta = consolidate_delta(pa.concat_tables(shown), self.name)

    def start(self, first: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The state and the rows of the collection, as deltas, if these are the first rows of all input, in order."""
        return _add_places(first, 1), consolidate_delta(add_sign(first[self._shown], 1), self.name)

    def list_arrangements(self) -> Iterator[Arrangement]:
        yield from super().list_arrangements()
        yield self.state

    def prepare(self) -> list[Callable[[], None]]:
        calls = [self._move]
        if self._after is not None:
            change = pa.concat_tables([_add_places(self._read_kept(), -1), _add_places(self._after, 1)])
            calls.append(self.state.prepare(change))
        return [*calls, *super().prepare()]

    def _move(self) -> None:
        if self._rows is not None:
            self._rows += self._more
        if self._after is not None:
            self._kept = self._after

    def forget(self) -> None:
        super().forget()
        self._after = None
        self._more = 0

    def _read_kept(self) -> pa.Table:
        if self._kept is None:
            found = expand(self.state.scan(), self.name)
            self._kept = found.sort_by(_PLACE).drop_columns([_PLACE])
        return self._kept

    def _update(self, before: pa.Table, delta: pa.Table) -> pa.Table | None:
        """The rows to keep after the delta; None if nothing changes."""
        is_added = get_diffs(delta) > 0
        added, removed = delta.filter(pa.array(is_added)), delta.filter(pa.array(~is_added))
        left = consolidate_delta(pa.concat_tables([add_sign(before, 1), removed]), self.name, is_sorted=False)
        stays = expand(left.filter(pa.array(get_diffs(left) > 0)), self.name)
        if stays.num_rows == before.num_rows and not added.num_rows:
            return None
        after = self._take_first(pa.concat_tables([stays, expand(added, self.name)]))
        if before.num_rows == self._count_input():  # all rows are kept, also the new ones
            return after
        after = after.slice(0, stays.num_rows)
        return after if after.num_rows >= self._shown.stop else self._refill(delta)

    def _count_input(self) -> int:
        """The number of rows of the input before the transaction."""
        if self._rows is None:
            self._rows = int(get_diffs(self.inputs.scan(self._columns)).sum())
        return self._rows

    def _refill(self, delta: pa.Table) -> pa.Table:
        whole = consolidate_delta(
            pa.concat_tables([self.inputs.scan(self._columns), delta]), self.name, is_sorted=False
        )
        return self._take_first(expand(whole, self.name))

    def _take_first(self, rows: pa.Table) -> pa.Table:
        if not rows.num_rows:
            return rows
        return self.fragment.run([(1, [rows])]).drop_columns([DIFF])


def _add_places(kept: pa.Table, sign: int) -> pa.Table:
    placed = kept.append_column(pa.field(_PLACE, pa.int64(), nullable=False), pa.array(np.arange(kept.num_rows)))
    return add_sign(placed, sign)
