"""`PeerFollower`: keeps a replica up to date with its peers, which run the same pipeline on the same storage.

1. A transaction that a peer committed is replayed from the tables' shards, and the result is compared with the record
   (I1, I8). Views that differ lose their state and are recomputed (`evertide.pipeline.state.divergence`).
2. A transaction that this process computed, and a peer committed first, is compared too, and is not appended (I3).
3. A peer's generation is adopted if it has the same script; otherwise this process is fenced (I16).
4. The shards in a transaction's record determine its views. A view that failed at a peer leaves here at the same
   transaction. A view that a peer computed is hydrated here as of the transaction at which it joined; before that
   transaction it may still fail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from evertide.errors import (
    Conflict,
    EvertideError,
    Fenced,
    GenerationMoved,
    OutcomeUnknown,
    RecomputationDelayed,
    StateDiverged,
    Unavailable,
    ViewFailed,
)
from evertide.errors.running_errors import name_views
from evertide.journal.records import Committed
from evertide.journal.replay import ReplayResult, ReplayStretch, check_replay
from evertide.observer import TransactionOrigin
from evertide.pipeline.definition import Definition, Evolution, compare_definition, read_definition
from evertide.pipeline.state.divergence import RecomputationBackoff
from evertide.pipeline.state.hydration import ContentDigests, find_differing_views, hydrate_cohort
from evertide.pipeline.transaction.damaged_state import discard_damaged_state
from evertide.pipeline.transaction.runner import Runner
from evertide.store.paths import GENERATION
from evertide.store.retry import retry_read
from evertide.store.writers import GenerationRecord, read_generation
from evertide.types import Generation

logger = logging.getLogger(__name__)


class PeerFollower:
    """Replays what peers commit, and adopts their changes of the definition."""

    def __init__(self, runner: Runner, leads: Callable[[], bool] = lambda: True) -> None:
        self._runner = runner
        self._leads = leads
        self._backoff = RecomputationBackoff(runner.settings.retry_view_s)
        self._aligned_generation = 0
        """The generation whose views the machine has."""
        self._stretch: ReplayStretch | None = None
        """The stretch under replay: the machine may have applied a part of it."""
        self._differs: tuple[Evolution, tuple[str, ...]]
        """How this script differs from the one in force: not at all, unless this replica is read-only."""
        self.restart()

    def keep_up(self) -> int:
        """Replay what peers have committed; return the number of transactions."""
        runner = self._runner
        if runner.outcome is not None:
            return 0  # a transaction of this process is under way: its commit shows whether a peer was faster
        first = runner.time
        if self._stretch is not None:  # interrupted by storage or Spark: finish it before anything else changes
            self._replay(self._stretch)
        while True:
            # In this order: the generation is then at least that of the committed transactions.
            committed = runner.journal.committed_upper
            self._adopt()
            discard_damaged_state(runner)
            self._recover()
            while runner.time < committed:
                self._replay(runner.read_stretch(committed))
                discard_damaged_state(runner)
                self._recover()
            if self._aligned_generation == runner.writer.generation:
                break
            if (
                runner.journal.committed_upper == committed
                and self._read_generation_number() == runner.writer.generation
            ):
                self._align(runner.definition.list_members())  # nothing was committed since the generation was made
                self._aligned_generation = runner.writer.generation
                self._recover()
        return runner.time - first

    def race(self, call: Callable[[], object]) -> bool:
        """Call what a peer may be doing at the same time. False if the peer was first, or the call must be retried."""
        before = self._runner.journal.upper
        if (
            self._runner.outcome is not None
            and self._aligned_generation != self._runner.writer.generation
            and self._adopt_peer_changes()
        ):
            return False  # the alignment that a storage error interrupted is done now
        try:
            call()
        except GenerationMoved:
            self._adopt_peer_changes()
            return False
        except Conflict as conflict:
            if not self._adopt_peer_changes() and self._runner.journal.upper == before:
                raise conflict from None
            return False
        return True

    def restart(self) -> None:
        """Start over, after the machine was restored or this process changed the definition."""
        runner = self._runner
        self._aligned_generation = runner.writer.generation
        self._stretch = None
        runner.stop_replaying()
        self._differs = self._compare_script(runner.definition)

    def _replay(self, stretch: ReplayStretch) -> None:
        """Replay the next stretch; views join and leave before it begins.

        The call can be repeated with the same stretch after a storage or Spark error: see `Runner.replay`.
        """
        runner = self._runner
        try:
            if self._stretch is None and self._aligned_generation != runner.writer.generation:
                self._align(stretch.records[0].shards)
            self._stretch = stretch
            found = runner.replay(stretch, is_peers=True)
            check_replay(runner.discard_diverged(found, stretch.recorded), stretch.recorded)
        except (Unavailable, OutcomeUnknown):
            raise
        except EvertideError as error:
            runner.machine.mark_broken(error)  # the machine may have applied a part of the stretch
            raise
        self._stretch = None
        runner.finish_replay(stretch, TransactionOrigin.PEER)

    def _adopt(self) -> None:
        """Adopt the generation in force, if it is not the one that this process knows."""
        runner = self._runner
        if self._read_generation_number() == runner.writer.generation:
            return
        number, generation, definition = self._read_in_force()
        if generation.writer == runner.writer.id:  # a change of this process, whose outcome was unknown
            runner.adopt(definition, number)
            self._differs = self._compare_script(definition)
            return
        if self._compare_script(definition) != self._differs:
            why = f"generation {definition.generation} belongs to another version of the script, which took over"
            raise Fenced(writer=runner.writer.id, why=why)
        logger.info("adopting generation %d, which a peer made", definition.generation)
        runner.adopt(definition, number)

    def _compare_script(self, definition: Definition) -> tuple[Evolution, tuple[str, ...]]:
        return compare_definition(definition, self._runner.machine.engine), definition.sources

    def _read_generation_number(self) -> Generation:
        runner = self._runner
        record = retry_read(lambda: runner.meta.head(GENERATION), runner.runtime, runner.settings)
        return Generation(record.seqno if record else 0)

    def _read_in_force(self) -> tuple[Generation, GenerationRecord, Definition]:
        """The number of the generation's record, the generation, and its definition."""
        runner = self._runner
        while True:
            number = self._read_generation_number()
            generation = retry_read(lambda: read_generation(runner.meta), runner.runtime, runner.settings)
            _, definition = retry_read(lambda: read_definition(runner.meta), runner.runtime, runner.settings)
            if generation and definition and self._read_generation_number() == number:
                return number, generation, definition

    def _align(self, shards: Collection[str]) -> None:
        """Make the machine's views those of `shards`."""
        runner, machine = self._runner, self._runner.machine
        machine.drop_views(lambda name: runner.view_shards.get(name) not in shards)
        live = {
            name: view
            for name, view in runner.definition.live_views().items()
            if name not in self._differs[0].views_removed
        }
        here = machine.views() | runner.lost_views  # `_recover` handles lost views
        missing = [name for name, view in live.items() if name not in here and view.shard in shards]
        if missing:
            self._hydrate_views(missing)

    def _hydrate_views(self, views: Sequence[str]) -> None:
        """Hydrate the views as of `runner.time`, and step them through the transaction under way, if any."""
        runner = self._runner
        runner.follow_shards(views)
        try:
            cohort = hydrate_cohort(runner.machine, runner.members, views, runner.time, ContentDigests())
        except ViewFailed as error:
            logger.error("a view that a peer has computed fails in this process: %s", error)  # noqa: TRY400 - no bug
            runner.note_not_hydrated(error)
            left = [name for name in views if name not in error.views]
            if left:
                self._hydrate_views(left)
            return
        runner.add_cohort(cohort)

    def _adopt_peer_changes(self) -> bool:
        """Adopt what a peer changed. True if the peer committed the transaction that this process computed."""
        runner = self._runner
        outcome = runner.outcome
        if outcome is None:
            self._adopt()
            return False
        recorded = runner.journal.read_outcome(outcome.time)
        self._adopt()
        try:
            if self._aligned_generation != runner.writer.generation:
                self._align(recorded.shards if recorded is not None else runner.definition.list_members())
            if recorded is None:
                self._aligned_generation = runner.writer.generation
            if recorded is None or not outcome.is_computed:
                return False
            self._compare(recorded)
        except (Unavailable, OutcomeUnknown):  # the next call aligns the rest
            raise
        except EvertideError as error:
            runner.machine.mark_broken(error)
            raise
        logger.info("transaction %d was committed by %s", recorded.time, recorded.writer)
        runner.finish(TransactionOrigin.PEER)
        return True

    def _compare(self, recorded: Committed) -> None:
        outcome = self._runner.outcome
        if outcome is not None:
            shards = {name: outcome.sum_content(name) for name in recorded.shards}
            found = ReplayResult(outcome.time, outcome.sources.all, shards)
            check_replay(self._runner.discard_diverged(found, recorded), recorded)

    def _recover(self) -> None:
        """Recompute the views whose state was discarded.

        A leader backfills them into new shards. A follower hydrates them in place and compares them with their shards;
        if they differ, it retries after a wait, while its peers continue.
        """
        runner = self._runner
        if not runner.lost:
            return
        if self._leads():
            while runner.lost:
                try:
                    runner.remove_lost_views()
                except GenerationMoved:
                    self._adopt()
            return
        views, wait_s = sorted(runner.lost_views), self._backoff.wait_s(runner.runtime.monotonic_s())
        if wait_s:
            why = f"their state has diverged {self._backoff.tries + 1} times within an hour"
            why = f"{why}; Evertide recomputes it in {wait_s:.0f} s: {runner.lost[0].why}"
            raise RecomputationDelayed(path=name_views(views), why=why)
        logger.warning("recomputing %s as of transaction %d", name_views(views), runner.time - 1)
        live = runner.definition.live_views()  # a view with a new shard joins when that shard begins
        left = [name for name in views if name in live and live[name].shard == runner.view_shards.get(name)]
        if left:
            digests = ContentDigests()
            try:
                cohort = hydrate_cohort(runner.machine, runner.members, left, runner.time, digests)
            except ViewFailed as error:
                raise self._note_lost_again(views, error.why) from error
            for wrong in find_differing_views(runner.members, digests.all, left, runner.time).values():
                runner.machine.store.abandon(cohort)
                why = f"recomputed from the tables, {wrong.where} has {wrong.found}, but its shard has {wrong.expected}"
                raise self._note_lost_again(views, why)
            runner.add_cohort(cohort)
        self._note_try()
        runner.set_lost(())

    def _note_try(self) -> None:
        """Only when its result is known: one that a storage error interrupted is repeated without a wait."""
        self._backoff.note_try(self._runner.runtime.monotonic_s())

    def _note_lost_again(self, views: Sequence[str], why: str) -> RecomputationDelayed:
        self._note_try()
        self._runner.set_lost([StateDiverged(views=tuple(views), time=self._runner.time - 1, why=why)])
        return RecomputationDelayed(path=name_views(views), why=why)
