"""`Duties`: what has to be done once for a pipeline, however many replicas run it. The leader does it.

It delivers to sinks, computes views that are new or failed, and maintains the shards; it makes checkpoints, and lets go
of what they make superfluous. A replica begins with it when it takes the lead, from what is durable by then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from evertide.checkpoint.records import CatalogEntry
from evertide.errors import EvertideError, Fenced, GenerationMoved, NotAllowedNow
from evertide.pipeline.backfill.scheduler import Backfills
from evertide.pipeline.maintenance.checkpoints import Checkpointing
from evertide.pipeline.recovery.opening import Hosts
from evertide.pipeline.replicas.ownership import live_holder
from evertide.pipeline.sinks.deliveries import Deliveries, PreparedSinks
from evertide.pipeline.status.source_record import SourceTelling, read_source_records
from evertide.pipeline.status.status import SinkStatus, sink_statuses
from evertide.pipeline.transaction.runner import Runner
from evertide.problem import Problem
from evertide.shard.maintenance import Maintenance
from evertide.store.retry import retry_read

__all__ = ["Duties"]

logger = logging.getLogger(__name__)


class Duties:
    def __init__(  # noqa: PLR0917
        self,
        hosts: Hosts,
        runner: Runner,
        turn: threading.RLock,
        stopping: threading.Event,
        failed: Callable[[EvertideError], object],
        telling: SourceTelling,
        sinks: PreparedSinks,
        settle: Callable[[], None],
        *,
        threads: bool,
    ) -> None:
        """`settle` brings the transaction under way to its end, and takes what peers have committed."""
        self._hosts = hosts
        self._runner = runner
        self._turn = turn
        self._telling = telling
        self._sinks = sinks
        self._has_threads = threads
        self._is_tried = False
        self._maintenance: Maintenance | None = None
        self.checkpointing = Checkpointing(runner)
        self.backfills = Backfills(runner, turn, stopping, hosts.progress, failed, settle, threads=threads)
        self._feeds: Callable[[], Iterable[Problem]] = tuple
        self.deliveries: Deliveries | None = None
        """None until this process leads."""

    @property
    def is_begun(self) -> bool:
        return self.deliveries is not None

    def begin(self, *, anew: bool = False) -> None:
        """From now on this process does it. `anew`: others did meanwhile, and sinks are not where they were."""
        hosts = self._hosts
        with self._turn:  # if storage does not answer here, nothing is begun, and it is asked again
            sinks = self._sinks.again() if anew or self._is_tried else self._sinks
            self._is_tried = True
            deliveries = Deliveries(sinks, lambda: self._runner.members, self._turn, hosts.journal, hosts.observer)
            self.checkpointing.look()
        self.deliveries = deliveries
        self._telling.watch_sinks(lambda: deliveries.healths(self._runner.time - 1))
        self._telling.watch_warnings(lambda: [*self._failures(), *self.troubles()])
        self._telling.begun(threads=self._has_threads)
        if self._has_threads:
            self._maintenance = Maintenance(hosts.shards, hosts.writer, hosts.checkpoints.pinned).start()
            deliveries.start()
        self.backfills.begin()

    def watch_feeds(self, look: Callable[[], Iterable[Problem]]) -> None:
        """Report why live clients are not served, from now on. `look` is called by any thread, and does not wait."""
        self._feeds = look
        self._telling.watch_feeds(look)

    def checkpoint(self, catch_up: Callable[[], object]) -> CatalogEntry:
        """One that holds everything up to now; the last one, if nothing happened since."""
        if not self.is_begun:
            raise NotAllowedNow(
                where="checkpoint", why="only the leader makes checkpoints; send this request to the leader"
            )
        catch_up()
        if not self.checkpointing.is_due() and self.checkpointing.last is not None:
            return self.checkpointing.last
        return self.checkpointing.checkpoint(catch_up)

    def try_checkpoint(self, catch_up: Callable[[], object]) -> None:
        """The one that is due, if any. If it fails, the transactions go on, and the next round makes it."""
        with self._turn:
            try:
                self.checkpoint(catch_up)
            except EvertideError as error:
                if isinstance(error, Fenced) and not isinstance(error, GenerationMoved):
                    raise
                logger.warning("no checkpoint was made: %s", error)

    def deliver_once(self) -> None:
        if self.deliveries is not None:
            self.deliveries.once()
            self._telling.once()

    def are_settled(self, time: int) -> bool:
        """Whether sinks that can go on have got everything up to a transaction."""
        return self.deliveries is None or self.deliveries.are_settled(time)

    def sink_statuses(self, time: int) -> tuple[SinkStatus, ...]:
        """A process that does not lead knows what the leader recorded."""
        if self.deliveries is not None:
            return self.deliveries.statuses(time)
        meta, runtime, settings = self._hosts.meta, self._hosts.runtime, self._hosts.settings
        told = retry_read(lambda: read_source_records(meta), runtime, settings)
        held = live_holder(meta, runtime, settings)
        return sink_statuses(meta, told, held, time, runtime, settings)

    def warnings(self) -> list[Problem]:
        """What is wrong, and stops no transaction."""
        return [*self.backfills.problems(), *self._failures(), *self._feeds()]

    def _failures(self) -> list[Problem]:
        """Of checkpoints, garbage collection and maintenance."""
        checkpointing = self.checkpointing
        found = [] if checkpointing.problem is None else [checkpointing.problem]
        found += [*self._hosts.checkpoints.damage.problems(), *checkpointing.failing.problems()]
        return found if self._maintenance is None else [*found, *self._maintenance.failing.problems()]

    def troubles(self) -> list[Problem]:
        """What threads died of, or fail of and try again."""
        running = (self._maintenance, self.backfills, self.deliveries, self._telling)
        return [one for thread in running if thread is not None for one in thread.troubles()]

    def ended(self) -> list[str]:
        """Threads that should run, and do not."""
        running = (self._maintenance, self.deliveries, self._telling)
        return [name for thread in running if thread is not None for name in thread.ended()]

    def stop(self) -> None:
        for thread in (self._maintenance, self.backfills, self.deliveries, self._telling):
            if thread is not None:
                thread.stop()
