"""`SmallEngine`: an engine without Spark whose views are Python functions, for tests of the code around an engine.

A view is a function of its tables' rows, recomputed at every step. Its state is an arrangement of each table that it
reads, on the pipeline's storage. So tests of crashes, checkpoints and garbage collection use real state, at a
thousandth of the cost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa

from evertide.errors import SparkAway
from evertide.flow.blame import FailedSteps, SuspectedFailure, retry_step
from evertide.flow.state.arrangement import Arrangement, ArrangementManifest
from evertide.flow.state.spine import ArrangementSettings
from evertide.flow.state.state_part import PartEntry
from evertide.pipeline.engine import DeclaredTable, DeclaredView, StateStore, drain
from evertide.plan.program.properties import SinkProperties
from evertide.rows.changes import DIFF, consolidate_delta, expand
from evertide.rows.python_rows import to_python_rows
from evertide.threads.stopping import IsStopping, never_stopping

Row = dict[str, Any]
_SMALL = ArrangementSettings(memory_rows_max=4, inline_rows_max=2, row_group_rows=2, merge_fan_in=2)
"""So small that the first rows already cause parts and merges."""


@dataclass(frozen=True)
class SmallView:
    name: str
    schema: pa.Schema
    reads: tuple[str, ...]
    function: Callable[[Mapping[str, list[Row]]], Sequence[Row]]
    """Takes the rows of the tables in `reads`. The view fails if it raises."""
    version: int = 1
    sinks: tuple[SinkProperties, ...] = ()
    key: tuple[str, ...] = ()
    query: str = ""
    """Stands for the digest of the query's text."""

    def fingerprint(self, tables: Mapping[str, DeclaredTable]) -> str:
        """Includes the tables that the view reads, as for real views."""
        read = [(name, str(tables[name].schema), tables[name].key) for name in self.reads]
        return hashlib.blake2b(f"{self.name} {self.version} {self.schema} {read}".encode(), digest_size=8).hexdigest()


class SmallCohort:
    def __init__(self, views: Sequence[SmallView], tables: Mapping[str, DeclaredTable], store: StateStore) -> None:
        self._views = {view.name: view for view in views}
        self._tables = tables
        self._store = store
        self._kept: dict[str, Arrangement] = {}
        self.is_first = True

    def take(self, saved: Mapping[str, ArrangementManifest] | None, *, is_first: bool) -> None:
        store = self._store
        parts: dict[str, Any] = {
            "blob": store.blob,
            "cache": store.cache,
            "new_name": store.new_name,
            "settings": _SMALL,
        }
        self.is_first = is_first
        for table in sorted({table for view in self._views.values() for table in view.reads}):
            name = f"small.{'-'.join(sorted(self._views))}.{table}"
            found = None if saved is None else next(one for one in saved.values() if one.name.endswith(f".{table}"))
            schema = self._tables[table].schema
            if found is None:
                self._kept[table] = Arrangement(name, schema, tuple(schema.names[:1]), **parts)
            else:
                self._kept[table] = Arrangement.restore(found, **parts)

    @property
    def views(self) -> Mapping[str, pa.Schema]:
        return {name: view.schema for name, view in self._views.items()}

    def step(self, deltas: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        try:
            found = self._compute(deltas)
        except SuspectedFailure as error:
            found = retry_step(error, self._compute, frozenset, deltas, FailedSteps())
        for table, kept in self._kept.items():
            if table in deltas:
                kept.apply(deltas[table])
        self.is_first = False
        return found

    def _compute(self, deltas: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        before = {table: kept.scan() for table, kept in self._kept.items()}
        after = {
            table: consolidate_delta(pa.concat_tables([rows, deltas[table]]), table) if table in deltas else rows
            for table, rows in before.items()
        }
        found = {}
        for view in self._views.values():
            old = [] if self.is_first else self._rows(view, before)
            new = self._rows(view, after)
            found[view.name] = consolidate_delta(
                pa.concat_tables([_delta(view, old, -1), _delta(view, new, 1)]), view.name
            )
        return found

    def _rows(self, view: SmallView, content: Mapping[str, pa.Table]) -> Sequence[Row]:
        try:
            return view.function({table: to_python_rows(expand(content[table])) for table in view.reads})
        except ArithmeticError as error:
            why = f"{type(error).__name__}: {error}"
            away = SparkAway(path="no Spark", why=why)
            raise SuspectedFailure((view.name,), why, away, is_certain=True) from error

    def drop(self, views: Collection[str]) -> None:
        self._views = {name: view for name, view in self._views.items() if name not in views}

    def save(self) -> tuple[bytes, list[PartEntry]]:
        manifests = {table: kept.save() for table, kept in self._kept.items()}
        return msgspec.msgpack.encode((self.is_first, manifests)), [
            part for one in manifests.values() for part in one.list_entries()
        ]

    def parts(self) -> list[PartEntry]:
        return [part for kept in self._kept.values() for part in kept.parts()]

    def arrangements(self) -> list[Arrangement]:
        return [*self._kept.values()]

    def drain_released(self) -> list[str]:
        return [key for kept in self._kept.values() for key in drain(kept.released)]

    def maintain(self, is_stopping: IsStopping = never_stopping) -> bool:
        done = [kept.maintain(is_stopping) for kept in self._kept.values()]
        return any(done)


@dataclass
class SmallEngine:
    declared: Sequence[DeclaredTable]
    small_views: Sequence[SmallView]
    fingerprint: str = "small"
    plain_views: tuple[str, ...] = ()
    is_closed: bool = field(default=False)

    @property
    def tables(self) -> Mapping[str, DeclaredTable]:
        return {table.name: table for table in self.declared}

    @property
    def views(self) -> Mapping[str, DeclaredView]:
        return {
            view.name: DeclaredView(
                view.name,
                view.schema,
                view.fingerprint(self.tables),
                view.reads,
                view.sinks,
                view.key,
                query_digest=view.query,
            )
            for view in self.small_views
        }

    def spell(self, names: Mapping[str, str]) -> None:
        def spelled(name: str) -> str:
            return names.get(name.lower(), name)

        self.declared = [replace(table, name=spelled(table.name)) for table in self.declared]
        self.small_views = [_spell(view, spelled) for view in self.small_views]

    def cohort(self, views: Collection[str], store: StateStore, state: bytes | None) -> SmallCohort:
        made = SmallCohort([view for view in self.small_views if view.name in views], self.tables, store)
        if state is None:
            made.take(None, is_first=True)
        else:
            is_first, manifests = msgspec.msgpack.decode(state, type=tuple[bool, dict[str, ArrangementManifest]])
            made.take(manifests, is_first=is_first)
        return made

    def share_cores(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        self.is_closed = True


def _spell(view: SmallView, spelled: Callable[[str], str]) -> SmallView:
    """Rename the view and its tables; its function still reads the tables by the old names."""

    def function(tables: Mapping[str, list[Row]]) -> Sequence[Row]:
        return view.function({name: tables[spelled(name)] for name in view.reads})

    reads = tuple(map(spelled, view.reads))
    return replace(view, name=spelled(view.name), reads=reads, function=function)


def _delta(view: SmallView, rows: Sequence[Row], sign: int) -> pa.Table:
    field_ = pa.field(DIFF, pa.int64(), nullable=False)
    return pa.Table.from_pylist([{**row, DIFF: sign} for row in rows], pa.schema([*view.schema, field_]))
