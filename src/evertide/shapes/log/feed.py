"""A feed: the changes of one collection, as they are committed, given to the shapes that they concern.

1. `follow` takes in what was committed since, stretch by stretch. What a transaction changes is matched once against
   the index of all shapes of the collection: those that it does not concern cost nothing.
2. `upper` moves after all shapes have their entries: whoever reads it first, and then the entries, misses none below.
3. `derive` makes entries again that no tail has, by the same way, from the shard.
4. A feed that cannot read what was committed stands still: `standing` says why, until `follow` gets through. Clients
   must not be told that they are up to date meanwhile.
5. Of a collection without a key it keeps the count of every row (`Copies`), as of `upper`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from evertide.errors import EvertideError
from evertide.rows.columns import Longs
from evertide.shapes.log.copies import Copies
from evertide.shapes.log.definition import Subject
from evertide.shapes.log.index import ShapeIndex
from evertide.shapes.log.live import LiveShape, Span, cut_entries, size_of
from evertide.shapes.log.stretch import Entry, Stretch, TxIds
from evertide.shapes.protocol.offsets import BEFORE_LOG, Offset
from evertide.shard.shard import Shard

__all__ = ["Feed", "Standing"]

_ROWS = 50_000
"""Changes that are taken at once, about."""


class Standing(NamedTuple):
    """Why a feed stands still, and since when."""

    error: EvertideError
    since_s: float


class _Made(NamedTuple):
    """The entries of a shape in [lower, upper)."""

    handle: str
    lower: int
    upper: int
    entries: list[Entry]


class Feed:
    def __init__(self, shard: Shard, subject: Subject, txids: TxIds, tail_bytes_max: int) -> None:
        """What is longer than that at once is not kept in the tails of shapes."""
        self.shard = shard
        self.subject = subject
        self.upper = shard.upper
        self.shapes: dict[str, LiveShape] = {}
        self.followed = 0
        """Changes of the collection that were taken in here."""
        self.appended = 0
        """Entries that logs got here."""
        self.standing: Standing | None = None
        self.looked_s = 0.0
        """When `follow` last got through, by the monotonic clock; the registry sets it."""
        self.is_spoiled = False
        """Something failed half way: some shapes may know of it, and others not."""
        self._txids = txids
        self._tail_bytes_max = tail_bytes_max
        self._index = ShapeIndex()
        self._lock = threading.RLock()
        self._read: Stretch | None = None
        """What was read last for somebody who came late: others often do, too."""
        self._made: _Made | None = None
        self._copies: Copies | None = None
        if not subject.key:
            with shard.snapshot(self.upper - 1) as found:
                self._copies = Copies(found.to_arrow())

    def add(self, shape: LiveShape) -> None:
        with self._lock:
            shape.forget(self.upper)
            self._index.add(shape.handle, shape.definition.where)
            self.shapes[shape.handle] = shape

    def remove(self, handle: str) -> None:
        with self._lock:
            if self.shapes.pop(handle, None) is not None:
                self._index.remove(handle)

    def shorten(self, shape: LiveShape) -> None:
        """Forget what is in memory of its log."""
        with self._lock:
            shape.forget(self.upper)

    def rest(self) -> None:
        """Forget what nobody may ask for again."""
        self._read = self._made = None

    def follow(self) -> list[LiveShape]:
        """The shapes that something was told to."""
        if self.shard.upper <= self.upper:
            return []
        with self._lock:
            told: dict[str, LiveShape] = {}
            state = self.shard.log.known().state
            while self.upper < state.upper:
                reach = state.reach(self.upper, _ROWS)
                stretch = Stretch(self.shard.changes(self.upper, reach), self.upper, reach)
                if len(stretch):
                    told.update(self._taken(stretch))
                    self.followed += len(stretch)
                self.upper = reach
            return [*told.values()]

    def _taken(self, stretch: Stretch) -> dict[str, LiveShape]:
        try:
            if self._copies is not None:
                self._count(stretch, self._copies)
            return self._tell(stretch)
        except BaseException:
            self.is_spoiled = True
            raise

    def derive(self, shape: LiveShape, after: Offset, bytes_max: int) -> Span:
        """What lies behind a place that the tail of the shape does not reach."""
        upper, tail = self.upper, shape.tail
        lower = reach = shape.first_time(after)
        entries: list[Entry] = []
        size = 0
        while reach < tail.begins and size < bytes_max:
            reach, made = self._made_again(shape, reach, tail.begins)
            size += _size(entry for entry in made if entry.offset > after)
            entries += made
        if reach < tail.begins:
            return cut_entries(entries, after, reach, bytes_max)._replace(is_all=False)
        with self._lock:
            if shape.tail is tail and size_of(entries) <= self._tail_bytes_max:
                shape.prepend(lower, entries)
        return cut_entries([*entries, *tail.entries], after, upper, bytes_max)

    def _made_again(self, shape: LiveShape, lower: int, upper: int) -> tuple[int, list[Entry]]:
        """The entries of the first times of [lower, upper), and the time behind them: one chunk of a long log is often
        asked for after the other."""
        made = self._made
        if made is None or made.handle != shape.handle or not made.lower <= lower < made.upper:
            stretch = self._again(lower, upper)
            entries = self._entries_of(shape, stretch, self._chosen(shape, stretch))
            made = self._made = _Made(shape.handle, stretch.lower, stretch.upper, entries)
        return min(upper, made.upper), [one for one in made.entries if lower <= one.offset.time < upper]

    def last(self, shape: LiveShape) -> Offset:
        """The place of the last entry of a shape."""
        known = shape.last_known()
        if known is not None:
            return known
        found, begins = BEFORE_LOG, shape.tail.begins
        reach = shape.first_time(BEFORE_LOG)
        while reach < begins:
            stretch = self._again(reach, begins)
            found = self._last_in(shape, stretch) or found
            reach = stretch.upper
        if shape.last is None:
            shape.last = found
        return shape.last

    def _last_in(self, shape: LiveShape, stretch: Stretch) -> Offset | None:
        """From the end on, transaction by transaction, as some may tell nothing."""
        chosen = self._chosen(shape, stretch)
        while len(chosen):
            starts = int(np.searchsorted(stretch.times[chosen], stretch.times[chosen[-1]]))
            entries = self._entries_of(shape, stretch, chosen[starts:])
            if entries:
                return entries[-1].offset
            chosen = chosen[:starts]
        return None

    def _again(self, lower: int, upper: int) -> Stretch:
        """Changes of [lower, upper), or the first of them; of a collection without a key with their counts."""
        known = self._read
        if known is None or not known.lower <= lower < known.upper:
            known = self._read = self._read_again(lower, upper)
        return known.between(lower, upper)

    def _read_again(self, lower: int, upper: int) -> Stretch:
        if self._copies is None:
            reach = min(self.shard.log.read().state.reach(lower, _ROWS), upper)
            return Stretch(self.shard.changes(lower, reach), lower, reach)
        with self._lock:  # counts are those of a certain time
            found = Stretch(self.shard.changes(lower, self.upper), lower, self.upper)
            hashes = found.hashes()
            found.count(hashes, self._copies.of(hashes))
            return found

    def _count(self, stretch: Stretch, copies: Copies) -> None:
        hashes = stretch.hashes()
        copies.apply(hashes, stretch.diffs)
        stretch.count(hashes, copies.of(hashes))

    def _tell(self, stretch: Stretch) -> dict[str, LiveShape]:
        chosen: dict[str, Longs] = {}
        for handle, rows in self._index.candidates(stretch.rows).items():
            found = _within(self.shapes[str(handle)], stretch, rows)
            if len(found):
                chosen[str(handle)] = found
        rows_told = stretch.told(chosen.values())
        told = {}
        for handle, rows in chosen.items():
            shape = self.shapes[handle]
            entries = stretch.entries(shape.teller, rows, rows_told, self._txids)
            if entries:
                self._append(shape, stretch, entries)
                told[handle] = shape
        return told

    def _append(self, shape: LiveShape, stretch: Stretch, entries: list[Entry]) -> None:
        self.appended += len(entries)
        size = size_of(entries)
        if size <= self._tail_bytes_max:
            shape.append(entries, size)
        else:
            shape.forget(stretch.upper)
            shape.last = entries[-1].offset
            self._made = _Made(shape.handle, stretch.lower, stretch.upper, entries)

    def _entries_of(self, shape: LiveShape, stretch: Stretch, chosen: Longs) -> list[Entry]:
        return stretch.entries(shape.teller, chosen, stretch.told([chosen]), self._txids)

    def _chosen(self, shape: LiveShape, stretch: Stretch) -> Longs:
        where = shape.definition.where
        rows = np.arange(len(stretch)) if where is None else np.flatnonzero(np.asarray(where.matches(stretch.rows)))
        return _within(shape, stretch, rows)


def _size(entries: Iterable[Entry]) -> int:
    return sum(len(entry.data) for entry in entries)


def _within(shape: LiveShape, stretch: Stretch, rows: Longs) -> Longs:
    """Those since the shape's snapshot."""
    return rows if stretch.lower > shape.record.time else rows[stretch.times[rows] > shape.record.time]
