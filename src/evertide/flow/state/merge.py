"""Merges runs to a stream of blocks, and writes such a stream as parts.

A merge has in memory a few row groups of each run and all rows of the current word, whatever the size of the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa

from evertide.flow.state.block import RowBlock, concatenate_blocks, merge_blocks
from evertide.flow.state.part_reader import CachedParts
from evertide.flow.state.runs import PartRun
from evertide.flow.state.state_part import PartEntry, PartWriter


class ReadableRun(Protocol):
    def read(self, cached_parts: CachedParts, /) -> Iterator[RowBlock]:
        """Consolidated blocks whose words ascend."""
        ...


class _Cursor:
    """The position of a merge in one run: the rows that were read and not used yet."""

    def __init__(self, blocks: Iterator[RowBlock]) -> None:
        self._blocks = blocks
        self.pending: RowBlock | None = None
        self.is_over = False
        self.extend()

    def extend(self) -> None:
        """Read more rows. `is_over` is set by the first read after the end."""
        block = next(self._blocks, None)
        if block is None:
            self.is_over = True
        else:
            self.pending = block if self.pending is None else concatenate_blocks([self.pending, block])

    def cut(self, bound: int | None) -> RowBlock | None:
        """Take the rows below the bound, or all."""
        pending = self.pending
        if pending is None:
            return None
        end = pending.rows if bound is None else int(np.searchsorted(pending.words, bound))
        if end == 0:
            return None
        self.pending = None if end == pending.rows else pending.slice(end, pending.rows)
        return pending.slice(0, end)


def merge(runs: Iterable[ReadableRun], cached_parts: CachedParts, where: str) -> Iterator[RowBlock]:
    """The sum of the runs as blocks whose words ascend, also across blocks.

    1. A run that is not over may have more rows of the last word that was read. So only words below the least of these
       last words, over all runs, are complete.
    2. Complete rows are consolidated and returned.
    3. If there are none, the runs at that least word read more rows.
    """
    cursors = [_Cursor(run.read(cached_parts)) for run in runs]
    while True:
        for cursor in cursors:
            if cursor.pending is None and not cursor.is_over:
                cursor.extend()
        cursors = [cursor for cursor in cursors if cursor.pending is not None]
        if not cursors:
            return
        bound = min((_get_last_word(cursor) for cursor in cursors if not cursor.is_over), default=None)
        blocks = [block for block in [cursor.cut(bound) for cursor in cursors] if block is not None]
        if not blocks:
            for cursor in cursors:
                if not cursor.is_over and _get_last_word(cursor) == bound:
                    cursor.extend()
            continue
        block = merge_blocks(blocks, where)
        if block.rows:
            yield block


def _get_last_word(cursor: _Cursor) -> int:
    return int(cursor.pending.words[-1]) if cursor.pending is not None else 0


def write_run(
    blocks: Iterable[RowBlock],
    schema: pa.Schema,
    put: Callable[[PartWriter], PartEntry],
    *,
    row_group_rows: int,
    part_rows_max: int,
) -> PartRun | None:
    """Write consolidated blocks, in the order of their words, as a run of parts; None if there are no rows."""
    entries: list[PartEntry] = []
    writer: PartWriter | None = None
    waiting: list[RowBlock] = []
    for block in blocks:
        waiting.append(block)
        rows = sum(block.rows for block in waiting)
        while rows >= row_group_rows:
            writer = PartWriter(schema, row_group_rows) if writer is None else writer
            whole = concatenate_blocks(waiting)
            full = min(rows // row_group_rows * row_group_rows, _round_up(part_rows_max - writer.rows, row_group_rows))
            writer.add(whole.slice(0, full))
            waiting = [whole.slice(full, rows)] if full < rows else []
            rows -= full
            if writer.rows >= part_rows_max:
                entries.append(put(writer))
                writer = None
    if waiting:
        writer = PartWriter(schema, row_group_rows) if writer is None else writer
        writer.add(concatenate_blocks(waiting))
    if writer is not None:
        entries.append(put(writer))
    return PartRun(tuple(entries)) if entries else None


def _round_up(rows: int, unit: int) -> int:
    return -(-rows // unit) * unit
