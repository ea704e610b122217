"""Views from scratch: the state and the content of views, computed from what the tables' shards hold.

For a view that is new or was changed, for one that failed and is tried again, and for state that no checkpoint has. The
tables' content goes in as one transaction; what comes out is the views' content at that time.

A *backfill* does so while the pipeline goes on: it computes the views as of one time, catches up with the transactions
since, from the tables' shards, and makes the views members between two transactions, when nothing is missing any more.
Until then they are away (`ViewRecord.away`); a hold keeps what it still has to read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from evertide.errors import Diverged, InvalidInput, ViewFailed
from evertide.journal.records import Content
from evertide.observer import Fault
from evertide.pipeline.definition import Away, ViewRecord, shard_name, stored_key, tables_under
from evertide.pipeline.engine import Cohort, DeclaredTable, Engine, StateStore
from evertide.pipeline.members import Members, at_time
from evertide.pipeline.runner import Runner
from evertide.pipeline.sink_record import held_by_sinks
from evertide.pipeline.tables import Tables
from evertide.shard.append import Append, append_together
from evertide.shard.changes import DIFF
from evertide.shard.digest import digest, to_hex
from evertide.shard.shard import Shard

__all__ = [
    "Backfill",
    "check_computable",
    "check_content",
    "hydrated_cohort",
    "hydrated_tables",
    "view_record",
]

logger = logging.getLogger(__name__)

_FEW = 2
"""Transactions that may be left to catch up with while the pipeline waits."""


def hydrated_cohort(
    engine: Engine, store: StateStore, members: Members, views: Collection[str], time: int
) -> tuple[Cohort, dict[str, pa.Table]]:
    """The views as after all transactions below a time, and what they hold. `ViewFailed` if one cannot be computed."""
    cohort = engine.cohort(views, store, None)
    if time == 0:
        return cohort, {}
    tables = sorted({table for view in views for table in tables_under(engine.views, view)})
    _check_kept(engine, tables, views)
    return cohort, cohort.step({name: members.table_content(name, time) for name in tables})


def hydrated_tables(declared: Mapping[str, DeclaredTable], store: StateStore, members: Members, time: int) -> Tables:
    tables = Tables(declared, store)
    if time:
        content = {name: members.table_content(name, time) for name, table in declared.items() if table.key}
        with members.shard(members.definition.errors).snapshot(time - 1) as letters:
            tables.settle(content, letters.to_arrow())
    return tables


def check_content(members: Members, content: Mapping[str, pa.Table], time: int) -> None:
    """Whether views that were computed from scratch hold what their shards say (I8)."""
    for name, rows in content.items():
        with members.collection(name).snapshot(time - 1) as stored:
            expected = _told(stored.to_arrow())
        found = _told(rows)
        if found != expected:
            raise Diverged(where=f"view {name!r}", time=time - 1, expected=expected, found=found)


def _told(rows: pa.Table) -> str:
    diffs = rows.column(DIFF).to_numpy()
    content = Content(rows.num_rows, to_hex(digest(rows.drop_columns([DIFF]), diffs)))
    return f"{content.rows} rows with digest {content.digest}"


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

    def run(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Until the views are members, or away for a reason."""
        with self._turn:
            self._time = self._runner.time
            members = self._runner.members
            held = self._held(members)
        try:
            self._progress("backfill", 0, len(self._left))
            self._compute(members)
            while self._runner.time - self._time > _FEW and not is_stopping():
                self._catch_up(self._runner.time)
            with self._turn:
                if not is_stopping():
                    self._catch_up(self._runner.time)
                    self._join()
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

    def _compute(self, members: Members) -> None:
        machine = self._runner.machine
        content: dict[str, pa.Table] = {}
        while self._left and self._cohort is None:
            try:
                self._cohort, content = hydrated_cohort(machine.engine, machine.store, members, self._left, self._time)
            except ViewFailed as error:
                self._leave(error, self._time - 1)
        for name in self._left:
            schema = machine.engine.views[name].schema
            shard = shard_name(name, self._runner.runtime.new_id())
            self._shards[name] = members.create(shard, schema, content.get(name), self._time, self._runner.writer)

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


def view_record(engine: Engine, name: str, shard: str, away: Away | None = None) -> ViewRecord:
    view = engine.views[name]
    return ViewRecord(view.schema.serialize().to_pybytes(), view.fingerprint, view.reads, shard, away, stored_key(view))


def check_computable(engine: Engine, views: Collection[str]) -> None:
    """Refuse views that cannot be computed from what is stored."""
    _check_kept(engine, sorted({table for view in views for table in tables_under(engine.views, view)}), views)


def _check_kept(engine: Engine, tables: Collection[str], views: Collection[str]) -> None:
    unkept = [name for name in tables if not engine.tables[name].is_kept]
    if unkept:
        why = f"the tables {unkept} are not kept, so that what they held before cannot be read"
        raise InvalidInput(where=f"views {sorted(views)}", why=f"{why}: add views over them only to a new storage")
