"""Leases: a reader's claim on parts, so that garbage collection keeps them while it reads (I6).

Stored as Meta keys `lease/<shard>/<lease>`, one per reader and shard, version 1. The reader writes it (take, beat,
advance) and removes it (release). Garbage collection removes it once its heartbeat is older than its time to live. Ids
are never reused.

1. A lease protects every part that is in the shard's state at diff `seqno` or enters it later: garbage collection
   deletes a part that a diff removed only if no lease is below that diff.
2. A reader takes the lease first, then reads the state without a cache. So a part that garbage collection deleted
   without having seen the lease is not in the state that the reader gets.
3. A live lease keeps since at or below `time`, like a hold.
4. A lease ends only when its key is removed, by compare-and-set on its last heartbeat. A reader whose lease has expired
   finds the key gone and gets `LeaseLost`. Clocks decide only how soon that may happen.
5. The heartbeats of all leases of a process are one commit, which writes no shard's key, so they never fail an append.
6. A process that reads under a lease of another process may write its heartbeat and end it (`renew_lease`,
   `end_lease`).
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass

import msgspec

from evertide.errors import LeaseLost, StorageFull
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.shard_log import ShardLog
from evertide.store.meta import Meta, Stale, Write, seal, unseal
from evertide.store.paths import lease_key, lease_prefix
from evertide.store.retry import commit_under_new_id, commit_until_known, retry_read, truncate_sometimes
from evertide.types import SequenceNumber, Time

_COMMIT_KEYS_MAX = 500


class LeaseRecord(msgspec.Struct, frozen=True):
    lease: str
    shard: str
    reader: str
    host: str
    pid: int
    seqno: SequenceNumber
    time: Time
    beat: int
    beat_at_s: float
    ttl_s: float


@dataclass(frozen=True, slots=True)
class _HeldLease:
    """The last record of a lease that this process wrote, and its number."""

    expected: int
    record: LeaseRecord


class Lease:
    """One reader's claim on a shard; it lasts as long as heartbeats renew it."""

    def __init__(self, leases: Leases, log: ShardLog, lease: str) -> None:
        self.id = lease
        self.log = log
        self._leases = leases

    def check(self, restart_from: int) -> None:
        """Raise `LeaseLost` if the lease is gone. Reads Meta, not the cache."""
        key = lease_key(self.log.shard, self.id)
        record = retry_read(lambda: self.log.meta.head(key), self.log.runtime, self.log.settings)
        if record is None:
            self._leases.forget(self)
            raise LeaseLost(shard=self.log.shard, lease=self.id, restart_from=restart_from)

    def advance(self, seqno: SequenceNumber, time: Time) -> None:
        """Release everything below `seqno` and `time`. The next heartbeat writes this to Meta."""
        self._leases.advance(self, seqno, time)

    def release(self) -> None:
        self._leases.release(self)


class Leases:
    """All leases of this process. A timer (`evertide.shard.heartbeat`) calls `beat`, or the owner of the clock does."""

    def __init__(self, meta: Meta, runtime: Runtime, settings: Settings, reader: str = "") -> None:
        self._meta = meta
        self.runtime = runtime
        self._settings = settings
        self._reader = reader
        self._host = socket.gethostname()
        self._lock = threading.RLock()
        self._by_key: dict[str, _HeldLease] = {}
        self.lost = 0
        """The number of leases that ended without a release."""

    @property
    def held(self) -> int:
        return len(self._by_key)

    def take(self, log: ShardLog, time: Time) -> Lease:
        """Take a lease on everything in the state from now on. Read the state after this call, not before."""
        head = retry_read(lambda: self._meta.head(log.key), self.runtime, self._settings)
        record = LeaseRecord(
            lease="",
            shard=log.shard,
            reader=self._reader,
            host=self._host,
            pid=os.getpid(),
            seqno=head.seqno if head else SequenceNumber(0),
            time=time,
            beat=0,
            beat_at_s=self.runtime.wall_s(),
            ttl_s=self._settings.lease_ttl_s,
        )

        def writes(fresh: str) -> list[Write]:
            nonlocal record
            record = msgspec.structs.replace(record, lease=fresh, beat_at_s=self.runtime.wall_s())
            return [Write(lease_key(log.shard, fresh), 0, seal(record))]

        lease = commit_under_new_id(self._meta, writes, self.runtime, self._settings)
        with self._lock:
            self._by_key[lease_key(log.shard, lease)] = _HeldLease(1, record)
        return Lease(self, log, lease)

    def advance(self, lease: Lease, seqno: SequenceNumber, time: Time) -> None:
        with self._lock:
            held = self._by_key.get(lease_key(lease.log.shard, lease.id))
            if held is not None:
                record = held.record
                moved = msgspec.structs.replace(record, seqno=max(record.seqno, seqno), time=max(record.time, time))
                self._by_key[lease_key(record.shard, record.lease)] = _HeldLease(held.expected, moved)

    def beat(self) -> None:
        """Renew all leases and drop lost ones; their readers notice through `Lease.check`."""
        with self._lock:
            pending = list(self._by_key)
            while pending:
                chunk, pending = pending[:_COMMIT_KEYS_MAX], pending[_COMMIT_KEYS_MAX:]
                stale = self._beat(chunk)
                if stale is not None:
                    self._adopt(stale)
                    pending = [key for key in chunk if key in self._by_key] + pending

    def _adopt(self, stale: Stale) -> None:
        """A missing key is a lost lease. A later record is our own beat whose answer was lost."""
        if stale.found == 0:
            self._forget(stale.key)
        else:
            self._by_key[stale.key] = _HeldLease(stale.found, self._by_key[stale.key].record)

    def _beat(self, keys: list[str]) -> Stale | None:
        beaten = {key: self._next_beat(self._by_key[key]) for key in keys}
        writes = [Write(key, held.expected - 1, seal(held.record)) for key, held in beaten.items()]
        stale = commit_until_known(self._meta, writes, (), self.runtime, self._settings)
        if stale is not None:
            return stale
        self._by_key.update(beaten)
        for key, held in beaten.items():
            truncate_sometimes(self._meta, key, held.expected)
        return None

    def _next_beat(self, held: _HeldLease) -> _HeldLease:
        now_s = self.runtime.wall_s()
        record = msgspec.structs.replace(held.record, beat=held.record.beat + 1, beat_at_s=now_s)
        return _HeldLease(held.expected + 1, record)

    def release(self, lease: Lease) -> None:
        """Remove the lease, if it still exists."""
        key = lease_key(lease.log.shard, lease.id)
        with self._lock:
            while (held := self._by_key.get(key)) is not None:
                removal = Write(key, held.expected, None)
                stale = commit_until_known(self._meta, [removal], (), self.runtime, self._settings)
                if stale is None:
                    del self._by_key[key]
                else:
                    self._adopt(stale)

    def forget(self, lease: Lease) -> None:
        with self._lock:
            self._forget(lease_key(lease.log.shard, lease.id))

    def _forget(self, key: str) -> None:
        if self._by_key.pop(key, None) is not None:
            self.lost += 1


def renew_lease(log: ShardLog, lease: str) -> bool:
    """HeartbeatRecord for a lease of another process. Return False if it is gone; losing a race to another beat is
    fine."""
    key = lease_key(log.shard, lease)
    found = retry_read(lambda: log.meta.head(key), log.runtime, log.settings)
    if found is None:
        return False
    record = unseal(found.data, LeaseRecord, log.meta.path(key))
    beaten = msgspec.structs.replace(record, beat=record.beat + 1, beat_at_s=log.runtime.wall_s())
    stale = commit_until_known(log.meta, [Write(key, found.seqno, seal(beaten))], (), log.runtime, log.settings)
    if stale is None:
        truncate_sometimes(log.meta, key, found.seqno + 1)
    return stale is None or stale.found != 0


def end_lease(log: ShardLog, lease: str) -> None:
    """Remove a lease of another process. If a beat is written at the same moment, it expires later."""
    key = lease_key(log.shard, lease)
    found = retry_read(lambda: log.meta.head(key), log.runtime, log.settings)
    if found is not None:
        commit_until_known(log.meta, [Write(key, found.seqno, None)], (), log.runtime, log.settings)


def read_live_leases(log: ShardLog) -> dict[str, LeaseRecord]:
    """Return the leases on this shard, after removing expired ones by compare-and-set."""
    now_s = log.runtime.wall_s()
    live = {}
    for key, found in retry_read(lambda: log.meta.heads(lease_prefix(log.shard)), log.runtime, log.settings).items():
        record = unseal(found.data, LeaseRecord, log.meta.path(key))
        expired = now_s - record.beat_at_s > record.ttl_s
        if not expired or _is_still_live(log, Write(key, found.seqno, None)):
            live[key] = record
    return live


def _is_still_live(log: ShardLog, removal: Write) -> bool:
    try:
        return commit_until_known(log.meta, [removal], (), log.runtime, log.settings) is not None
    except StorageFull:
        return True  # a later garbage collection removes it; garbage collection itself needs no space
