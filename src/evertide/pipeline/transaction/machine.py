"""The state of a pipeline between two transactions, and the step from one to the next.

State is what the tables hold by key (`Tables`) and what the views' operators keep (cohorts). It is a function of the
tables' shards; `time` is the first transaction that it does not hold. A step moves all of it on. If storage does not
answer in the middle of it, the same step may be made again: a cohort that has taken the transaction does not take it
twice. Where it cannot be told what was drain, the machine is `broken`, and has to be restored.

A view that a row makes fail leaves its cohort, and the step goes on without it (`failures`): one bad row must not stop
what does not depend on it (J12). A cohort whose state contradicts itself or cannot be read is discarded, and its views
leave in the same way (X7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from evertide.errors import Damaged, StateDiverged, Unexpected, ViewFailed
from evertide.flow.blame import find_culprit
from evertide.flow.circuit import new_names
from evertide.flow.state.arrangement import Arrangement
from evertide.flow.state.manifest import Manifest
from evertide.flow.state.row_groups import RowGroupCache
from evertide.pipeline.definition import tables_under
from evertide.pipeline.engine import Cohort, Engine, StatePart, StateStore, drain, parts_of
from evertide.pipeline.transaction.table_deltas import Tables
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.blob import Blob
from evertide.store.retry import RetryingBlob
from evertide.store.sealed import seal
from evertide.threads.stopping import IsStopping, never_stopping

__all__ = ["CohortState", "Machine", "MachineState", "state_store"]

_CACHE_BYTES = 256 * 1024 * 1024


class CohortState(msgspec.Struct, frozen=True):
    views: dict[str, str]
    """By name, the shards: a view that was changed since has another."""
    state: bytes


class MachineState(msgspec.Struct, frozen=True):
    """What a checkpoint keeps besides the parts: sealed, so that another version is refused by its number."""

    time: int
    cohorts: tuple[CohortState, ...]
    tables: dict[str, Manifest]
    shards: dict[str, str]
    """Of the tables, by name."""


@dataclass(slots=True)
class Machine:
    engine: Engine
    store: StateStore
    tables: Tables
    cohorts: list[Cohort]
    time: int
    failures: list[ViewFailed] = field(default_factory=list)
    """Of the last step."""
    broken: BaseException | None = None
    lost_parts: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    """By the views of a cohort that was discarded, the keys of its parts: for the evidence."""
    _results: dict[int, tuple[Cohort, dict[str, pa.Table]]] = field(default_factory=dict)
    """The cohorts that have taken the transaction under way, by identity, and what they gave."""
    _failed: list[ViewFailed] = field(default_factory=list)
    """Of the step under way: a view that has left its cohort does not fail once more if the step is made again."""

    def step(self, deltas: Mapping[str, pa.Table], errors: pa.Table | None, *, count: int = 1) -> dict[str, pa.Table]:
        """Take so many transactions at once, or a portion that ends none: deltas of tables in, deltas of views out."""
        if self.broken is not None:
            why = f"an earlier step did not finish: {self.broken}"
            raise Unexpected(where="Machine.step", why=why) from self.broken
        for cohort in self.cohorts:
            if id(cohort) not in self._results:
                self._results[id(cohort)] = (cohort, self._step_cohort(cohort, deltas))
        calls = self.tables.prepare(deltas, errors)  # if this fails, the step is made again
        try:
            for call in calls:
                call()
        except BaseException as error:
            self.broken = error
            raise
        found = {name: delta for _, given in self._results.values() for name, delta in given.items()}
        self._results = {}
        self.failures, self._failed = self._failed, []
        self.cohorts = [cohort for cohort in self.cohorts if cohort.views]
        self.time += count
        return found

    def add_late(
        self, cohort: Cohort, deltas: Mapping[str, pa.Table], time: int
    ) -> tuple[dict[str, pa.Table], list[ViewFailed]]:
        """Add a cohort that lacks a part of transaction `time`: what that comes to for its views, and what failed."""
        before, self._failed = self._failed, []
        try:
            found = self._step_cohort(cohort, deltas)
            failures = [type(one)(views=one.views, time=time, why=one.why) for one in self._failed]
        finally:
            self._failed = before
        if cohort.views:
            self.cohorts.append(cohort)
        return found, failures

    def _step_cohort(self, cohort: Cohort, deltas: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        while cohort.views:
            try:
                return cohort.step(deltas)
            except Damaged as error:  # a circuit that has taken a part of a transaction raises it, too
                if not self.is_computable(cohort.views):
                    self.broken = error
                    raise
                self._failed.append(self._discard_cohort(cohort, str(error)))
            except ViewFailed as error:
                row = find_culprit(cohort.fails, deltas)
                why = f"{error.why}; because of {row}" if row else error.why
                self._failed.append(ViewFailed(views=error.views, time=self.time, why=why))
                cohort.drop(error.views)
        return {}

    def views(self) -> set[str]:
        return {name for cohort in self.cohorts for name in cohort.views}

    def add(self, cohort: Cohort) -> None:
        self.cohorts.append(cohort)

    def replace_tables(self, tables: Tables) -> None:
        """Discard what the machine knows of its tables; the parts of that are abandoned."""
        before, self.tables = self.tables, tables
        self.lost_parts[()] = tuple(part.key for kept in before.kept() for part in kept.parts())
        self.store.abandoned.extend(self.lost_parts[()])

    def mark_broken(self, error: BaseException) -> None:
        """A part of a transaction may be taken: no further step is possible."""
        self.broken = error

    def drop_views(self, is_dropped: Callable[[str], bool]) -> None:
        for cohort in self.cohorts:
            cohort.drop([name for name in cohort.views if is_dropped(name)])
        self.cohorts = [cohort for cohort in self.cohorts if cohort.views]

    def is_computable(self, views: Iterable[str]) -> bool:
        """Whether the views can be computed from what is stored."""
        engine = self.engine
        tables = {table for view in views for table in tables_under(engine.views, view)}
        return all(engine.tables[name].is_kept for name in tables)

    def discard(self, view: str, why: str) -> StateDiverged | None:
        """Drop the cohort of a view as a whole, as its views share state; None if it is gone already."""
        for cohort in self.cohorts:
            if view in cohort.views:
                found = self._discard_cohort(cohort, why)
                self.cohorts = [one for one in self.cohorts if one is not cohort]
                return found
        return None

    def _discard_cohort(self, cohort: Cohort, why: str) -> StateDiverged:
        views, keys = tuple(cohort.views), [part.key for part in cohort.parts()]
        self.store.abandoned.extend([*keys, *cohort.released()])
        cohort.drop(views)
        self.lost_parts[views] = tuple(keys)
        return StateDiverged(views=views, time=self.time, why=why)

    def save(self, shards: Mapping[str, str], tables: Mapping[str, str]) -> tuple[bytes, list[StatePart]]:
        """Make all of it durable. `shards` are those of the views, `tables` those of the tables, by name."""
        saved = [cohort.save() for cohort in self.cohorts]
        cohorts = tuple(
            CohortState({view: shards[view] for view in cohort.views}, state)
            for cohort, (state, _) in zip(self.cohorts, saved, strict=True)
        )
        manifests = self.tables.save()
        parts = [part for _, several in saved for part in several] + parts_of(manifests.values())
        return seal(MachineState(self.time, cohorts, manifests, dict(tables))), parts

    def parts(self) -> list[StatePart]:
        found = [part for cohort in self.cohorts for part in cohort.parts()]
        found += [
            StatePart(entry.key, entry.bytes, entry.checksum) for kept in self.tables.kept() for entry in kept.parts()
        ]
        return found

    def arrangements(self) -> list[Arrangement]:
        """All state, for those who look: any thread may, at any time."""
        return [*self.tables.kept(), *(one for cohort in [*self.cohorts] for one in cohort.arrangements())]

    def released(self) -> list[str]:
        found = [key for cohort in self.cohorts for key in cohort.released()] + drain(self.store.abandoned)
        return found + [key for kept in self.tables.kept() for key in drain(kept.released)]

    def maintain(self, is_stopping: IsStopping = never_stopping) -> bool:
        done = [self.tables.maintain(is_stopping), *(cohort.maintain(is_stopping) for cohort in self.cohorts)]
        return any(done)


def state_store(blob: Blob, writer: str, runtime: Runtime, settings: Settings) -> StateStore:
    """Storage that is away for a moment is waited for, as a step may have been taken by half."""
    return StateStore(RetryingBlob(blob, runtime, settings), RowGroupCache(_CACHE_BYTES), new_names(writer))
