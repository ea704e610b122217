"""`LeaderTasks`: the work that only the leader does.

It delivers to sinks, backfills new and failed views, maintains the shards, and makes checkpoints. A replica
starts this work when it takes the lead, from what is durable by then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from evertide.checkpoint.records import CatalogEntry
from evertide.errors import EvertideError, Fenced, GenerationMoved, NotAllowedNow, OutcomeUnknown, Unavailable
from evertide.pipeline.backfill.scheduler import BackfillScheduler
from evertide.pipeline.maintenance.checkpointer import Checkpointer
from evertide.pipeline.process_context import ProcessContext
from evertide.pipeline.records.ownership import read_live_holder
from evertide.pipeline.records.source_record import SourceReporter, read_source_records
from evertide.pipeline.sinks.delivery_threads import DeliveryThreads, PreparedSinks
from evertide.pipeline.sinks.sink_status import SinkStatus, read_sink_statuses
from evertide.pipeline.transaction.runner import Runner
from evertide.problem import Problem
from evertide.shard.maintenance import Maintenance
from evertide.store.retry import retry_read
from evertide.threads.outage_log import OutageLog

logger = logging.getLogger(__name__)


class LeaderTasks:
    """Starts, stops and reports the work of the leader."""

    def __init__(  # noqa: PLR0917
        self,
        context: ProcessContext,
        runner: Runner,
        turn: threading.RLock,
        stopping: threading.Event,
        failed: Callable[[EvertideError], object],
        reporter: SourceReporter,
        sinks: PreparedSinks,
        complete_and_keep_up: Callable[[], None],
        *,
        threads: bool,
    ) -> None:
        """`complete_and_keep_up` completes the transaction under way, and replays what peers have committed."""
        self._context = context
        self._runner = runner
        self._turn = turn
        self._stopping = stopping
        self._reporter = reporter
        self._sinks = sinks
        self._has_threads = threads
        self._is_tried = False
        self._checkpoint_failure = OutageLog(
            logger, "could not make a checkpoint; the next round retries", context.runtime
        )
        self._maintenance: Maintenance | None = None
        self.checkpointer = Checkpointer(runner)
        self.backfills = BackfillScheduler(
            runner, turn, stopping, context.progress, failed, complete_and_keep_up, threads=threads
        )
        self._feeds: Callable[[], Iterable[Problem]] = tuple
        self.delivery_threads: DeliveryThreads | None = None
        """None until `begin`."""

    @property
    def is_active(self) -> bool:
        return self.delivery_threads is not None

    def begin(self, *, has_another_led: bool = False) -> None:
        """Start the leader's work. If another process led meanwhile, the records of the sinks are read again."""
        context = self._context
        with self._turn:  # if storage does not answer here, nothing has started, and the caller retries
            sinks = self._sinks.reload() if has_another_led or self._is_tried else self._sinks
            self._is_tried = True
            delivery_threads = DeliveryThreads(
                sinks, lambda: self._runner.members, self._turn, context.journal, context.observer
            )
            self.checkpointer.refresh()
        self.delivery_threads = delivery_threads
        self._reporter.watch_sinks(lambda: delivery_threads.list_states(self._runner.time - 1))
        self._reporter.watch_warnings(lambda: [*self._list_failures(), *self.list_thread_problems()])
        self._reporter.begin(threads=self._has_threads)
        if self._has_threads:
            self._maintenance = Maintenance(context.shards, context.writer, context.checkpoints.find_pins).start()
            delivery_threads.start()
        self.backfills.start_due()

    def watch_feeds(self, read_problems: Callable[[], Iterable[Problem]]) -> None:
        """Report why live clients are not served. Any thread may call `read_problems`, which must not block."""
        self._feeds = read_problems
        self._reporter.watch_feeds(read_problems)

    def checkpoint(self, catch_up: Callable[[], object]) -> CatalogEntry:
        """Make a checkpoint of the current state; return the last one if nothing changed since."""
        if not self.is_active:
            why = "only the leader makes checkpoints; send this request to the leader"
            raise NotAllowedNow(where="checkpoint", why=why)
        try:
            catch_up()
            if not self.checkpointer.is_due() and self.checkpointer.last is not None:
                return self.checkpointer.last
            return self.checkpointer.checkpoint(catch_up)
        except (Unavailable, OutcomeUnknown) as error:
            if not self._stopping.is_set():
                raise
            why = "the pipeline stops without a checkpoint; nothing is lost, and the next start replays more"
            raise replace(error, why=f"{error.why}; {why}") from error

    def try_checkpoint(self, catch_up: Callable[[], object]) -> None:
        """Make the checkpoint that is due, if any. If it fails, transactions continue, and the next round retries."""
        with self._turn:
            try:
                self.checkpoint(catch_up)
                self._checkpoint_failure.end()
            except EvertideError as error:
                if isinstance(error, Fenced) and not isinstance(error, GenerationMoved):
                    raise
                self._checkpoint_failure.note(error)

    def retry(self, view: str) -> None:
        """Recompute a failed view, and wait for the result."""
        if not self.is_active:
            why = "only the leader recomputes views; send this request to the leader"
            raise NotAllowedNow(where=f"view {view!r}", why=why)
        self.backfills.retry(view)

    def has_delivered(self, time: int) -> bool:
        """Whether every sink that can continue has received all transactions up to `time`."""
        return self.delivery_threads is None or self.delivery_threads.has_delivered(time)

    def read_sink_statuses(self, time: int) -> tuple[SinkStatus, ...]:
        """A process that does not lead reads what the leader recorded."""
        if self.delivery_threads is not None:
            return self.delivery_threads.list_statuses(time)
        meta, runtime, settings = self._context.meta, self._context.runtime, self._context.settings
        reports = retry_read(lambda: read_source_records(meta), runtime, settings)
        leader = read_live_holder(meta, runtime, settings)
        return read_sink_statuses(meta, reports, leader, time, runtime, settings)

    def warnings(self) -> list[Problem]:
        """Problems that stop no transaction."""
        return [*self.backfills.problems(), *self._list_failures(), *self._feeds()]

    def _list_failures(self) -> list[Problem]:
        """Failures of checkpoints, garbage collection and maintenance."""
        found = self.checkpointer.problems()
        return found if self._maintenance is None else [*found, *self._maintenance.failing.problems()]

    def list_thread_problems(self) -> list[Problem]:
        """Errors that ended a thread, or that a thread retries."""
        running = (self._maintenance, self.backfills, self.delivery_threads, self._reporter)
        return [one for thread in running if thread is not None for one in thread.list_thread_problems()]

    def list_ended(self) -> list[str]:
        """The names of threads that have ended unexpectedly."""
        running = (self._maintenance, self.delivery_threads, self._reporter)
        return [name for thread in running if thread is not None for name in thread.list_ended()]

    def stop(self) -> None:
        for thread in (self._maintenance, self.backfills, self.delivery_threads, self._reporter):
            if thread is not None:
                thread.stop()
