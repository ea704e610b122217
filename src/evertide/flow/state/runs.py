"""Runs: rows of an arrangement sorted by word, and look-ups in them.

A run is consolidated: it has each row once, with a diff that is not 0. A negative diff removes a row of another run.
The content of an arrangement is the sum of its runs. Runs are immutable.

    MemoryRun    one block in memory. `entries` are its parts on the blob, if it was saved.
    DeltaRun     a large delta in memory, unsorted: its first reader sorts it, mostly the thread that merges
    PartRun      parts on the blob, whose words ascend from one to the next. Only parts that may have a word are opened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from evertide.flow.state.block import RowBlock, concatenate_blocks
from evertide.flow.state.part_reader import CachedParts
from evertide.flow.state.state_part import PartEntry
from evertide.rows.columns import Longs, sort_distinct

_GROUPS_AT_ONCE = 4
"""Row groups that a merge reads at a time."""

_RANGES_HELD = 1024
"""Slices of row groups that a look-up holds before it copies them, since each keeps its row group alive."""

_SLICES_MAX = 32
"""Up to this number of bounds, slices are cheaper than one take."""

BlockRange = tuple[RowBlock, int, int]
"""Rows [start, end) of a block."""


@dataclass(frozen=True, eq=False)
class MemoryRun:
    block: RowBlock
    entries: tuple[PartEntry, ...] = ()

    @property
    def rows(self) -> int:
        return self.block.rows

    @cached_property
    def bytes(self) -> int:
        return self.block.bytes

    def find(self, bounds: Longs, _cached_parts: CachedParts) -> RowBlock | None:
        return _find_rows(self.block, bounds)

    def read(self, _cached_parts: CachedParts) -> Iterator[RowBlock]:
        if self.block.rows:  # sums of saved rows may cancel out
            yield self.block


class DeltaRun:
    entries: tuple[PartEntry, ...] = ()

    def __init__(self, delta: pa.Table, arrange: Callable[[pa.Table], RowBlock]) -> None:
        """`arrange` converts the delta to a block."""
        self.rows = int(delta.num_rows)
        self.bytes = int(delta.nbytes)
        self._delta = delta
        self._arrange = arrange
        self._lock = threading.Lock()
        self._block: RowBlock | None = None

    @property
    def block(self) -> RowBlock:
        with self._lock:
            if self._block is None:
                self._block = self._arrange(self._delta)
                self._delta = self._delta.slice(0, 0)  # free the memory
            return self._block

    def find(self, bounds: Longs, _cached_parts: CachedParts) -> RowBlock | None:
        return _find_rows(self.block, bounds)

    def read(self, _cached_parts: CachedParts) -> Iterator[RowBlock]:
        if self.block.rows:  # a delta may cancel out
            yield self.block


@dataclass(frozen=True, eq=False)
class PartRun:
    entries: tuple[PartEntry, ...]

    @cached_property
    def rows(self) -> int:
        return sum(entry.rows for entry in self.entries)

    @cached_property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

    @cached_property
    def _least(self) -> Longs:
        return np.array([entry.least for entry in self.entries], np.int64)

    @cached_property
    def _greatest(self) -> Longs:
        return np.array([entry.greatest for entry in self.entries], np.int64)

    def find(self, bounds: Longs, cached_parts: CachedParts) -> RowBlock | None:
        """The rows with the words of `bounds`, which has pairs of a word and the word after it."""
        found: list[RowBlock] = []
        ranges: list[BlockRange] = []
        bounds = _trim(bounds, self.entries[0].least, self.entries[-1].greatest)
        for part, part_bounds in _find_candidates(self._least, self._greatest, bounds):
            entry = self.entries[part]
            index = cached_parts.open(entry).index
            for group, group_bounds in _find_candidates(index.least, index.greatest, part_bounds):
                ranges += _find_ranges(cached_parts.read_block(entry, group), group_bounds)
                if len(ranges) >= _RANGES_HELD:
                    found.append(_concatenate_ranges(ranges))
                    ranges = []
        if ranges:
            found.append(_concatenate_ranges(ranges))
        return concatenate_blocks(found) if found else None

    def read(self, cached_parts: CachedParts) -> Iterator[RowBlock]:
        for entry in self.entries:
            for first in range(0, entry.row_groups, _GROUPS_AT_ONCE):
                yield concatenate_blocks(
                    cached_parts.read_blocks(entry, first, min(first + _GROUPS_AT_ONCE, entry.row_groups))
                )


Run = MemoryRun | DeltaRun | PartRun


def _find_candidates(least: Longs, greatest: Longs, bounds: Longs) -> Iterator[tuple[int, Longs]]:
    """The numbers of the parts, or row groups, that may have any of the words, each with the bounds of these words."""
    firsts = np.searchsorted(greatest, bounds[::2])
    ends = np.searchsorted(least, bounds[1::2])
    hit = np.flatnonzero(firsts < ends)
    if len(hit):
        for number, low, high in _find_spans(firsts[hit], ends[hit]):
            yield number, bounds[2 * hit[low] : 2 * hit[high - 1] + 2]


def _trim(bounds: Longs, least: int, greatest: int) -> Longs:
    """The bounds of the words in [least, greatest]: often none of new keys, such as ascending numbers."""
    words = bounds[::2]
    return bounds[2 * np.searchsorted(words, least) : 2 * np.searchsorted(words, greatest, "right")]


def _find_spans(firsts: Longs, ends: Longs) -> Iterator[tuple[int, int, int]]:
    """Per part or row group that may hold any of the words: its number, and which of the (ascending) words, as a range.

    Word i lies in [firsts[i], ends[i]), and both ascend: so the words of a part or row group are adjacent.
    """
    if (ends - firsts == 1).all():
        starts = np.flatnonzero(np.concatenate(([True], firsts[1:] != firsts[:-1])))
        yield from zip(firsts[starts].tolist(), starts.tolist(), [*starts[1:].tolist(), len(firsts)], strict=True)
        return
    lengths = ends - firsts
    groups = sort_distinct(np.arange(lengths.sum()) + np.repeat(firsts - (np.cumsum(lengths) - lengths), lengths))
    lows, highs = np.searchsorted(ends, groups, "right"), np.searchsorted(firsts, groups, "right")
    yield from zip(groups.tolist(), lows.tolist(), highs.tolist(), strict=True)


def _find_ranges(block: RowBlock, bounds: Longs) -> list[BlockRange]:
    """The ranges of a row group with the words of `bounds`."""
    if len(bounds) > _SLICES_MAX:
        hits = _find_rows(block, bounds)
        return [] if hits is None else [(hits, 0, hits.rows)]
    found = block.words.searchsorted(bounds).tolist()
    return [(block, start, end) for start, end in zip(found[::2], found[1::2], strict=True) if start < end]


def _concatenate_ranges(ranges: Sequence[BlockRange]) -> RowBlock:
    columns = {}
    for name in ranges[0][0].columns:
        slices = [block.columns[name].slice(start, end - start) for block, start, end in ranges]
        columns[name] = pa.concat_arrays(slices)
    words = np.concatenate([block.words[start:end] for block, start, end in ranges])
    return RowBlock(words, np.concatenate([block.diffs[start:end] for block, start, end in ranges]), columns)


def _find_rows(block: RowBlock, bounds: Longs) -> RowBlock | None:
    """The rows of a block with the words of `bounds`."""
    if not block.rows:
        return None
    found = block.words.searchsorted(_trim(bounds, int(block.words[0]), int(block.words[-1])))
    starts, ends = found[::2], found[1::2]
    lengths = ends - starts
    total = int(lengths.sum())
    if total == 0:
        return None
    rows = np.arange(total) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return block.take(rows)
