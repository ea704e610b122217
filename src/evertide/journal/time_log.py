"""`TimeLog`: one record per transaction, of consecutive times, under one Meta key.

Stored as Meta key `journal` (records are `Bound`) and Meta key `committed` (`Committed`); both have version 1. A record
has a *number*, Meta's sequence number (1, 2, 3, ...), and a *time*, the number of its transaction.

1. Number and time increase together, so each follows from the other and the head. They may start apart: after a repair,
   record 1 is that of the last transaction in the checkpoint.
2. A record never changes. Truncation deletes old records, never the head. A record missing below the oldest was
   truncated; one missing above it is damage.
3. A record of another version is refused, with its number and path, before it is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from evertide.errors import RecordDamaged, TimeCompacted
from evertide.journal.records import Bound, Committed
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Meta, Record, unseal
from evertide.store.retry import retry_read
from evertide.types import SequenceNumber, Time

T = TypeVar("T", Bound, Committed)

_RECORDS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class NumberedRecord(Generic[T]):
    number: SequenceNumber
    value: T


class TimeLog(Generic[T]):
    """Read-only. It caches nothing, so each call returns the present state. Safe to share between threads."""

    def __init__(self, key: str, kind: type[T], meta: Meta, runtime: Runtime, settings: Settings) -> None:
        self.key = key
        self.path = meta.path(key)
        self.meta = meta
        self.runtime = runtime
        self.settings = settings
        self._kind: type[T] = kind

    def head(self) -> NumberedRecord[T] | None:
        record = retry_read(lambda: self.meta.head(self.key), self.runtime, self.settings)
        return self._decode(record) if record else None

    def upper(self) -> Time:
        """The first time without a record."""
        head = self.head()
        return Time(head.value.time + 1 if head else 0)

    def find(self, time: int) -> T | None:
        """Return the record of a time; None if it is not written yet. Raise `TimeCompacted` if it was deleted."""
        head = self.head()
        if head is None or time > head.value.time:
            return None
        if time == head.value.time:
            return head.value
        return self._decode(self._scan(head, time, limit=1)[0]).value

    def read_from(self, first: int) -> list[T]:
        """Return all records from a time on. Raise `TimeCompacted` if the record of that time was deleted."""
        head = self.head()
        if head is None or first > head.value.time:
            return []
        return [found.value for found in self._decode_in_order(self._scan(head, first))]

    def read_range(self, first: int, last: int) -> list[T]:
        """Return the remaining records from time `first` to `last`, oldest first."""
        head = self.head()
        if head is None:
            return []
        after = max(0, self._number(head, first) - 1)
        limit = self._number(head, min(last, head.value.time)) - after
        if limit < 1:
            return []
        found = retry_read(lambda: self.meta.scan(self.key, after, limit), self.runtime, self.settings)
        return [record.value for record in self._decode_in_order(found) if record.value.time <= last]

    def read_all(self) -> list[NumberedRecord[T]]:
        """Return all remaining records, oldest first, as of one moment."""
        return self._decode_in_order(retry_read(lambda: self.meta.scan(self.key), self.runtime, self.settings))

    def iterate(self) -> Iterator[NumberedRecord[T]]:
        """The remaining records, oldest first, `_RECORDS_AT_ONCE` in memory at a time: they may contain pushed rows.

        Those that are truncated meanwhile may be missing.
        """
        done = 0
        while fresh := [record for record in self._read_from_number(done) if record.number > done]:
            yield from fresh
            done = fresh[-1].number

    def _read_from_number(self, number: int) -> list[NumberedRecord[T]]:
        """Begins with the record of this number, so that a missing one behind it is noticed."""
        after = max(0, number - 1)
        return self._decode_in_order(
            retry_read(lambda: self.meta.scan(self.key, after, _RECORDS_AT_ONCE), self.runtime, self.settings)
        )

    def _scan(self, head: NumberedRecord[T], first: int, limit: int | None = None) -> list[Record]:
        number = self._number(head, first)
        after = max(0, number - 1)
        found = retry_read(lambda: self.meta.scan(self.key, after, limit), self.runtime, self.settings)
        if not found:
            raise RecordDamaged(path=self.path, why=f"record {head.number} has disappeared")
        if found[0].seqno != number:
            kept = self._decode(found[0]).value.time
            why = f"the records of transactions before {kept} were deleted"
            raise TimeCompacted(where=self.path, why=why, as_of=first, since=kept)
        return found

    def _number(self, head: NumberedRecord[T], time: int) -> int:
        return head.number - (head.value.time - time)

    def _decode_in_order(self, records: list[Record]) -> list[NumberedRecord[T]]:
        found = [self._decode(record) for record in records]
        for before, after in pairwise(found):
            if (after.number, after.value.time) != (before.number + 1, before.value.time + 1):
                why = f"it holds transaction {after.value.time}, but record {before.number} holds {before.value.time}"
                raise RecordDamaged(path=self._path(after.number), why=why)
        return found

    def _decode(self, record: Record) -> NumberedRecord[T]:
        return NumberedRecord(record.seqno, unseal(record.data, self._kind, self._path(record.seqno)))

    def _path(self, number: int) -> str:
        return f"{self.path} #{number}"
