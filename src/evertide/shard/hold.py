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
    known = unseal(record.data, HoldRecord, log.meta.path(key))
    return Holds(record.seqno, known.since, known.holds)


def set_hold(log: ShardLog, name: str, time: int) -> None:
    """Set or move a hold. Raise `TimeCompacted` if the time is below since."""

    def add_hold(known: Holds) -> dict[str, int]:
        _check_time(log, known, name, time)
        return {**known.holds, name: time}

    _change(log, add_hold)


def release_hold(log: ShardLog, name: str) -> None:
    _change(log, lambda known: {other: time for other, time in known.holds.items() if other != name})


def make_hold_write(log: ShardLog, known: Holds, name: str, time: int | None) -> Write:
    """A write that sets, moves or releases (None) a hold, for a commit with records of the caller.

    It always writes a new record, so a process that read the previous one notices the change.
    """
    others = {other: at for other, at in known.holds.items() if other != name}
    if time is None:
        return _make_write(log, known, known.since, others)
    _check_time(log, known, name, time)
    return _make_write(log, known, known.since, {**others, name: time})


def _check_time(log: ShardLog, known: Holds, name: str, time: int) -> None:
    if time < known.since:
        why = f"hold {name!r} would be below since"
        raise TimeCompacted(where=log.path, why=why, as_of=time, since=known.since)


def _change(log: ShardLog, change: Callable[[Holds], dict[str, int]]) -> None:
    while True:
        known = read_holds(log)
        holds = change(known)
        if holds == known.holds:
            return
        if (
            commit_until_known(log.meta, [_make_write(log, known, known.since, holds)], (), log.runtime, log.settings)
            is None
        ):
            truncate_sometimes(log.meta, hold_key(log.shard), known.seqno + 1)
            return


def advance_since(log: ShardLog, time: int, writer: Writer) -> Time:
    """Move since up to `time`, as far as upper, holds and live leases allow. Return the new since."""
    while True:
        known = read_holds(log)
        leases = read_live_leases(log)
        state = log.read().state
        allowed = Time(min([time, state.upper - 1, *known.holds.values(), *(lease.time for lease in leases.values())]))
        if state.finalized or allowed <= known.since:
            return known.since
        write = _make_write(log, known, allowed, known.holds)
        try:
            commit([Proposal(log, _propose_since(allowed, log))], writer, writes=[write])
        except Conflict:
            continue  # a hold or since has moved: start again
        truncate_sometimes(log.meta, hold_key(log.shard), known.seqno + 1)
        log.roll_up_if_due(writer)
        return allowed


def _propose_since(since: Time, log: ShardLog) -> Callable[[ShardState], SinceAdvanced]:
    def make(state: ShardState) -> SinceAdvanced:
        if state.finalized or state.since > since:
            raise Conflict(where=log.path, why="a peer moved since, or finalized the shard")
        return SinceAdvanced(since)

    return make


def _make_write(log: ShardLog, known: Holds, since: Time, holds: dict[str, int]) -> Write:
    record = HoldRecord(since, holds, log.runtime.new_id())
    return Write(hold_key(log.shard), known.seqno, seal(record))
