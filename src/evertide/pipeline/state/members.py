"""Opens, reads and creates the shards of a pipeline's collections."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

import numpy as np
import pyarrow as pa

from evertide.errors import InvalidInput, LeaseLost, NotAllowedNow, Unavailable
from evertide.pipeline.definition import Definition, TableRecord, ViewRecord
from evertide.pipeline.names import ERRORS
from evertide.rows.changes import DIFF, TIME, consolidate_delta
from evertide.rows.digest import carry_hashes
from evertide.shard.parts.content_slices import read_content_slices
from evertide.shard.read import Snapshot
from evertide.shard.shard import Shard, Shards
from evertide.shard.state import ShardState
from evertide.store.writers import Writer
from evertide.suggestions import list_names

_T = TypeVar("_T")
_TIME_FIELD = pa.field(TIME, pa.int64(), nullable=False)


def add_time(delta: pa.Table, time: int) -> pa.Table:
    times = pa.array(np.full(delta.num_rows, time, np.int64))
    return carry_hashes(delta, delta.add_column(delta.num_columns - 1, _TIME_FIELD, times))


class Members:
    """The shards of one definition, each opened once."""

    def __init__(self, shards: Shards, definition: Definition) -> None:
        self.shards = shards
        self.definition = definition
        self._open: dict[str, Shard] = {}

    def move_to(self, definition: Definition) -> Members:
        """The members of another generation, with the shards that are already open.

        Shards that it does not have are forgotten, as a view gets a new shard each time it recovers. A sink that needs
        an old shard opens it again. Other threads use the open shards meanwhile.
        """
        members = Members(self.shards, definition)
        members._open = self._open
        for name in set(self._open).difference(members.collections.values()):
            self._open.pop(name, None)
        return members

    def shard(self, name: str) -> Shard:
        found = self._open.get(name)
        if found is None:
            found = self._open[name] = self.shards.open(name)
        return found

    def peek(self, name: str) -> ShardState | None:
        """The last known state of a shard, without a storage call; None if it was never read."""
        opened = self._open.get(name)
        version = opened.log.get_cached() if opened is not None else None
        return None if version is None else version.state

    def end(self, name: str, writer: Writer) -> None:
        self.shard(name).finalize(writer)
        self._open.pop(name, None)

    def open_all(self) -> dict[str, Shard]:
        """The member shards, by the name of the shard."""
        return {name: self.shard(name) for name in self.definition.list_members()}

    @cached_property
    def collections(self) -> dict[str, str]:
        """The shards of tables, views and dead letters, by collection; those without a shard are left out."""
        definition = self.definition
        tables = {name: table.shard for name, table in definition.tables.items() if table.shard}
        views = {name: view.shard for name, view in definition.views.items() if view.shard}
        return {**tables, **views, ERRORS: definition.errors}

    def group_by_collection(self, shards: Mapping[str, _T]) -> dict[str, _T]:
        return {name: shards[shard] for name, shard in self.collections.items() if shard in shards}

    def explain_plain(self, name: str) -> str:
        """Why a view that is not materialized cannot be read; empty for any other name."""
        if name.lower() not in {each.lower() for each in self.definition.plain_views or ()}:
            return ""
        return "the view is not materialized, so its rows are not stored; declare it with CREATE MATERIALIZED VIEW"

    def find_record(self, collection: str) -> TableRecord | ViewRecord:
        """The record of a table or view; upper and lower case are not distinguished."""
        known: dict[str, TableRecord | ViewRecord] = {**self.definition.tables, **self.definition.views}
        spelled = {name.lower(): name for name in known}
        found = spelled.get(collection.lower())
        if found is None:
            if why := self.explain_plain(collection):
                raise InvalidInput(where=f"view {collection!r}", why=why)
            names = sorted([*known, ERRORS])
            why = f"the pipeline has no such collection{list_names(collection, names, 'it has')}"
            raise InvalidInput(where=f"collection {collection!r}", why=why)
        return known[found]

    def open_collection(self, name: str) -> Shard:
        if name.lower() == ERRORS:
            return self.shard(self.definition.errors)
        record = self.find_record(name)
        if not record.shard and isinstance(record, ViewRecord):
            why = f"the view is {record.away.state} and has no content yet: {record.away.why}" if record.away else ""
            raise NotAllowedNow(where=f"view {name!r}", why=why or "the view has no content yet")
        if not record.shard:
            why = "the table is not kept (evertide.keep = 'none'); read a view over it instead"
            raise InvalidInput(where=f"table {name!r}", why=why)
        return self.shard(record.shard)

    def read_table(self, table: str, upper: int) -> pa.Table:
        """The rows of a kept table, with their counts, before time `upper`."""
        return self.read_content(self.open_collection(table), upper)

    def count_table_rows(self, table: str) -> int:
        """The number of rows that the shard stores: an upper bound for the table."""
        return sum(part.rows for part in self.open_collection(table).log.read().state.parts)

    def read_table_portions(self, table: str, upper: int) -> Generator[pa.Table, None, None]:
        """The same as `read_table`, in portions."""
        return self.read_portions(self.open_collection(table), upper)

    def read_portions(self, shard: Shard, upper: int) -> Generator[pa.Table, None, None]:
        settings = self.shards.settings
        if upper:
            with open_snapshot(shard, upper - 1) as snapshot:
                yield from read_content_slices(snapshot, settings.portion_rows_max, settings.portion_bytes_max)

    def read_content(self, shard: Shard, upper: int) -> pa.Table:
        if upper == 0:
            return pa.schema([*shard.schema, pa.field(DIFF, pa.int64(), nullable=False)]).empty_table()
        with open_snapshot(shard, upper - 1) as snapshot:
            return snapshot.to_arrow()

    def read_table_changes(self, time: int, upper: int, only: Collection[str] | None = None) -> dict[str, pa.Table]:
        """The deltas of the kept tables, or of those in `only`, over the transactions [time, upper)."""
        deltas = {}
        for name, table in self.definition.tables.items():
            if table.shard and table.is_declared and (only is None or name in only):
                delta = _read_changes(self.shard(table.shard), time, upper)
                if delta.num_rows:
                    deltas[name] = delta
        return deltas

    def read_dead_letter_changes(self, time: int, upper: int) -> pa.Table:
        return _read_changes(self.shard(self.definition.errors), time, upper)

    def is_changed_since(self, table: str, time: int) -> bool:
        """Whether a kept table may have changed after `time`; merged changes count with their latest time."""
        return any(part.rows and part.time_max > time for part in self.open_collection(table).log.read().state.parts)

    def create(self, name: str, schema: pa.Schema, writer: Writer) -> Shard:
        created = self._open[name] = self.shards.create(name, schema, writer)
        return created


def _read_changes(shard: Shard, lower: int, upper: int) -> pa.Table:
    """The changes without times, consolidated; those of a single transaction already are."""
    with _retrying_lost_leases(shard):
        changes = shard.changes(lower, upper).drop_columns([TIME])
    return changes if upper == lower + 1 else consolidate_delta(changes, shard.name)


@contextmanager
def open_snapshot(shard: Shard, as_of: int) -> Iterator[Snapshot]:
    """The content of a shard, for a step of the pipeline, which is retried if the lease is lost."""
    with _retrying_lost_leases(shard), shard.snapshot(as_of) as snapshot:
        yield snapshot


@contextmanager
def _retrying_lost_leases(shard: Shard) -> Iterator[None]:
    """Raise `Unavailable` if a lease is lost in the block: the step reads again with a new lease."""
    try:
        yield
    except LeaseLost as error:
        why = f"the parts were deleted while they were read, as this process had sent no heartbeat: {error.message}"
        raise Unavailable(path=shard.log.path, why=why) from error
