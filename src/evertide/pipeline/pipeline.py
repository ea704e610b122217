"""`Pipeline`: tables and views that live.

    with Pipeline.open("shop.sql", storage="./shop.evertide") as p:
        p.push("orders", [{"id": 1, "amount": 20}])
        t = p.commit()
        p.view("revenue").to_arrow()

What it rests on, a module each, is listed in docs/architecture.md.
One thread at a time makes transactions, checkpoints and changes (`_turn`); reading needs no turn. Beside it run the
heartbeat, the maintenance of shards, and the upkeep of state.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from evertide.checkpoint.manifest import StateFile
from evertide.checkpoint.records import CatalogEntry
from evertide.errors import Closed, EvertideError, Fenced, InvalidInput, NotAllowedNow, OutcomeUnknown, Unavailable
from evertide.flow.state.arrangement import Arrangement
from evertide.journal.xids import own_number
from evertide.observer import NO_OBSERVER, Observer
from evertide.pipeline.definition import Definition, read_definition, spelling
from evertide.pipeline.engine import Engine
from evertide.pipeline.input.offers import Intake
from evertide.pipeline.input.open_sources import open_feeds
from evertide.pipeline.input.pushes import PushTransaction
from evertide.pipeline.maintenance.state_merging import Upkeep
from evertide.pipeline.reading.collections import Collections, View
from evertide.pipeline.recovery.opening import Hosts, OnProgress, Stores
from evertide.pipeline.recovery.storage_wait import Waiting, register_patiently
from evertide.pipeline.replicas.lead import Leading
from evertide.pipeline.replicas.leader_tasks import Duties
from evertide.pipeline.replicas.liveness import HangLog, Pulse, Withholding, noticing_hang, opening
from evertide.pipeline.replicas.ownership import Role
from evertide.pipeline.replicas.replica_record import ReplicaTelling
from evertide.pipeline.script import read_script
from evertide.pipeline.sinks.deliveries import PreparedSinks
from evertide.pipeline.sinks.sink_record import SinkRecords
from evertide.pipeline.spark_engine import SparkEngine
from evertide.pipeline.status.process_state import Condition
from evertide.pipeline.status.source_record import SourceTelling
from evertide.pipeline.status.status import Status
from evertide.pipeline.status.stored_facts import StoredFacts
from evertide.pipeline.transaction.advance import Advancing, opened
from evertide.pipeline.transaction.loop import Loop
from evertide.pipeline.transaction.phases import Doing, Phase
from evertide.plan.catalyst.network import REMEDY
from evertide.plan.catalyst.session import SparkSession, open_session
from evertide.plan.program.view_function import ViewFunction
from evertide.plan.query.query import make_frame, query
from evertide.problem import Problem
from evertide.runtime import Runtime, SystemRuntime
from evertide.scratch import using_system
from evertide.settings import Settings
from evertide.shard.heartbeat import Heartbeat
from evertide.sources.executors import SparkExecutors
from evertide.store.observed import observe
from evertide.store.open import Storage, open_storage
from evertide.threads.steps import watch_steps
from evertide.threads.watched import unexpected_error

__all__ = ["Pipeline"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class Pipeline:
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
        role: Role = Role.ALONE,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        """For `open`, and for tests, which bring an engine of their own."""
        self.engine = engine
        self.storage = storage = observe(storage, observer, runtime)
        self.settings = settings
        self._runtime = runtime
        self._turn = threading.RLock()
        self._stopping = threading.Event()
        self._is_open = self._is_closed = False
        self._threads: list[Any] = []
        self._watched: list[Callable[[], Iterable[Problem]]] = [
            lambda: (one for thread in [*self._threads] for one in thread.troubles())
        ]
        self._pushed: PushTransaction
        self._heart: Heartbeat | None = None
        self._role = role
        with noticing_hang("registering with the storage", runtime, settings):
            self._writer = register_patiently(role, storage.meta, self._stopping, runtime=runtime, settings=settings)
        self._leading = Leading(storage.meta, self._writer, runtime, settings, may_take=role is not Role.READ_ONLY)
        self._condition = Condition(storage.meta, self._writer, self._leading, runtime, settings)
        self._until_answered = Waiting(self._condition, self._check_heart, self._stopping, settings)
        activity = engine.activity if isinstance(engine, SparkEngine) else lambda: None
        self._doing = Doing(Phase.OPEN, -1, runtime.monotonic_s(), "opening the pipeline")
        self.pulse = Pulse(self._does, self._ended, runtime, settings.hang_after_s, activity)
        try:
            with opening(self.pulse):
                self._start(base, progress or (lambda *_: None), observer, threads=threads)
        except BaseException as error:  # noqa: BLE001 - whatever it was, the registration ends
            found: BaseException = error
            if isinstance(error, EvertideError):
                found = self._fail(error)
            elif isinstance(error, Exception):
                self._fail(unexpected_error("opening the pipeline", error))
            self._give_up()
            raise found from found.__cause__
        self._is_open = True
        self._condition.tell()
        logger.info("open at time %d, as %r, storage %s", self.time, role.value, storage.root)

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
        role: Role | str = Role.ALONE,
        observer: Observer = NO_OBSERVER,
    ) -> Pipeline:
        """Open the pipeline of a script (SQL, or the path of a file) at a storage, which is made if it is not there.

        It goes on where it was, whatever ended it. `progress` is told of long work: what, how much, of how much. As
        `role`, 'alone' is refused if another process runs it; a 'replica' runs it together with others; one that is
        'read-only' follows them, and writes nothing until it is promoted. `observer` is told what it does.
        """
        text, path, base = read_script(script)
        settings, runtime = settings or Settings(), SystemRuntime()
        with noticing_hang("opening the storage", runtime, settings):
            opened = open_storage(storage, meta, runtime=runtime, settings=settings)
        try:
            with noticing_hang("starting Spark, and analyzing the script", runtime, settings):
                session = open_session(spark, master)
                find_exposure = session.find_exposure()
                engine = SparkEngine(session, text, path, functions)
            try:
                made = cls(
                    engine,
                    opened,
                    base=base,
                    runtime=runtime,
                    settings=settings,
                    progress=progress,
                    role=Role(role),
                    observer=observer,
                )
            except BaseException:
                engine.close()
                raise
        except BaseException:
            opened.close()
            raise
        if find_exposure is not None:
            made._condition.warn("spark_open", find_exposure, REMEDY)
        return made

    # Giving

    def push(self, table: str, rows: Any = (), *, deletes: Any = ()) -> None:
        """Rows for the next transaction: dicts, an Arrow table or a DataFrame; upsert by key, deletes by key."""
        self._check_open()
        if hasattr(rows, "toArrow"):
            rows = rows.toArrow()
        with self._turn:
            self._pushed.push(table, rows, deletes=deletes)

    def transaction(self, producer: str = "", sequence: int = 0) -> PushTransaction:
        """Rows for several tables that belong together. Dropped if its block fails; `commit` takes it otherwise.

        A producer that numbers its transactions may repeat one: it is taken once.
        """
        self._check_open()
        return PushTransaction(self._pushes, producer, sequence)

    def abort(self) -> None:
        """Forget what was pushed since the last commit."""
        with self._turn:
            self._pushed.abort()

    def commit(self) -> int:
        """Make a transaction of all that was pushed, and of what sources offer. Its number, or that of the last one."""
        with self._turn:
            self._check_going()
            pushed, self._pushed = self._pushed, PushTransaction(self._pushes)
            self._pushes.offer_up(pushed)
            return self._taken(pushed)

    def take(self, pushed: PushTransaction) -> int:
        """Commit what a block pushed: its time. If this fails, it was not taken, or `pushed.time` says otherwise."""
        with self._turn, self._pushes.taking(pushed):
            self._check_going()
            return self._taken(pushed)

    # Going on

    def advance(self) -> int | None:
        """One transaction, of whatever there is. Its number; None if there is nothing."""
        with self._turn:
            self._check_open()
            return self._going(self._advancing.step)

    def run(
        self,
        *,
        transactions: int | None = None,
        until_idle: bool = False,
        told: Callable[[int, float], None] | None = None,
    ) -> None:
        """Make transactions as sources bring input, and checkpoints now and then, until `stop` is called.

        It ends by itself after so many transactions; or, if asked to, when there is no more input, or all is taken that
        a server had when it began, and sinks have it (`evertide.pipeline.transaction.loop`). `told` gets the number of
        each transaction, and how many seconds it took.
        """
        self._loop.run(transactions, told, until_idle=until_idle)

    def stop(self) -> None:
        """Let `run` end after the transaction that it is at."""
        self._stopping.set()

    def pause(self) -> None:
        self._condition.pause.begin()
        self._condition.tell()

    def resume(self) -> None:
        self._condition.pause.end()
        self._condition.tell()

    def checkpoint(self) -> CatalogEntry:
        """Waits for the end of a transaction that is under way."""
        with self._turn, watch_steps(self.pulse.moves):
            self._check_open()
            return self._duties.checkpoint(self._settle)

    def try_checkpoint(self) -> None:
        """The checkpoint that is due, if this process leads; if it fails, the status says so, and all goes on."""
        with self._turn, watch_steps(self.pulse.moves):
            self._check_open()
            if self.leads:
                self._duties.try_checkpoint(self._settle)

    def checkpoint_files(self, entry: CatalogEntry) -> tuple[StateFile, ...]:
        """The files that a checkpoint needs, most of which others need, too."""
        return self._hosts.checkpoints.read(entry).files

    def retry(self, view: str) -> None:
        """Compute a view that failed once more, now."""
        self._check_open()
        self._duties.backfills.retry(view)

    def hydrated(self, timeout_s: float | None = None) -> bool:
        """Wait until views that are new are there; False if they are not in time."""
        self._duties.backfills.wait(timeout_s)
        return not self.definition.away("hydrating")

    def deliver_once(self) -> None:
        """Give sinks what they have not got. Threads do so by themselves."""
        self._duties.deliver_once()

    # Looking

    @property
    def time(self) -> int:
        """The last transaction that is in all collections."""
        return self._runner.time - 1

    @property
    def leads(self) -> bool:
        """Whether this process does what need be done once: of several replicas, one."""
        return self._duties.is_begun

    @property
    def definition(self) -> Definition:
        return self._runner.definition

    @property
    def spark(self) -> SparkSession:
        return self._spark_engine().spark

    def view(self, name: str) -> View:
        """A view or a table."""
        return self.collections.view(name)

    def query(self, text: str, *, as_of: int | None = None) -> pa.Table:
        """The answer of any query over tables and views, all at one time."""
        session = self._spark_engine().program.catalog.session  # with the settings of a project, too
        at = self.collections.tables_at
        return query(
            session, text, lambda on, names: {one: make_frame(on, rows) for one, rows in at(names, as_of).items()}
        )

    def arrangements(self) -> list[Arrangement]:
        return self._runner.machine.arrangements()

    def explain(self) -> list[Any]:
        return self._spark_engine().explain(self._runner.machine.cohorts)

    def status(self, unread: EvertideError | None = None) -> Status:
        """`unread` is why storage is not asked, if it should not be: the answer is what it said last."""
        facts = self._stored.read() if unread is None else self._stored.last(unread)
        troubles = [one for troubles in [*self._watched] for one in troubles()]
        return self._condition.status(self._runner, self._intake, self._duties, facts, troubles)

    def watch(self, troubles: Callable[[], Iterable[Problem]]) -> None:
        """Show what threads that run beside this pipeline, as those of a server, died of."""
        self._watched.append(troubles)

    def txid_of(self, time: int) -> int:
        """The number under which clients of live shapes can wait for a transaction that was pushed."""
        return own_number(time, has_upstream=self._runner.has_upstream)

    def watch_feeds(self, look: Callable[[], Iterable[Problem]]) -> None:
        """Name in the status, from now on, why live clients are not served where they are not."""
        self._duties.watch_feeds(look)

    # Ending

    def close(self, *, checkpoint: bool = True) -> None:
        """The orderly end: with a checkpoint, so that the next start is quick. May be called twice."""
        self._stopping.set()
        self._duties.backfills.stop()  # before the turn is taken, which it may need
        with self._turn:
            if self._is_closed:
                return
            try:
                if checkpoint and self._condition.error is None and self.leads:
                    self.checkpoint()
                if self._condition.error is None:
                    self._condition.tell_ended()
            finally:
                self._give_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close(checkpoint=kind is None)

    def _start(self, base: Path, progress: OnProgress, observer: Observer, *, threads: bool) -> None:
        storage, runtime, settings, writer = self.storage, self._runtime, self.settings, self._writer
        stores = Stores.of(storage, writer.id, runtime, settings)
        self._condition.watch_stall(lambda: self.pulse.stall(settings.stall_after_s))
        writer.beat_unless(Withholding(self.pulse, lambda: self._leading.is_ours))
        if threads:
            self._heart = Heartbeat(settings, stores.shards.leases, writer).start()
            self._threads += [self._heart, HangLog(self.pulse, settings).start()]
        _, known = self._until_answered(lambda: read_definition(storage.meta))
        self.engine.spell(spelling(known))
        records = SinkRecords(storage.meta, writer, runtime, settings)
        sinks = self._until_answered(lambda: PreparedSinks(self.engine, records, base))
        executors = SparkExecutors(self.engine.spark) if isinstance(self.engine, SparkEngine) else None
        self._pushes, sources = open_feeds(
            self.engine.tables, stores.journal, writer, base, runtime, settings, executors
        )
        told = ReplicaTelling(lambda: self._leading.role, storage.meta, writer.id, runtime, settings)
        told.stands = self._stands
        self._threads.append(told.start() if threads else told)
        noted = told.noting(progress)
        self._hosts = Hosts.of(stores, writer, self.engine, sources, noted, observer, runtime, settings)
        self._until_answered(self._leading.look)
        self._condition.tell_begun()
        self._runner = self._until_answered(lambda: opened(self._hosts, self._leading, self._stopping, self._role))
        self._intake = Intake(self._runner)
        self._condition.watch(self._intake)
        self._pushed = PushTransaction(self._pushes)
        self.collections = Collections(lambda: self._runner.members, lambda rows: make_frame(self.spark, rows))
        telling = SourceTelling(self._intake.records, storage.meta, writer.id, runtime, settings)
        hosts, runner, turn, stopping = self._hosts, self._runner, self._turn, self._stopping
        self._duties = self._until_answered(
            lambda: Duties(hosts, runner, turn, stopping, self._fail, telling, sinks, self._settle, threads=threads)
        )
        self._stored = StoredFacts(hosts, runner, self._duties)
        self._advancing = Advancing(hosts, runner, self._intake, self._duties, self._leading, role=self._role)
        pause = self._condition.pause
        self._loop = Loop(self, self._intake, self._duties, pause, self.pulse, self._stopping, runtime, settings)
        self._threads.append(self._duties)
        if self._leading.is_ours:
            self._until_answered(self._duties.begin)
            self._duties.try_checkpoint(self._settle)
        if threads:
            self._threads.append(Upkeep(self._runner, self._duties.checkpointing, self._turn).start())

    def _check_heart(self) -> None:
        """A fenced process that has no input, or waits for storage, would not notice otherwise."""
        if self._heart is not None and isinstance(self._heart.error, Fenced) and self._condition.error is None:
            self._fail(self._heart.error)
        if self._condition.error is not None:
            raise self._condition.error

    def _settle(self) -> None:
        self._going(self._advancing.settle)

    def _going(self, call: Callable[[], _T]) -> _T:
        """An error that the pipeline cannot go on from stays as its condition."""
        try:
            with watch_steps(self.pulse.moves), using_system(f"transaction {self.time + 1}"):
                return call()
        except EvertideError as error:
            # If storage is away or in doubt, what was computed waits; the next step reads back what is there.
            if isinstance(error, Unavailable | OutcomeUnknown) and self._runner.machine.broken is None:
                raise
            found = self._condition.fail(error)
            raise found from found.__cause__
        except Exception as error:  # of any class: the state must have a name, and whoever asks must get it
            logger.exception("transaction %d cannot go on", self.time + 1)
            raise self._condition.fail(unexpected_error(f"transaction {self.time + 1}", error)) from error
        finally:
            self._condition.tell()

    def _fail(self, error: EvertideError) -> EvertideError:
        found = self._condition.fail(error)
        self._condition.tell()
        return found

    def _taken(self, pushed: PushTransaction) -> int:
        """One transaction at least; and more, until it holds what was pushed."""
        made = self.advance()
        while pushed.rows and (pushed.time is None or pushed.time > self.time):
            self._check_going()
            if made is None:
                self._stopping.wait(self.settings.poll_interval_s)  # a peer is at it
            made = self.advance()
        if pushed.rows and pushed.time is not None:
            return pushed.time
        return self.time if made is None else made

    def _stands(self) -> tuple[str, int]:
        """Asked by a thread of its own: a hang of the one that makes transactions is told to storage from here."""
        if not self._is_open:
            self._condition.tell_begun()
            return self._condition.foremost().state, -1
        self._condition.tell()
        return self._condition.foremost().state, self.time

    def _does(self) -> Doing:
        return self._runner.course.doing if self._is_open else self._doing

    def _ended(self) -> list[str]:
        return [] if self._is_closed else [name for thread in self._threads for name in thread.ended()]

    def _spark_engine(self) -> SparkEngine:
        if not isinstance(self.engine, SparkEngine):
            raise InvalidInput(where="Spark", why="this pipeline does not run on Spark")
        return self.engine

    def _check_going(self) -> None:
        self._check_open()
        if self._role is Role.READ_ONLY and not self._duties.is_begun:
            why = "this replica is read-only; send rows to the leader, or promote this replica with `evertide promote`"
            raise NotAllowedNow(where="commit", why=why)
        self._condition.pause.check()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(where="the pipeline")
        self._check_heart()

    def _give_up(self) -> None:
        self._is_closed = True
        self._stopping.set()
        for thread in reversed(self._threads):
            thread.stop()
        runner = getattr(self, "_runner", None)
        if runner is not None and self._pushed.rows:
            logger.warning("%d rows that were pushed were never committed, and are dropped", self._pushed.rows)
        for source in runner.sources.values() if runner is not None else ():
            with suppress(EvertideError):
                source.close()
        with suppress(EvertideError):
            self._writer.unregister()
        if runner is not None:
            self.engine.close()
            self.storage.close()
