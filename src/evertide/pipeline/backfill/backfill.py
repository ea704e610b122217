"""A backfill: hydrates views from their tables while transactions continue.

1. *Hold.* A hold on each table that the views read keeps the times that the backfill still needs.
2. *Compute* the views as of one time, into new shards, while transactions continue.
3. *Catch up* with later transactions from the tables' shards; with the last ones while no transaction can run.
4. *Join.* The transaction under way is completed first. One commit makes the views members, if no transaction was
   committed meanwhile: so the views have all transactions before the first in which they are members (I4).

Until then the views are not members (`ViewRecord.away`). If storage fails in step 3 or 4, the step is retried. If it
fails in step 1 or 2, the backfill is abandoned, and starts again later; no record names what it made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from evertide.errors import (
    Conflict,
    EvertideError,
    GenerationMoved,
    OutcomeUnknown,
    Unavailable,
    UpperMismatch,
    ViewFailed,
)
from evertide.errors.running_errors import name_views
from evertide.flow.wide.outlets import StoredContent
from evertide.observer import FailureEvent
from evertide.pipeline.definition import AwayReason, find_tables_under, make_shard_name, mark_redefined
from evertide.pipeline.engine import Cohort
from evertide.pipeline.sinks.sink_record import find_shards_of_sinks
from evertide.pipeline.state.hydration import hydrate_cohort, make_view_record
from evertide.pipeline.state.members import Members, add_time
from evertide.pipeline.state.wide_hydration import WideTarget
from evertide.pipeline.transaction.portions import PendingChanges
from evertide.pipeline.transaction.runner import Runner
from evertide.problem import ComponentState
from evertide.shard.append import Append, append_together
from evertide.shard.shard import Shard
from evertide.store.writers import Writer
from evertide.threads.outage_log import OutageLog, is_same_text
from evertide.threads.stopping import IsStopping, Stopped, check_not_stopping, never_stopping

logger = logging.getLogger(__name__)

HOLD_PREFIX = "backfill-"
"""The prefix of the names of holds; the writer's id follows."""
_JOIN_TRANSACTIONS_MAX = 2
"""At most this many transactions are caught up with while the pipeline waits."""


class _NewShards:
    """Receives the content of the views, and writes it to new shards."""

    def __init__(
        self,
        runner: Runner,
        members: Members,
        time: int,
        is_stopping: IsStopping,
        progress: Callable[[str, int, int], None],
    ) -> None:
        self.shards: dict[str, Shard] = {}
        """By view; created on first use."""
        self._runner = runner
        self._members = members
        self._time = time
        self._is_stopping = is_stopping
        self._progress = progress
        self._pending = PendingChanges(time - 1, runner.writer)

    def take(self, deltas: Mapping[str, pa.Table]) -> None:
        check_not_stopping(self._is_stopping)
        self._pending.store(self._members)  # the result of the previous portion
        self._pending.put({self._create_shard(name).name: delta for name, delta in deltas.items()})

    def prepare_wide(self, views: Collection[str]) -> WideTarget:
        shards = {name: self._create_shard(name) for name in views}
        progress = partial(self._progress, "wide step")
        return WideTarget(shards, self._pending.open_claim(), self._is_stopping, progress)

    def take_wide(self, found: Mapping[str, StoredContent]) -> None:
        check_not_stopping(self._is_stopping)
        self._pending.take_parts({self._create_shard(name).name: content.parts for name, content in found.items()})

    def drop(self) -> None:
        self._pending.drop(self._members)

    def fill(self, views: Iterable[str]) -> None:
        """Append the content to the shards of the views, as of the backfill's time."""
        shards = [self._create_shard(name) for name in views]
        if self._time and shards:
            self._pending.fill(shards, self._members)

    def _create_shard(self, view: str) -> Shard:
        if view not in self.shards:
            runner = self._runner
            schema = runner.machine.engine.views[view].schema
            name = make_shard_name(view, runner.runtime.new_id())
            self.shards[view] = self._members.create(name, schema, runner.writer)
        return self.shards[view]


class Backfill:
    """One backfill: computes some views and makes them members."""

    def __init__(  # noqa: PLR0917
        self,
        runner: Runner,
        views: Collection[str],
        turn: AbstractContextManager[Any],
        progress: Callable[[str, int, int], None] = lambda *_: None,
        complete_and_keep_up: Callable[[], None] = lambda: None,
        wait: Callable[[], bool] = lambda: False,
    ) -> None:
        """The backfill holds `turn` for work that excludes transactions.

        `complete_and_keep_up` completes the transaction under way, and replays what peers have committed. `wait` is
        called before a retry after a storage error; if it returns False, the backfill gives up.
        """
        self._progress = progress
        self._runner = runner
        self._turn = turn
        self._complete_and_keep_up = complete_and_keep_up
        self._wait = wait
        self._left = list(views)
        self._away: dict[str, AwayReason] = {}
        self._shards: dict[str, Shard] = {}
        self._cohort: Cohort | None = None
        self._time = 0
        engine = runner.machine.engine
        self._tables = sorted({table for view in views for table in find_tables_under(engine.views, view)})
        self._stepped: dict[str, pa.Table] | None = None
        """The result of transaction `_time`, until it is appended."""
        self._held: list[Shard] = []
        self._is_behind = False
        """Whether a peer changed the generation or a shard, so that `complete_and_keep_up` must run first."""
        self._is_joining = False

    def run(self, is_stopping: IsStopping = never_stopping) -> None:
        """Run until the views are members, or have failed."""
        waiting = OutageLog(logger, f"the backfill of {name_views(self._left)} waits for storage", self._runner.runtime)
        try:
            with self._turn:
                self._time = self._runner.time
                members = self._runner.members
                self._hold(members)
            self._progress("backfill", 0, len(self._left))
            with self._share_cores():
                self._compute(members, is_stopping)
            while not is_stopping():
                try:
                    if self._try_join(is_stopping):
                        waiting.end()
                        break
                except (GenerationMoved, UpperMismatch) as error:
                    self._log_behind(error)
                    self._is_behind = True
                except (Unavailable, OutcomeUnknown) as error:
                    waiting.note(error)
                    if not self._wait():
                        raise
        except Stopped:
            logger.info("the pipeline closes; the next start computes %s", name_views(self._left))
        finally:
            self._release()
            self._give_up()

    def _share_cores(self) -> AbstractContextManager[None]:
        return self._runner.machine.engine.share_cores()

    def _hold(self, members: Members) -> None:
        if self._time:
            self._held = [members.open_collection(name) for name in self._tables]
        for shard in self._held:
            shard.hold(name_backfill_hold(self._runner.writer), self._time - 1)

    def _release(self) -> None:
        """If a release fails, the next backfill moves the hold, or the next opening releases it."""
        for shard in self._held:
            with log_failure(f"could not release the hold on shard {shard.name}"):
                shard.release(name_backfill_hold(self._runner.writer))

    def _give_up(self) -> None:
        """Discard the results of views that did not join; keep their shards if the outcome of the join is unknown."""
        machine = self._runner.machine
        if self._cohort is not None and not any(self._cohort is one for one in machine.cohorts):
            machine.store.abandon(self._cohort)
        if not self._is_joining:
            self._finalize([shard.name for shard in self._shards.values()])

    def _try_join(self, is_stopping: IsStopping) -> bool:
        """Catch up and join. True if the views are members."""
        runner = self._runner
        while (
            not self._is_behind
            and runner.journal.committed_upper - self._time > _JOIN_TRANSACTIONS_MAX
            and not is_stopping()
        ):
            with self._share_cores():
                self._catch_up(runner.journal.committed_upper)
            self._hold(runner.members)
        with self._turn:
            if is_stopping():
                return False
            self._complete_and_keep_up()
            self._is_behind = False
            if self._is_joining and self._has_joined():  # the commit of unknown outcome succeeded
                return True
            self._catch_up(runner.time)
            return self._join()

    def _has_joined(self) -> bool:
        views = self._runner.definition.views
        joined = [views[name].shard == self._shards[name].name for name in self._left if name in views]
        return bool(joined) and all(joined)

    def _compute(self, members: Members, is_stopping: IsStopping) -> None:
        new_shards = _NewShards(self._runner, members, self._time, is_stopping, self._progress)
        self._shards = new_shards.shards
        while self._left and self._cohort is None:
            try:
                self._cohort = hydrate_cohort(self._runner.machine, members, self._left, self._time, new_shards)
            except ViewFailed as error:
                self._leave(error, self._time - 1)
        new_shards.fill(self._left)

    def _catch_up(self, upper: int) -> None:
        """Apply the transactions below `upper`. Safe to repeat after a storage error: none is applied twice."""
        while self._time < upper:
            if self._stepped is None:
                deltas = self._runner.members.read_table_changes(self._time, self._time + 1, self._tables)
                self._stepped = self._step(deltas, self._time)
                self._append(self._stepped, self._time)
            else:  # an earlier try may have appended some of it
                missing = {name for name in self._stepped if self._shards[name].upper == self._time}
                self._append({name: self._stepped[name] for name in missing}, self._time)
            self._stepped, self._time = None, self._time + 1
            self._progress("catch up", self._time, upper)

    def _step(self, deltas: Mapping[str, pa.Table], time: int) -> dict[str, pa.Table]:
        while self._cohort is not None and self._left:
            try:
                return self._cohort.step(deltas)
            except ViewFailed as error:
                self._leave(error, time)
                self._cohort.drop(error.views)
        return {}

    def _append(self, deltas: Mapping[str, pa.Table], time: int) -> None:
        if deltas:
            appends = [
                Append(self._shards[name].log, add_time(delta, time), time, time + 1) for name, delta in deltas.items()
            ]
            append_together(appends, self._runner.writer)

    def _leave(self, error: ViewFailed, time: int) -> None:
        failure = ViewFailed(views=error.views, time=time, why=error.why)
        level = (
            logging.INFO if all(self._has_failed_before(name, error.why) for name in error.views) else logging.WARNING
        )
        logger.log(level, "%s", failure)
        for name in error.views:
            self._runner.observer.on_failure(FailureEvent("view", name, error.error_code, time=time))
        for name in error.views:
            known, now_s = self._find_failure(name), self._runner.runtime.wall_s()
            since_s = known.since_s if known is not None else now_s
            self._away[name] = AwayReason(ComponentState.FAILED, time, error.why, since_s)
        self._left = [name for name in self._left if name not in error.views]

    def _has_failed_before(self, name: str, why: str) -> bool:
        """Whether the view is known to fail with this exception; the row that is found first may be another one."""
        known = self._find_failure(name)
        return known is not None and is_same_text(known.why.partition("; ")[0], why.partition("; ")[0])

    def _find_failure(self, name: str) -> AwayReason | None:
        """The failure of a view that this backfill retries, if it has failed before."""
        away = self._runner.definition.views[name].away
        return away if away is not None and away.state is ComponentState.FAILED else None

    def _join(self) -> bool:
        """Make the views members, between two transactions. False if a peer committed a transaction meanwhile."""
        runner = self._runner
        before = runner.definition.views
        views = dict(before)
        found = {name: self._find_failure(name) for name in self._left if name in before}
        failed = {name: away for name, away in found.items() if away is not None}
        for name in self._left:
            views[name] = make_view_record(runner.machine.engine, name, self._shards[name].name)
        for name, away in self._away.items():
            known = before.get(name)
            left = mark_redefined(away, known)
            views[name] = make_view_record(runner.machine.engine, name, known.shard if known else "", left)
        try:
            guard = runner.journal.make_commit_guard(self._time)
            self._is_joining = True
            runner.change(guards=[guard], views=views)
        except Conflict as error:
            self._log_behind(error)
            self._is_joining = False
            return False
        if self._cohort is not None and self._left:
            runner.add_cohort(self._cohort)
            logger.info("hydrated %s: members from transaction %d on", name_views(self._left), runner.time)
            for name in self._left:
                if name in failed:
                    took_s = runner.runtime.wall_s() - failed[name].since_s
                    logger.warning("view %s is running again; it had failed for %.1f s", name, took_s)
        self._progress("backfill", len(self._left), len(self._left))
        self._finalize([before[name].shard for name in self._left if name in before and before[name].shard])
        self._finalize([self._shards[name].name for name in self._away if name in self._shards])
        return True

    def _log_behind(self, error: EvertideError) -> None:
        logger.info("a peer committed before %s joined; catching up again: %s", name_views(self._left), error)

    def _finalize(self, shards: Collection[str]) -> None:
        """Finalize shards that are no longer needed. If this fails, the next opening does it."""
        runner = self._runner
        with log_failure(f"could not finalize the shards {', '.join(shards)}; the next start finalizes them"):
            held = find_shards_of_sinks(runner.meta, runner.runtime, runner.settings) if shards else ()
            for name in shards:
                if name not in held:  # else its sink finalizes it
                    runner.members.end(name, runner.writer)


@contextmanager
def log_failure(what: str) -> Iterator[None]:
    """Log an error of a cleanup instead of raising it, so that it does not hide an earlier error."""
    try:
        yield
    except EvertideError as error:
        logger.warning("%s: %s", what, error)


def name_backfill_hold(writer: Writer) -> str:
    return f"{HOLD_PREFIX}{writer.id}"
