"""`Runner`: makes and replays the transactions of a process, one after the other, and owns their state.

The steps of transaction t; each is durable before the next begins:

1. *Bind.* The journal records the whole input of t (I7).
2. *Compute.* The rows of sources become deltas of tables, and these become deltas of views (`Machine`). If a view
   fails, a generation without it is committed first.
3. *Commit.* One commit appends to all member shards, t -> t+1, and records counts and digests (I4, I8).

If the commit did not happen (full disk, storage outage), the runner keeps the computed result, and the next call
commits it: the machine must not apply t twice. If a peer committed t first, `PeerFollower` compares the results. After
any other failure the runner cannot be used again; the next process that opens the storage completes t.

A portion that the machine has applied is added to the outcome before anything else can fail (`_compute`). Views that
failed in it leave by a separate commit, which is repeated until it is known to have succeeded.

How the members may change while transaction t of this process is under way:

    event                   t is bound       some portions        all computed,        commit of t with
                            at most          computed             commit waits         unknown outcome
    a view fails here       -                it is in the outcome, and leaves before the next portion or the commit
    a backfill joins here   joins at t       never: `Backfill` first completes t. The join also guards the committed
                                             time, so that the join fails if a peer or a late commit commits t
    a view's state diverges (X7): as a view that fails here. If a replay or a comparison with a peer finds it, nothing
                            is under way: the views leave, or are computed in place, before the next transaction
    a peer changes them     adopted          aligned: a view that joined gets the portions       the record of t names
                            (`keep_up`)      so far, one that left is dropped                    the views of t
    this process takes      at t             never: t is completed first (`Advancer`)
    the lead
    the script changes      only while the pipeline opens, before anything of t is computed
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce

import msgspec
import pyarrow as pa

from evertide.errors import (
    Damaged,
    Diverged,
    EvertideError,
    OutcomeUnknown,
    StateDiverged,
    StateInconsistent,
    Unavailable,
    Unexpected,
    ViewFailed,
)
from evertide.journal.records import Bound, Committed, Content, Input
from evertide.journal.replay import ReplayResult, ReplayStretch, find_divergences
from evertide.journal.staging import list_staged
from evertide.observer import FailureEvent, Observer, TransactionOrigin, WrittenSize
from evertide.pipeline.definition import (
    AwayReason,
    Definition,
    find_tables_under,
    make_definition_write,
    read_definition,
)
from evertide.pipeline.engine import Cohort
from evertide.pipeline.input.bound_rows import collect_xids, read_input
from evertide.pipeline.names import ERRORS
from evertide.pipeline.process_context import ProcessContext
from evertide.pipeline.state.divergence import add_evidence
from evertide.pipeline.state.hydration import Reapply, rehydrate_tables, repair_tables
from evertide.pipeline.state.machine import Machine
from evertide.pipeline.state.members import Members
from evertide.pipeline.state.table_deltas import TableDeltas, log_new_dead_letters, measure_content
from evertide.pipeline.transaction.phases import Phase, PhaseTracker
from evertide.pipeline.transaction.portions import ContentSums, InputPortions, TransactionOutcome
from evertide.rows.digest import ZERO, add_digests
from evertide.scratch import using_system
from evertide.shard.append import Append, append_together
from evertide.shard.parts.part import Part
from evertide.sources.contract import HasXids, Rows
from evertide.store.meta import Guard, Write
from evertide.store.retry import retry_read
from evertide.types import Generation, Time

logger = logging.getLogger(__name__)


class Runner:
    """Makes and replays transactions: binds input, computes the deltas of views, commits."""

    def __init__(self, context: ProcessContext, definition: Definition, machine: Machine) -> None:
        self.meta = context.meta
        self.journal = context.journal
        self.checkpoints = context.checkpoints
        self.writer = context.writer
        self.sources = dict(context.sources)
        self.runtime = context.runtime
        self.settings = context.settings
        self.members = Members(context.shards, definition)
        self.machine = machine
        self.phases = PhaseTracker(context.observer, context.runtime, context.settings, machine.time)
        self.view_shards = {name: view.shard for name, view in definition.live_views().items()}
        """By view, the shard whose content its state produced."""
        self.outcome: TransactionOutcome | None = None
        """Of the transaction under way."""
        self._stored: dict[str, WrittenSize] = {}
        """By shard, what the commit of the transaction under way holds."""
        self._replaying: tuple[TransactionOutcome, ContentSums] | None = None
        """The transaction that is replayed in portions, and the sums of its views so far."""
        self._cohorts_before: list[tuple[str, ...]] = []
        """The views of each cohort before the replay step under way."""
        self.lost: list[ViewFailed] = []
        """Members whose state was discarded or could not be computed: they are recovered or removed before a commit."""
        self.last_changed: dict[str, int] = {}
        """By kept table, the last transaction of this process that changed it."""

    @property
    def observer(self) -> Observer:
        return self.phases.observer

    @property
    def definition(self) -> Definition:
        return self.members.definition

    @property
    def time(self) -> Time:
        """The first transaction that is not committed."""
        outcome = self.outcome  # read once: other threads call this, too
        return self.machine.time if outcome is None else outcome.time

    @property
    def has_upstream(self) -> bool:
        """Whether a source follows a database whose transactions have numbers."""
        return any(isinstance(source, HasXids) for source in self.sources.values())

    def bind(self, inputs: Mapping[str, Input]) -> Bound:
        self.phases.enter(Phase.BIND, self.time)
        return self.journal.bind(inputs, self.definition.generation, self.writer)

    def complete(self, bound: Bound, read: Mapping[str, Sequence[Rows]] | None = None) -> None:
        """Compute a bound transaction, and commit it. Can be repeated after a storage error.

        `read` has, by source, the input that is already in memory.
        """
        outcome = self.outcome
        if outcome is None:
            if bound.time != self.machine.time:
                why = f"the state is at time {self.machine.time}, and transaction {bound.time} was to be computed"
                raise Unexpected(where="Runner.complete", why=why)
            batches = partial(read_input, bound, self.journal, self.sources, read=read)
            outcome = self.outcome = TransactionOutcome(bound, InputPortions(batches, self.settings), self.writer)
        self._finish_portion(outcome)  # an earlier call may have computed one
        while not outcome.is_complete:
            self._compute(outcome)
            self._finish_portion(outcome)
        self.commit()

    def _finish_portion(self, outcome: TransactionOutcome) -> None:
        """Make durable what the next portion needs."""
        self._remove_failed_views(outcome)
        outcome.keep(self.members)

    def commit(self) -> None:
        """Append the computed outcome, if there is one. After `Unavailable` nothing was written: retry."""
        outcome = self.outcome
        if outcome is None or not outcome.is_complete:
            return
        self._check_views()
        self.phases.enter(Phase.COMMIT, self.time)
        shards = self.members.open_all()
        appends = [
            Append(shard.log, outcome.pending.changes(name, shard.schema), outcome.time, outcome.time + 1)
            for name, shard in shards.items()
        ]
        append_together(appends, self.writer, writes=self._make_record_writer(outcome, tuple(shards)))
        self.finish(TransactionOrigin.COMMITTED)

    def _check_views(self) -> None:
        """A member view without state would miss the transaction."""
        missing = sorted(self.definition.live_views().keys() - self.machine.views())
        if missing:
            raise Unexpected(where="Runner.commit", why=f"the views {missing} are members, and have no state")

    def finish(self, how: TransactionOrigin) -> None:
        """Forget the outcome: it is committed, here or by a peer (`how`)."""
        outcome, self.outcome = self.outcome, None
        if outcome is not None:
            outcome.pending.settle()
            given = {name: content.rows for name, content in outcome.sources.all.items()}
            stored, self._stored = self._stored, {}
            self.last_changed |= dict.fromkeys(outcome.tables, outcome.time)
            self.phases.finish(outcome.time, how, given, self.members.group_by_collection(stored))

    def read_stretch(self, upper: int) -> ReplayStretch:
        """The next transactions to replay in one step, all below `upper`; one, if a table is not kept."""
        is_several = all(table.shard for table in self.definition.tables.values() if table.is_declared)
        return ReplayStretch.take(self._read_recorded(upper), self.settings.replay_rows_max if is_several else 0)

    def _read_recorded(self, upper: int) -> Iterator[tuple[Bound, Committed]]:
        for time in range(self.machine.time, upper):
            recorded = self.journal.read_outcome(time)
            if recorded is None:
                raise Damaged(path=self.journal.path, why=f"the result of transaction {time} is not recorded")
            yield self.journal.read(time), recorded

    def replay(self, stretch: ReplayStretch, *, is_peers: bool = False) -> ReplayResult:
        """Apply committed transactions from the shards; return the result, to compare it with the recorded one.

        1. The deltas of tables are read from their shards (I1). A transaction that was computed in portions is
           computed from its input again, in portions, if the journal has it; the digests show any difference.
        2. Of a peer's transactions (`is_peers`), the machine has exactly the views that their records name.
        3. After a storage or Spark error, repeat the call with the same stretch, before any other call: the machine
           does not apply a part twice.
        """
        self.phases.enter(Phase.REPLAY, stretch.time)
        bound, recorded = stretch.bound[0], stretch.records[0]
        is_staged = len(list_staged(bound)) == sum(len(one.fragments) for one in bound.inputs.values())
        if recorded.portions > 1 and is_staged:
            return self._replay_in_portions(stretch, is_peers=is_peers)
        tables = [name for name in self.definition.tables if self.machine.tables.has(name)]
        deltas = self.members.read_table_changes(stretch.time, stretch.upper, tables)
        errors = self.members.read_dead_letter_changes(stretch.time, stretch.upper)
        unkept = {name for name, table in self.definition.tables.items() if table.is_declared and not table.shard}
        given: Mapping[str, Content] = {}
        if unkept:
            batches = read_input(bound, self.journal, self.sources, lambda table: table in unkept)
            read = self.machine.tables.compute_deltas(batches, lambda _: pa.schema([]).empty_table())
            log_new_dead_letters(read.errors, errors, stretch.time)
            deltas, given = {**deltas, **read.tables}, read.sources
        found = self._replay_step(deltas, errors, count=len(stretch.bound))
        contents = {name: measure_content(delta) for name, delta in found.items()}
        return self._replay_result(stretch, contents, given, is_peers=is_peers)

    def _replay_in_portions(self, stretch: ReplayStretch, *, is_peers: bool) -> ReplayResult:
        bound = stretch.bound[0]
        if self._replaying is None or self._replaying[0].bound != bound:
            batches = partial(read_input, bound, self.journal, self.sources, self.machine.tables.has)
            outcome = TransactionOutcome(bound, InputPortions(batches, self.settings), self.writer)
            self._replaying = outcome, ContentSums()
        outcome, views = self._replaying
        try:
            outcome.keep(self.members)  # of a portion that an earlier call has applied
            while not outcome.is_complete:
                deltas = self._compute_table_deltas(outcome, outcome.portions.reapply)
                found = self._replay_step(deltas.tables, deltas.errors, count=int(outcome.portions.is_last))
                views.take({name: measure_content(delta) for name, delta in found.items()})
                outcome.take(self._select_without_key(deltas.tables), deltas)
                outcome.keep(self.members)
        except BaseException as error:
            if not (is_peers and isinstance(error, Unavailable | OutcomeUnknown)):  # opening starts over
                self.stop_replaying()
            raise
        self.stop_replaying()
        return self._replay_result(stretch, views.all, outcome.sources.all, is_peers=is_peers)

    def stop_replaying(self) -> None:
        """Drop the outcome of a replay in portions: it is done, or its machine is discarded."""
        replaying, self._replaying = self._replaying, None
        self._cohorts_before = []
        if replaying is not None:
            replaying[0].pending.drop(self.members)

    def _select_without_key(self, deltas: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """By shard, the deltas of tables without a key: later portions may need them, and no state has them."""
        tables = self.definition.tables
        return {
            tables[name].shard: delta for name, delta in deltas.items() if tables[name].shard and not tables[name].key
        }

    def _replay_step(
        self, deltas: Mapping[str, pa.Table], errors: pa.Table | None, *, count: int
    ) -> dict[str, pa.Table]:
        """Step the machine. A view that fails in a transaction that was committed with it has diverged."""
        self._cohorts_before = self._cohorts_before or [tuple(cohort.views) for cohort in self.machine.cohorts]
        with using_system(f"transaction {self.machine.time}"):
            found = self.machine.step(deltas, errors, count=count)
        cohorts_before, self._cohorts_before = self._cohorts_before, []
        for failure in self.machine.failures:
            if not self.machine.is_computable(failure.views):
                raise failure
            if isinstance(failure, StateDiverged):
                self.note_lost(failure)
            elif not self.lost_views.issuperset(failure.views):
                views = next(views for views in cohorts_before if failure.views[0] in views)
                self.machine.discard_together(views, failure.why)
                why = f"the view fails in replay, although the committed transaction contains it: {failure.why}"
                self.note_lost(StateDiverged(views=views, time=failure.time, why=why))
        return {name: delta for name, delta in found.items() if name not in self.lost_views}

    def discard_view(self, view: str, error: Diverged) -> None:
        """Discard the cohort of a view whose result differs from the recorded one."""
        why = f"view {view!r} has {error.found}, but {error.expected} is recorded"
        lost = self.machine.discard(view, why)
        if lost is not None:
            self.note_lost(StateDiverged(views=lost.views, time=error.time, why=why))

    def note_lost(self, failure: StateDiverged) -> None:
        self.lost.append(self._add_evidence(failure))
        self._report(self.lost[-1])

    def set_lost(self, failures: Iterable[ViewFailed]) -> None:
        self.lost = list(failures)

    def take_state(self, fresh: Runner) -> None:
        """Continue with the state of a runner that was just restored."""
        self.machine, self.members, self.view_shards = fresh.machine, fresh.members, fresh.view_shards
        self.lost = fresh.lost

    def add_cohort(self, cohort: Cohort) -> None:
        """Add a cohort that was hydrated as of `time`, with the portions so far of the transaction under way."""
        outcome = self.outcome
        if outcome is None or not outcome.count:
            self.machine.add(cohort)
            return
        found, failures = self.machine.add_late(cohort, outcome.read_table_deltas(self.members), outcome.time)
        outcome.add({self.view_shards[name]: delta for name, delta in found.items()}, failures)

    def note_not_hydrated(self, error: ViewFailed) -> None:
        """Note member views that could not be hydrated as of `time`."""
        if self.outcome is None:
            self.lost.append(ViewFailed(views=error.views, time=self.time - 1, why=error.why))
        else:
            self.outcome.add({}, [ViewFailed(views=error.views, time=self.time, why=error.why)])

    def follow_shards(self, views: Iterable[str]) -> None:
        """Note that the state of these views belongs to the shards that the definition names."""
        self.view_shards |= {name: self.definition.views[name].shard for name in views}

    @property
    def lost_views(self) -> set[str]:
        return {name for one in self.lost for name in one.views}

    def discard_diverged(self, found: ReplayResult, recorded: Committed) -> ReplayResult:
        """Discard the state of views that differ from the record (X7); return the result without them.

        A view that cannot be recomputed stays in the result.
        """
        views = {shard: name for name, shard in self.view_shards.items()}
        differ = find_divergences(found, recorded)
        tables = self._discard_differing_tables(differ)
        for shard, error in differ.items():
            name = views.get(shard)
            if name is None or not self.machine.is_computable([name]):
                continue
            self.discard_view(name, error)
        gone = tables | {self.view_shards[name] for name in self.lost_views if name in self.view_shards}
        shards = {shard: None if shard in gone else content for shard, content in found.shards.items()}
        return replace(found, shards=shards)

    def _discard_differing_tables(self, differ: Mapping[str, Diverged]) -> set[str]:
        """Read the table state again if a table differs from what a peer committed; return the differing shards.

        The views over these tables lose their state. If a table is not kept, nothing is done.
        """
        machine, definition = self.machine, self.definition
        names = {**{table.shard: name for name, table in definition.tables.items()}, definition.errors: ERRORS}
        wrong = {names[shard]: error for shard, error in differ.items() if shard in names}
        if not wrong or not rehydrate_tables(machine, self.members):
            return set()
        for name, error in wrong.items():
            why = f"the state of table {name!r} has {error.found}, but {error.expected} is recorded"
            logger.error("%s", self._add_evidence(StateDiverged(views=(), time=error.time, why=why)))
            for view in [view for view in self.view_shards if name in find_tables_under(machine.engine.views, view)]:
                if (lost := machine.discard(view, why)) is not None:
                    self.note_lost(StateDiverged(views=lost.views, time=error.time, why=why))
        return {shard for shard in differ if shard in names}

    def _replay_result(
        self, stretch: ReplayStretch, found: Mapping[str, Content], given: Mapping[str, Content], *, is_peers: bool
    ) -> ReplayResult:
        """For transactions of an older generation, only the shards of both generations are compared."""
        bound, recorded = stretch.bound[0], stretch.records[0]
        shards: dict[str, Content | None] = dict.fromkeys(recorded.shards)
        is_same = not is_peers and bound.generation == self.definition.generation
        if is_same:
            shards = dict.fromkeys(self.definition.list_members())
        for name, content in found.items():
            shard = self.view_shards[name]
            if shard in recorded.shards or is_same:
                shards[shard] = content
        unkept_only = self._find_unkept_sources()
        sources = {name: given.get(name, Content(0, ZERO)) if name in unkept_only else None for name in bound.inputs}
        return ReplayResult(stretch.time, sources, shards, len(stretch.bound))

    def finish_replay(self, stretch: ReplayStretch, how: TransactionOrigin) -> None:
        """Note the tables that changed, and notify observers, after a successful comparison."""
        tables = {name: table.shard for name, table in self.definition.tables.items() if table.shard}
        for recorded in stretch.records:
            for name, shard in tables.items():
                if shard in recorded.shards and recorded.shards[shard].rows:
                    self.last_changed[name] = recorded.time
            sizes = {name: WrittenSize(content.rows, 0) for name, content in recorded.shards.items()}
            rows = {name: content.rows for name, content in recorded.sources.items()}
            self.phases.finish(recorded.time, how, rows, self.members.group_by_collection(sizes))

    def _find_unkept_sources(self) -> set[str]:
        """Sources without kept tables: a replay reads all their rows again."""
        kept = {name for name, table in self.definition.tables.items() if table.shard}
        return {name for name, source in self.sources.items() if not kept.intersection(source.tables)}

    def _compute(self, outcome: TransactionOutcome) -> None:
        self.phases.enter(Phase.READ, self.time)
        deltas = self._compute_table_deltas(outcome, partial(outcome.reapply, members=self.members))
        self.phases.enter(Phase.COMPUTE, self.time)
        tables = self.definition.tables
        by_shard = {tables[name].shard: delta for name, delta in deltas.tables.items() if tables[name].shard}
        by_shard[self.definition.errors] = deltas.errors
        outcome.pending.store_ahead(by_shard, self.members)
        try:
            with using_system(f"transaction {outcome.time}"):
                found = self.machine.step(deltas.tables, deltas.errors, count=int(outcome.portions.is_last))
            by_shard |= {self.definition.views[name].shard: delta for name, delta in found.items()}
            outcome.take(by_shard, deltas, self.machine.failures)
        except EvertideError:  # the machine knows what it has applied
            raise
        except BaseException as error:  # such as an interrupt between any two lines
            self.machine.mark_broken(error)
            raise
        outcome.replace_failures(
            self._add_evidence(one) if isinstance(one, StateDiverged) else one for one in outcome.failures
        )
        for failure in outcome.failures:
            self._report(failure)

    def _compute_table_deltas(self, outcome: TransactionOutcome, reapply: Reapply) -> TableDeltas:
        batches, content = outcome.portions.read_current(), partial(outcome.read_table, members=self.members)
        try:
            return self.machine.tables.compute_deltas(batches, content)
        except (Damaged, StateInconsistent) as error:
            if not repair_tables(self.machine, self.members, error, reapply):
                raise
            return self.machine.tables.compute_deltas(batches, content)

    def _report(self, failure: ViewFailed) -> None:
        logger.error("%s", failure)
        for name in failure.views:
            self.observer.on_failure(FailureEvent("view", name, failure.error_code, time=failure.time))

    def _add_evidence(self, failure: StateDiverged) -> StateDiverged:
        parts = self.machine.take_lost_parts(failure.views)
        return add_evidence(failure, self.definition, parts, self.writer.id, self.members.shards.blob, self.runtime)

    def _remove_failed_views(self, outcome: TransactionOutcome) -> None:
        self._set_away(outcome.failures)
        views = self.definition.views
        outcome.remove_views({views[name].shard for one in outcome.failures for name in one.views}, self.members)

    def remove_lost_views(self) -> None:
        """Commit a generation without the views whose state was discarded, so that they are recomputed."""
        self._set_away(self.lost)
        self.set_lost(())

    def _set_away(self, failures: Sequence[ViewFailed]) -> None:
        """Mark the failed views as away, in one change of generation, unless a peer has done so."""
        views = dict(self.definition.views)
        for failure in failures:
            for name in failure.views:
                if name in views and views[name].away is None:
                    away = AwayReason.from_failure(failure, self.runtime.wall_s())
                    views[name] = msgspec.structs.replace(views[name], away=away)
        if views != self.definition.views:
            self.change(views=views)

    def change(self, *, guards: Sequence[Guard] = (), **changes: object) -> None:
        """Commit another definition and generation (I16).

        If the outcome of the commit is unknown, `PeerFollower` reads it back, as it does with the change of a peer.
        """
        number, _ = retry_read(lambda: read_definition(self.meta), self.runtime, self.settings)
        definition = msgspec.structs.replace(
            self.definition, generation=self.definition.generation + 1, change=self.runtime.new_id(), **changes
        )
        self.writer.change_generation(definition.list_members(), [make_definition_write(number, definition)], guards)
        self.members = self.members.move_to(definition)
        self.view_shards = {name: view.shard for name, view in definition.live_views().items()}

    def adopt(self, definition: Definition, generation: Generation) -> None:
        """Adopt a peer's definition and generation together, without a storage call in between."""
        self.members = self.members.move_to(definition)
        self.writer.set_generation(generation)

    def _make_record_writer(
        self, outcome: TransactionOutcome, names: Sequence[str]
    ) -> Callable[[Sequence[tuple[Part, ...]]], Sequence[Write]]:
        def make_writes(stored: Sequence[tuple[Part, ...]]) -> Sequence[Write]:
            contents = {
                name: Content(
                    sum(part.rows for part in parts), reduce(add_digests, (part.digest for part in parts), ZERO)
                )
                for name, parts in zip(names, stored, strict=True)
            }
            self._stored = {
                name: WrittenSize(contents[name].rows, sum(part.bytes for part in parts))
                for name, parts in zip(names, stored, strict=True)
            }
            given, xids = outcome.sources.all, collect_xids(outcome.bound, has_upstream=self.has_upstream)
            record = Committed(outcome.time, given, contents, self.writer.id, outcome.count, xids)
            return [self.journal.make_commit_write(record)]

        return make_writes
