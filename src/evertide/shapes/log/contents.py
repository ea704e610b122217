"""`Contents`: reads the rows of shapes at a time, once for all shapes of a collection that begin together.

Thousands of clients may begin at the same moment, each with its own clause, which must not cause thousands of reads of
the same table. So the content of a small collection stays in memory, as of the last requested time, and concurrent
requests wait for the one that reads it. For a large collection, each request reads only the columns that it needs and
keeps only the matching rows.

Both ways return the same rows in the same order: the chunks of a snapshot are numbered, and a client may get the next
chunk from another process, or after the collection has grown.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from evertide.pgexpr.clause import Where
from evertide.rows.changes import DIFF, consolidate_delta
from evertide.shapes.log.shape_definition import ShapeDefinition, Subject
from evertide.shard.shard import Shard

_MEMORY_FACTOR = 4
"""About how many times larger the content is in memory than in storage."""


class _CachedContent(NamedTuple):
    time: int
    rows: pa.Table


class Contents:
    """Safe to share between threads."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` limits the memory for all cached collections."""
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._cache: dict[str, _CachedContent] = {}
        """By shard, the most recently read last."""
        self._reading: dict[str, threading.Lock] = {}

    def read_rows(self, shard: Shard, definition: ShapeDefinition, time: int, also: Iterable[str] = ()) -> pa.Table:
        """The rows of a shape with their counts, in an order that depends only on the content.

        Without a key all columns are read, as they identify a row only together.
        """
        subject = definition.subject
        wanted = {*definition.needed_columns, *also}
        columns = [name for name in subject.schema.names if name in wanted] if subject.key else None
        where = definition.where
        cached = self._read_cached_rows(shard, time)
        if cached is None:
            return _read(shard, time, columns, where)
        rows = cached if where is None else where.filter_rows(cached)
        if columns is None:
            return rows
        selected = rows.select([*columns, DIFF])
        return selected if _is_sorted_by(subject, columns) else consolidate_delta(selected)

    def clear(self) -> None:
        with self._lock:
            self._cache.clear()
            self._reading.clear()

    def _read_cached_rows(self, shard: Shard, time: int) -> pa.Table | None:
        """The whole content, from the cache or read into it; None if it is too large."""
        stored = sum(batch.bytes for batch in shard.log.read_cached().state.batches)
        if stored * _MEMORY_FACTOR > self._bytes_max:
            return None
        with self._lock:
            turn = self._reading.setdefault(shard.name, threading.Lock())
        with turn:
            cached = self._cache.get(shard.name)
            if cached is None or cached.time != time:
                cached = _CachedContent(time, _read(shard, time))
                self._cache_content(shard.name, cached)
        return cached.rows

    def _cache_content(self, name: str, cached: _CachedContent) -> None:
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
    """Whether rows sorted by all columns are sorted by these too: no column up to the key's last is missing."""
    names = subject.schema.names
    last = max(names.index(name) for name in subject.key)
    return set(names[: last + 1]) <= set(columns)
