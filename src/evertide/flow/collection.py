"""`CircuitCollection`: the rows of a table, a stage or an aggregate inside a circuit, with their arrangements.

Columns are named by position. During a transaction, a collection has its delta, and look-ups return the rows before it.
At the end of the transaction (`prepare`), the arrangements apply the delta.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.flow.aggregates.groups import group_rows
from evertide.flow.leaf_rows import cancel_out
from evertide.flow.state.arrangement import Arrangement
from evertide.plan.algebra.nodes import Attribute, PlanNode
from evertide.plan.algebra.plan_columns import name_column
from evertide.plan.fragment.condensed_column import ColumnUse
from evertide.rows.changes import DIFF, DIFF_FIELD
from evertide.rows.conform import conform_table

_KEYS_FEW = 1000
_NAME_MAX = 60

Arrange = Callable[[str, pa.Schema, tuple[str, ...]], Arrangement]
"""Creates an arrangement with a name, columns and a key."""


class CircuitCollection:
    def __init__(self, name: str, schema: pa.Schema, arrange: Arrange) -> None:
        self.name = name
        self.schema = schema
        self._arrange = arrange
        self.arrangements: dict[tuple[tuple[str, ...], tuple[str, ...]], Arrangement] = {}
        """By key and columns."""
        self.empty = pa.schema([*schema, DIFF_FIELD]).empty_table()
        self.delta = self.empty
        self.uses: tuple[ColumnUse, ...] | None = None
        """What the only reader of the deltas needs of each column, if it counts and adds up the rows."""

    def set_delta(self, delta: pa.Table) -> None:
        """Set the delta of the current transaction."""
        self.delta = delta

    def set_uses(self, uses: tuple[ColumnUse, ...] | None) -> None:
        self.uses = uses

    def need(self, key: tuple[str, ...], columns: tuple[str, ...]) -> None:
        """Keep an arrangement for look-ups of these columns by this key, or for scans if the key is empty."""
        if (key, columns) not in self.arrangements:
            kept = pa.schema([self.schema.field(column) for column in columns])
            self.arrangements[key, columns] = self._arrange(self._name_arrangement(key, columns), kept, key)

    def _name_arrangement(self, key: tuple[str, ...], columns: tuple[str, ...]) -> str:
        """A name that is the same in every process, and does not depend on other arrangements."""
        kept = "all" if len(columns) == len(self.schema) else "-".join(columns)
        if len(kept) > _NAME_MAX:
            kept = hashlib.blake2b(kept.encode(), digest_size=8).hexdigest()
        return f"{self.name}.by-{'-'.join(key) or 'nothing'}.of-{kept}"

    def lookup(self, key: tuple[str, ...], keys: pa.Table, columns: tuple[str, ...]) -> pa.Table:
        return self.arrangements[key, columns].lookup(keys)

    def is_scan_cheaper(self, key: tuple[str, ...], keys: int, columns: tuple[str, ...]) -> bool:
        """Whether reading all rows is cheaper than looking up this number of keys."""
        kept = self.arrangements.get((key, columns))
        return kept is not None and keys > max(kept.rows, _KEYS_FEW)

    def scan(self, columns: tuple[str, ...]) -> pa.Table:
        found = next(arrangement for (_, own), arrangement in self.arrangements.items() if own == columns)
        return found.scan()

    def list_arrangements(self) -> Iterator[Arrangement]:
        """All arrangements that apply the delta."""
        yield from self.arrangements.values()

    def prepare(self) -> list[Callable[[], None]]:
        """Do all work of applying the delta that can fail. The returned calls apply the delta, and drop it."""
        calls: list[Callable[[], None]] = []
        if self.delta.num_rows:
            for (_, columns), arrangement in self.arrangements.items():
                calls.append(arrangement.prepare(self.delta.select([*columns, DIFF])))
        return [*calls, self.forget]

    def forget(self) -> None:
        """Drop the delta: the transaction failed, or is applied."""
        self.delta = self.empty


class Leaf:
    """A collection with the columns that a stage reads."""

    def __init__(self, collection: CircuitCollection, node: PlanNode, read: Sequence[Attribute]) -> None:
        self.collection = collection
        self._columns: dict[int, str] = {}
        for at, attribute in enumerate(node.output):
            self._columns.setdefault(attribute.id, name_column(at))  # a column that is passed up twice is read once
        self.columns = tuple(self._columns[attribute.id] for attribute in read)
        self.delta = collection.empty.select([*self.columns, DIFF])
        self.was_scanned = False
        """Whether all rows were read in this transaction, since look-ups would have cost more."""

    def begin(self) -> None:
        """Read the transaction's delta."""
        self.was_scanned = False
        delta = self.collection.delta.select([*self.columns, DIFF])
        is_whole = len(self.columns) == len(self.collection.schema)
        self.delta = delta if is_whole else cancel_out(delta, self.collection.name)

    def get_column(self, attribute: int) -> str:
        return self._columns[attribute]

    def need(self, attributes: tuple[int, ...]) -> None:
        self.collection.need(tuple(dict.fromkeys(map(self.get_column, attributes))), self.columns)

    def lookup(self, columns: tuple[str, ...], keys: pa.Table) -> pa.Table:
        """Look up rows by keys. A NULL finds nothing in a NOT NULL column. For a column that is named twice, the first
        value is used; the stage's condition checks the other."""
        first = {column: at for at, column in reversed([*enumerate(columns)])}
        columns = tuple(dict.fromkeys(columns))
        types = [pa.field(column, self.collection.schema.field(column).type) for column in columns]
        # The fields of a struct may have other names on the other side of a join.
        keys = conform_table(keys.select([first[column] for column in columns]), pa.schema(types))
        for column in columns:
            if not self.collection.schema.field(column).nullable and keys.column(column).null_count:
                keys = keys.filter(pc.is_valid(keys.column(column)))
        if self.collection.is_scan_cheaper(columns, keys.num_rows, self.columns):
            self.was_scanned = True
            return _filter_by_keys(self.scan(), columns, keys)
        return self.collection.lookup(columns, keys, self.columns)

    def scan(self) -> pa.Table:
        return self.collection.scan(self.columns)


def _filter_by_keys(rows: pa.Table, columns: tuple[str, ...], keys: pa.Table) -> pa.Table:
    """The rows with one of the keys. Other rows would not change the result, but their partners would be read too."""
    schema = pa.schema([pa.field(column, keys.schema.field(column).type) for column in columns])
    both = [pa.Table.from_arrays(each.select(list(columns)).columns, schema=schema) for each in (keys, rows)]
    numbers, first = group_rows(pa.concat_tables(both))
    is_wanted = np.zeros(len(first), np.bool_)
    is_wanted[numbers[: keys.num_rows]] = True
    chosen = is_wanted[numbers[keys.num_rows :]]
    return rows if chosen.all() else rows.filter(pa.array(chosen))
