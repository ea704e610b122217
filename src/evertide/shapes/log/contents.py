"""`Contents`: the rows of shapes at a time, read once for all shapes of a collection that begin together.

Thousands of clients may come at the same moment, each with a clause of his own: that must not be thousands of reads of
the same table. So the content of a small collection stays in memory for a while, as of the last time that was asked
for, and whoever comes while it is read waits for that. Of a large one only the columns that are needed are read, each
time anew, and only the rows that are in the shape stay in memory.

Both ways give the same rows in the same order: the chunks of a snapshot are counted, and whoever has the first of them
may get the next from another process, or when the collection has grown.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from evertide.pgexpr.clause import Where
from evertide.rows.changes import DIFF, net
from evertide.shapes.log.definition import ShapeDefinition, Subject
from evertide.shard.shard import Shard

__all__ = ["Contents"]

_STORED = 4
"""What is stored takes so many times less than it does in memory, about."""


class _CachedContent(NamedTuple):
    time: int
    rows: pa.Table


class Contents:
    """Safe to share between threads."""

    def __init__(self, bytes_max: int) -> None:
        """How much may stay in memory of all collections together."""
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._cache: dict[str, _CachedContent] = {}
        """By shard; the one that was read last is the last."""
        self._reading: dict[str, threading.Lock] = {}

    def read_rows(self, shard: Shard, definition: ShapeDefinition, time: int, also: Iterable[str] = ()) -> pa.Table:
        """The rows of a shape, with their counts, in an order that the content decides.

        Without a key all columns are read, as all of them tell rows apart.
        """
        subject = definition.subject
        wanted = {*definition.needed, *also}
        columns = [name for name in subject.schema.names if name in wanted] if subject.key else None
        where = definition.where
        whole = self._cached_rows(shard, time)
        if whole is None:
            return _read(shard, time, columns, where)
        rows = whole if where is None else where.filter_rows(whole)
        if columns is None:
            return rows
        selected = rows.select([*columns, DIFF])
        return selected if _is_sorted_by(subject, columns) else net(selected)

    def clear(self) -> None:
        """Forget what nobody may ask for again."""
        with self._lock:
            self._cache.clear()
            self._reading.clear()

    def _cached_rows(self, shard: Shard, time: int) -> pa.Table | None:
        """None if it is too large."""
        stored = sum(batch.bytes for batch in shard.log.known().state.batches)
        if stored * _STORED > self._bytes_max:
            return None
        with self._lock:
            turn = self._reading.setdefault(shard.name, threading.Lock())
        with turn:
            cached = self._cache.get(shard.name)
            if cached is None or cached.time != time:
                cached = _CachedContent(time, _read(shard, time))
                self._keep(shard.name, cached)
        return cached.rows

    def _keep(self, name: str, cached: _CachedContent) -> None:
        with self._lock:
            self._cache.pop(name, None)
            self._cache[name] = cached
            total = sum(one.rows.nbytes for one in self._cache.values())
            for other in [*self._cache]:
                if total <= self._bytes_max:
                    return
                total -= self._cache.pop(other).rows.nbytes


def _read(shard: Shard, time: int, columns: list[str] | None = None, where: Where | None = None) -> pa.Table:
    with shard.snapshot(time, columns=columns) as snapshot:
        return snapshot.to_arrow(where.filter_rows if where is not None else None)


def _is_sorted_by(subject: Subject, columns: list[str]) -> bool:
    """Whether rows that are sorted by all columns are so by these: the key decides, if nothing was left out before."""
    names = subject.schema.names
    last = max(names.index(name) for name in subject.key)
    return set(names[: last + 1]) <= set(columns)
