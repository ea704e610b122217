"""The queue of staged transactions that wait to be bound: filled by the receiving thread, emptied by the pipeline.

1. Entries are in order; each ends at a position. The pipeline reads the first ones; bound entries leave the queue.
2. An offered entry may be about to be bound, so only calls of the pipeline remove entries.
3. If the pipeline's position is not the expected one (a peer committed first), all entries are discarded, and the
   thread starts again from there; `epoch` counts this.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from evertide.journal.records import Staged
from evertide.runtime import Runtime
from evertide.sources.contract import Limit, StagingStore
from evertide.sources.postgres.positions import PostgresPosition

XIDS_MAX = 10_000
"""At most this many upstream transactions become one transaction, as the journal lists all their xids."""


@dataclass(frozen=True, slots=True)
class Entry:
    after: PostgresPosition
    fragments: tuple[Staged, ...] = ()
    rows: int = 0
    bytes: int = 0
    commit_s: float = 0.0
    xids: tuple[int, ...] = ()


class ReadyQueue:
    def __init__(self, staging: StagingStore, runtime: Runtime, *, rows_max: int, bytes_max: int) -> None:
        self._staging = staging
        self._runtime = runtime
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._entries: deque[Entry] = deque()
        self._bound: PostgresPosition | None = None
        self._last: PostgresPosition | None = None
        self.epoch = 0
        self.is_closed = False

    # The pipeline's side

    def reach(self, position: PostgresPosition) -> None:
        """Remove the entries up to the bound position, or start a new epoch from it."""
        with self._changed:
            if position == self._bound:
                return
            known = next((at for at, entry in enumerate(self._entries, 1) if entry.after == position), 0)
            for _ in range(known):
                self._entries.popleft()
            if not known:
                self._drop_all()
                self._last = position
                self.epoch += 1
            self._bound = position
            self._changed.notify_all()

    def first(self, limit: Limit) -> list[Entry]:
        """The first entries within the limit, at least one; they stay in the queue."""
        found: list[Entry] = []
        rows = size = xids = 0
        with self._changed:
            for entry in self._entries:
                rows, size, xids = rows + entry.rows, size + entry.bytes, xids + len(entry.xids)
                if found and (rows > limit.rows or size > limit.bytes or xids > XIDS_MAX):
                    break
                found.append(entry)
        return found

    def close(self) -> None:
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def drop_all(self) -> None:
        with self._changed:
            self._drop_all()

    def _drop_all(self) -> None:
        fragments = [fragment for entry in self._entries for fragment in entry.fragments]
        self._entries.clear()
        if fragments:
            self._staging.drop(fragments)

    # The thread's side

    @property
    def bound(self) -> PostgresPosition:
        """The bound position, which is durable."""
        assert self._bound is not None  # noqa: S101 - the thread starts after the first `reach`
        return self._bound

    @property
    def is_reached(self) -> bool:
        """Whether the bound position is known."""
        return self._bound is not None

    @property
    def last(self) -> PostgresPosition:
        """The position after the last entry, or the bound position."""
        with self._changed:
            assert self._last is not None  # noqa: S101
            return self._last

    @property
    def is_empty(self) -> bool:
        return not self._entries

    @property
    def oldest_s(self) -> float | None:
        """The commit time of the oldest queued transaction."""
        with self._changed:
            return next((entry.commit_s for entry in self._entries if entry.commit_s), None)

    def has_room(self) -> bool:
        with self._changed:
            rows, size = sum(entry.rows for entry in self._entries), sum(entry.bytes for entry in self._entries)
            return rows < self._rows_max and size < self._bytes_max

    def put(self, entry: Entry, epoch: int) -> bool:
        """Append an entry. False if the epoch has ended or the queue is closed: the fragments are dropped."""
        with self._changed:
            if epoch == self.epoch and not self.is_closed:
                self._entries.append(entry)
                self._last = entry.after
                return True
        self._staging.drop(entry.fragments)
        return False

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Wait for a bound position or the close, at most `seconds`; not at all if `until` holds already."""
        with self._changed:
            if not self.is_closed and not until():
                self._runtime.wait_s(self._changed, seconds)
