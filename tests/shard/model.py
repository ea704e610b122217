"""A model of a shard: a list of changes, a since and an upper.

The state machine (`tests/shard/machine.py`) and the processes (`tests/shard/worker.py`) are both compared with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from evertide.rows.changes import DIFF, TIME, make_changes_schema

Row: TypeAlias = tuple[int, str]
Change: TypeAlias = tuple[Row, int, int]
"""A row, its time, its diff."""

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


@dataclass
class Model:
    changes: list[Change] = field(default_factory=list)
    since: int = 0
    upper: int = 0
    finalized: bool = False

    def append(self, changes: Iterable[Change], lower: int, upper: int) -> None:
        assert lower == self.upper < upper
        self.changes += [change for change in changes if lower <= change[1] < upper]
        self.upper = upper

    def content(self, as_of: int) -> Counter[Row]:
        return sum_diffs((row, diff) for row, time, diff in self.changes if time <= as_of)

    def between(self, lower: int, upper: int) -> Counter[tuple[Row, int]]:
        return sum_diffs(((row, time), diff) for row, time, diff in self.changes if lower <= time < upper)


def sum_diffs(pairs: Iterable[tuple[object, int]]) -> Counter:  # type: ignore[type-arg]  # of whatever it is given
    total: Counter[object] = Counter()
    for what, diff in pairs:
        total[what] += diff
    return Counter({what: number for what, number in total.items() if number})


def to_table(changes: Iterable[Change]) -> pa.Table:
    schema = make_changes_schema(SCHEMA)
    columns = list(zip(*((row[0], row[1], time, diff) for row, time, diff in changes), strict=True)) or [()] * 4
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def to_changes(table: pa.Table) -> list[Change]:
    """Accepts a table without times too, such as a snapshot: then the time is 0."""
    times = table[TIME].to_pylist() if TIME in table.schema.names else [0] * table.num_rows
    columns = (table["id"].to_pylist(), table["name"].to_pylist(), times, table[DIFF].to_pylist())
    return [((number, name), time, diff) for number, name, time, diff in zip(*columns, strict=True)]


def to_rows(table: pa.Table) -> Counter[Row]:
    return sum_diffs((row, diff) for row, _, diff in to_changes(table))


def scripted(time: int) -> list[Change]:
    """The changes that every replica appends at a time: new rows, and deletions of some earlier ones.

    Of the rows of time t, number 0 stays; number 1 is deleted at t + 1; number 2 is added twice and deleted once each
    at t + 3 and t + 7. Every fifth time changes nothing.
    """

    def rows(born: int) -> list[Row]:
        return [(born, f"row {number} of {born}") for number in range(3)] if born >= 0 and born % 5 != 4 else []

    if time % 5 == 4:
        return []
    added = [(row, time, 2 if number == 2 else 1) for number, row in enumerate(rows(time))]
    going = [(born, number) for born, number in ((_before(time, 1), 1), (_before(time, 3), 2), (_before(time, 7), 2))]
    return added + [(row, time, -1) for born, number in going for row in rows(born)[number : number + 1]]


def _before(time: int, steps: int) -> int:
    """The time `steps` steps earlier, counting only times that change something; negative if there is none."""
    place = time // 5 * 4 + time % 5 - steps
    return -1 if place < 0 else place // 4 * 5 + place % 4
