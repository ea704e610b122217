"""The status of a pipeline, derived from durable records, so that any process can read it (I13).

The states; the status has the first that applies:

    failed        the process stopped because of an error
    diverged      the result of a replay differs from the record
    frozen        a part that is needed is missing or damaged
    stopped       no process runs the pipeline
    replaying     the pipeline restarts
    stalled       a transaction has been bound for longer than `stall_after_s`, or a source cannot be read
    reconnecting  the connection to a source was lost, and is being restored
    paused        a client paused the pipeline
    running
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from evertide.checkpoint.catalog import Checkpoints
from evertide.checkpoint.context import CollectionKind
from evertide.errors import BlobDamaged, BlobMissing, Diverged, EvertideError
from evertide.journal.journal import Journal
from evertide.pipeline.definition import Definition, read_definition
from evertide.pipeline.names import ERRORS
from evertide.pipeline.records.ownership import is_gone, read_holder
from evertide.pipeline.records.replica_record import ReplicaStatus, read_replica_statuses
from evertide.pipeline.records.source_record import SourceRecord, SourceRecords, read_source_records
from evertide.pipeline.records.state_record import PipelineStateRecord, read_pipeline_state
from evertide.pipeline.sinks.sink_status import SinkStatus, read_sink_statuses
from evertide.pipeline.state.divergence import list_divergences
from evertide.pipeline.state.members import Members
from evertide.problem import ComponentState, Problem
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.shard import Shards
from evertide.sources.contract import Lag
from evertide.store.meta import Meta, unseal
from evertide.store.open import Storage
from evertide.store.paths import shape_prefix
from evertide.store.retry import retry_read
from evertide.store.writers import Registration
from evertide.tables import render_html_lines, render_text
from evertide.types import Generation

__all__ = [
    "CollectionStatus",
    "Facts",
    "Problem",
    "SourceStatus",
    "Status",
    "assemble_status",
    "find_stall",
    "make_collection_statuses",
    "make_problem",
    "read_status",
]


_ENDED = (ComponentState.FAILED, ComponentState.DIVERGED, ComponentState.FROZEN)
"""States that end a process."""


@dataclass(frozen=True, slots=True)
class CollectionStatus:
    name: str
    kind: CollectionKind
    state: ComponentState
    """`running`, `hydrating`, `failed` or `undeclared`; without a process that runs the
    pipeline, `stopped` instead of `running`."""
    upper: int
    since: int
    rows: int
    """Stored changes; some may cancel others."""
    bytes: int
    why: str = ""
    parts: int = 0
    shapes: int = 0


class _ShapeCollection(msgspec.Struct, frozen=True):
    """The fields that are read of a shape's record (`evertide.shapes.log.record`)."""

    collection: str


@dataclass(frozen=True, slots=True)
class SourceStatus:
    name: str
    tables: tuple[str, ...]
    position: str
    state: ComponentState
    """`running`, `reconnecting` or `stalled`; `stopped` if no process runs the pipeline; empty if not reported yet."""
    lag: Lag | None = None
    """None if the source does not report it."""
    problems: tuple[Problem, ...] = ()
    """Problems that stop the source first, then warnings."""
    told_at_s: float | None = None
    """The time of the record that state, lag and problems were read from; None if they are current."""


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a pipeline and of its parts, as every process and the HTTP API report it."""

    state: ComponentState
    since_s: float
    why: str
    remedy: str
    time: int
    """The last transaction that is in all collections; -1 if none is."""
    bound: int
    generation: Generation
    holder: str
    sources: tuple[SourceStatus, ...]
    collections: tuple[CollectionStatus, ...]
    checkpoints: tuple[tuple[int, int], ...]
    """Number and time of each, the newest first."""
    problems: tuple[Problem, ...] = field(default=())
    host: str = ""
    pid: int = 0
    """Of the process that runs the pipeline, if another process reads the status."""
    sinks: tuple[SinkStatus, ...] = ()
    flushed: int = -1
    """The last transaction that every sink has received; without sinks, the last transaction."""
    replicas: tuple[ReplicaStatus, ...] = ()
    """The leader first."""
    stored_at_s: float | None = None
    """When storage last answered the running process; None if storage answers now."""

    def __str__(self) -> str:
        """What `evertide status` prints."""
        from evertide.pipeline.status.report import describe_status  # noqa: PLC0415 - rich is slow to import

        return render_text(describe_status(self))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from evertide.pipeline.status.report import describe_status  # noqa: PLC0415

        return render_html_lines(describe_status(self))


@dataclass(frozen=True, slots=True)
class Facts:
    """The part of a status that is read from storage."""

    bound: int
    stalled: Problem | None
    """A bound transaction that is not committed in time."""
    positions: Mapping[str, str]
    collections: tuple[CollectionStatus, ...]
    checkpoints: tuple[tuple[int, int], ...]
    sinks: tuple[SinkStatus, ...]
    replicas: tuple[ReplicaStatus, ...]
    problem: Problem | None = None
    """Why storage could not be read; the other fields are then as of `stored_at_s`."""
    stored_at_s: float | None = None
    """When storage last answered; None if storage answers now."""


def assemble_status(
    first: Problem,
    problems: Iterable[Problem],
    facts: Facts,
    sources: Iterable[SourceStatus],
    *,
    time: int,
    generation: Generation,
    leader: Registration | None = None,
    writer: str = "",
) -> Status:
    """The status of a pipeline; `first` is the problem that determines its state.

    `leader` is the registration of the running process, for a status that another process reads from storage; the
    process itself names its `writer` instead.
    """
    return Status(
        state=first.state,
        since_s=first.since_s,
        why=first.why,
        remedy=first.remedy,
        time=time,
        bound=facts.bound,
        generation=generation,
        holder=writer if leader is None else leader.writer,
        sources=tuple(sources),
        collections=facts.collections,
        checkpoints=facts.checkpoints,
        problems=tuple(problems),
        host="" if leader is None else leader.host,
        pid=0 if leader is None else leader.pid,
        sinks=facts.sinks,
        flushed=min([time, *(time - sink.behind for sink in facts.sinks)]),
        replicas=facts.replicas,
        stored_at_s=facts.stored_at_s,
    )


def make_problem(error: EvertideError, since_s: float) -> Problem:
    if isinstance(error, Diverged):
        state = ComponentState.DIVERGED
    elif isinstance(error, BlobMissing | BlobDamaged):
        state = ComponentState.FROZEN
    else:
        state = ComponentState.FAILED
    return Problem.from_error(state, error, since_s)


def find_stall(meta: Meta, journal: Journal, members: Members, runtime: Runtime, settings: Settings) -> Problem | None:
    """A transaction that has been bound for longer than `stall_after_s`, and is not committed (S1)."""
    waiting = journal.committed_upper  # read once, and before the head: peers may commit meanwhile
    head = journal.head()
    if head is None or waiting > head.time:
        return None
    bound_at_s = journal.read(waiting).bound_at_s
    if runtime.wall_s() - bound_at_s < settings.stall_after_s:
        return None
    shards = members.group_by_collection(members.open_all())
    behind = ", ".join(sorted(name for name, shard in shards.items() if shard.upper <= waiting))
    holder = read_holder(meta)
    leader = f"process {holder.pid} on {holder.host} runs the pipeline" if holder else "no process runs the pipeline"
    why = f"transaction {waiting} is bound and not committed; the collections {behind} do not have it yet"
    why = f"{why}; {leader}"
    remedy = "Check the log of that process; if the process hangs, end it and start it again: nothing is lost."
    return Problem(ComponentState.STALLED, "stalled", why, remedy, bound_at_s)


def read_status(storage: Storage, shards: Shards, journal: Journal, checkpoints: Checkpoints) -> Status:
    """The status as recorded in storage, without errors that only the running process knows."""
    meta, runtime, settings = storage.meta, shards.runtime, shards.settings
    _, definition = retry_read(lambda: read_definition(meta), runtime, settings)
    members = Members(shards, definition) if definition is not None else None
    holder = retry_read(lambda: read_holder(meta), runtime, settings)
    live = holder if holder is not None and not is_gone(meta, holder, runtime, settings) else None
    head, committed = journal.head(), journal.committed_upper
    reports = retry_read(lambda: read_source_records(meta), runtime, settings)
    facts = Facts(
        bound=head.time if head else -1,
        stalled=find_stall(meta, journal, members, runtime, settings) if live and members is not None else None,
        positions=journal.positions(),
        collections=make_collection_statuses(members, is_stopped=live is None) if members is not None else (),
        checkpoints=tuple((entry.number, entry.time) for entry in checkpoints.entries()),
        sinks=read_sink_statuses(meta, reports, live, committed - 1, runtime, settings),
        replicas=read_replica_statuses(meta, committed, runtime, settings),
    )
    state = _to_problem(retry_read(lambda: read_pipeline_state(meta), runtime, settings), live)
    if live is not None:
        first = facts.stalled or state or Problem(ComponentState.RUNNING, "", "", "", live.registered_at_s)
    else:
        why = _explain_stop(holder, committed, head.time + 1 if head else 0)
        first = state or Problem(ComponentState.STOPPED, "", why, "", head.bound_at_s if head else 0.0)
    problems = [first] if first.error_code else []
    problems += list_divergences(definition).values() if definition else ()
    problems += reports.feeds + reports.warnings if reports is not None and reports.is_from(live) else ()
    sources = _make_source_statuses(facts.positions, reports, definition, live)
    generation = definition.generation if definition else Generation(0)
    return assemble_status(first, problems, facts, sources, time=committed - 1, generation=generation, leader=live)


def _to_problem(record: PipelineStateRecord | None, live: Registration | None) -> Problem | None:
    """The state that the live process reported; if no process lives, the error that the last one ended with."""
    if record is None or (live is not None and record.writer != live.writer):
        return None
    if live is None and record.state not in _ENDED:
        return None
    return Problem(record.state, record.error_code, record.why, record.remedy, record.since_s)


def _make_source_statuses(
    positions: Mapping[str, str],
    reports: SourceRecords | None,
    definition: Definition | None,
    live: Registration | None,
) -> tuple[SourceStatus, ...]:
    """State, lag and problems come from the live process; the tables may come from an earlier one."""
    known = reports.sources if reports is not None else {}
    found = []
    for name, position in positions.items():
        # A source without a record has the table of the same name, if there is one.
        tables = (name,) if definition is not None and name in definition.tables else ()
        record = known.get(name) or SourceRecord(tables, ComponentState.NOT_REPORTED)
        if reports is not None and reports.is_from(live):
            one = SourceStatus(
                name, record.tables, position, record.state, record.lag, record.problems, reports.told_at_s
            )
        else:
            state = ComponentState.NOT_REPORTED if live is not None else ComponentState.STOPPED
            one = SourceStatus(name, record.tables, position, state)
        found.append(one)
    return tuple(found)


def _explain_stop(holder: Registration | None, committed: int, bound: int) -> str:
    if bound == 0:
        return "no pipeline ever ran on this storage"
    ended = (
        f"process {holder.pid} on {holder.host} ended without closing the pipeline"
        if holder
        else "no process runs the pipeline"
    )
    return f"{ended}; the next start completes {bound - committed} bound transactions" if bound > committed else ended


def make_collection_statuses(
    members: Members, *, is_fresh: bool = True, is_stopped: bool = False
) -> tuple[CollectionStatus, ...]:
    """Unless `is_fresh`, from the shard states in memory and without shapes: no storage call is made."""
    definition = members.definition
    running = ComponentState.STOPPED if is_stopped else ComponentState.RUNNING
    listed: list[tuple[str, CollectionKind, str, ComponentState, str]] = [
        (name, CollectionKind.TABLE, table.shard, running if table.is_declared else ComponentState.UNDECLARED, "")
        for name, table in definition.tables.items()
        if table.shard
    ]
    for name, view in definition.views.items():
        state, why = (view.away.state, view.away.why) if view.away else (running, "")
        listed.append((name, CollectionKind.VIEW, view.shard, state, why))
    listed.append((ERRORS, CollectionKind.ERRORS, definition.errors, running, ""))
    shapes = _count_shapes(members) if is_fresh else Counter()
    found = []
    for name, kind, shard, state, why in listed:
        known = (members.shard(shard).log.read().state if is_fresh else members.peek(shard)) if shard else None
        status = CollectionStatus(name, kind, state, 0, 0, 0, 0, why, shapes=shapes[name])
        if known is not None:
            rows, size = sum(batch.rows for batch in known.batches), sum(batch.bytes for batch in known.batches)
            parts = sum(len(batch.parts) for batch in known.batches)
            status = replace(status, upper=known.upper, since=known.since, rows=rows, bytes=size, parts=parts)
        found.append(status)
    return tuple(found)


def _count_shapes(members: Members) -> Counter[str]:
    shards = members.shards
    records = retry_read(lambda: shards.meta.heads(shape_prefix()), shards.runtime, shards.settings)
    return Counter(
        unseal(record.data, _ShapeCollection, shards.meta.path(key)).collection for key, record in records.items()
    )
