"""The stored definition of a pipeline: its tables and views, and the shard that holds each of them.

Location: Meta key `pipeline`, version 1, written in one commit with the generation whose members it names.

1. A collection's name is not its shard. A changed view gets a new shard, so that the old content stays readable until
   the new one replaces it.
2. `compare_definition` compares the definition with a script. A script may add tables, add nullable columns at the end
   of a table, remove tables (their content stays, and returns when they are declared again), and add, change or remove
   views. Any other difference would change the meaning of stored rows, and is refused. A new table must have a key
   whose values are equal if and only if their bytes are; a stored table keeps the key that it has.
3. When a source stops feeding a table, the table's record stores the source's position (`LastPosition`). The source
   continues from there when the table is declared again (`evertide.pipeline.input.source_positions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from evertide.errors import InvalidInput, RecordDamaged, StateDiverged, ViewFailed
from evertide.pipeline.column_changes import find_refused_columns
from evertide.pipeline.names import ERRORS, encode_path_name
from evertide.problem import ComponentState
from evertide.store.meta import Meta, Write, seal, unseal
from evertide.store.paths import PIPELINE
from evertide.types import Generation, SequenceNumber

if TYPE_CHECKING:  # an engine imports Spark, which readers of a definition do not need
    from evertide.pipeline.engine import DeclaredTable, DeclaredView, Engine


class LastPosition(msgspec.Struct, frozen=True):
    """The position of a source when it stopped feeding a table."""

    source: str
    connector: str
    """The connector's family (`evertide.sources.registry.family`), which alone can interpret the position."""
    position: str


class TableRecord(msgspec.Struct, frozen=True):
    """A table as stored."""

    schema: bytes
    key: tuple[str, ...]
    connector: str
    shard: str
    """Empty if the table is not kept."""
    is_declared: bool = True
    """False once the script no longer declares the table."""
    source: str | msgspec.UnsetType = msgspec.UNSET
    """The current or last source; an earlier version did not store it."""
    left: LastPosition | msgspec.UnsetType = msgspec.UNSET
    """Set once a source other than pushes has stopped feeding the table."""

    def read_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))


class AwayReason(msgspec.Struct, frozen=True):
    """Why a view is not a member: its state (`hydrating` or `failed`), the transaction, and the reason."""

    state: ComponentState
    time: int
    why: str
    since_s: float
    error_code: str | msgspec.UnsetType = msgspec.UNSET
    """The error code of a hydrating view's problem; not stored if there is none."""
    is_redefined: bool | msgspec.UnsetType = msgspec.UNSET
    """True if the stored content is that of another query than the declared one; not stored otherwise."""

    @classmethod
    def from_failure(cls, failure: ViewFailed, now_s: float) -> AwayReason:
        if isinstance(failure, StateDiverged):
            why = f"{failure.why}; Evertide recomputes the view from its tables"
            return cls(ComponentState.HYDRATING, failure.time, why, now_s, failure.error_code)
        return cls(ComponentState.FAILED, failure.time, failure.why, now_s)


class ViewRecord(msgspec.Struct, frozen=True):
    """A view as stored."""

    schema: bytes
    fingerprint: str
    reads: tuple[str, ...]
    shard: str
    """If the view is away, the shard of its last content, or empty."""
    away: AwayReason | None = None
    key: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Columns that identify a row; not stored if none are known."""
    query: str | msgspec.UnsetType = msgspec.UNSET
    """The digest of the query's text and of those that it reads; not stored by earlier versions and for Python."""

    def read_schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))


class Definition(msgspec.Struct, frozen=True):
    """The record of a pipeline's tables and views; only a new generation replaces it."""

    generation: Generation
    tables: dict[str, TableRecord]
    views: dict[str, ViewRecord]
    sources: tuple[str, ...]
    fingerprint: str
    change: str
    """A unique id, by which a writer recognizes its own commit after an unknown outcome."""
    errors: str = ERRORS
    plain_views: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Views that are not materialized, so that readers can name them; not stored if there are none, and by earlier
    versions."""

    def live_views(self) -> dict[str, ViewRecord]:
        """The views that are members."""
        return {name: view for name, view in self.views.items() if view.away is None}

    def list_away(self, state: ComponentState) -> list[str]:
        return [name for name, view in self.views.items() if view.away is not None and view.away.state == state]

    def find_diverged(self) -> dict[str, AwayReason]:
        """The views whose state diverged, and is recomputed."""
        away = {name: view.away for name, view in self.views.items() if view.away is not None}
        return {name: one for name, one in away.items() if one.error_code == StateDiverged.error_code}

    def list_members(self) -> tuple[str, ...]:
        tables = (table.shard for table in self.tables.values() if table.is_declared and table.shard)
        return (*tables, *(view.shard for view in self.live_views().values()), self.errors)


class _TableChange(Enum):
    NONE = "none"
    NEW = "new"
    WIDENED = "widened"
    REDECLARED = "redeclared"


@dataclass(frozen=True, slots=True)
class Evolution:
    """The differences between a script and the stored definition."""

    tables_new: tuple[str, ...] = ()
    tables_widened: tuple[str, ...] = ()
    tables_redeclared: tuple[str, ...] = ()
    tables_removed: tuple[str, ...] = ()
    views_new: tuple[str, ...] = ()
    """New or changed: to be hydrated."""
    views_removed: tuple[str, ...] = ()
    """No longer declared, or changed."""
    views_keyed: tuple[str, ...] = ()
    """Only the key changed: nothing has to be computed."""

    def is_empty(self) -> bool:
        return self == Evolution()


def list_spellings(known: Definition | None) -> dict[str, str]:
    """The stored spelling of collections, by their names in lower case; of two spellings, the declared one."""
    if known is None:
        return {}
    gone = [name for name, table in known.tables.items() if not table.is_declared]
    declared = [name for name, table in known.tables.items() if table.is_declared]
    return {name.lower(): name for name in (*gone, *declared, *known.views)}


def find_tables_under(views: Mapping[str, DeclaredView] | Mapping[str, ViewRecord], view: str) -> set[str]:
    """The tables that a view reads, directly or through other views."""
    found: set[str] = set()
    for name in views[view].reads:
        found |= find_tables_under(views, name) if name in views else {name}
    return found


def read_definition(meta: Meta) -> tuple[SequenceNumber, Definition | None]:
    """The number of the record, and the definition."""
    record = meta.head(PIPELINE)
    if record is None:
        return SequenceNumber(0), None
    return record.seqno, unseal(record.data, Definition, meta.path(PIPELINE))


def make_missing_error(meta: Meta) -> RecordDamaged:
    return RecordDamaged(
        path=meta.path(PIPELINE), why="the pipeline's definition is missing, although the storage has transactions"
    )


def make_definition_write(number: SequenceNumber, definition: Definition) -> Write:
    return Write(PIPELINE, number, seal(definition))


def compare_definition(known: Definition | None, engine: Engine) -> Evolution:
    stored = {} if known is None else known.tables
    changes = {name: _compare_table(stored.get(name), table) for name, table in engine.tables.items()}
    if known is None:
        return Evolution(tables_new=tuple(engine.tables), views_new=tuple(engine.views))
    declared = {name for name, table in known.tables.items() if table.is_declared}
    prints = {name: view.fingerprint for name, view in known.views.items()}
    views_new = tuple(name for name, view in engine.views.items() if prints.get(name) != view.fingerprint)
    return Evolution(
        tables_new=_select(changes, _TableChange.NEW),
        tables_widened=_select(changes, _TableChange.WIDENED),
        tables_redeclared=_select(changes, _TableChange.REDECLARED),
        tables_removed=tuple(sorted(declared - set(engine.tables))),
        views_new=views_new,
        views_removed=tuple(name for name in known.views if name not in engine.views or name in views_new),
        views_keyed=tuple(
            name
            for name, view in engine.views.items()
            if name not in views_new and known.views[name].key != to_stored_key(view)
        ),
    )


def to_stored_names(names: Iterable[str]) -> tuple[str, ...] | msgspec.UnsetType:
    return tuple(sorted(names)) or msgspec.UNSET


def is_redefined(view: ViewRecord) -> bool:
    """Whether the stored content of a view is that of another query than the declared one."""
    return view.away is not None and view.away.is_redefined is True


def is_redefined_view(definition: Definition, collection: str) -> bool:
    """Whether a collection is such a view."""
    return collection in definition.views and is_redefined(definition.views[collection])


def is_same_query(known: ViewRecord, view: DeclaredView) -> bool:
    """Whether the stored content of a view is that of the declared query."""
    return bool(view.query_digest) and known.query == view.query_digest and not is_redefined(known)


def mark_redefined(away: AwayReason, known: ViewRecord | None) -> AwayReason:
    """`away` for a view whose stored content is that of another query, if that of `known` is."""
    is_other = known is not None and is_redefined(known)
    return msgspec.structs.replace(away, is_redefined=True) if is_other else away


def to_stored_key(view: DeclaredView) -> tuple[str, ...] | msgspec.UnsetType:
    return view.key or msgspec.UNSET


def _select(changes: Mapping[str, _TableChange], kind: _TableChange) -> tuple[str, ...]:
    return tuple(name for name, change in changes.items() if change is kind)


def _compare_table(known: TableRecord | None, table: DeclaredTable) -> _TableChange:
    where = f"{table.where}, table {table.name!r}" if table.where else f"table {table.name!r}"
    if known is None:
        if table.refused_key:
            raise InvalidInput(where=where, why=table.refused_key)
        return _TableChange.NEW
    if known.key != table.key:
        why = f"the key was {_list(known.key)} and is now {_list(table.key)}; the key of a stored table cannot change"
        raise InvalidInput(where=where, why=f"{why}. Declare a table with another name")
    if bool(known.shard) != table.is_kept:
        why = "evertide.keep cannot change, as rows that were not kept are gone. Declare a table with another name"
        raise InvalidInput(where=where, why=why)
    before = known.read_schema()
    if refused := find_refused_columns(before, table.schema):
        why = f"{'; '.join(refused)}. The stored rows have the old columns. Restore these, or declare a new table"
        raise InvalidInput(where=where, why=why)
    if len(table.schema) > len(before):
        return _TableChange.WIDENED
    return _TableChange.NONE if known.is_declared else _TableChange.REDECLARED


def _list(names: Iterable[str]) -> str:
    return f"({', '.join(names)})"


def make_shard_name(collection: str, token: str) -> str:
    """A new shard's name, unique by its token, so that the shard of an interrupted try is never reused."""
    return f"{encode_path_name(collection)}.{token[:8]}"
