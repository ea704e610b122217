"""`Ledger`: the content of tables, and the transaction that is being written, for generators of transactions.

Generators insert, delete and update rows, and must never retract a row that does not exist. The ledger applies each
operation to plain tables, records the changes, and returns them as one transaction: a delta per table, with its columns
then `__diff`. A delta is not consolidated: a row that was inserted and deleted in one transaction is in it twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.rows.changes import DIFF
from tests.kit.runtime import RandomStream

Transaction: TypeAlias = dict[str, pa.Table]
"""The delta of each table; unchanged tables may be omitted."""

_DIFF_FIELD = pa.field(DIFF, pa.int64(), nullable=False)


def delta_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a collection, then `__diff`."""
    return pa.schema([*schema, _DIFF_FIELD])


def delta_of(rows: pa.Table, diff: int) -> pa.Table:
    """Each row as one change with this diff."""
    return rows.append_column(_DIFF_FIELD, pa.array(np.full(rows.num_rows, diff, np.int64)))


def changed(rows: pa.Table, **values: Any) -> pa.Table:
    """Replace the values of some columns: by one value for all rows, or by a sequence with one per row."""
    for name, value in values.items():
        at = rows.schema.get_field_index(name)
        field = rows.schema.field(at)
        each = value if isinstance(value, (list, pa.Array, pa.ChunkedArray)) else [value] * rows.num_rows
        array = each.cast(field.type) if isinstance(each, (pa.Array, pa.ChunkedArray)) else pa.array(each, field.type)
        rows = rows.set_column(at, field, array)
    return rows


def sample(rng: RandomStream, size: int, count: int) -> list[int]:
    """Up to `count` different numbers below `size`."""
    chosen: dict[int, None] = {}
    while len(chosen) < min(count, size):
        chosen[rng.below(size)] = None
    return list(chosen)


class Ledger:
    def __init__(self, schemas: Mapping[str, pa.Schema]) -> None:
        self._rows: dict[str, pa.Table] = {name: schema.empty_table() for name, schema in schemas.items()}
        self._written: dict[str, list[pa.Table]] = {}

    def rows(self, table: str) -> pa.Table:
        """The content of the table; a row that occurs several times is repeated."""
        return self._rows[table]

    def insert(self, table: str, rows: pa.Table) -> None:
        self._write(table, rows, 1)
        self._rows[table] = pa.concat_tables([self._rows[table], rows]).combine_chunks()

    def delete(self, table: str, at: Sequence[int]) -> pa.Table:
        """Delete the rows at these positions, and return them."""
        held = self._rows[table]
        gone = held.take(pa.array(at, pa.int64()))
        keeps = np.ones(held.num_rows, np.bool_)
        keeps[list(at)] = False
        self._write(table, gone, -1)
        self._rows[table] = held.filter(pa.array(keeps))
        return gone

    def where(self, table: str, column: str, values: Any) -> list[int]:
        """The positions of the rows with one of these values in the column."""
        found = pc.is_in(self._rows[table].column(column), pa.array(values))
        at: list[int] = np.flatnonzero(np.asarray(found)).tolist()
        return at

    def commit(self) -> Transaction:
        """The changes since the last commit, as one transaction."""
        written, self._written = self._written, {}
        return {table: pa.concat_tables(deltas) for table, deltas in written.items()}

    def _write(self, table: str, rows: pa.Table, diff: int) -> None:
        self._written.setdefault(table, []).append(delta_of(rows, diff))
