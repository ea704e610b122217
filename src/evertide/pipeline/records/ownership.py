"""Registers the processes that run a pipeline: one alone, or several replicas.

Location: the registrations of writers, with a label; the Meta key `leader`, version 1, names the leader.

1. A process that wants to run the pipeline alone is refused while another process runs or repairs it.
2. If the other process has ended (`evertide.store.process_identity`), or its heartbeat is older than its `ttl_s`, its
   registration is ended by compare-and-set. If it comes back, it is fenced (I16).
3. A replica ends no silent writer when it starts: after a storage outage, its peers are about to resume their
   heartbeats (`evertide.pipeline.replicas.leadership`).
"""

from __future__ import annotations

import enum

import msgspec

from evertide.checkpoint.registration import REPAIRING
from evertide.errors import Conflict
from evertide.problem import OpenStrEnum
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Meta, Write, unseal
from evertide.store.paths import LEADER, beat_key, writer_key
from evertide.store.retry import commit_until_known, retry_read
from evertide.store.writers import HeartbeatRecord, Registration, Writer, end_silent_writers, read_registrations
from evertide.types import SequenceNumber

RUNNING = "pipeline"
"""The label of a writer that runs a pipeline."""

READ_ONLY = "read-only"
"""The label of a read-only replica, which does not write until it is promoted."""


class ProcessRole(enum.Enum):
    ALONE = "alone"
    REPLICA = "replica"
    READ_ONLY = "read-only"


class ReplicaRole(OpenStrEnum):
    """What a replica does now; `ProcessRole` is what it was started as."""

    LEADS = "leads"
    FOLLOWS = "follows"
    READ_ONLY = "read-only"


class Leader(msgspec.Struct, frozen=True):
    """The record that names the leading replica."""

    writer: str
    since_s: float
    change: str
    """A unique id, by which a writer recognizes its own commit after an unknown outcome."""


def read_leader(meta: Meta) -> tuple[SequenceNumber, Leader | None]:
    """The number of the record, and the record."""
    record = meta.head(LEADER)
    if record is None:
        return SequenceNumber(0), None
    return record.seqno, unseal(record.data, Leader, meta.path(LEADER))


def take_over(meta: Meta, *, runtime: Runtime, settings: Settings, instance: str = "") -> Writer:
    """Register as the only process that runs the pipeline. `Conflict` if another process runs or repairs it."""
    retry_read(lambda: end_silent_writers(meta, runtime=runtime, settings=settings), runtime, settings)
    for other in _read_holders(meta, runtime, settings):
        if not other.has_ended():
            raise _make_conflict(meta, other)
        end_registration(meta, other, runtime, settings)
    writer = Writer.register(meta, runtime=runtime, settings=settings, label=RUNNING, instance=instance)
    others = [
        other
        for other in _read_holders(meta, runtime, settings)
        if other.writer != writer.id and not _is_same(other, instance)
    ]
    if others:  # two registered at the same moment: only one that sees no other may continue
        writer.unregister()
        other = others[0]
        raise Conflict(
            where=meta.path(writer_key(other.writer)),
            why=f"process {other.pid} on {other.host} has started to run the pipeline at the same moment; retry",
        )
    return writer


def register_as(role: ProcessRole, meta: Meta, *, runtime: Runtime, settings: Settings, instance: str = "") -> Writer:
    """Register in a role. A registration that an earlier try of unknown outcome made as `instance` is ended."""
    for other in retry_read(lambda: read_registrations(meta), runtime, settings).values():
        if _is_same(other, instance):
            end_registration(meta, other, runtime, settings)
    if role is ProcessRole.ALONE:
        return take_over(meta, runtime=runtime, settings=settings, instance=instance)
    label = READ_ONLY if role is ProcessRole.READ_ONLY else RUNNING
    writer = Writer.register(meta, runtime=runtime, settings=settings, label=label, instance=instance)
    for other in _read_holders(meta, runtime, settings):
        if other.label == REPAIRING and not is_gone(meta, other, runtime, settings):
            writer.unregister()
            raise _make_conflict(meta, other)
    return writer


def _is_same(other: Registration, instance: str) -> bool:
    return bool(instance) and other.instance == instance


def check_free(meta: Meta, runtime: Runtime, settings: Settings) -> None:
    """Raise `Conflict` if a live process runs or repairs the pipeline. Nothing is changed."""
    for other in _read_holders(meta, runtime, settings):
        if not is_gone(meta, other, runtime, settings):
            raise _make_conflict(meta, other)


def read_holder(meta: Meta) -> Registration | None:
    """The registration of the leader, or else of a process that runs the pipeline."""
    known = read_registrations(meta)
    _, leader = read_leader(meta)
    found = known.get(leader.writer) if leader is not None else None
    return found or next((other for other in known.values() if other.label == RUNNING), None)


def read_live_holder(meta: Meta, runtime: Runtime, settings: Settings) -> Registration | None:
    """`read_holder`, if that process is alive."""
    held = retry_read(lambda: read_holder(meta), runtime, settings)
    return held if held is not None and not is_gone(meta, held, runtime, settings) else None


def is_gone(meta: Meta, other: Registration, runtime: Runtime, settings: Settings) -> bool:
    """Whether the process has ended, or its heartbeat is older than its `ttl_s`. Nothing is changed."""
    if other.has_ended():
        return True
    record = retry_read(lambda: meta.head(beat_key(other.writer)), runtime, settings)
    if record is None:
        return True
    beat = unseal(record.data, HeartbeatRecord, meta.path(beat_key(other.writer)))
    return runtime.wall_s() - beat.beat_at_s > other.ttl_s


def _make_conflict(meta: Meta, other: Registration) -> Conflict:
    work, then = (
        ("repairs the storage", "wait until it ends")
        if other.label == REPAIRING
        else ("runs the pipeline", "stop it first")
    )
    why = f"process {other.pid} on {other.host} {work} (writer {other.writer}); {then}"
    return Conflict(where=meta.path(writer_key(other.writer)), why=why)


def _read_holders(meta: Meta, runtime: Runtime, settings: Settings) -> list[Registration]:
    """The processes that run the pipeline, then those that repair the storage."""
    known = retry_read(lambda: read_registrations(meta), runtime, settings)
    _, leader = retry_read(lambda: read_leader(meta), runtime, settings)
    leads = leader.writer if leader is not None else ""  # a promoted replica keeps the label read-only
    running = [other for other in known.values() if other.label == RUNNING or other.writer == leads]
    return running + [other for other in known.values() if other.label == REPAIRING]


def end_registration(meta: Meta, other: Registration, runtime: Runtime, settings: Settings) -> bool:
    """End a registration. False if its writer sent a heartbeat meanwhile."""
    beat = retry_read(lambda: meta.head(beat_key(other.writer)), runtime, settings)
    if beat is None:
        return True
    writes = [Write(writer_key(other.writer), 1, None), Write(beat_key(other.writer), beat.seqno, None)]
    return commit_until_known(meta, writes, (), runtime, settings) is None
