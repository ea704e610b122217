"""`Feed`: reads the committed changes of one collection and distributes them to the shapes that they concern.

1. `follow` reads what was committed since, stretch by stretch. Changes are matched once against an index of all shapes
   of the collection: shapes that they do not concern cost nothing.
2. `upper` advances after all shapes have their entries: a reader that reads `upper` first, and then the entries, misses
   none below it.
3. `derive` computes entries that are no longer in a shape's tail again from the shard, in the same way.
4. If a feed cannot read what was committed, it stops, and `failure` says why until `follow` succeeds. Meanwhile no
   answer may report up-to-date.
5. For a collection without a key it keeps the count of every row (`Copies`), as of `upper`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from evertide.errors import EvertideError
from evertide.rows.columns import Longs
from evertide.shapes.log.copies import Copies
from evertide.shapes.log.index import ShapeIndex
from evertide.shapes.log.live_shape import LiveShape, LogSpan, cut_entries, measure_entries
from evertide.shapes.log.shape_definition import Subject
from evertide.shapes.log.stretch import ShapeEntry, Stretch, TxIds
from evertide.shapes.protocol.offsets import BEFORE_LOG, Offset
from evertide.shard.shard import Shard

_ROWS = 50_000
"""About how many changes are read at once."""


class FeedFailure(NamedTuple):
    error: EvertideError
    since_s: float


class _DerivedEntries(NamedTuple):
    handle: str
    lower: int
    upper: int
    entries: list[ShapeEntry]


class Feed:
    """The changes of one collection, read once for all of its shapes."""

    def __init__(self, shard: Shard, subject: Subject, txids: TxIds, tail_bytes_max: int) -> None:
        """Entries of one stretch larger than `tail_bytes_max` are not kept in a shape's tail."""
        self.shard = shard
        self.subject = subject
        self.upper: int = shard.upper
        self.shapes: dict[str, LiveShape] = {}
        self.followed = 0
        """The number of changes that this feed has read."""
        self.appended = 0
        """The number of entries that this feed has appended to logs."""
        self.failure: FeedFailure | None = None
        self.last_followed_s = 0.0
        """When `follow` last succeeded, by the monotonic clock."""
        self.is_inconsistent = False
        """Distributing a stretch failed halfway: some shapes have its entries, others do not."""
        self._txids = txids
        self._tail_bytes_max = tail_bytes_max
        self._index = ShapeIndex()
        self._lock = threading.RLock()
        self._last_read: Stretch | None = None
        """The last stretch read for `derive`: several clients often need the same one."""
        self._derived: _DerivedEntries | None = None
        self._copies: Copies | None = None
        if not subject.key:
            with shard.snapshot(self.upper - 1) as snapshot:
                self._copies = Copies(snapshot.to_arrow())

    def note_followed(self, now_s: float) -> None:
        """Note that `follow` succeeded, or that the feed is new."""
        self.failure, self.last_followed_s = None, now_s

    def note_failure(self, failure: FeedFailure) -> None:
        self.failure = failure

    def add(self, shape: LiveShape) -> None:
        with self._lock:
            shape.forget(self.upper)
            self._index.add(shape.handle, shape.definition.where)
            self.shapes[shape.handle] = shape

    def remove(self, handle: str) -> None:
        with self._lock:
            if self.shapes.pop(handle, None) is not None:
                self._index.remove(handle)

    def drop_tail(self, shape: LiveShape) -> None:
        with self._lock:
            shape.forget(self.upper)

    def clear_cache(self) -> None:
        """Drop what was kept for repeated calls of `derive`."""
        self._last_read = self._derived = None

    def follow(self) -> list[LiveShape]:
        """Read what was committed. Returns the shapes that got entries."""
        if self.shard.upper <= self.upper:
            return []
        with self._lock:
            changed: dict[str, LiveShape] = {}
            state = self.shard.log.read_cached().state
            while self.upper < state.upper:
                reach = state.find_read_end(self.upper, _ROWS)
                stretch = Stretch(self.shard.changes(self.upper, reach), self.upper, reach)
                if len(stretch):
                    changed.update(self._distribute(stretch))
                    self.followed += len(stretch)
                self.upper = reach
            return [*changed.values()]

    def _distribute(self, stretch: Stretch) -> dict[str, LiveShape]:
        try:
            if self._copies is not None:
                self._count(stretch, self._copies)
            return self._append_entries(stretch)
        except BaseException:
            self.is_inconsistent = True
            raise

    def derive(self, shape: LiveShape, after: Offset, bytes_max: int) -> LogSpan:
        """The entries after an offset that precedes the shape's tail."""
        upper, tail = self.upper, shape.tail
        lower = reach = shape.first_time(after)
        entries: list[ShapeEntry] = []
        size = 0
        while reach < tail.begins and size < bytes_max:
            reach, derived = self._derive_entries(shape, reach, tail.begins)
            size += _count_bytes(entry for entry in derived if entry.offset > after)
            entries += derived
        if reach < tail.begins:
            return cut_entries(entries, after, reach, bytes_max)._replace(is_all=False)
        with self._lock:
            if shape.tail is tail and measure_entries(entries) <= self._tail_bytes_max:
                shape.prepend(lower, entries)
        return cut_entries([*entries, *tail.entries], after, upper, bytes_max)

    def _derive_entries(self, shape: LiveShape, lower: int, upper: int) -> tuple[int, list[ShapeEntry]]:
        """The entries of the first times of [lower, upper), and the time after them.

        The last result is kept, as clients request the chunks of a long log one after the other.
        """
        derived = self._derived
        if derived is None or derived.handle != shape.handle or not derived.lower <= lower < derived.upper:
            stretch = self._read_again(lower, upper)
            entries = self._build_entries(shape, stretch, self._select(shape, stretch))
            derived = self._derived = _DerivedEntries(shape.handle, stretch.lower, stretch.upper, entries)
        return min(upper, derived.upper), [one for one in derived.entries if lower <= one.offset.time < upper]

    def find_last_offset(self, shape: LiveShape) -> Offset:
        known = shape.last_known()
        if known is not None:
            return known
        last, begins = BEFORE_LOG, shape.tail.begins
        reach = shape.first_time(BEFORE_LOG)
        while reach < begins:
            stretch = self._read_again(reach, begins)
            last = self._find_last_entry(shape, stretch) or last
            reach = stretch.upper
        if shape.last is None:
            shape.note_last(last)
        return shape.last or last

    def _find_last_entry(self, shape: LiveShape, stretch: Stretch) -> Offset | None:
        """Search from the end, transaction by transaction, as some result in no entry."""
        rows = self._select(shape, stretch)
        while len(rows):
            starts = int(np.searchsorted(stretch.times[rows], stretch.times[rows[-1]]))
            entries = self._build_entries(shape, stretch, rows[starts:])
            if entries:
                return entries[-1].offset
            rows = rows[:starts]
        return None

    def _read_again(self, lower: int, upper: int) -> Stretch:
        """The changes of [lower, upper), or the first of them; with counts if the collection has no key."""
        known = self._last_read
        if known is None or not known.lower <= lower < known.upper:
            known = self._last_read = self._read_shard_again(lower, upper)
        return known.between(lower, upper)

    def _read_shard_again(self, lower: int, upper: int) -> Stretch:
        if self._copies is None:
            reach = min(self.shard.log.read().state.find_read_end(lower, _ROWS), upper)
            return Stretch(self.shard.changes(lower, reach), lower, reach)
        with self._lock:  # the counts must stay those of `upper`
            stretch = Stretch(self.shard.changes(lower, self.upper), lower, self.upper)
            hashes = stretch.hashes()
            stretch.count(hashes, self._copies.counts(hashes))
            return stretch

    def _count(self, stretch: Stretch, copies: Copies) -> None:
        hashes = stretch.hashes()
        copies.apply(hashes, stretch.diffs)
        stretch.count(hashes, copies.counts(hashes))

    def _append_entries(self, stretch: Stretch) -> dict[str, LiveShape]:
        selected: dict[str, Longs] = {}
        for handle, rows in self._index.find_matches(stretch.rows).items():
            later = _drop_snapshot_rows(self.shapes[str(handle)], stretch, rows)
            if len(later):
                selected[str(handle)] = later
        rendered = stretch.render(selected.values())
        changed = {}
        for handle, rows in selected.items():
            shape = self.shapes[handle]
            entries = stretch.entries(shape.writer, rows, rendered, self._txids)
            if entries:
                self._append(shape, stretch, entries)
                changed[handle] = shape
        return changed

    def _append(self, shape: LiveShape, stretch: Stretch, entries: list[ShapeEntry]) -> None:
        self.appended += len(entries)
        size = measure_entries(entries)
        if size <= self._tail_bytes_max:
            shape.append(entries, size)
        else:
            shape.forget(stretch.upper)
            shape.note_last(entries[-1].offset)
            self._derived = _DerivedEntries(shape.handle, stretch.lower, stretch.upper, entries)

    def _build_entries(self, shape: LiveShape, stretch: Stretch, rows: Longs) -> list[ShapeEntry]:
        return stretch.entries(shape.writer, rows, stretch.render([rows]), self._txids)

    def _select(self, shape: LiveShape, stretch: Stretch) -> Longs:
        where = shape.definition.where
        rows = np.arange(len(stretch)) if where is None else np.flatnonzero(np.asarray(where.matches(stretch.rows)))
        return _drop_snapshot_rows(shape, stretch, rows)


def _count_bytes(entries: Iterable[ShapeEntry]) -> int:
    return sum(len(entry.data) for entry in entries)


def _drop_snapshot_rows(shape: LiveShape, stretch: Stretch, rows: Longs) -> Longs:
    """The rows that changed after the shape's snapshot."""
    return rows if stretch.lower > shape.record.time else rows[stretch.times[rows] > shape.record.time]
