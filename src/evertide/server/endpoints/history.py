"""`History`: the transactions that this process saw being committed, by whoever committed them, and how long they took.

1. It remembers so many; the journal knows further ones, without how long they took.
2. How long is from the binding of a transaction until its commit was seen here.
3. Nothing rests on it: it is for people who look.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from evertide.errors import TimeCompacted
from evertide.journal.journal import Journal, TransactionSummary
from evertide.journal.records import Committed
from evertide.journal.staging import staged_of
from evertide.pipeline.definition import Definition
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.open import Storage

__all__ = ["History", "Transaction"]

_KEPT = 4096
_WINDOW_S = 10.0


class Transaction(msgspec.Struct, frozen=True):
    """A transaction that is in all collections."""

    time: int
    at_s: float
    rows_in: int | None
    rows_out: int | None
    took_ms: float | None
    bytes: int


@dataclass(frozen=True, slots=True)
class _Seen:
    told: Transaction
    sources: Mapping[str, int]
    shards: Mapping[str, int]
    seen_s: float
    """By the monotonic clock."""


class History:
    def __init__(
        self, storage: Storage, definition: Callable[[], Definition], *, runtime: Runtime, settings: Settings
    ) -> None:
        self.runtime = runtime
        self._definition = definition
        self._journal = Journal(storage.blob, storage.meta, runtime=runtime, settings=settings)
        self._lock = threading.Lock()
        self._seen: deque[_Seen] = deque(maxlen=_KEPT)
        self._next = self._journal.committed_upper
        self._began_s = runtime.monotonic_s()

    def follow(self) -> list[Transaction]:
        """Those that were committed since it was last asked."""
        with self._lock:
            upper, found = self._journal.committed_upper, []
            for time in range(self._next, upper):
                seen = self._look(time)
                if seen is not None:
                    self._seen.append(seen)
                    found.append(seen.told)
                self._next = time + 1
            return found

    def _look(self, time: int) -> _Seen | None:
        try:
            bound, committed = self._journal.read(time), self._journal.committed(time)
        except TimeCompacted:  # it was away for so long that nobody needs to know any more
            return None
        if committed is None:
            return None
        now_s = self.runtime.wall_s()
        told = Transaction(
            time=time,
            at_s=now_s,
            rows_in=sum(content.rows for content in committed.sources.values()),
            rows_out=self._rows_out(committed),
            took_ms=round(max(0.0, now_s - bound.bound_at_s) * 1000, 3),
            bytes=sum(fragment.bytes for fragment in staged_of(bound)),
        )
        sources = {name: content.rows for name, content in committed.sources.items()}
        shards = {name: content.rows for name, content in committed.shards.items()}
        return _Seen(told, sources, shards, self.runtime.monotonic_s())

    def transactions(self, before: int | None, limit: int) -> list[Transaction]:
        """The last ones before a time, the newest first."""
        self.follow()
        with self._lock:
            known = {seen.told.time: seen.told for seen in self._seen}
        last = self._journal.committed_upper - 1 if before is None else min(before, self._journal.committed_upper) - 1
        wanted = range(last, max(-1, last - limit), -1)
        if all(time in known for time in wanted):
            return [known[time] for time in wanted]
        lines = {line.time: line for line in self._journal.describe(max(0, last - limit + 1), last) if line.committed}
        return [known.get(time) or self._recorded(lines[time]) for time in wanted if time in known or time in lines]

    def _recorded(self, line: TransactionSummary) -> Transaction:
        try:
            committed = self._journal.committed(line.time)
        except TimeCompacted:
            committed = None
        out = self._rows_out(committed) if committed is not None else None
        return Transaction(line.time, line.bound_at_s, line.rows, out, None, line.bytes)

    def _rows_out(self, committed: Committed) -> int:
        """Changes of views: of all that is no table."""
        definition = self._definition()
        tables = {table.shard for table in definition.tables.values()} | {definition.errors}
        return sum(content.rows for name, content in committed.shards.items() if name not in tables)

    def rates(self) -> tuple[dict[str, float], dict[str, float]]:
        """Rows per second of the last seconds: by source, and changes by shard."""
        now_s = self.runtime.monotonic_s()
        span_s = min(_WINDOW_S, max(now_s - self._began_s, 1.0))
        with self._lock:
            lately = [seen for seen in self._seen if seen.seen_s > now_s - _WINDOW_S]
        sources: Counter[str] = Counter()
        shards: Counter[str] = Counter()
        for seen in lately:
            sources.update(seen.sources)
            shards.update(seen.shards)
        return {name: rows / span_s for name, rows in sources.items()}, {
            name: rows / span_s for name, rows in shards.items()
        }
