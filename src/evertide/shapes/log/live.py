"""`LiveShape`: a shape that this process follows, and what it remembers of its log.

1. The *tail* is all entries from a time on, in memory. What lies before is made again from the shard, if it is wanted.
2. One thread at a time changes the tail: it appends, or puts another list in its place. Others may look meanwhile: they
   take the list and its begin as one value, and look how far it goes *before* they look into it.
3. Who waits does so in the event loop, and is woken there; nobody else touches `waiters`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from evertide.shapes.log.definition import ShapeDefinition
from evertide.shapes.log.messages import MessageWriter
from evertide.shapes.log.record import ShapeRecord
from evertide.shapes.log.stretch import Entry
from evertide.shapes.protocol.offsets import BEFORE_LOG, Offset

__all__ = ["LaterSnapshot", "LiveShape", "Span", "Tail", "cut_entries", "size_of"]

_ENTRY_BYTES = 200
"""What an entry takes besides its text."""


class Tail(NamedTuple):
    begins: int
    """All entries of this time and of later ones are there."""
    entries: list[Entry]


class LaterSnapshot(NamedTuple):
    """A later snapshot of a shape."""

    time: int
    followed: int
    """Changes that the feed had taken in then."""


class Span(NamedTuple):
    """Some of a log, in answer to a question."""

    entries: Sequence[Entry]
    end: Offset
    """The place behind it."""
    is_all: bool
    """Whether nothing more is known behind it."""
    upper: int
    """Transactions below this time were looked at."""


class LiveShape:
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
        """The snapshot that clients begin with if the log has outgrown the first one."""
        self.last: Offset | None = None
        """Of the last entry that there is; None if that is not known."""
        self.waiters: set[asyncio.Future[None]] = set()

    def append(self, entries: list[Entry], size: int) -> None:
        self.tail.entries.extend(entries)
        self.bytes += size
        self.last = entries[-1].offset

    def prepend(self, begins: int, entries: list[Entry]) -> None:
        """All entries between that time and the begin of the tail."""
        self.tail = Tail(begins, [*entries, *self.tail.entries])
        self.bytes += size_of(entries)

    def forget(self, begins: int) -> None:
        """What is in memory, which is everything below a time."""
        self.tail = Tail(max(begins, self.record.time + 1), [])
        self.bytes = 0

    def first_time(self, after: Offset) -> int:
        """The first time that an entry behind a place can have."""
        return max(after.time, self.record.time + 1)

    def has_all_after(self, after: Offset, tail: Tail) -> bool:
        """Whether the tail has everything behind a place."""
        return self.first_time(after) >= tail.begins

    def last_known(self) -> Offset | None:
        """The place of the last entry, if the tail says it."""
        tail = self.tail
        if tail.entries:
            return tail.entries[-1].offset
        return BEFORE_LOG if tail.begins <= self.record.time + 1 else self.last


def cut_entries(entries: Sequence[Entry], after: Offset, upper: int, bytes_max: int) -> Span:
    """What lies behind a place, up to about so many bytes."""
    start = bisect_right(entries, after, key=lambda entry: entry.offset)
    size, end = 0, start
    stop = len(entries)  # others may append meanwhile
    while end < stop and size < bytes_max:
        size += len(entries[end].data) + 1
        end += 1
    selected = entries[start:end]
    place = selected[-1].offset if selected else max(after, BEFORE_LOG)
    return Span(selected, place, end == stop, upper)


def size_of(entries: Sequence[Entry]) -> int:
    """In memory."""
    return sum(len(entry.data) + _ENTRY_BYTES for entry in entries)
