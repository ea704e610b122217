"""Blocks: rows of an arrangement in memory, each with its word and its diff; and their consolidation.

A block is immutable. Its `columns` are the requested ones, by name, each as one array; `words` and `diffs` are numpy
arrays for searching and summing.

Rows are equal if they are bitwise equal, as in a shard. Keys may be equal where rows are not (-0.0 and 0.0).

Consolidation sums the diffs of equal rows. Hashing every row would be most of its cost, so only rows that can have an
equal are hashed (`merge_blocks`): equal rows have equal keys and so equal words, and a consolidated block holds each
row once. Rows with equal hashes are compared before they are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.errors import InvalidInput
from evertide.rows.columns import Bools, Longs
from evertide.rows.digest import hash_rows
from evertide.rows.equality import compare_rows

__all__ = ["RowBlock", "concatenate_blocks", "merge_blocks", "sum_diffs"]

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

    def select(self, names: Sequence[str]) -> RowBlock:
        return RowBlock(self.words, self.diffs, {name: self.columns[name] for name in names})


def concatenate_blocks(blocks: Sequence[RowBlock]) -> RowBlock:
    """Concatenate at least one block."""
    if len(blocks) == 1:
        return blocks[0]
    columns = {name: pa.concat_arrays([block.columns[name] for block in blocks]) for name in blocks[0].columns}
    return RowBlock(
        np.concatenate([block.words for block in blocks]), np.concatenate([block.diffs for block in blocks]), columns
    )


def merge_blocks(blocks: Sequence[RowBlock], *, has_key: bool, is_consolidated: bool, where: str) -> RowBlock:
    """Consolidate the rows of all blocks, in the order of their words.

    `has_key`: the key is among the columns, so equal rows have equal words; without it, the order is undefined.
    `is_consolidated`: each block already has each row once.
    """
    whole = concatenate_blocks(blocks)
    if is_consolidated and len(blocks) == 1:
        return whole
    if not has_key:
        rows, totals = sum_diffs(list(whole.columns.values()), whole.diffs, where)
        return whole.take(rows, totals)
    order = np.argsort(whole.words, kind="stable")
    suspects = _find_suspects(whole.words[order], _number_origins(blocks)[order] if is_consolidated else None)
    totals = whole.diffs
    if len(suspects):
        rows = order[suspects]
        indices = pa.array(rows)
        kept, sums = sum_diffs([array.take(indices) for array in whole.columns.values()], whole.diffs[rows], where)
        totals = totals.copy()
        totals[rows] = 0
        totals[rows[kept]] = sums
    left = totals[order] != 0
    order = order if left.all() else order[left]
    return whole.take(order, totals[order])


def sum_diffs(columns: Sequence[Any], diffs: Longs, where: str) -> tuple[Longs, Longs]:
    """Sum the diffs of equal rows: one position per distinct row, ascending, and its sum, without sums of 0."""
    if len(diffs) == 0:
        return _NO_LONGS, diffs
    order, starts = _group_equal(columns, len(diffs))
    totals = diffs
    if len(starts) < len(diffs):
        totals = np.zeros(len(diffs), np.int64)
        totals[order[starts]] = _sum_groups(diffs[order], starts, where)
    rows = np.flatnonzero(totals)
    return rows, totals[rows]


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


def _group_equal(columns: Sequence[Any], rows: int) -> tuple[Longs, Longs]:
    """An order in which equal rows are adjacent, and the start of each group of equal rows."""
    if not columns:
        return np.arange(rows), np.zeros(1, np.int64)
    table = pa.Table.from_arrays(list(columns), names=[str(i) for i in range(len(columns))])
    hashes = hash_rows(table).high
    order = np.argsort(hashes)
    in_order = hashes[order]
    again: Bools = in_order[1:] == in_order[:-1]
    pairs = np.flatnonzero(again)
    if len(pairs) == 0:
        return order, np.arange(rows)
    starts = np.flatnonzero(np.concatenate(([True], ~again)))
    if compare_rows(table, order[pairs], order[pairs + 1]).all():
        return order, starts
    return _separate(table, np.split(order, starts[1:]))


def _separate(table: pa.Table, likes: list[Longs]) -> tuple[Longs, Longs]:
    """The same for different rows with equal hashes. This is slow, but hardly ever happens."""
    groups = []
    for like in likes:
        rest = like
        while len(rest):
            same = compare_rows(table, np.full(len(rest), rest[0]), rest)
            groups.append(rest[same])
            rest = rest[~same]
    lengths = np.array([len(group) for group in groups])
    return np.concatenate(groups), np.cumsum(lengths) - lengths


def _sum_groups(diffs: Longs, starts: Longs, where: str) -> Longs:
    """Sum diffs per group, without a silent overflow."""
    most = max(int(diffs.max()), -int(diffs.min()))
    if most * len(diffs) < 1 << 63:
        return np.add.reduceat(diffs, starts)
    totals = [sum(group.tolist()) for group in np.split(diffs, starts[1:])]
    if not all(-(1 << 63) <= total < 1 << 63 for total in totals):
        raise InvalidInput(where=where, why="the sum of the diffs of a row does not fit in 64 bits")
    return np.array(totals, np.int64)
