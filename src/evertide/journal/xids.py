"""`Xids`: the upstream transactions that each transaction contains, for readers that publish them.

A transaction of pushed rows is not a transaction of the upstream database. In a pipeline that follows a database it
gets a number above the database's 32-bit ids (`make_own_number`).

The ids come from the records under the key `committed` (`evertide.journal.records`), which is written in the same
commit as the shards. Old records are deleted; their transactions then have no known ids, and no client waits for them.

Safe to share between threads.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice

import msgspec

from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Meta, unseal
from evertide.store.paths import COMMITTED
from evertide.store.retry import retry_read
from evertide.types import SequenceNumber

PUSH = "push"
"""The source of pushed rows (`evertide.pipeline.input.pushes`)."""
LISTED_PUSHES_MAX = 100
"""How many pushes a snapshot of a shape lists, if the pipeline follows a database."""
_OWN = 1 << 32

_TIMES_MAX = 10_000
_NUMBERS_MAX = 200_000
"""Limits of the cache."""


def make_own_number(time: int, *, has_upstream: bool) -> int:
    """The number of a pushed transaction, for clients that wait for it."""
    return time + 1 + (_OWN if has_upstream else 0)


class _SourceRows(msgspec.Struct, frozen=True):
    rows: int


class _CommittedXids(msgspec.Struct, frozen=True):
    """The fields of a `Committed` that are needed here."""

    time: int
    sources: dict[str, _SourceRows] = {}
    xids: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET


class Xids:
    def __init__(self, meta: Meta, runtime: Runtime, settings: Settings) -> None:
        self._meta = meta
        self._runtime = runtime
        self._settings = settings
        self._lock = threading.Lock()
        self._record = SequenceNumber(0)
        self._known: dict[int, tuple[int, ...]] = {}
        """By time, in order."""
        self._pushed: dict[int, None] = {}
        """The times of transactions with pushed rows, in order."""
        self._count = 0
        self._last = -1
        self._has_any = False

    def find(self, time: int) -> Sequence[int] | None:
        """Return the ids of a transaction; None if the pipeline has no source with ids."""
        with self._lock:
            if time > self._last:
                self._read()
            return self._known.get(time, () if self._has_any else None)

    def list_latest(self, time: int, count: int) -> list[int] | None:
        """Return at most `count` ids up to a time, the newest first; None if the pipeline has no source with ids."""
        with self._lock:
            if time > self._last:
                self._read()
            before = (xids for at, xids in reversed(self._known.items()) if at <= time)
            return [*islice((xid for xids in before for xid in reversed(xids)), count)] if self._has_any else None

    def is_pushed(self, time: int) -> bool:
        """Return whether a transaction has pushed rows; False if its record was deleted."""
        with self._lock:
            if time > self._last:
                self._read()
            return time in self._pushed

    def list_pushed(self, time: int, count: int) -> list[int]:
        """Return the last `count` transactions with pushed rows up to a time; none if no source has ids."""
        with self._lock:
            if time > self._last:
                self._read()
            before = (at for at in reversed(self._pushed) if at <= time)
            return [*islice(before, count)][::-1] if self._has_any else []

    def _read(self) -> None:
        path = self._meta.path(COMMITTED)
        for record in retry_read(lambda: self._meta.scan(COMMITTED, self._record), self._runtime, self._settings):
            found = unseal(record.data, _CommittedXids, f"{path} #{record.seqno}")
            self._record, self._last = record.seqno, found.time
            self._has_any = not isinstance(found.xids, msgspec.UnsetType)
            if not isinstance(found.xids, msgspec.UnsetType) and found.xids:
                self._known[found.time] = found.xids
                self._count += len(found.xids)
            if PUSH in found.sources and found.sources[PUSH].rows:
                self._pushed[found.time] = None
        while len(self._pushed) > _TIMES_MAX:
            del self._pushed[next(iter(self._pushed))]
        while len(self._known) > _TIMES_MAX or self._count > _NUMBERS_MAX:
            self._count -= len(self._known.pop(next(iter(self._known))))
