"""`TimeLog`: one record per transaction, of consecutive times, under one Meta key.

Where it lies: Meta key `journal` (records are `Bound`) and Meta key `committed` (`Committed`). Version 1 of each.

Words: a record's *number* is Meta's (1, 2, 3, ...), its *time* is the transaction's.

1. Number and time go up together, so the one follows from the other and the head. They do not have to start together:
   after a repair record 1 is that of the last transaction that the checkpoint holds.
2. A record never changes. Truncation forgets old ones, never the head: what is missing below the oldest was truncated,
   and what is missing above it is damage.
3. A record of another version is refused by number, with its path, before anything of it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from evertide.errors import RecordDamaged, TimeCompacted
from evertide.journal.records import Bound, Committed
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Meta, Record
from evertide.store.retry import reading
from evertide.store.sealed import unseal
from evertide.types import Time

__all__ = ["Numbered", "TimeLog"]

T = TypeVar("T", Bound, Committed)


@dataclass(frozen=True, slots=True)
class Numbered(Generic[T]):
    number: int
    value: T


class TimeLog(Generic[T]):
    """Reads only. Nothing is remembered, so every answer is how it is now. Safe to share between threads."""

    def __init__(self, key: str, kind: type[T], meta: Meta, runtime: Runtime, settings: Settings) -> None:
        self.key = key
        self.path = meta.path(key)
        self.meta = meta
        self.runtime = runtime
        self.settings = settings
        self._kind: type[T] = kind

    def head(self) -> Numbered[T] | None:
        record = reading(lambda: self.meta.head(self.key), self.runtime, self.settings)
        return self._decoded(record) if record else None

    def upper(self) -> Time:
        """The first time without a record."""
        head = self.head()
        return Time(head.value.time + 1 if head else 0)

    def find(self, time: int) -> T | None:
        """The record of a time; None if there is none yet. `TimeCompacted` if there is none any more."""
        head = self.head()
        if head is None or time > head.value.time:
            return None
        if time == head.value.time:
            return head.value
        return self._decoded(self._scanned(head, time, limit=1)[0]).value

    def start(self, first: int) -> list[T]:
        """All records from a time on, none if it is not there yet. `TimeCompacted` if it is there no more."""
        head = self.head()
        if head is None or first > head.value.time:
            return []
        return [found.value for found in self._in_order(self._scanned(head, first))]

    def kept(self, first: int, last: int) -> list[T]:
        """The records of the times from `first` to `last` that are there and still kept, oldest first."""
        head = self.head()
        if head is None:
            return []
        after = max(0, self._number(head, first) - 1)
        limit = self._number(head, min(last, head.value.time)) - after
        if limit < 1:
            return []
        found = reading(lambda: self.meta.scan(self.key, after, limit), self.runtime, self.settings)
        return [record.value for record in self._in_order(found) if record.value.time <= last]

    def all(self) -> list[Numbered[T]]:
        """Everything that is kept, oldest first, as of one moment."""
        return self._in_order(reading(lambda: self.meta.scan(self.key), self.runtime, self.settings))

    def _scanned(self, head: Numbered[T], first: int, limit: int | None = None) -> list[Record]:
        number = self._number(head, first)
        after = max(0, number - 1)
        found = reading(lambda: self.meta.scan(self.key, after, limit), self.runtime, self.settings)
        if not found:
            raise RecordDamaged(path=self.path, why=f"record {head.number} was there, and is not any more")
        if found[0].seqno != number:
            kept = self._decoded(found[0]).value.time
            why = f"the records of the transactions before {kept} are not kept any more"
            raise TimeCompacted(where=self.path, why=why, as_of=first, since=kept)
        return found

    def _number(self, head: Numbered[T], time: int) -> int:
        return head.number - (head.value.time - time)

    def _in_order(self, records: list[Record]) -> list[Numbered[T]]:
        found = [self._decoded(record) for record in records]
        for before, after in pairwise(found):
            if (after.number, after.value.time) != (before.number + 1, before.value.time + 1):
                why = f"it is of transaction {after.value.time}, after record {before.number} of {before.value.time}"
                raise RecordDamaged(path=self._path(after.number), why=why)
        return found

    def _decoded(self, record: Record) -> Numbered[T]:
        return Numbered(record.seqno, unseal(record.data, self._kind, self._path(record.seqno)))

    def _path(self, number: int) -> str:
        return f"{self.path} #{number}"
