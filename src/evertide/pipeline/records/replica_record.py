"""The record in which each replica reports its role, its last transaction and its long-running work.

Location: Meta key `replica/<writer>`, version 1; the newest record counts, while that writer is registered.

1. The record is informational: nothing depends on it.
2. It is written from the start of the process on, when something changed since it was last written, at most once per
   `lead_interval_s`. So it shows the progress of a restore, a replay, a rebuild and a backfill.
3. The replica removes it when it stops; the leader removes those of replicas that were killed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from evertide.errors import EvertideError
from evertide.pipeline.records.ownership import ReplicaRole, is_gone
from evertide.pipeline.records.state_record import write_report
from evertide.problem import ComponentState
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Meta, Write, unseal
from evertide.store.paths import replica_key
from evertide.store.retry import commit_until_known, retry_read
from evertide.store.writers import read_registrations
from evertide.threads.outage_log import OutageLog
from evertide.threads.ticker import Ticker

if TYPE_CHECKING:
    from evertide.pipeline.process_context import OnProgress

logger = logging.getLogger(__name__)


_HYDRATING = ("rebuild", "backfill", "wide step", "catch up")
"""Work that hydrates views; all other long work is part of a restart."""


@dataclass(frozen=True, slots=True)
class LongWork:
    what: str
    """`restore` (bytes), `replay`, `complete`, `catch up` (transactions), `rebuild` or `backfill` (views),
    `wide step` (operators)."""
    done: int
    of: int

    def __str__(self) -> str:
        return f"{self.what} {self.done:,} of {self.of:,}"


class ReplicaRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    writer: str
    role: ReplicaRole
    state: ComponentState
    time: int
    """The last transaction that the replica has; -1 while it opens."""
    told_at_s: float
    change: str
    """A unique id, by which a writer recognizes its own commit after an unknown outcome."""
    work: LongWork | None = None


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    writer: str
    host: str
    pid: int
    role: ReplicaRole
    state: ComponentState
    time: int
    behind: int
    """Committed transactions that the replica does not have yet."""
    since_s: float
    told_at_s: float
    work: LongWork | None = None


class ReplicaReporter(Ticker):
    def __init__(
        self, role: Callable[[], ReplicaRole], meta: Meta, writer: str, runtime: Runtime, settings: Settings
    ) -> None:
        super().__init__("evertide-replica", settings.lead_interval_s)
        self._progress_of: Callable[[], tuple[ComponentState, int]] = lambda: (ComponentState.RUNNING, -1)
        """State and time; the time is -1 until the pipeline is open."""
        self._role = role
        self._meta = meta
        self._writer = writer
        self._runtime = runtime
        self._settings = settings
        self._work: LongWork | None = None
        self._written: tuple[ReplicaRole, ComponentState, int, LongWork | None] | None = None
        self._failure = OutageLog(logger, "could not record the progress of this replica in storage", runtime)

    def watch(self, progress: Callable[[], tuple[ComponentState, int]]) -> None:
        """Report the state and the time that `progress` returns; the thread of this reporter calls it."""
        self._progress_of = progress

    def wrap_progress(self, progress: OnProgress) -> OnProgress:
        """Wrap `progress` so that this reporter records long work, too."""

        def note_progress(what: str, done: int, of: int) -> None:
            self._work = LongWork(what, done, of) if done < of else None
            progress(what, done, of)

        return note_progress

    def tick(self) -> bool:
        now = self._read_progress()
        if now != self._written:
            role, state, time, work = now
            told_at_s, change = self._runtime.wall_s(), self._runtime.new_id()
            record = ReplicaRecord(self._writer, role, state, time, told_at_s, change, work)
            key = replica_key(self._writer)
            try:
                is_written = write_report(self._meta, key, self._writer, record, self._runtime, self._settings)
            except EvertideError as error:
                self._failure.note(error)
                return True
            self._failure.end()
            if is_written:
                self._written = now
                if role == ReplicaRole.LEADS:
                    self._remove(lambda writer, alive: writer not in alive)
        return True

    def _read_progress(self) -> tuple[ReplicaRole, ComponentState, int, LongWork | None]:
        state, time = self._progress_of()
        work = self._work
        if state == ComponentState.RUNNING and (time < 0 or (work is not None and work.what not in _HYDRATING)):
            state = (
                ComponentState.HYDRATING if work is not None and work.what in _HYDRATING else ComponentState.REPLAYING
            )
        return self._role(), state, time, work

    def stop(self) -> None:
        super().stop()
        self._remove(lambda writer, _: writer == self._writer)

    def _remove(self, is_over: Callable[[str, Container[str]], bool]) -> None:
        """Remove the records of the writers for which `is_over` is true."""
        prefix = replica_key("")
        try:
            heads = retry_read(lambda: self._meta.heads(prefix), self._runtime, self._settings)
            alive = retry_read(lambda: read_registrations(self._meta), self._runtime, self._settings)
            for key, head in heads.items():
                if is_over(key.removeprefix(prefix), alive):
                    commit_until_known(self._meta, [Write(key, head.seqno, None)], (), self._runtime, self._settings)
        except EvertideError as error:
            logger.warning("could not delete the status records of replicas that have ended: %s", error)


def read_replica_statuses(
    meta: Meta, committed: int, runtime: Runtime, settings: Settings
) -> tuple[ReplicaStatus, ...]:
    """All live replicas, the leader first. `committed` is the first time that is not committed."""
    alive = retry_read(lambda: read_registrations(meta), runtime, settings)
    heads = retry_read(lambda: meta.heads(replica_key("")), runtime, settings)
    found = []
    for key, head in heads.items():
        record = unseal(head.data, ReplicaRecord, meta.path(key))
        one = alive.get(record.writer)
        if one is None or is_gone(meta, one, runtime, settings):
            continue
        known = (record.writer, one.host, one.pid, record.role, record.state, record.time)
        behind = max(committed - 1 - record.time, 0)
        found.append(ReplicaStatus(*known, behind, one.registered_at_s, record.told_at_s, record.work))
    return tuple(sorted(found, key=lambda one: (one.role != ReplicaRole.LEADS, one.since_s, one.writer)))
