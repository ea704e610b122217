"""The content of a collection at a time, or its changes, as tables that come one after the other.

1. All of it is of one time, and under one lease: whatever is committed, compacted or collected meanwhile changes
   nothing.
2. A collection that is small is read as a whole, and comes in an order that its content decides. A larger one comes
   piece by piece (`evertide.shard.parts.split`), and what is held in memory follows the piece.
3. Rows that a where clause leaves out, and columns that nobody asked for, are left out before rows are counted: that
   is done alike to what was added and to what was taken away.
4. A row that is there often is repeated as it is taken, some at a time: who asks for ten gets ten, and whoever takes
   them all is given them without all of them in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from evertide.errors import InvalidInput
from evertide.pgexpr.clause import Where, parse_where
from evertide.pipeline.reading.collections import View
from evertide.rows.changes import DIFF, expanded
from evertide.shard.parts.groups import content_rows, is_inside
from evertide.shard.parts.part import Part
from evertide.shard.parts.split import Group, is_ordered, split
from evertide.shard.read import Snapshot
from evertide.shard.shard import Shard

__all__ = ["Content", "changes", "content_of"]

_WHOLE_BYTES = 8 * 1024 * 1024
"""Of a collection as it is stored: what is read as a whole."""
_PIECE_BYTES = 8 * 1024 * 1024
_CHANGES_ROWS = 65_536


@dataclass(frozen=True)
class Content:
    """Some rows and columns of a collection, at a time."""

    shard: Shard
    name: str
    time: int
    columns: tuple[str, ...]
    where: Where | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        own = self.shard.schema
        return pa.schema([own.field(name) for name in self.columns])

    def tables(self, limit: int | None = None) -> Iterator[pa.Table]:
        left = limit
        if self.time < 0 or left == 0:
            return
        for table in self._tables():
            taken = table if left is None else table.slice(0, left)
            if taken.num_rows:
                yield taken
            left = None if left is None else left - taken.num_rows
            if left == 0:
                return

    def _tables(self) -> Iterator[pa.Table]:
        own = self.shard.schema
        needed = {*self.columns, *(self.where.columns if self.where is not None else ())}
        with self.shard.snapshot(self.time, columns=sorted(needed)) as found:
            if sum(part.bytes for part in found.parts) <= _WHOLE_BYTES:
                yield from expanded(self.matching(found.to_arrow()).select([*self.columns, DIFF]), self.name)
                return
            by = next((field.name for field in own if is_ordered(field.type)), None)
            for group in split(found.parts, own, _PIECE_BYTES):
                also = {by or "", group.span.column if group.span is not None else ""} - {""}
                read = _Read(self, found, group, (*needed, *also))
                yield from content_rows(group, read, self.columns, by=by, where=self.name)

    def matching(self, changes: pa.Table) -> pa.Table:
        """Those that the where clause is true of."""
        return changes if self.where is None else self.where.filter_rows(changes)


@dataclass(frozen=True)
class _Read:
    """The changes of a part that belong to a group."""

    content: Content
    found: Snapshot
    group: Group
    columns: Sequence[str]

    def __call__(self, part: Part) -> pa.Table:
        changes = self.content.matching(self.found.fetch(part, self.columns))
        span = self.group.span
        return changes if span is None else changes.filter(is_inside(changes.column(span.column), span))


def content_of(
    view: View, shard: Shard, columns: Sequence[str] = (), where: str = "", params: Mapping[str, str] | None = None
) -> Content:
    """`InvalidInput` if a column is not there, or the clause is none."""
    own = {name.lower(): name for name in shard.schema.names}
    missing = [name for name in columns if name.lower() not in own]
    if missing:
        listed = ", ".join(shard.schema.names)
        why = f"{missing[0]!r} is no column of {view.name!r}; its columns are {listed}"
        raise InvalidInput(where="parameter 'columns'", why=why)
    names = tuple(dict.fromkeys(own[name.lower()] for name in columns)) or tuple(shard.schema.names)
    if params and not where.strip():
        raise InvalidInput(where="parameter 'params'", why="there is no where clause that they belong to")
    clause = parse_where(where, params or {}, shard.schema) if where.strip() else None
    return Content(shard, view.name, view.time, names, clause)


def changes(shard: Shard, lower: int, upper: int) -> Iterator[pa.Table]:
    """What changed at the times [lower, upper), in order of time, some thousand rows at once where it can be cut."""
    with shard.lease_changes(lower, upper):  # holds what the steps below read
        while lower < upper:
            reached = min(upper, max(lower + 1, shard.log.read().state.reach(lower, _CHANGES_ROWS)))
            found = shard.changes(lower, reached).sort_by("__time")
            if found.num_rows:
                yield found
            lower = reached
