"""Reads the changes for a sink from a shard: its content, the difference of two contents, or single transactions.

The memory needed depends on the piece, not on the transaction (`evertide.sinks.contract.Changes`):

1. Up to `portion_rows_max` rows and `portion_bytes_max` bytes, the changes of a transaction are one piece, in memory.
2. Larger ones are spread over slices in temporary files, by the hash of the sink's key, or of the row if there is no
   key. One slice, consolidated, is one piece.
3. Many transactions that compaction merged into one large batch are first spread over slices by their times.
4. The number of pieces depends on how the shard is stored, which compaction changes. A webhook numbers its requests,
   and a repeated request must have the same content, so the caller decides on the number of pieces and records it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evertide.rows.changes import DIFF, TIME, consolidate, consolidate_delta
from evertide.rows.slices import SLICES_MAX, Slices, choose_by_columns, choose_by_row, choose_by_time, count_slices
from evertide.settings import Settings
from evertide.shard.read import Snapshot
from evertide.shard.shard import Shard
from evertide.sinks.contract import Changes


@dataclass(frozen=True, slots=True)
class _Size:
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SinkReader:
    key: tuple[str, ...]
    fit: Callable[[pa.Table], pa.Table]
    """Converts rows of any version of the collection, with `__diff`, to the columns of the sink."""
    settings: Settings
    count_pieces: Callable[[int, int, int], int]
    """Takes a time, the number of pieces that its size suggests, and its rows at most; returns the number to use."""

    @contextmanager
    def content(self, time: int, added: Snapshot, removed: Snapshot | None = None) -> Iterator[Changes]:
        """The content `added` as additions, minus the content `removed`, if given."""
        snapshots = [added] if removed is None else [removed, added]
        tables = (
            _negate(self._fit(table)) if snapshot is removed else self._fit(table)
            for snapshot in snapshots
            for table in snapshot.scan()
        )
        with self._cut(time, tables, _measure(snapshots), is_addition=removed is None) as changes:
            yield changes

    def transactions(self, shard: Shard, lower: int, upper: int) -> Generator[tuple[int, Changes], None, None]:
        """The transactions of [lower, upper) in order. The caller must use each before it takes the next."""
        size = _Size(0, 0)
        for part in shard.log.read().state.parts:
            if part.time_max >= lower and part.time_min < upper:
                size = _Size(size.rows + part.rows, size.bytes + part.bytes)
        if self._fits(size):
            yield from self._split_by_time(shard.changes(lower, upper))
            return
        with shard.lease_changes(lower, upper) as found:
            is_addition = not any(part.retractions for part in found.parts)
            yield from self._read_windows(found.scan(), size, lower, upper, is_addition=is_addition)

    def _read_windows(
        self, tables: Iterable[pa.Table], size: _Size, lower: int, upper: int, *, is_addition: bool
    ) -> Iterator[tuple[int, Changes]]:
        if self._fits(size):
            found = [*tables]
            if found:
                yield from self._split_by_time(consolidate(pa.concat_tables(found), "sink"))
        elif upper - lower == 1:
            rows = (self._fit(table) for table in tables)
            with self._cut(lower, rows, size, is_addition=is_addition) as changes:
                yield lower, changes
        else:
            yield from self._spread_by_time(tables, size, lower, upper, is_addition=is_addition)

    def _spread_by_time(
        self, tables: Iterable[pa.Table], size: _Size, lower: int, upper: int, *, is_addition: bool
    ) -> Iterator[tuple[int, Changes]]:
        count, times = max(2, min(self._estimate_pieces(size), upper - lower)), upper - lower
        with ExitStack() as stack:
            slices: Slices | None = None
            for table in tables:
                slices = slices or stack.enter_context(Slices(table.schema, count, choose_by_time(lower, upper)))
                slices.add(table)
            if slices is None:
                return
            for index in range(count):
                first, last = (lower - (-place * times // count) for place in (index, index + 1))
                within = _Size(slices.rows[index], slices.bytes[index])
                yield from self._read_windows(slices.scan(index), within, first, last, is_addition=is_addition)

    @contextmanager
    def _cut(self, time: int, tables: Iterable[pa.Table], size: _Size, *, is_addition: bool) -> Iterator[Changes]:
        """`tables` have the columns of the sink, and `__diff`."""
        suggested = 1 if self._fits(size) else count_slices(self._estimate_pieces(size))
        count = self.count_pieces(time, suggested, size.rows)
        if count == 1:
            found = [*tables]
            yield (
                Changes.of(consolidate_delta(pa.concat_tables(found), "sink"))
                if found
                else Changes(list, is_addition=True)
            )
            return
        with self._slice(tables, count, is_addition=is_addition) as changes:
            yield changes

    @contextmanager
    def _slice(self, tables: Iterable[pa.Table], count: int, *, is_addition: bool) -> Iterator[Changes]:
        with ExitStack() as stack:
            slices: Slices | None = None
            for table in tables:
                if slices is None:
                    placing = choose_by_columns(self.key) if self.key else choose_by_row
                    slices = stack.enter_context(Slices(table.schema, count, placing))
                slices.add(table)
            if slices is None:
                yield Changes(list, is_addition=is_addition)
                return
            read = slices.read
            yield Changes(
                lambda: (consolidate_delta(read(index), "sink") for index in range(count)), is_addition=is_addition
            )

    def _split_by_time(self, changes: pa.Table) -> Iterator[tuple[int, Changes]]:
        """One transaction after the other, each in an order that depends only on its content."""
        if changes.num_rows == 0:
            return
        times = changes[TIME].to_numpy()
        order = np.argsort(times, kind="stable")
        ordered = self.fit(changes.take(pa.array(order)).drop_columns([TIME]))
        starts = np.flatnonzero(np.diff(times[order], prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(times)], strict=True):
            time, whole = int(times[order[start]]), Changes.of(ordered.slice(int(start), int(end - start)))
            count = self.count_pieces(time, 1, whole.rows)
            if count == 1:
                yield time, whole
                continue
            with self._slice(whole, count, is_addition=whole.is_addition) as sliced:
                yield time, sliced

    def _fit(self, table: pa.Table) -> pa.Table:
        return self.fit(table.drop_columns([TIME]))

    def _fits(self, size: _Size) -> bool:
        return size.rows <= self.settings.portion_rows_max and size.bytes <= self.settings.portion_bytes_max

    def _estimate_pieces(self, size: _Size) -> int:
        settings = self.settings
        wanted = max(size.rows / settings.portion_rows_max, size.bytes / settings.portion_bytes_max)
        return max(2, min(SLICES_MAX, int(-(-wanted // 1))))


def _measure(snapshots: Sequence[Snapshot]) -> _Size:
    parts = [part for snapshot in snapshots for part in snapshot.parts]
    return _Size(sum(part.rows for part in parts), sum(part.bytes for part in parts))


def _negate(changes: pa.Table) -> pa.Table:
    return changes.set_column(changes.num_columns - 1, changes.schema.field(DIFF), pc.negate(changes[DIFF]))
