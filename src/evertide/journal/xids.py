"""`Xids`: which upstream transactions each transaction holds, for those who tell others of its changes.

A transaction of rows that were pushed is no transaction of the database. In a pipeline that follows one it has a
number of its own, which no transaction of the database can have: those have 32 bits.

Read from the records of the key `committed` (`evertide.journal.records`): whoever sees a transaction in the shards
finds its record there. The records are kept for some time only. Of a transaction whose record is gone nobody knows any
more which it holds; nobody waits for it any more, either.

Safe to share between threads.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice

import msgspec

from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Meta
from evertide.store.paths import COMMITTED
from evertide.store.retry import reading
from evertide.store.sealed import unseal

__all__ = ["PUSH", "Xids", "own_number"]

PUSH = "push"
"""The source of rows that are pushed (`evertide.pipeline.input.pushes`)."""
_OWN = 1 << 32

_TIMES_MAX = 10_000
_NUMBERS_MAX = 200_000
"""What is remembered of them."""


def own_number(time: int, *, has_upstream: bool) -> int:
    """The number of a transaction that was pushed, for those who wait for it; of a pipeline with or without a database
    upstream."""
    return time + 1 + (_OWN if has_upstream else 0)


class _Given(msgspec.Struct, frozen=True):
    rows: int


class _Named(msgspec.Struct, frozen=True):
    """What is read of a `Committed`."""

    time: int
    sources: dict[str, _Given] = {}
    xids: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET


class Xids:
    def __init__(self, meta: Meta, runtime: Runtime, settings: Settings) -> None:
        self._meta = meta
        self._runtime = runtime
        self._settings = settings
        self._lock = threading.Lock()
        self._record = 0
        self._known: dict[int, tuple[int, ...]] = {}
        """By time, in order."""
        self._pushed: dict[int, None] = {}
        """Times of transactions that hold rows which were pushed, in order."""
        self._count = 0
        self._last = -1
        self._has_any = False

    def of(self, time: int) -> Sequence[int] | None:
        """None if the pipeline has no source that knows any."""
        with self._lock:
            if time > self._last:
                self._read()
            return self._known.get(time, () if self._has_any else None)

    def latest(self, time: int, count: int) -> list[int] | None:
        """About so many of those up to a time, the last first; None as above."""
        with self._lock:
            if time > self._last:
                self._read()
            before = (xids for at, xids in reversed(self._known.items()) if at <= time)
            return [*islice((xid for xids in before for xid in reversed(xids)), count)] if self._has_any else None

    def is_pushed(self, time: int) -> bool:
        """Whether a transaction holds rows that were pushed, as far as its record is kept."""
        with self._lock:
            if time > self._last:
                self._read()
            return time in self._pushed

    def pushed(self, time: int, count: int) -> list[int]:
        """The last so many transactions up to a time that hold rows which were pushed, in order; none in a pipeline
        without a source that knows numbers."""
        with self._lock:
            if time > self._last:
                self._read()
            before = (at for at in reversed(self._pushed) if at <= time)
            return [*islice(before, count)][::-1] if self._has_any else []

    def _read(self) -> None:
        path = self._meta.path(COMMITTED)
        for record in reading(lambda: self._meta.scan(COMMITTED, self._record), self._runtime, self._settings):
            found = unseal(record.data, _Named, f"{path} #{record.seqno}")
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
