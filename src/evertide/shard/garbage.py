"""Garbage collection of a shard: delete what provably no reader or writer needs (I12).

There are three kinds of blobs, each with its own proof:

1. *Parts that a diff removed* (compaction, finalize). Only readers whose lease names an earlier diff need them. Proof:
   the log's head is read first, the leases after it; a lease taken later sees a state without the part. This stays
   true, so the deletion may happen at any later moment. Then the diffs are truncated, as far as a roll-up covers them:
   they list what to delete, so deletion comes first.
2. *Older roll-ups.* Proof: Meta names a newer one; a reader that held the old address reads it again.
3. *Orphans*: written, but never named. Proof, in this order: the blob was listed; its writer was not registered, or had
   settled the blob's sequence number; neither the state, read after that, nor any remaining diff names it.

`pinned` protects further parts: those that checkpoints name. It is called last. A process that pins a part first, and
then checks that the state still has it, cannot be overtaken. If a part is pinned while the diff that removed it is
truncated, it becomes an orphan, and is deleted as one when it is no longer pinned.

Listing, writers, state, diffs, roll-up, leases and pins are all read and decoded first. If any of them cannot be read,
nothing is deleted. Each proof stays true forever, so a concurrent or an interrupted run does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from evertide.errors import StorageFull
from evertide.shard.lease import read_live_leases
from evertide.shard.shard_log import Proposal, Rollup, ShardLog, commit
from evertide.shard.state import Forgotten, LogEntry, ShardState, parts_removed
from evertide.store.blob import list_keys
from evertide.store.paths import part_prefix, rollup_key, rollup_prefix
from evertide.store.retry import retry_read
from evertide.store.writers import Writer, end_silent_writers, read_open_numbers, read_registrations, will_not_be_named

Pinned: TypeAlias = Callable[[], Container[str]]
"""Returns the parts that must stay in addition to the shard's own. If it raises, nothing is deleted."""


def pin_nothing() -> Container[str]:
    return frozenset()


@dataclass(frozen=True, slots=True)
class ShardGarbage:
    """What one garbage collection deleted: the keys of the blobs by kind, and the number of truncated diffs."""

    parts: tuple[str, ...] = ()
    rollups: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    diffs: int = 0
    writers_ended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _ShardProof:
    """Everything that a decision depends on, read before the first deletion."""

    parts: Sequence[str]
    rollups: Sequence[str]
    settled: dict[str, int]
    state: ShardState
    entries: Sequence[tuple[int, LogEntry]]
    lease_floor: int
    rollup: Rollup | None
    rollup_record: int
    pinned: Container[str]


def collect_garbage(log: ShardLog, writer: Writer, pinned: Pinned = pin_nothing) -> ShardGarbage:
    ended: list[str] = []
    with suppress(StorageFull):  # deletion frees space, and no proof below depends on this beat
        writer.beat()  # publishes our own settled number, and shows that we are not fenced (I16)
        ended = end_silent_writers(log.meta, runtime=log.runtime, settings=log.settings, own_writer=writer)
        log.roll_up_if_due(writer, diffs=log.settings.rollup_every_diffs // 8)
    proof = retry_read(lambda: _read_proof(log, pinned), log.runtime, log.settings)
    dead = _find_removed_parts(proof)
    rollups, orphans = _find_old_rollups(proof), _find_orphans(proof)
    for key in (*dead, *rollups, *orphans):
        log.blob.delete(key)
    truncated = _truncate(log, proof)
    _forget_writers(log, proof, writer)
    return ShardGarbage(dead, rollups, orphans, truncated, tuple(ended))


def _read_proof(log: ShardLog, pinned: Pinned) -> _ShardProof:
    """The order of the reads matters: see the header."""
    parts = list_keys(log.blob, part_prefix(log.shard))
    rollups = list_keys(log.blob, rollup_prefix(log.shard))
    floors = read_open_numbers(log.meta)
    version = log.reread()  # from storage: our cache does not prove that others can read it
    entries = [
        (record.seqno, log.decode_entry(record)) for record in log.meta.scan(log.key) if record.seqno <= version.seqno
    ]
    record, rollup = log.read_newest_rollup() or (0, None)
    leases = read_live_leases(log)
    floor = min((lease.seqno for lease in leases.values()), default=version.seqno)
    return _ShardProof(parts, rollups, floors, version.state, entries, floor, rollup, record, pinned())


def _find_removed_parts(proof: _ShardProof) -> tuple[str, ...]:
    return tuple(
        key
        for seqno, entry in proof.entries
        if seqno <= proof.lease_floor
        for key in parts_removed(entry.diff)
        if key not in proof.pinned
    )


def _find_old_rollups(proof: _ShardProof) -> tuple[str, ...]:
    newest = proof.rollup.key if proof.rollup else ""
    return tuple(key for key in proof.rollups if key != newest and will_not_be_named(key, proof.settled))


def _find_orphans(proof: _ShardProof) -> tuple[str, ...]:
    named = {part.key for part in proof.state.parts}
    named |= {key for _, entry in proof.entries for key in parts_removed(entry.diff)}
    return tuple(
        key
        for key in proof.parts
        if key not in named and key not in proof.pinned and will_not_be_named(key, proof.settled)
    )


def _truncate(log: ShardLog, proof: _ShardProof) -> int:
    below = min(proof.rollup.seqno if proof.rollup else 0, proof.lease_floor) + 1
    count = sum(1 for seqno, _ in proof.entries if seqno < below)
    if count:
        log.meta.truncate(log.key, below)
    if proof.rollup_record:
        log.meta.truncate(rollup_key(log.shard), proof.rollup_record)
    return count


def _forget_writers(log: ShardLog, proof: _ShardProof, writer: Writer) -> None:
    """Remove the tokens of writers that are gone: no process can look them up any more.

    The registrations are read again after the state. A writer in the state registered before that, so if it is not
    registered now, it was ended for good.
    """
    known = retry_read(lambda: read_registrations(log.meta), log.runtime, log.settings)
    gone = tuple(name for name in proof.state.tokens if name not in known)
    if gone:
        commit([Proposal(log, lambda _state: Forgotten(gone))], writer)
