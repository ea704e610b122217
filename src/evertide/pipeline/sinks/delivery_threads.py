"""Runs the deliveries to all sinks of a pipeline, one thread for each, and reports their status.

1. A sink that fails is retried with exponential backoff. No other sink and no transaction waits for it (I10).
2. A sink is `lagging` if the oldest transaction that it has not received is older than `sink_lag_s`, or if it is more
   than `sink_lag_transactions` behind. A sink that makes progress can be lagging, too: it may be slower than the input.
3. A sink is `waiting` if its view failed or is recomputed, and the target lacks transactions or has the rows of another
   query.
4. Until the first content is written, the age counts from the start of the deliveries in this process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from evertide.errors import EvertideError, Fenced, InvalidInput, SinkFailed
from evertide.journal.journal import Journal
from evertide.observer import NO_OBSERVER, FailureEvent, Observer
from evertide.pipeline.definition import ViewRecord, is_redefined_view
from evertide.pipeline.engine import DeclaredTable, DeclaredView, Engine
from evertide.pipeline.records.source_record import SinkStateRecord
from evertide.pipeline.sinks.delivery import Delivery
from evertide.pipeline.sinks.sink_record import SINK_HOLD_PREFIX, SinkRecords, StoredSinkRecord, name_sink_hold
from evertide.pipeline.sinks.sink_status import SinkStatus
from evertide.pipeline.state.members import Members
from evertide.problem import ComponentState, Problem
from evertide.rows.char_types import remove_char_types
from evertide.runtime import Runtime
from evertide.sinks.contract import Prepared, SinkDeclaration
from evertide.sinks.registry import prepare_sinks
from evertide.threads.outage_log import is_same_reason
from evertide.threads.watched import WatchedThread

logger = logging.getLogger(__name__)

_WAIT_S = 0.25
"""The longest wait of a thread before it checks whether it was stopped."""


class PreparedSinks:
    """The sinks that a script declares, checked before anything is changed."""

    def __init__(self, engine: Engine, records: SinkRecords, base: Path, *, are_probed: bool = False) -> None:
        declared = _list_declarations(engine, base, records.runtime)
        self._engine, self._base = engine, base
        self._are_probed = are_probed
        self.records = records
        self.declarations = {one.name: one for one in declared}
        self.prepared = prepare_sinks(declared)
        self.recorded = records.read_all()
        for name, declaration in self.declarations.items():
            self._check(declaration, self.prepared[name], self.recorded.get(name))

    def reload(self) -> PreparedSinks:
        """The same sinks, with their records read again. A target that does not answer now only stalls its sink."""
        return PreparedSinks(self._engine, self.records, self._base, are_probed=True)

    def _check(self, declaration: SinkDeclaration, prepared: Prepared, recorded: StoredSinkRecord | None) -> None:
        if recorded is None or not recorded.record.is_declared:
            if not self._are_probed:
                prepared.probe()
            return
        was = recorded.record
        if (was.collection, was.connector) != (declaration.collection, declaration.connector):
            why = f"the sink of this name writes {was.collection!r} to {was.connector!r}; give this one another name"
            raise InvalidInput(where=f"{declaration.where}, sink {declaration.name!r}", why=why)


@dataclass
class _SinkThread:
    delivery: Delivery
    thread: WatchedThread | None = None
    problem: Problem | None = None
    error: EvertideError | None = None
    """The cause of `problem`."""


class DeliveryThreads:
    """Runs one delivery per sink, each in a thread."""

    def __init__(
        self,
        sinks: PreparedSinks,
        members: Callable[[], Members],
        turn: threading.RLock,
        journal: Journal,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self._members = members
        self._journal = journal
        self._observer = observer
        self._records = sinks.records
        self._runtime = sinks.records.runtime
        self._settings = sinks.records.settings
        self._stopping = threading.Event()
        self._began_s = self._runtime.wall_s()
        self._sink_threads: dict[str, _SinkThread] = {}
        for name, declaration in sinks.declarations.items():
            prepared, recorded = sinks.prepared[name], sinks.recorded.get(name)
            delivery = Delivery(declaration, prepared, recorded, sinks.records, members, turn, observer)
            self._sink_threads[name] = _SinkThread(delivery)
        self._end_undeclared(sinks.recorded)

    def start(self) -> DeliveryThreads:
        for name, sink_thread in self._sink_threads.items():
            sink_thread.thread = WatchedThread(f"evertide-sink-{name}", self._run, sink_thread)
            sink_thread.thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        for sink_thread in self._sink_threads.values():
            if sink_thread.thread is not None:
                sink_thread.thread.join()
            sink_thread.delivery.close()

    def list_ended(self) -> list[str]:
        """The names of threads that have ended unexpectedly. Threads of failed sinks are expected to end."""
        return [
            sink_thread.thread.name
            for sink_thread in self._sink_threads.values()
            if sink_thread.thread is not None and not sink_thread.thread.is_alive() and not self._stopping.is_set()
            if sink_thread.problem is None or sink_thread.problem.state != ComponentState.FAILED
        ]

    def list_thread_problems(self) -> list[Problem]:
        return [
            one
            for sink_thread in self._sink_threads.values()
            if sink_thread.thread is not None
            for one in sink_thread.thread.list_thread_problems()
        ]

    def has_delivered(self, time: int) -> bool:
        """Whether all sinks have received everything up to `time`, except those that wait, fail or have no thread."""
        return all(
            sink_thread.thread is None
            or sink_thread.problem
            or sink_thread.delivery.waits_for
            or sink_thread.delivery.position >= time
            for sink_thread in self._sink_threads.values()
        )

    def list_statuses(self, time: int) -> tuple[SinkStatus, ...]:
        """`time` is the pipeline's last transaction."""
        return tuple(self._make_status(sink_thread, time) for sink_thread in self._sink_threads.values())

    def list_states(self, time: int) -> dict[str, SinkStateRecord]:
        """The states of sinks for other processes, which read the positions from the sinks' own records."""
        return {one.name: SinkStateRecord(one.state, one.problem) for one in self.list_statuses(time)}

    def _make_status(self, sink_thread: _SinkThread, time: int) -> SinkStatus:
        delivery, problem = sink_thread.delivery, sink_thread.problem
        declaration, behind = delivery.declaration, time - delivery.position
        waits_for = delivery.waits_for or self._explain_away(declaration.collection)
        state = ComponentState.RUNNING
        if problem is not None:
            state = problem.state
        elif waits_for and (behind or is_redefined_view(self._members().definition, declaration.collection)):
            state = ComponentState.WAITING
            problem = Problem(ComponentState.WAITING, "", waits_for, "", self._runtime.wall_s())
        elif (problem := self._find_lag(delivery.position, behind)) is not None:
            state = ComponentState.LAGGING
        written = None if delivery.written < 0 else delivery.written
        return SinkStatus(
            declaration.name, declaration.collection, declaration.connector, written, behind, state, problem
        )

    def _find_lag(self, position: int, behind: int) -> Problem | None:
        if behind <= 0:
            return None
        since_s = self._began_s if position < 0 else self._journal.read_bound_at_s(position + 1)
        age_s = self._runtime.wall_s() - since_s
        is_far = position >= 0 and behind > self._settings.sink_lag_transactions
        if age_s <= self._settings.sink_lag_s and not is_far:
            return None
        what = "the first content has been under way" if position < 0 else "the oldest of them has been waiting"
        why = f"the sink is {behind} transactions behind, and {what} for {age_s:.0f} s; their changes are kept for it"
        remedy = "Make the target faster, or remove the sink from the script. No transaction waits for the sink."
        return Problem(ComponentState.LAGGING, "", why, remedy, since_s)

    def _explain_away(self, collection: str) -> str:
        view = self._members().definition.views.get(collection)
        if isinstance(view, ViewRecord) and view.away is not None:
            return f"the view {collection!r} is {view.away.state}: {view.away.why}"
        return ""

    def _run(self, sink_thread: _SinkThread) -> None:
        wait_s = self._settings.retry_wait_s
        while not self._stopping.is_set():
            if self._step(sink_thread):
                wait_s = self._settings.retry_wait_s
            elif sink_thread.problem is None:
                self._wait_for_changes(sink_thread)
            elif sink_thread.problem.state == ComponentState.FAILED:
                return
            else:
                self._stopping.wait(wait_s * (0.5 + self._runtime.random()))
                wait_s = min(wait_s * 2, self._settings.retry_wait_max_s)

    def _wait_for_changes(self, sink_thread: _SinkThread) -> None:
        with self._report_failure(sink_thread):
            sink_thread.delivery.wait(_WAIT_S)
            sink_thread.delivery.record_position(self._settings.heartbeat_interval_s)
        if sink_thread.delivery.waits_for:
            self._stopping.wait(_WAIT_S)

    def _step(self, sink_thread: _SinkThread) -> bool:
        """True if there may be more to deliver now."""
        has_more = False
        with self._report_failure(sink_thread):
            has_more = sink_thread.delivery.step()
            if sink_thread.problem is not None:
                lasted_s = self._runtime.wall_s() - sink_thread.problem.since_s
                logger.warning(
                    "sink %r is running again; it was stalled for %.1f s", sink_thread.delivery.name, lasted_s
                )
                sink_thread.problem = sink_thread.error = None
        return has_more and not self._stopping.is_set()

    @contextmanager
    def _report_failure(self, sink_thread: _SinkThread) -> Iterator[None]:
        try:
            yield
        except EvertideError as error:
            self._note_stall(sink_thread, error)
        except Exception as error:  # noqa: BLE001 - a connector's bug must be reported, and stop nothing else
            self._note_stall(sink_thread, _make_failure(sink_thread.delivery.name, error))

    def _note_stall(self, sink_thread: _SinkThread, error: EvertideError) -> None:
        """Note the problem. A fenced process does not retry: the new leader delivers."""
        self._observer.on_failure(FailureEvent("sink", sink_thread.delivery.name, error.error_code))
        if sink_thread.problem is None or sink_thread.problem.why != error.message:
            if sink_thread.error is None or not is_same_reason(sink_thread.error, error):
                logger.error("sink %r is stalled: %s", sink_thread.delivery.name, error)
            sink_thread.error = error
            state = ComponentState.FAILED if isinstance(error, Fenced) else ComponentState.STALLED
            known = sink_thread.problem
            since_s = known.since_s if known is not None and known.state == state else self._runtime.wall_s()
            sink_thread.problem = Problem.from_error(state, error, since_s)

    def _end_undeclared(self, recorded: Mapping[str, StoredSinkRecord]) -> None:
        """End the sinks that are no longer declared. Release their holds, also those that an interrupted call left."""
        members = self._members()
        for name, found in recorded.items():
            if name in self._sink_threads or not found.record.is_declared:
                continue
            logger.warning(
                "sink %r is no longer declared: its target stays as it is, at transaction %d",
                name,
                found.record.written,
            )
            self._records.write(name, found.number, msgspec.structs.replace(found.record, is_declared=False))
            for shard in found.record.shards:
                members.shard(shard).release(name_sink_hold(name))
        declared = {name_sink_hold(name) for name in self._sink_threads}
        for member in members.open_all().values():
            for hold in member.holds:
                if hold.startswith(SINK_HOLD_PREFIX) and hold not in declared:
                    member.release(hold)


def _list_declarations(engine: Engine, base: Path, runtime: Runtime) -> list[SinkDeclaration]:
    collections: list[DeclaredTable | DeclaredView] = [*engine.tables.values(), *engine.views.values()]
    return [
        SinkDeclaration(
            name=sink.name,
            collection=one.name,
            schema=remove_char_types(one.schema),
            key=one.key if isinstance(one, DeclaredTable) else (),
            connector=sink.connector,
            options=sink.options,
            where=sink.where,
            base=base,
            runtime=runtime,
        )
        for one in collections
        for sink in one.sinks
    ]


def _make_failure(sink: str, error: Exception) -> SinkFailed:
    """Without the error's message, which may contain a secret."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = "the sink" if at is None else f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}"
    return SinkFailed(sink=sink, where=where, why=f"the connector raised {type(error).__name__}")
