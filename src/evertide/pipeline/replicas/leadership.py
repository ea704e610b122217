"""Elects the leader among the replicas of a pipeline.

All replicas hold the state of the whole pipeline, and any of them may bind and commit: compare-and-set decides, so
safety does not depend on the leader. The leader does the work that must be done once: it reads sources, writes to
sinks, makes checkpoints, compacts, and completes bound transactions.

1. The leader is the writer that the record names, as long as that writer is registered.
2. A replica that finds the leader gone ends its registration by compare-and-set and takes the lead. That commit expects
   the leader record that the replica read, and the old writer to be unregistered. So there are never two leaders, and
   an old leader that comes back is fenced (I16).
3. A leader's missing heartbeats count only while this process's own heartbeats succeed
   (`Writer.has_working_heartbeat`). After a storage outage the leader resumes its heartbeat, and keeps the lead.
4. A read-only replica never takes the lead. `promote` makes it the leader, and fences all replicas that can write.
"""

from __future__ import annotations

import logging

from evertide.errors import Conflict, NotAllowedNow
from evertide.pipeline.records.ownership import (
    READ_ONLY,
    RUNNING,
    Leader,
    ReplicaRole,
    end_registration,
    is_gone,
    read_leader,
)
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Guard, Meta, Write, seal
from evertide.store.paths import LEADER, writer_key
from evertide.store.retry import commit_until_known, retry_read, truncate_sometimes
from evertide.store.writers import Registration, Writer, read_registrations
from evertide.types import SequenceNumber

logger = logging.getLogger(__name__)


class Leadership:
    """This replica's part in the election: whether it leads, and whether it may take the lead."""

    def __init__(self, meta: Meta, writer: Writer, runtime: Runtime, settings: Settings, *, may_take: bool) -> None:
        self.is_leader = False
        self._meta = meta
        self._writer = writer
        self._runtime = runtime
        self._settings = settings
        self._may_take = may_take

    @property
    def role(self) -> ReplicaRole:
        if self.is_leader:
            return ReplicaRole.LEADS
        return ReplicaRole.FOLLOWS if self._may_take else ReplicaRole.READ_ONLY

    def try_acquire(self) -> bool:
        """Take the lead if no live process has it."""
        number, leader = retry_read(lambda: read_leader(self._meta), self._runtime, self._settings)
        if leader is not None and leader.writer == self._writer.id:
            self.is_leader = True
        elif self._may_take:
            self.is_leader = self._is_vacant(leader) and self._take(number, leader)
        return self.is_leader

    def read_registration(self) -> Registration | None:
        """The leader's registration; None if the leader is not registered."""
        _, leader = retry_read(lambda: read_leader(self._meta), self._runtime, self._settings)
        known = retry_read(lambda: read_registrations(self._meta), self._runtime, self._settings)
        return known.get(leader.writer) if leader is not None else None

    def _is_vacant(self, leader: Leader | None) -> bool:
        if leader is None:
            return True
        known = retry_read(lambda: read_registrations(self._meta), self._runtime, self._settings).get(leader.writer)
        if known is None:
            return True
        if not known.has_ended() and not (
            self._writer.has_working_heartbeat and is_gone(self._meta, known, self._runtime, self._settings)
        ):
            return False
        logger.warning("the leader, process %d on %s, has ended or sends no heartbeat", known.pid, known.host)
        return end_registration(self._meta, known, self._runtime, self._settings)

    def _take(self, number: SequenceNumber, before: Leader | None) -> bool:
        guards = [self._writer.guards()[0]]
        if before is not None:
            guards.append(Guard(writer_key(before.writer), 0))
        leader = Leader(self._writer.id, self._runtime.wall_s(), self._runtime.new_id())
        write = Write(LEADER, number, seal(leader))
        stale = commit_until_known(self._meta, [write], guards, self._runtime, self._settings)
        if stale is None:
            truncate_sometimes(self._meta, LEADER, number + 1)
            return True
        self._writer.check_registered()
        return False


def promote(meta: Meta, writer: str, *, runtime: Runtime, settings: Settings) -> Registration:
    """Make a read-only replica the leader: `writer`, or the only one. All replicas that can write are fenced."""
    known = retry_read(lambda: read_registrations(meta), runtime, settings)
    alive = {name: one for name, one in known.items() if not one.has_ended()}
    chosen = _choose(meta, {name: one for name, one in alive.items() if one.label == READ_ONLY}, writer)
    for name, other in known.items():
        if name != chosen.writer and other.label == RUNNING:
            logger.warning("the promotion fences process %d on %s", other.pid, other.host)
            while not end_registration(meta, other, runtime, settings):
                pass  # a heartbeat came in between: retry
    number, _ = retry_read(lambda: read_leader(meta), runtime, settings)
    leader = Leader(chosen.writer, runtime.wall_s(), runtime.new_id())
    guards = [Guard(writer_key(chosen.writer), 1)]
    if commit_until_known(meta, [Write(LEADER, number, seal(leader))], guards, runtime, settings) is not None:
        raise Conflict(where=meta.path(LEADER), why="another process took the lead at the same time; retry")
    return chosen


def _choose(meta: Meta, following: dict[str, Registration], writer: str) -> Registration:
    listed = ", ".join(f"{name} (process {one.pid} on {one.host})" for name, one in sorted(following.items())) or "none"
    if writer and writer not in following:
        why = f"{writer!r} is not a running read-only replica; running read-only replicas: {listed}"
        raise NotAllowedNow(where=meta.path(LEADER), why=why)
    if not writer and len(following) != 1:
        why = f"name the replica to promote: {listed}" if following else "no read-only replica runs; start one"
        raise NotAllowedNow(where=meta.path(LEADER), why=why)
    return following[writer] if writer else next(iter(following.values()))
