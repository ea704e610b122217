"""`LiveShape`: a shape that this process follows, with the end of its log in memory.

1. The *tail* is the list of all entries from a time on, in memory. Earlier entries are derived again from the shard
   when requested.
2. One thread at a time changes the tail: it appends, or replaces the list. Other threads may read concurrently: they
   take the list and its beginning as one value, and read the feed's `upper` *before* they read the entries.
3. Clients wait in the event loop and are woken there; no other thread touches `waiters`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from evertide.shapes.log.record import ShapeRecord
from evertide.shapes.log.row_messages import MessageWriter
from evertide.shapes.log.shape_definition import ShapeDefinition
from evertide.shapes.log.stretch import ShapeEntry
from evertide.shapes.protocol.offsets import BEFORE_LOG, Offset

_ENTRY_BYTES = 200
"""The memory of an entry beside its text."""


class Tail(NamedTuple):
    begins: int
    """The list has all entries of this time and later."""
    entries: list[ShapeEntry]


class LaterSnapshot(NamedTuple):
    time: int
    followed: int
    """`Feed.followed` at that time."""


class LogSpan(NamedTuple):
    """A range of a log, as the answer to a request."""

    entries: Sequence[ShapeEntry]
    end: Offset
    """The offset after the range."""
    is_all: bool
    """Whether the range reaches the end of the log as far as it is known."""
    upper: int
    """All transactions below this time are covered."""


class LiveShape:
    """A shape that clients of this process read, and the end of its log."""

    def __init__(self, record: ShapeRecord, definition: ShapeDefinition, begins: int, used_s: float) -> None:
        self.record = record
        self.handle = record.handle
        self.definition = definition
        self.writer = MessageWriter(definition)
        self.tail = Tail(max(begins, record.time + 1), [])
        self.bytes = 0
        self.used_s = used_s
        self.is_ended = False
        self.later_snapshot: LaterSnapshot | None = None
        """The snapshot for new clients, once the log has outgrown the first one."""
        self.last: Offset | None = None
        """The offset of the last entry; None if unknown."""
        self.waiters: set[asyncio.Future[None]] = set()

    def note_use(self, now_s: float) -> None:
        self.used_s = now_s

    def end(self) -> None:
        self.is_ended = True

    def take_waiters(self) -> set[asyncio.Future[None]]:
        waiters, self.waiters = self.waiters, set()
        return waiters

    def replace_snapshot(self, later: LaterSnapshot) -> LaterSnapshot:
        self.later_snapshot = later
        return later

    def note_last(self, offset: Offset) -> None:
        """Set the offset of an entry that is not kept in memory."""
        self.last = offset

    def append(self, entries: list[ShapeEntry], size: int) -> None:
        self.tail.entries.extend(entries)
        self.bytes += size
        self.last = entries[-1].offset

    def prepend(self, begins: int, entries: list[ShapeEntry]) -> None:
        """Add all entries between `begins` and the beginning of the tail."""
        self.tail = Tail(begins, [*entries, *self.tail.entries])
        self.bytes += measure_entries(entries)

    def forget(self, begins: int) -> None:
        """Drop the entries in memory; from now on the tail begins at `begins`."""
        self.tail = Tail(max(begins, self.record.time + 1), [])
        self.bytes = 0

    def first_time(self, after: Offset) -> int:
        """The first time that an entry after an offset can have."""
        return max(after.time, self.record.time + 1)

    def has_all_after(self, after: Offset, tail: Tail) -> bool:
        """Whether the tail has all entries after an offset."""
        return self.first_time(after) >= tail.begins

    def last_known(self) -> Offset | None:
        """The offset of the last entry, if it is known without reading the shard."""
        tail = self.tail
        if tail.entries:
            return tail.entries[-1].offset
        return BEFORE_LOG if tail.begins <= self.record.time + 1 else self.last


def cut_entries(entries: Sequence[ShapeEntry], after: Offset, upper: int, bytes_max: int) -> LogSpan:
    """The entries after an offset, up to about `bytes_max` bytes."""
    start = bisect_right(entries, after, key=lambda entry: entry.offset)
    size, end = 0, start
    stop = len(entries)  # another thread may append concurrently
    while end < stop and size < bytes_max:
        size += len(entries[end].data) + 1
        end += 1
    selected = entries[start:end]
    place = selected[-1].offset if selected else max(after, BEFORE_LOG)
    return LogSpan(selected, place, end == stop, upper)


def measure_entries(entries: Sequence[ShapeEntry]) -> int:
    return sum(len(entry.data) + _ENTRY_BYTES for entry in entries)
