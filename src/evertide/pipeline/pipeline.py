"""`Pipeline`: the public API to run a pipeline in this process. The docstring of `evertide` has an example.

1. One thread at a time makes transactions, checkpoints and changes of the definition: the one that holds `_turn`.
   Reading needs no turn.
2. The path of a push: `push` -> `Pushes` (staged) -> `commit` -> `Advancer.step` -> `InputReader.read` -> `Runner.bind`
   -> `Runner.complete` -> `Runner.commit`.
3. Other threads run the heartbeat, the maintenance of shards and of state, backfills, sinks and reports.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from evertide.checkpoint.catalog import Checkpoints
from evertide.checkpoint.records import CatalogEntry
from evertide.errors import Closed, EvertideError, Fenced, NotAllowedNow, OutcomeUnknown, Unavailable, Unexpected
from evertide.flow.explanation.explanation import Explanations
from evertide.flow.state.arrangement import Arrangement
from evertide.journal.journal import Journal
from evertide.notebook import find_progress
from evertide.observer import NO_OBSERVER, Observer
from evertide.pipeline.advance.advancer import Advancer
from evertide.pipeline.advance.loop import Loop
from evertide.pipeline.advance.run_thread import RunThread
from evertide.pipeline.definition import Definition, list_spellings, read_definition
from evertide.pipeline.engine import Engine
from evertide.pipeline.input.input_reader import InputReader
from evertide.pipeline.input.open_sources import open_declared_sources
from evertide.pipeline.input.push_numbers import find_push_number
from evertide.pipeline.input.pushes import PushTransaction
from evertide.pipeline.maintenance.state_maintenance import StateMaintenance
from evertide.pipeline.process_context import OnProgress, ProcessContext
from evertide.pipeline.reading.collections import Collections
from evertide.pipeline.reading.readable_pipeline import ReadablePipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.records.replica_record import ReplicaReporter
from evertide.pipeline.records.source_record import SourceReporter
from evertide.pipeline.recovery.opening import open_in_role
from evertide.pipeline.recovery.storage_wait import StorageWait, register_with_retry
from evertide.pipeline.replicas.leader_tasks import LeaderTasks
from evertide.pipeline.replicas.leadership import Leadership
from evertide.pipeline.replicas.liveness import HangLog, HeartbeatGate, Liveness, register_opening, watch_for_hang
from evertide.pipeline.script_change import Approve, read_script_change
from evertide.pipeline.script_reader import read_script
from evertide.pipeline.sinks.delivery_threads import PreparedSinks
from evertide.pipeline.sinks.sink_record import SinkRecords
from evertide.pipeline.spark_engine import SparkEngine
from evertide.pipeline.state.machine import make_state_store
from evertide.pipeline.status.process_state import ProcessState
from evertide.pipeline.status.status import Status
from evertide.pipeline.status.stored_facts import StoredFacts
from evertide.pipeline.transaction.phases import CurrentPhase, Phase
from evertide.plan.catalyst.network import REMEDY
from evertide.plan.catalyst.session import SparkSession, open_session
from evertide.plan.program.view_function import ViewFunction
from evertide.plan.query.query import make_frame
from evertide.problem import ComponentState, Problem
from evertide.runtime import Runtime, StoppableRuntime, SystemRuntime
from evertide.scratch import using_system
from evertide.settings import Settings
from evertide.shard.heartbeat import Heartbeat
from evertide.shard.shard import Shards
from evertide.source_text import marking_text
from evertide.sources.executors import SparkExecutors
from evertide.store.observed import observe
from evertide.store.open import Storage, open_storage
from evertide.threads.steps import watch_steps
from evertide.threads.ticker import Ticker
from evertide.threads.watched import make_unexpected_error

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class Pipeline(ReadablePipeline):
    """A running pipeline: push rows, commit transactions, read tables and views."""

    def __init__(
        self,
        engine: Engine,
        storage: Storage,
        *,
        base: Path,
        runtime: Runtime,
        settings: Settings,
        progress: OnProgress | None = None,
        threads: bool = True,
        role: ProcessRole = ProcessRole.ALONE,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        """Use `open`; tests call this with an engine of their own."""
        self.engine = engine
        self._stopping = threading.Event()
        self._runtime = runtime = StoppableRuntime(runtime, self._stopping)
        self.storage = storage = observe(storage, observer, runtime)
        self.settings = settings
        self._turn = threading.RLock()
        self._is_open = self._is_closed = False
        self._run_thread = RunThread(self.run)
        self._threads: list[Ticker | LeaderTasks] = []
        self._watched: list[Callable[[], Iterable[Problem]]] = [
            lambda: (one for thread in [*self._threads, self._run_thread] for one in thread.list_thread_problems())
        ]
        self._pushed: PushTransaction
        self._heartbeat: Heartbeat | None = None
        self._role = role
        with watch_for_hang("registering with the storage", runtime, settings):
            self._writer = register_with_retry(role, storage.meta, self._stopping, runtime=runtime, settings=settings)
        may_take = role is not ProcessRole.READ_ONLY
        self._leadership = Leadership(storage.meta, self._writer, runtime, settings, may_take=may_take)
        self._process_state = ProcessState(storage.meta, self._writer, self._leadership, runtime, settings)
        self._until_answered = StorageWait(self._process_state, self._check_heartbeat, self._stopping, settings)
        activity = engine.activity if isinstance(engine, SparkEngine) else lambda: None
        self._opening_phase = CurrentPhase(Phase.OPEN, -1, runtime.monotonic_s(), "opening the pipeline")
        self.liveness = Liveness(self._current_phase, self._list_ended, runtime, settings.hang_after_s, activity)
        try:
            with register_opening(self.liveness):
                self._start(base, progress or find_progress(), observer, threads=threads)
        except BaseException as error:  # after any error the registration ends
            found: BaseException = error
            if isinstance(error, EvertideError):
                found = self._fail(error)
            elif isinstance(error, Exception):
                logger.exception("the pipeline could not be opened")
                found = self._fail(make_unexpected_error("opening the pipeline", error))
                found.__cause__ = found.__cause__ or error
            self._shut_down()
            raise found from found.__cause__
        self._is_open = True
        self._process_state.publish()
        logger.info("the pipeline is open at time %d, in the role %r, on %s", self.time, role.value, storage.root)

    @classmethod
    def open(
        cls,
        script: str | Path,
        storage: str | Path,
        *,
        meta: str | None = None,
        spark: SparkSession | None = None,
        master: str | None = None,
        settings: Settings | None = None,
        functions: Sequence[ViewFunction] = (),
        progress: OnProgress | None = None,
        role: ProcessRole | str = ProcessRole.ALONE,
        observer: Observer = NO_OBSERVER,
        approve: Approve | None = None,
    ) -> Pipeline:
        """Open the pipeline of a script (SQL, or the path of a file). A missing storage is created.

        The pipeline continues from its last committed transaction. `progress` is called during long work with its name,
        how much is done, and of how much; by default, a notebook shows bars. `role`: 'alone' is refused if another
        process runs the pipeline; a 'replica' runs it together with others; a 'read-only' replica follows, and writes
        nothing until it is promoted. `approve` is called with what the script changes, and can raise an error before
        anything is changed.
        """
        text, path, base = read_script(script)
        settings, runtime = settings or Settings(), SystemRuntime()
        with watch_for_hang("opening the storage", runtime, settings):
            opened = open_storage(storage, meta, runtime=runtime, settings=settings)
        with ExitStack() as undo, marking_text(text, path):
            undo.callback(opened.close)
            with watch_for_hang("starting Spark, and analyzing the script", runtime, settings):
                session = open_session(spark, master, is_quiet=True)
                exposure = session.find_exposure()
                engine = SparkEngine(session, text, path, functions)
            undo.callback(engine.close)
            read_script_change(opened, engine, runtime, settings).announce(approve)
            options: dict[str, Any] = {"progress": progress, "role": ProcessRole(role), "observer": observer}
            pipeline = cls(engine, opened, base=base, runtime=runtime, settings=settings, **options)
            undo.pop_all()
        if exposure is not None:
            pipeline._process_state.warn("spark_open", exposure, REMEDY)
        return pipeline

    def push(self, table: str, rows: Any = (), *, deletes: Any = ()) -> None:
        """Add rows to the next transaction: dicts, Arrow, or a frame of pandas, polars or Spark; deletes by key."""
        self._check_open()
        with self._turn:
            self._pushed.push(table, rows, deletes=deletes)

    def transaction(self, producer: str = "", sequence: int = 0) -> PushTransaction:
        """A block of pushes to several tables that takes effect as a whole, with the next commit, or not at all.

        A producer that numbers its transactions may repeat one; a repeated one takes effect once.
        """
        self._check_open()
        return PushTransaction(self._pushes, producer, sequence)

    def abort(self) -> None:
        """Discard the rows pushed since the last successful commit. Refused if a failed one has made them durable."""
        with self._turn:
            self._pushes.abort(self._pushed)

    def commit(self) -> int:
        """Commit pushed rows and new input; return the last transaction's number. After an error, repeat or abort."""
        with self._turn:
            self._check_can_commit()
            with self._pushes.begin_commit(self._pushed) as offered:  # if this fails, the next commit has the rows
                self._pushed = PushTransaction(self._pushes)
                return self._commit_pushed(offered)

    def take(self, pushed: PushTransaction) -> int:
        """Commit the rows of a block; return their time. After an error, `pushed.time` is set if they are committed."""
        with self._turn, self._pushes.withdraw_on_error(pushed):
            self._check_can_commit()
            return self._commit_pushed([pushed])

    def advance(self) -> int | None:
        """Make one transaction of the available input, and return its number; None if there is no input."""
        with self._turn:
            self._check_open()
            return self._run_guarded(self._advancer.step)

    def run(
        self,
        *,
        transactions: int | None = None,
        until_idle: bool = False,
        on_transaction: Callable[[int, float], None] | None = None,
    ) -> None:
        """Make transactions as sources offer input, and periodic checkpoints, until `stop` is called.

        `transactions`: end after this number. `until_idle`: end when the input is exhausted, committed and delivered
        (`evertide.pipeline.advance.loop`). `on_transaction` is called with the number of each transaction and its
        duration in seconds.
        """
        self._loop.run(transactions, on_transaction, until_idle=until_idle)

    def start(self) -> None:
        """Run the pipeline in a thread of its own until `close`, as a notebook needs it."""
        self._check_open()
        self._run_thread.start()

    def stop(self) -> None:
        """Let `run` end after the current transaction."""
        self._stopping.set()

    def pause(self) -> None:
        self._process_state.pause.begin()
        self._process_state.publish()

    def resume(self) -> None:
        self._process_state.pause.end()
        self._process_state.publish()

    def checkpoint(self) -> CatalogEntry:
        """Make a checkpoint, after the transaction under way."""
        with self._turn, watch_steps(self.liveness.note_step):
            self._check_open()
            return self._leader_tasks.checkpoint(self._complete_and_keep_up)

    def try_checkpoint(self) -> None:
        """Make the checkpoint that is due, if this process leads; a failure is reported in `status` only."""
        with self._turn, watch_steps(self.liveness.note_step):
            self._check_open()
            if self.leads:
                self._leader_tasks.try_checkpoint(self._complete_and_keep_up)

    def retry(self, view: str) -> None:
        """Recompute a failed view now, while transactions continue. Raise `ViewFailed` if the view fails again."""
        self._check_open()
        self._leader_tasks.retry(view)

    def wait_until_hydrated(self, timeout_s: float | None = None) -> bool:
        """Wait until new views are hydrated; False if `timeout_s` passes first."""
        self._leader_tasks.backfills.wait(timeout_s)
        return not self.definition.list_away(ComponentState.HYDRATING)

    @property
    def time(self) -> int:
        """The last committed transaction."""
        return self._runner.time - 1

    @property
    def leads(self) -> bool:
        """Whether this process is the leader."""
        return self._leader_tasks.is_active

    @property
    def definition(self) -> Definition:
        return self._runner.definition

    @property
    def spark(self) -> SparkSession:
        return self._spark_engine().spark

    def arrangements(self) -> list[Arrangement]:
        return self._runner.machine.arrangements()

    def explain(self) -> Explanations:
        return self._spark_engine().explain(self._runner.machine.cohorts)

    def status(self, unread: EvertideError | None = None) -> Status:
        """If `unread` is given, no storage call is made for this reason: the status has the last known facts."""
        facts = self._stored.read() if unread is None else self._stored.read_last_known(unread)
        thread_problems = [problem for list_problems in [*self._watched] for problem in list_problems()]
        return self._process_state.status(self._runner, self._input_reader, self._leader_tasks, facts, thread_problems)

    def watch(self, list_problems: Callable[[], Iterable[Problem]]) -> None:
        """Include the problems of other threads of this process, such as a server's, in the status."""
        self._watched.append(list_problems)

    def txid_of(self, pushed: PushTransaction) -> int | None:
        """The number by which clients of shapes can wait for rows that `take` committed; None if nothing changed."""
        runner = self._runner
        return find_push_number(pushed, runner.definition, runner.journal, self.time, has_upstream=runner.has_upstream)

    def watch_feeds(self, read_problems: Callable[[], Iterable[Problem]]) -> None:
        """Include the problems of live shapes in the status, here and in storage."""
        self._leader_tasks.watch_feeds(read_problems)

    def close(self, *, checkpoint: bool = True) -> None:
        """Close the pipeline, by default with a checkpoint, so that the next start is fast. May be called twice."""
        self._stopping.set()
        self._run_thread.join()
        self._leader_tasks.backfills.stop()  # before this thread takes the turn, which a backfill may need
        with self._turn:
            if self._is_closed:
                return
            try:
                if checkpoint and self._process_state.error is None and self.leads:
                    self.checkpoint()
                if self._process_state.error is None:
                    self._process_state.publish_stopped()
            finally:
                self._shut_down()

    def __repr__(self) -> str:
        """Reads no storage and never fails, because debuggers and notebooks call it at any moment."""
        state = "closed" if self._is_closed else f"open, time {self.time}" if self._is_open else "opening"
        return f"<Pipeline on {self.storage.root}: {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(checkpoint=kind is None)

    def _start(self, base: Path, progress: OnProgress, observer: Observer, *, threads: bool) -> None:
        storage, runtime, settings, writer = self.storage, self._runtime, self.settings, self._writer
        blob, meta = storage.blob, storage.meta
        shards = Shards(blob, meta, runtime=runtime, settings=settings, reader=writer.id)
        journal = Journal(blob, meta, runtime=runtime, settings=settings)
        checkpoints = Checkpoints(blob, meta, runtime=runtime, settings=settings)
        self._process_state.watch_stall(lambda: self.liveness.find_stall(settings.stall_after_s))
        writer.skip_beats_while(HeartbeatGate(self.liveness, lambda: self._leadership.is_leader))
        if threads:
            self._heartbeat = Heartbeat(settings, shards.leases, writer).start()
            self._threads += [self._heartbeat, HangLog(self.liveness, settings).start()]
        _, known = self._until_answered(lambda: read_definition(meta))
        self.engine.spell(list_spellings(known))
        records = SinkRecords(meta, writer, runtime, settings)
        sinks = self._until_answered(lambda: PreparedSinks(self.engine, records, base))
        executors = SparkExecutors(self.engine.spark) if isinstance(self.engine, SparkEngine) else None
        self._pushes, sources = open_declared_sources(
            self.engine.tables, journal, writer, base, runtime, settings, executors
        )
        reporter = ReplicaReporter(lambda: self._leadership.role, meta, writer.id, runtime, settings)
        reporter.watch(self._publish_progress)
        self._threads.append(reporter.start() if threads else reporter)
        on_progress = reporter.wrap_progress(progress)
        store, engine = make_state_store(blob, writer.id, runtime, settings), self.engine
        components = (meta, shards, journal, checkpoints, writer, runtime, settings)
        context = ProcessContext(*components, engine, store, sources, on_progress, observer)
        self._context, turn, stopping, leadership = context, self._turn, self._stopping, self._leadership
        self._until_answered(leadership.try_acquire)
        self._process_state.publish_replaying()
        self._runner = runner = self._until_answered(lambda: open_in_role(context, leadership, stopping, self._role))
        self._input_reader = reader = InputReader(context)
        self._process_state.watch(reader)
        self._pushed = PushTransaction(self._pushes)
        self.collections = Collections(lambda: runner.members, lambda rows: make_frame(self.spark, rows))
        reports, complete_and_keep_up = (
            SourceReporter(reader.make_records, meta, writer.id, runtime, settings),
            self._complete_and_keep_up,
        )
        self._leader_tasks = tasks = self._until_answered(
            lambda: LeaderTasks(
                context, runner, turn, stopping, self._fail, reports, sinks, complete_and_keep_up, threads=threads
            )
        )
        self._stored = StoredFacts(context, runner, tasks)
        self._advancer = Advancer(context, runner, reader, tasks, leadership, role=self._role)
        self._loop = Loop(self, reader, tasks, self._process_state.pause, self.liveness, stopping, runtime, settings)
        self._threads.append(tasks)
        if leadership.is_leader:
            self._until_answered(tasks.begin)
            tasks.try_checkpoint(complete_and_keep_up)
        if threads:
            self._threads.append(StateMaintenance(runner, tasks.checkpointer, turn).start())

    def _check_heartbeat(self) -> None:
        """Raise if this process is fenced, which it would not notice without input or during a storage outage."""
        error = self._heartbeat.error if self._heartbeat is not None else None
        if isinstance(error, Fenced) and self._process_state.error is None:
            self._fail(error)
        if self._process_state.error is not None:
            raise self._process_state.error

    def _complete_and_keep_up(self) -> None:
        self._run_guarded(self._advancer.complete_and_keep_up)

    def _run_guarded(self, call: Callable[[], _T]) -> _T:
        """Call `call`; an error that the pipeline cannot continue after becomes the state of the process."""
        try:
            with watch_steps(self.liveness.note_step), using_system(f"transaction {self.time + 1}"):
                return call()
        except EvertideError as error:
            # After a storage error the computed result waits; the next step reads the stored state.
            if isinstance(error, Unavailable | OutcomeUnknown) and self._runner.machine.broken is None:
                raise
            found = self._process_state.fail(error)
            raise found from found.__cause__
        except Exception as error:  # the status must name an error of any class
            logger.exception("transaction %d failed", self.time + 1)
            raise self._process_state.fail(make_unexpected_error(f"transaction {self.time + 1}", error)) from error
        finally:
            self._process_state.publish()

    def _fail(self, error: EvertideError) -> EvertideError:
        found = self._process_state.fail(error)
        self._process_state.publish()
        return found

    def _commit_pushed(self, several: Sequence[PushTransaction]) -> int:
        """Make transactions, at least one, until all pushed rows are committed."""
        advanced = self.advance()
        while any(self._pushes.is_to_be_committed(pushed, self.time) for pushed in several):
            self._check_can_commit()
            if advanced is None:
                self._stopping.wait(self.settings.poll_interval_s)  # a peer commits them
            advanced = self.advance()
        times = [pushed.time for pushed in several if pushed.time is not None]
        return max(times, default=self.time if advanced is None else advanced)

    def _publish_progress(self) -> tuple[ComponentState, int]:
        """A separate thread calls it, so that storage shows a hang of the thread that makes transactions."""
        if not self._is_open:
            self._process_state.publish_replaying()
            return self._process_state.find_worst().state, -1
        self._process_state.publish()
        return self._process_state.find_worst().state, self.time

    def _current_phase(self) -> CurrentPhase:
        return self._runner.phases.current if self._is_open else self._opening_phase

    def _list_ended(self) -> list[str]:
        return [] if self._is_closed else [name for thread in self._threads for name in thread.list_ended()]

    def _get_query_session(self) -> SparkSession:
        return self._spark_engine().program.catalog.session

    def _spark_engine(self) -> SparkEngine:
        if not isinstance(self.engine, SparkEngine):
            why = f"this call needs Spark, and the engine is {type(self.engine).__name__}"
            raise Unexpected(where="Pipeline", why=why)
        return self.engine

    def _check_can_commit(self) -> None:
        self._check_open()
        if self._role is ProcessRole.READ_ONLY and not self._leader_tasks.is_active:
            why = "this replica is read-only; send rows to the leader, or promote this replica with `evertide promote`"
            raise NotAllowedNow(where="commit", why=why)
        self._process_state.pause.check()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(where="the pipeline")
        self._check_heartbeat()

    def _shut_down(self) -> None:
        self._is_closed = True
        self._stopping.set()
        for thread in reversed(self._threads):
            thread.stop()
        runner = getattr(self, "_runner", None)
        if runner is not None and self._pushed.rows:
            logger.warning("discarding %d pushed rows that were never committed", self._pushed.rows)
        for source in runner.sources.values() if runner is not None else ():
            with suppress(EvertideError):
                source.close()
        with suppress(EvertideError):
            self._writer.unregister()
        if runner is not None:
            if self._is_open:
                self.collections.close()
            self.engine.close()
            self.storage.close()
