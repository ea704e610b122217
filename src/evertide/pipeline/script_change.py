"""What opening a storage with a script changes, for people to read before it happens.

1. `describe_change` compares the stored definition with the declarations of a script, and changes nothing. It raises
   what opening would raise.
2. The rows that a view is computed from are those of the tables under it, as their shards count them: changes that
   compaction has not merged yet count, so the number may be too high.
3. `find_reasons_to_ask` names the changes that a person should confirm: a table that the script no longer declares,
   and the recomputation of stored views from many rows. A new view is what the person asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from evertide.checkpoint.context import CollectionKind
from evertide.errors import Damaged
from evertide.pipeline.column_changes import describe_column
from evertide.pipeline.definition import (
    Definition,
    compare_definition,
    find_tables_under,
    is_same_query,
    list_spellings,
    make_missing_error,
    read_definition,
)
from evertide.pipeline.engine import DeclaredTable, Engine
from evertide.pipeline.replicas.liveness import watch_for_hang
from evertide.pipeline.state.hydration import check_computable
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.shard import Shards
from evertide.store.open import Storage
from evertide.store.paths import COMMITTED
from evertide.store.retry import retry_read

logger = logging.getLogger(__name__)

CountRows = Callable[[str], int]
Approve = Callable[["ScriptChange"], None]
"""Raises an error to refuse a change before the storage is changed."""


class Effect(StrEnum):
    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"


_SIGNS = {Effect.ADDED: "+", Effect.CHANGED: "~", Effect.REMOVED: "-"}


@dataclass(frozen=True, slots=True)
class CollectionChange:
    kind: CollectionKind
    name: str
    effect: Effect
    what: str
    rows: int | None = None
    """For a view that is computed: about how many rows it is computed from."""


@dataclass(frozen=True, slots=True)
class ScriptChange:
    is_new: bool
    """The storage has no pipeline yet."""
    changes: tuple[CollectionChange, ...]

    def __str__(self) -> str:
        return "\n".join(self.format_lines()) or "no changes"

    def is_empty(self) -> bool:
        return not self.changes

    def announce(self, approve: Approve | None) -> None:
        """Log each change of an existing pipeline, and call `approve`."""
        for line in [] if self.is_new else self.format_lines():
            logger.info("script change: %s", line)
        if approve is not None:
            approve(self)

    def list_undeclared_tables(self) -> list[str]:
        return self._list_names(CollectionKind.TABLE, Effect.REMOVED)

    def _list_names(self, kind: CollectionKind, effect: Effect) -> list[str]:
        return [one.name for one in self.changes if one.kind is kind and one.effect is effect]

    def count_recomputed_rows(self) -> int:
        """About how many rows the stored views that change are computed from, in total."""
        return sum(one.rows or 0 for one in self.changes if one.effect is Effect.CHANGED)

    def find_reasons_to_ask(self, rows_max: int) -> list[str]:
        """The changes that a person should confirm first; empty if there are none."""
        reasons = []
        if tables := self.list_undeclared_tables():
            reasons.append(f"the script no longer declares {_count(tables, 'table')}: {', '.join(tables)}")
        if (rows := self.count_recomputed_rows()) > rows_max:
            views = self._list_names(CollectionKind.VIEW, Effect.CHANGED)
            reasons.append(f"{_count(views, 'stored view')} will be recomputed from about {rows:,} rows")
        return reasons

    def format_lines(self) -> list[str]:
        """A line for each change, as in a diff."""
        width = max((len(one.name) for one in self.changes), default=0)
        return [f"{_SIGNS[one.effect]} {one.kind:<5}  {one.name:<{width}}  {one.what}" for one in self.changes]


def describe_change(known: Definition | None, engine: Engine, count_rows: CountRows) -> ScriptChange:
    """Compare the storage's definition with the script of an engine that has adopted the storage's spelling."""
    evolution = compare_definition(known, engine)
    under = {name: find_tables_under(engine.views, name) for name in evolution.views_new}
    stored = known.tables if known is not None else {}
    counts = {name: count_rows(name) for name in set[str]().union(*under.values()) if name in stored}
    changes = [*_describe_tables(known, engine, evolution.tables_removed)]
    for name in evolution.views_new:
        rows = sum(counts.get(table, 0) for table in under[name])
        before = known.views.get(name) if known is not None else None
        if before is None:
            what = f"new: computed from {_format_rows(rows)}" if rows else "new"
        elif is_same_query(before, engine.views[name]):
            what = f"recomputed with the same query from {_format_rows(rows)}; reads return its present rows until then"
        else:
            what = f"changed: recomputed from {_format_rows(rows)}; until then, only earlier times can be read"
        effect = Effect.CHANGED if before else Effect.ADDED
        changes.append(CollectionChange(CollectionKind.VIEW, name, effect, what, rows))
    for name in evolution.views_keyed:
        what = f"its key is now {_list(engine.views[name].key)}; nothing is recomputed"
        changes.append(CollectionChange(CollectionKind.VIEW, name, Effect.CHANGED, what))
    changes += [
        CollectionChange(CollectionKind.VIEW, name, Effect.REMOVED, "no longer declared: its content is deleted")
        for name in evolution.views_removed
        if name not in engine.views
    ]
    return ScriptChange(known is None, tuple(changes))


def read_script_change(storage: Storage, engine: Engine, runtime: Runtime, settings: Settings) -> ScriptChange:
    """Compare a storage with an engine's script. No row is read, and nothing is written."""
    with watch_for_hang("comparing the script with the storage", runtime, settings):
        return _read_change(storage, engine, runtime, settings)


def _read_change(storage: Storage, engine: Engine, runtime: Runtime, settings: Settings) -> ScriptChange:
    _, known = retry_read(lambda: read_definition(storage.meta), runtime, settings)
    is_started = retry_read(lambda: storage.meta.head(COMMITTED), runtime, settings) is not None
    if known is None and is_started:
        raise make_missing_error(storage.meta)
    engine.spell(list_spellings(known))
    shards = Shards(storage.blob, storage.meta, runtime=runtime, settings=settings, reader="script-change")

    def count_rows(table: str) -> int:
        shard = known.tables[table].shard if known is not None else ""
        try:
            return sum(batch.rows for batch in shards.open(shard).log.read().state.batches) if shard else 0
        except Damaged:  # the record is damaged or missing: opening the pipeline reports it
            return 0

    if is_started:
        check_computable(engine, compare_definition(known, engine).views_new)
    return describe_change(known, engine, count_rows)


def _describe_tables(known: Definition | None, engine: Engine, gone: Iterable[str]) -> Iterator[CollectionChange]:
    for name, table in engine.tables.items():
        stored = known.tables.get(name) if known is not None else None
        if stored is None:
            yield CollectionChange(CollectionKind.TABLE, name, Effect.ADDED, _describe_new(table))
            continue
        what = []
        if not stored.is_declared:
            what.append("declared again: its stored rows return")
        if new := [*table.schema][len(stored.read_schema()) :]:
            what.append(f"new columns, NULL in stored rows: {', '.join(map(describe_column, new))}")
        if stored.connector != table.connector:
            what.append(f"fed by {table.connector or 'pushes'}; before, by {stored.connector or 'pushes'}")
        if what:
            effect = Effect.CHANGED if stored.is_declared else Effect.ADDED
            yield CollectionChange(CollectionKind.TABLE, name, effect, "; ".join(what))
    for name in gone:
        why = "no longer declared: its rows stay, and return when it is declared again"
        yield CollectionChange(CollectionKind.TABLE, name, Effect.REMOVED, why)


def _describe_new(table: DeclaredTable) -> str:
    return f"new, fed by {table.connector or 'pushes'}"


def _format_rows(rows: int) -> str:
    return f"about {rows:,} rows" if rows else "empty tables"


def _count(names: list[str], noun: str) -> str:
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'}"


def _list(names: Iterable[str]) -> str:
    return f"({', '.join(names)})"
