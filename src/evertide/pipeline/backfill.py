"""A backfill: views computed from the tables while the pipeline goes on.

It computes the views as of one time, catches up with the transactions since, from the tables' shards, and makes the
views members between two transactions, when nothing is missing any more. Until then they are away (`ViewRecord.away`);
a hold keeps what it still has to read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from evertide.errors import ViewFailed
from evertide.observer import Fault
from evertide.pipeline.definition import Away, shard_name, tables_under
from evertide.pipeline.engine import Cohort
from evertide.pipeline.hydration import hydrated_cohort, view_record
from evertide.pipeline.members import Members, at_time
from evertide.pipeline.portions import Pending
from evertide.pipeline.runner import Runner
from evertide.pipeline.sink_record import held_by_sinks
from evertide.shard.append import Append, append_together
from evertide.shard.shard import Shard
from evertide.shard.stopping import IsStopping, Stopped, check_going, never

__all__ = ["Backfill"]

logger = logging.getLogger(__name__)

_FEW = 2
"""Transactions that may be left to catch up with while the pipeline waits."""


class _Filling:
    """What goes into the shards of views that are computed."""

    def __init__(self, runner: Runner, members: Members, time: int, is_stopping: IsStopping) -> None:
        self.shards: dict[str, Shard] = {}
        """By view; made when there is something for it."""
        self._runner = runner
        self._members = members
        self._time = time
        self._is_stopping = is_stopping
        self._pending = Pending(time - 1, runner.writer)

    def take(self, found: Mapping[str, pa.Table]) -> None:
        check_going(self._is_stopping)
        self._pending.store(self._members)  # what the portion before came to
        self._pending.deltas = {self._shard(name).name: delta for name, delta in found.items()}

    def drop(self) -> None:
        self._pending.drop(self._members)

    def fill(self, views: Iterable[str]) -> None:
        """The shards of the views, which have reached the time then."""
        shards = [self._shard(name) for name in views]
        if self._time and shards:
            self._pending.fill(shards, self._members)

    def _shard(self, view: str) -> Shard:
        if view not in self.shards:
            runner = self._runner
            schema = runner.machine.engine.views[view].schema
            name = shard_name(view, runner.runtime.new_id())
            self.shards[view] = self._members.create(name, schema, runner.writer)
        return self.shards[view]


class Backfill:
    def __init__(
        self,
        runner: Runner,
        views: Collection[str],
        turn: AbstractContextManager[Any],
        progress: Callable[[str, int, int], None] = lambda *_: None,
    ) -> None:
        """`turn` is taken for what must not happen beside a transaction."""
        self._progress = progress
        self._runner = runner
        self._turn = turn
        self._left = list(views)
        self._away: dict[str, Away] = {}
        self._shards: dict[str, Shard] = {}
        self._cohort: Cohort | None = None
        self._time = 0
        self._hold = f"backfill-{runner.runtime.new_id()[:8]}"

    def run(self, is_stopping: IsStopping = never) -> None:
        """Until the views are members, or away for a reason."""
        with self._turn:
            self._time = self._runner.time
            members = self._runner.members
            held = self._held(members)
        try:
            self._progress("backfill", 0, len(self._left))
            self._compute(members, is_stopping)
            while self._runner.time - self._time > _FEW and not is_stopping():
                self._catch_up(self._runner.time)
            with self._turn:
                if not is_stopping():
                    self._catch_up(self._runner.time)
                    self._join()
        except Stopped:
            logger.info("the pipeline ends: the views %s are computed when it runs again", self._left)
        finally:
            for shard in held:
                shard.release(self._hold)

    def _held(self, members: Members) -> list[Shard]:
        engine = self._runner.machine.engine
        tables = {table for view in self._left for table in tables_under(engine.views, view)}
        shards = [members.collection(name) for name in sorted(tables)] if self._time else []
        for shard in shards:
            shard.hold(self._hold, self._time - 1)
        return shards

    def _compute(self, members: Members, is_stopping: IsStopping) -> None:
        filling = _Filling(self._runner, members, self._time, is_stopping)
        while self._left and self._cohort is None:
            try:
                self._cohort = hydrated_cohort(self._runner.machine, members, self._left, self._time, filling)
            except ViewFailed as error:
                self._leave(error, self._time - 1)
        filling.fill(self._left)
        self._shards = filling.shards

    def _catch_up(self, upper: int) -> None:
        for time in range(self._time, upper):
            deltas, _ = self._runner.members.table_changes(time, time + 1)
            self._append(self._step(deltas, time), time)
            self._time = time + 1
            self._progress("catch up", self._time, upper)

    def _step(self, deltas: Mapping[str, pa.Table], time: int) -> dict[str, pa.Table]:
        while self._cohort is not None and self._left:
            try:
                return self._cohort.step(deltas)
            except ViewFailed as error:
                self._leave(error, time)
                self._cohort.drop(error.views)
        return {}

    def _append(self, found: Mapping[str, pa.Table], time: int) -> None:
        if found:
            appends = [
                Append(self._shards[name].log, at_time(delta, time), time, time + 1) for name, delta in found.items()
            ]
            append_together(appends, self._runner.writer)

    def _leave(self, error: ViewFailed, time: int) -> None:
        told = ViewFailed(views=error.views, time=time, why=error.why)
        logger.warning("%s", told)
        for name in error.views:
            self._runner.observer.failed(Fault("view", name, error.error_code, time=time))
        away = Away("failed", time, error.why, self._runner.runtime.wall_s())
        self._away |= dict.fromkeys(error.views, away)
        self._left = [name for name in self._left if name not in error.views]

    def _join(self) -> None:
        """Between two transactions, with nothing missing: the views are members from now on."""
        runner = self._runner
        before = runner.definition.views
        views = dict(before)
        for name in self._left:
            views[name] = view_record(runner.machine.engine, name, self._shards[name].name)
        for name, away in self._away.items():
            known = before.get(name)
            views[name] = view_record(runner.machine.engine, name, known.shard if known else "", away)
        runner.change(views=views)
        if self._cohort is not None and self._left:
            runner.machine.cohorts.append(self._cohort)
            logger.info("the views %s are computed, and take part from transaction %d on", self._left, runner.time)
        self._progress("backfill", len(self._left), len(self._left))
        held = held_by_sinks(runner.meta, runner.runtime, runner.settings)  # they end it when they have done with it
        for name in self._left:
            if name in before and before[name].shard and before[name].shard not in held:
                runner.members.shard(before[name].shard).finalize(runner.writer)
        for name in self._away:
            if name in self._shards:
                self._shards[name].finalize(runner.writer)
