"""`History`: the latest transactions of all processes, with their durations and rates, for the endpoints.

1. It holds the last 4,096 transactions. The journal has further ones, without durations.
2. A duration is the time from the binding of a transaction until this process saw its commit.
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
from evertide.journal.staging import list_staged
from evertide.pipeline.definition import Definition
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.open import Storage

_TRANSACTIONS_MAX = 4096
_WINDOW_S = 10.0


class Transaction(msgspec.Struct, frozen=True):
    """A committed transaction."""

    time: int
    at_s: float
    rows_in: int | None
    rows_out: int | None
    took_ms: float | None
    bytes: int


@dataclass(frozen=True, slots=True)
class _ObservedTransaction:
    transaction: Transaction
    sources: Mapping[str, int]
    shards: Mapping[str, int]
    observed_s: float
    """By the monotonic clock."""


class History:
    def __init__(
        self, storage: Storage, definition: Callable[[], Definition], *, runtime: Runtime, settings: Settings
    ) -> None:
        self.runtime = runtime
        self._definition = definition
        self._journal = Journal(storage.blob, storage.meta, runtime=runtime, settings=settings)
        self._lock = threading.Lock()
        self._observed: deque[_ObservedTransaction] = deque(maxlen=_TRANSACTIONS_MAX)
        self._next = self._journal.committed_upper
        self._began_s = runtime.monotonic_s()

    def follow(self) -> list[Transaction]:
        """The transactions that were committed since the last call."""
        with self._lock:
            upper, new = self._journal.committed_upper, []
            for time in range(self._next, upper):
                observed = self._read(time)
                if observed is not None:
                    self._observed.append(observed)
                    new.append(observed.transaction)
                self._next = time + 1
            return new

    def _read(self, time: int) -> _ObservedTransaction | None:
        try:
            bound, committed = self._journal.read(time), self._journal.read_outcome(time)
        except TimeCompacted:  # the journal no longer has it
            return None
        if committed is None:
            return None
        now_s = self.runtime.wall_s()
        transaction = Transaction(
            time=time,
            at_s=now_s,
            rows_in=sum(content.rows for content in committed.sources.values()),
            rows_out=self._count_rows_out(committed),
            took_ms=round(max(0.0, now_s - bound.bound_at_s) * 1000, 3),
            bytes=sum(fragment.bytes for fragment in list_staged(bound)),
        )
        sources = {name: content.rows for name, content in committed.sources.items()}
        shards = {name: content.rows for name, content in committed.shards.items()}
        return _ObservedTransaction(transaction, sources, shards, self.runtime.monotonic_s())

    def transactions(self, before: int | None, limit: int) -> list[Transaction]:
        """The last transactions before a time, the newest first."""
        self.follow()
        with self._lock:
            known = {observed.transaction.time: observed.transaction for observed in self._observed}
        last = self._journal.committed_upper - 1 if before is None else min(before, self._journal.committed_upper) - 1
        wanted = range(last, max(-1, last - limit), -1)
        if all(time in known for time in wanted):
            return [known[time] for time in wanted]
        lines: dict[int, TransactionSummary] = {
            line.time: line for line in self._journal.describe(max(0, last - limit + 1), last) if line.committed
        }
        return [known.get(time) or self._from_journal(lines[time]) for time in wanted if time in known or time in lines]

    def _from_journal(self, line: TransactionSummary) -> Transaction:
        try:
            committed = self._journal.read_outcome(line.time)
        except TimeCompacted:
            committed = None
        out = self._count_rows_out(committed) if committed is not None else None
        return Transaction(line.time, line.bound_at_s, line.rows, out, None, line.bytes)

    def _count_rows_out(self, committed: Committed) -> int:
        """The number of changes of all views."""
        definition = self._definition()
        tables = {table.shard for table in definition.tables.values()} | {definition.errors}
        return sum(content.rows for name, content in committed.shards.items() if name not in tables)

    def rates(self) -> tuple[dict[str, float], dict[str, float]]:
        """Rows per second over the last 10 seconds: by source, and changes by shard."""
        now_s = self.runtime.monotonic_s()
        span_s = min(_WINDOW_S, max(now_s - self._began_s, 1.0))
        with self._lock:
            latest = [observed for observed in self._observed if observed.observed_s > now_s - _WINDOW_S]
        sources: Counter[str] = Counter()
        shards: Counter[str] = Counter()
        for observed in latest:
            sources.update(observed.sources)
            shards.update(observed.shards)
        return {name: rows / span_s for name, rows in sources.items()}, {
            name: rows / span_s for name, rows in shards.items()
        }
