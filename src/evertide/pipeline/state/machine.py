"""The state of a pipeline between two transactions, and the step from one to the next.

1. The state consists of the tables' rows by key (`Tables`) and of the views' operators (cohorts). It is a function of
   the tables' shards; `time` is the first transaction that is not in it.
2. A step that a storage error interrupts can be repeated: no cohort applies a transaction twice. If it is unknown what
   was applied, the machine is `broken`, and must be restored.
3. A view that cannot be computed leaves its cohort, and the step continues without it (`failures`, J12). A cohort
   whose state is inconsistent or unreadable is discarded, and its views leave in the same way (X7).
4. State parts are verified when they are read. `damage` has the errors that any thread found, until the thread that
   owns the transactions has discarded the state that uses the damaged parts (`Runner.discard_damaged`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from evertide.errors import Damaged, StateDiverged, StateInconsistent, Unexpected, ViewFailed
from evertide.flow.circuit import make_name_source
from evertide.flow.state.arrangement import Arrangement, ArrangementManifest
from evertide.flow.state.row_groups import RowGroupCache
from evertide.flow.state.state_part import PartEntry
from evertide.pipeline.definition import find_tables_under
from evertide.pipeline.engine import Cohort, Engine, StateStore, drain
from evertide.pipeline.state.table_deltas import Tables
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.blob import Blob
from evertide.store.meta import seal
from evertide.store.retry import RetryingBlob
from evertide.threads.stopping import IsStopping, never_stopping
from evertide.types import Time

_CACHE_BYTES = 256 * 1024 * 1024


class CohortState(msgspec.Struct, frozen=True):
    views: dict[str, str]
    """The shard of each view: a view that was changed later has another one."""
    state: bytes


class MachineState(msgspec.Struct, frozen=True):
    """What a checkpoint stores besides the parts; sealed, so that another version is refused."""

    time: Time
    cohorts: tuple[CohortState, ...]
    tables: dict[str, ArrangementManifest]
    shards: dict[str, str]
    """The shard of each table."""


@dataclass(slots=True)
class Machine:
    """The state of all tables and cohorts, as of one time; `step` advances it."""

    engine: Engine
    store: StateStore
    tables: Tables
    cohorts: list[Cohort]
    time: Time
    failures: list[ViewFailed] = field(default_factory=list)
    """Of the last step."""
    broken: BaseException | None = None
    damage: list[Damaged] = field(default_factory=list)
    """Errors of state parts. Any thread may append."""
    _lost_parts: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    """By the views of a discarded cohort, the keys of its parts, for the evidence."""
    _results: dict[int, tuple[Cohort, dict[str, pa.Table]]] = field(default_factory=dict)
    """By identity, the cohorts that have applied the current step, and their results."""
    _failed: list[ViewFailed] = field(default_factory=list)
    """Of the current step: a view that has left its cohort does not fail again when the step is repeated."""

    def step(self, deltas: Mapping[str, pa.Table], errors: pa.Table | None, *, count: int = 1) -> dict[str, pa.Table]:
        """Apply `count` transactions (0: a portion that ends none): table deltas in, view deltas out."""
        if self.broken is not None:
            why = f"an earlier step did not finish: {self.broken}"
            raise Unexpected(where="Machine.step", why=why) from self.broken
        for cohort in self.cohorts:
            if id(cohort) not in self._results:
                self._results[id(cohort)] = (cohort, self._step_cohort(cohort, deltas))
        calls = self.tables.prepare(deltas, errors)  # if this fails, the step can be repeated
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
        self.time = Time(self.time + count)
        return found

    def add_late(
        self, cohort: Cohort, deltas: Mapping[str, pa.Table], time: int
    ) -> tuple[dict[str, pa.Table], list[ViewFailed]]:
        """Add a cohort that lacks `deltas` of transaction `time`; return the deltas of its views, and failures."""
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
            except (Damaged, StateInconsistent) as error:
                if isinstance(error, Damaged):
                    self.damage.append(error)
                if not self.is_computable(cohort.views):
                    self.broken = error
                    raise
                self._failed.append(self._discard_cohort(cohort, error.message))
            except ViewFailed as error:
                self._failed.append(ViewFailed(views=error.views, time=self.time, why=error.why))
                cohort.drop(error.views)
        return {}

    def views(self) -> set[str]:
        return {name for cohort in self.cohorts for name in cohort.views}

    def add(self, cohort: Cohort) -> None:
        self.cohorts.append(cohort)

    def replace_tables(self, tables: Tables) -> None:
        """Replace the state of the tables; the parts of the old state are abandoned."""
        before, self.tables = self.tables, tables
        self._lost_parts[()] = tuple(part.key for kept in before.list_arrangements() for part in kept.parts())
        released = [key for kept in before.list_arrangements() for key in drain(kept.released)]
        self.store.abandoned.extend([*self._lost_parts[()], *released])

    def mark_broken(self, error: BaseException) -> None:
        """A part of a transaction may be applied, so no further step is possible."""
        self.broken = error

    def drop_views(self, is_dropped: Callable[[str], bool]) -> None:
        for cohort in self.cohorts:
            cohort.drop([name for name in cohort.views if is_dropped(name)])
        self.cohorts = [cohort for cohort in self.cohorts if cohort.views]

    def is_computable(self, views: Iterable[str]) -> bool:
        """Whether all tables under the views are kept."""
        engine = self.engine
        tables = {table for view in views for table in find_tables_under(engine.views, view)}
        return all(engine.tables[name].is_kept for name in tables)

    def discard(self, view: str, why: str) -> StateDiverged | None:
        """Discard the whole cohort of a view, as its views share state; None if no cohort has the view."""
        for cohort in self.cohorts:
            if view in cohort.views:
                found = self._discard_cohort(cohort, why)
                self.cohorts = [one for one in self.cohorts if one is not cohort]
                return found
        return None

    def discard_damaged(self, error: Damaged) -> StateDiverged | None:
        """Discard the cohort that uses a damaged part; None if no cohort uses it."""
        cohort = next((one for one in self.cohorts if self._uses(one.parts(), error)), None)
        if cohort is None:
            return None
        if not self.is_computable(cohort.views):
            raise error
        return self.discard(next(iter(cohort.views)), error.message)

    def has_part(self, error: Damaged) -> bool:
        """Whether the part of this error is in use. Any thread may call this."""
        return any(self._uses(one.parts(), error) for one in self.arrangements())

    def has_damaged_table(self, error: Damaged) -> bool:
        return any(self._uses(kept.parts(), error) for kept in self.tables.list_arrangements())

    def _uses(self, parts: Iterable[PartEntry], error: Damaged) -> bool:
        return any(self.store.blob.path(part.key) == error.path for part in parts)

    def discard_together(self, views: tuple[str, ...], why: str) -> None:
        """Discard what is left of a cohort that had these views; its parts are the evidence for all of them."""
        lost = [self.discard(name, why) for name in views]
        self._lost_parts[views] = tuple(
            key for one in lost if one is not None for key in self.take_lost_parts(one.views)
        )

    def take_lost_parts(self, views: tuple[str, ...]) -> tuple[str, ...]:
        """The keys of the parts of the cohort that was discarded with these views."""
        return self._lost_parts.pop(views, ())

    def _discard_cohort(self, cohort: Cohort, why: str) -> StateDiverged:
        views = tuple(cohort.views)
        self._lost_parts[views] = self.store.abandon(cohort)
        cohort.drop(views)
        return StateDiverged(views=views, time=self.time, why=why)

    def save(self, shards: Mapping[str, str], tables: Mapping[str, str]) -> tuple[bytes, list[PartEntry]]:
        """Make the state durable. `shards` has the shard of each view, `tables` that of each table."""
        saved = [cohort.save() for cohort in self.cohorts]
        cohorts = tuple(
            CohortState({view: shards[view] for view in cohort.views}, state)
            for cohort, (state, _) in zip(self.cohorts, saved, strict=True)
        )
        manifests = self.tables.save()
        parts = [part for _, several in saved for part in several]
        parts += [part for manifest in manifests.values() for part in manifest.list_entries()]
        return seal(MachineState(self.time, cohorts, manifests, dict(tables))), parts

    def parts(self) -> list[PartEntry]:
        found = [part for cohort in self.cohorts for part in cohort.parts()]
        return found + [part for kept in self.tables.list_arrangements() for part in kept.parts()]

    def arrangements(self) -> list[Arrangement]:
        """All state. Any thread may call it at any time."""
        return [*self.tables.list_arrangements(), *(one for cohort in [*self.cohorts] for one in cohort.arrangements())]

    def drain_released(self) -> list[str]:
        found = [key for cohort in self.cohorts for key in cohort.drain_released()] + drain(self.store.abandoned)
        return found + [key for kept in self.tables.list_arrangements() for key in drain(kept.released)]

    def maintain(self, is_stopping: IsStopping = never_stopping) -> bool:
        done = [self.tables.maintain(is_stopping), *(cohort.maintain(is_stopping) for cohort in self.cohorts)]
        return any(done)


def make_state_store(blob: Blob, writer: str, runtime: Runtime, settings: Settings) -> StateStore:
    """Its blob calls are retried during a short outage, as a step may be half applied."""
    return StateStore(RetryingBlob(blob, runtime, settings), RowGroupCache(_CACHE_BYTES), make_name_source(writer))
