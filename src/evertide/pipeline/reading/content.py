"""The content of a collection at one time, or its changes, as a sequence of Arrow tables.

1. All tables are of one time and under one lease: commits, compaction and garbage collection in between change nothing.
2. A small collection is read as a whole, in an order that depends only on its content. A larger one is read group by
   group (`evertide.shard.parts.split`), so that memory holds one group of parts.
3. The filter and the choice of columns apply before rows are counted, alike to added and to removed rows.
4. A row that occurs several times is repeated while the caller iterates, so that memory never holds all copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import pyarrow as pa

from evertide.rows.changes import DIFF, expand_in_tables
from evertide.shard.parts.part import Part
from evertide.shard.parts.part_groups import is_inside, read_group
from evertide.shard.parts.split import Group, is_ordered, split
from evertide.shard.read import Snapshot
from evertide.shard.shard import Shard

_WHOLE_BYTES = 8 * 1024 * 1024
"""Up to this stored size, a collection is read as a whole."""
_GROUP_BYTES = 8 * 1024 * 1024
_CHANGES_ROWS = 65_536


class RowFilter(Protocol):
    """Selects changes by the values of some columns (a where clause)."""

    @property
    def columns(self) -> frozenset[str]: ...

    def filter_rows(self, changes: pa.Table) -> pa.Table: ...


@dataclass(frozen=True)
class CollectionContent:
    """Selected rows and columns of a collection at one time."""

    shard: Shard
    name: str
    time: int
    columns: tuple[str, ...]
    where: RowFilter | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([self.shard.schema.field(name) for name in self.columns])

    def tables(self, limit: int | None = None) -> Iterator[pa.Table]:
        left = limit
        if self.time < 0 or left == 0:
            return
        for table in self._tables():
            rows = table if left is None else table.slice(0, left)
            if rows.num_rows:
                yield rows
            left = None if left is None else left - rows.num_rows
            if left == 0:
                return

    def _tables(self) -> Iterator[pa.Table]:
        schema = self.shard.schema
        needed = {*self.columns, *(self.where.columns if self.where is not None else ())}
        with self.shard.snapshot(self.time, columns=sorted(needed)) as snapshot:
            if sum(part.bytes for part in snapshot.parts) <= _WHOLE_BYTES:
                yield from expand_in_tables(
                    self.filter_rows(snapshot.to_arrow()).select([*self.columns, DIFF]), self.name
                )
                return
            by = next((field.name for field in schema if is_ordered(field.type)), None)
            for group in split(snapshot.parts, schema, _GROUP_BYTES):
                also = {by or "", group.span.column if group.span is not None else ""} - {""}
                read = _GroupReader(self, snapshot, group, (*needed, *also))
                yield from read_group(group, read, self.columns, by=by, where=self.name)

    def filter_rows(self, changes: pa.Table) -> pa.Table:
        return changes if self.where is None else self.where.filter_rows(changes)


@dataclass(frozen=True)
class _GroupReader:
    """Reads the changes of a part that belong to a group."""

    content: CollectionContent
    snapshot: Snapshot
    group: Group
    columns: Sequence[str]

    def __call__(self, part: Part) -> pa.Table:
        changes = self.content.filter_rows(self.snapshot.fetch(part, self.columns))
        span = self.group.span
        return changes if span is None else changes.filter(is_inside(changes.column(span.column), span))


def read_changes(shard: Shard, lower: int, upper: int) -> Iterator[pa.Table]:
    """The changes of the times [lower, upper), in order of time, about `_CHANGES_ROWS` rows per table."""
    with shard.lease_changes(lower, upper):  # keeps the parts that the steps below read
        while lower < upper:
            reached = min(upper, max(lower + 1, shard.log.read().state.find_read_end(lower, _CHANGES_ROWS)))
            step = shard.changes(lower, reached).sort_by("__time")
            if step.num_rows:
                yield step
            lower = reached
