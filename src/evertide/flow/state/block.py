"""Blocks: rows of an arrangement in memory, each with its word and its diff; and their consolidation.

A block is immutable. Its `columns` are arrays by name; `words` and `diffs` are numpy
arrays for searching and summing.

Rows are equal if they are bitwise equal, as in a shard. Keys may be equal where rows are not (-0.0 and 0.0).

Consolidation sums the diffs of equal rows. Hashing every row would be most of its cost, so only rows that can have an
equal are hashed (`merge_blocks`): equal rows have equal keys and so equal words, and a consolidated block holds each
row once. Rows with equal hashes are compared before they are merged.

Each delta is checked once, when it becomes a block, before an arrangement uses it. A delta is a table with the
collection's columns in order, then `__diff` (int64, NOT NULL). A column whose type is another encoding of the same
values is converted to the arrangement's type; any other type is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.errors import Unexpected
from evertide.flow.state.key_words import hash_keys
from evertide.rows.changes import DIFF_FIELD, sum_diffs
from evertide.rows.columns import Longs, to_array
from evertide.rows.conform import are_alike, conform
from evertide.rows.digest import hash_rows

_NO_LONGS: Longs = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class RowBlock:
    words: Longs
    diffs: Longs
    columns: dict[str, Any]

    @property
    def rows(self) -> int:
        return len(self.words)

    @property
    def bytes(self) -> int:
        return int(
            self.words.nbytes
            + self.diffs.nbytes
            + sum(array.get_total_buffer_size() for array in self.columns.values())
        )

    def take(self, rows: Longs, diffs: Longs | None = None) -> RowBlock:
        """These rows, in this order, with other diffs if given."""
        indices = pa.array(rows)
        columns = {name: array.take(indices) for name, array in self.columns.items()}
        return RowBlock(self.words[rows], self.diffs[rows] if diffs is None else diffs, columns)

    def slice(self, start: int, end: int) -> RowBlock:
        if start == 0 and end == self.rows:
            return self
        columns = {name: array.slice(start, end - start) for name, array in self.columns.items()}
        return RowBlock(self.words[start:end], self.diffs[start:end], columns)


def concatenate_blocks(blocks: Sequence[RowBlock]) -> RowBlock:
    """Concatenate at least one block."""
    if len(blocks) == 1:
        return blocks[0]
    columns = {name: pa.concat_arrays([block.columns[name] for block in blocks]) for name in blocks[0].columns}
    return RowBlock(
        np.concatenate([block.words for block in blocks]), np.concatenate([block.diffs for block in blocks]), columns
    )


def merge_blocks(blocks: Sequence[RowBlock], where: str, *, is_consolidated: bool = True) -> RowBlock:
    """Consolidate the rows of all blocks, in the order of their words.

    `is_consolidated`: each block already has each row once.
    """
    whole = concatenate_blocks(blocks)
    if is_consolidated and len(blocks) == 1:
        return whole
    order = np.argsort(whole.words, kind="stable")
    suspects = _find_suspects(whole.words[order], _number_origins(blocks)[order] if is_consolidated else None)
    totals = whole.diffs
    if len(suspects):
        rows = order[suspects]
        indices = pa.array(rows)
        columns = pa.table({name: array.take(indices) for name, array in whole.columns.items()})
        kept, sums = sum_diffs(columns, None, whole.diffs[rows], hash_rows(columns), where, is_sorted=False)
        totals = totals.copy()
        totals[rows] = 0
        totals[rows[kept]] = sums
    left = totals[order] != 0
    order = order if left.all() else order[left]
    return whole.take(order, totals[order])


def _number_origins(blocks: Sequence[RowBlock]) -> Longs:
    return np.repeat(np.arange(len(blocks)), [block.rows for block in blocks])


def _find_suspects(words: Longs, origins: Longs | None) -> Longs:
    """Rows that may have an equal row: their word occurs again, and in another block if origins are given."""
    again = words[1:] == words[:-1]
    if not again.any():
        return _NO_LONGS
    starts = np.flatnonzero(np.concatenate(([True], ~again)))
    lengths = np.diff(np.append(starts, len(words)))
    # The sort was stable, so the first and last row of a word come from the first and last block with the word.
    doubtful = lengths > 1 if origins is None else origins[starts] != origins[starts + lengths - 1]
    return np.flatnonzero(np.repeat(doubtful, lengths))


def make_block(delta: pa.Table, schema: pa.Schema, key: Sequence[str], where: str) -> RowBlock:
    """Convert a delta to a consolidated block in the order of its words."""
    arrays = check_columns(delta, pa.schema([*schema, DIFF_FIELD]), where)
    columns = dict(zip(schema.names, arrays, strict=False))
    # Without key columns all rows have the same key, so any order is valid. This one keeps the memory of a merge small.
    names = key or schema.names
    words = hash_keys(pa.Table.from_arrays([columns[name] for name in names], names=list(names)))
    block = RowBlock(words, np.asarray(arrays[-1]), columns)
    return merge_blocks([block], where, is_consolidated=False)


def check_columns(table: pa.Table, schema: pa.Schema, where: str) -> list[Any]:
    """The columns of a table, each as one array of exactly the type in the schema."""
    if table.schema.names != schema.names:
        raise Unexpected(
            where=where, why=f"the delta has the columns {table.schema.names}, but must have {schema.names}"
        )
    return [_check_column(column, field, where) for column, field in zip(table.columns, schema, strict=True)]


def _check_column(column: Any, field: Any, where: str) -> Any:
    place = f"{where}, column {field.name!r}"
    array = to_array(column)
    if not array.type.equals(field.type, check_metadata=True):
        if not are_alike(array.type, field.type):
            raise Unexpected(where=place, why=f"the column has the type {array.type}, but must have {field.type}")
        array = conform(array, field.type)
    if not field.nullable and array.null_count:
        raise Unexpected(where=place, why="the column has a NULL, but is NOT NULL")
    return array


def check_key(schema: pa.Schema, key: Sequence[str], where: str) -> None:
    missing = [name for name in key if name not in schema.names]
    if missing or len(set(key)) != len(key):
        raise Unexpected(where=where, why=f"the key is {key!r}, but must be distinct columns out of {schema.names}")


def make_table(blocks: Sequence[RowBlock], schema: pa.Schema) -> pa.Table:
    """Convert blocks to a table with these columns and `__diff`, one chunk per block."""
    whole = pa.schema([*schema, DIFF_FIELD])
    tables = [
        pa.Table.from_arrays([*(block.columns[name] for name in schema.names), pa.array(block.diffs)], schema=whole)
        for block in blocks
    ]
    return pa.concat_tables(tables) if len(tables) > 1 else tables[0] if tables else whole.empty_table()
