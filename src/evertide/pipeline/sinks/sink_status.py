"""`SinkStatus`: how far a sink is, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from evertide.pipeline.records.source_record import SinkStateRecord, SourceRecords
from evertide.pipeline.sinks.sink_record import SinkRecord, read_sinks
from evertide.problem import ComponentState, Problem
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Meta
from evertide.store.writers import Registration


@dataclass(frozen=True, slots=True)
class SinkStatus:
    name: str
    collection: str
    connector: str
    last: int | None
    """The last transaction that was written to the sink."""
    behind: int
    """Transactions that the sink has not received; some may not change its collection."""
    state: ComponentState
    """`running`, `waiting`, `lagging`, `stalled`, or `failed`; `stopped` if no process runs the pipeline; empty if not
    reported yet."""
    problem: Problem | None = None


def read_sink_statuses(  # noqa: PLR0917
    meta: Meta,
    reports: SourceRecords | None,
    live: Registration | None,
    time: int,
    runtime: Runtime,
    settings: Settings,
) -> tuple[SinkStatus, ...]:
    """The recorded status, for a process that does not deliver. `live` is the live leader's registration."""
    states = reports.sinks if reports is not None and reports.is_from(live) else {}
    unknown = SinkStateRecord(ComponentState.NOT_REPORTED if live is not None else ComponentState.STOPPED)
    records = read_sinks(meta, runtime, settings)
    return tuple(
        _make_sink_status(name, one.record, states.get(name, unknown), time)
        for name, one in records.items()
        if one.record.is_declared
    )


def _make_sink_status(name: str, record: SinkRecord, state: SinkStateRecord, time: int) -> SinkStatus:
    """From the recorded position; an idle sink may be further."""
    last = None if record.written < 0 else record.written
    behind = max(0, time - record.position)
    return SinkStatus(name, record.collection, record.connector, last, behind, state.state, state.problem)
