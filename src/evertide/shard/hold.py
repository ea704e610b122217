"""Since and holds: which times of a shard can be read.

Stored as Meta key `hold/<shard>`, version 1: the shard's since, and by name the times that durable consumers need. The
newest record counts; older ones are truncated.

1. A hold at time h keeps since at or below h until it is moved or released. It never expires; status reports a consumer
   that lags.
2. Since and holds are in one record, and since moves in one commit with the shard's state. So a hold that was granted
   at or above since is never overtaken.
3. A live lease (`evertide.shard.lease`) counts like a hold. A reader notices if its lease has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from evertide.errors import Conflict, RecordDamaged, TimeCompacted
from evertide.shard.lease import read_live_leases
from evertide.shard.shard_log import Proposal, ShardLog, commit
from evertide.shard.state import ShardState, SinceAdvanced
from evertide.store.meta import Write, seal, unseal
from evertide.store.paths import hold_key
from evertide.store.retry import commit_until_known, retry_read, truncate_sometimes
from evertide.store.writers import Writer
from evertide.types import SequenceNumber, Time

__all__ = [
    "HoldRecord",
    "Holds",
    "advance_since",
    "encode_first_holds",
    "make_hold_write",
    "read_holds",
    "release_hold",
    "set_hold",
]


class HoldRecord(msgspec.Struct, frozen=True):
    since: Time
    holds: dict[str, int]
    change: str
    """A unique id, which tells the writer's own commit, if its outcome was unknown, from a peer's."""


@dataclass(frozen=True, slots=True)
class Holds:
    """The record as read. The next change expects `seqno`."""

    seqno: SequenceNumber
    since: Time
    holds: dict[str, int]


def encode_first_holds(change: str) -> bytes:
    return seal(HoldRecord(Time(0), {}, change))


def read_holds(log: ShardLog) -> Holds:
    key = hold_key(log.shard)
    record = retry_read(lambda: log.meta.head(key), log.runtime, log.settings)
    if record is None:
        raise RecordDamaged(path=log.meta.path(key), why=f"the holds of shard {log.shard!r} are missing")
    found = unseal(record.data, HoldRecord, log.meta.path(key))
    return Holds(record.seqno, found.since, found.holds)


def set_hold(log: ShardLog, name: str, time: int) -> None:
    """Set or move a hold. Raise `TimeCompacted` if the time is below since."""

    def add_hold(found: Holds) -> dict[str, int]:
        _check_time(log, found, name, time)
        return {**found.holds, name: time}

    _change(log, add_hold)


def release_hold(log: ShardLog, name: str) -> None:
    _change(log, lambda found: {other: time for other, time in found.holds.items() if other != name})


def make_hold_write(log: ShardLog, found: Holds, name: str, time: int | None) -> Write:
    """A write that sets, moves or releases (None) a hold, for a commit with records of the caller.

    It always writes a new record, so a process that read the previous one notices the change.
    """
    others = {other: at for other, at in found.holds.items() if other != name}
    if time is None:
        return _make_write(log, found, found.since, others)
    _check_time(log, found, name, time)
    return _make_write(log, found, found.since, {**others, name: time})


def _check_time(log: ShardLog, found: Holds, name: str, time: int) -> None:
    if time < found.since:
        why = f"hold {name!r} would be below since"
        raise TimeCompacted(where=log.path, why=why, as_of=time, since=found.since)


def _change(log: ShardLog, change: Callable[[Holds], dict[str, int]]) -> None:
    while True:
        found = read_holds(log)
        holds = change(found)
        if holds == found.holds:
            return
        if (
            commit_until_known(log.meta, [_make_write(log, found, found.since, holds)], (), log.runtime, log.settings)
            is None
        ):
            truncate_sometimes(log.meta, hold_key(log.shard), found.seqno + 1)
            return


def advance_since(log: ShardLog, time: int, writer: Writer) -> Time:
    """Move since up to `time`, as far as upper, holds and live leases allow. Return the new since."""
    while True:
        found = read_holds(log)
        leases = read_live_leases(log)
        state = log.read().state
        allowed = Time(min([time, state.upper - 1, *found.holds.values(), *(lease.time for lease in leases.values())]))
        if state.finalized or allowed <= found.since:
            return found.since
        write = _make_write(log, found, allowed, found.holds)
        try:
            commit([Proposal(log, _propose_since(allowed, log))], writer, writes=[write])
        except Conflict:
            continue  # a hold or since has moved: start again
        truncate_sometimes(log.meta, hold_key(log.shard), found.seqno + 1)
        log.roll_up_if_due(writer)
        return allowed


def _propose_since(since: Time, log: ShardLog) -> Callable[[ShardState], SinceAdvanced]:
    def make(state: ShardState) -> SinceAdvanced:
        if state.finalized or state.since > since:
            raise Conflict(where=log.path, why="a peer moved since, or finalized the shard")
        return SinceAdvanced(since)

    return make


def _make_write(log: ShardLog, found: Holds, since: Time, holds: dict[str, int]) -> Write:
    record = HoldRecord(since, holds, log.runtime.new_id())
    return Write(hold_key(log.shard), found.seqno, seal(record))
