"""Arrangements for tests: tiny limits, so that a few rows become several runs, parts and row groups."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.flow.state.arrangement import Arrangement, ArrangementManifest
from evertide.flow.state.row_groups import RowGroupCache
from evertide.flow.state.runs import PartRun
from evertide.flow.state.spine import ArrangementSettings
from evertide.flow.state.state_part import PartEntry
from evertide.rows.changes import DIFF
from evertide.store import Blob, MemoryBlob
from evertide.store.paths import Name
from tests.kit.arrow import canonical_rows

TINY = ArrangementSettings(
    memory_rows_max=8, inline_rows_max=4, row_group_rows=3, part_rows_max=7, merge_fan_in=2, memory_bytes_max=1 << 20
)
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("price", pa.float64())])

Content = Counter[tuple[Hashable, ...]]


class World:
    """What arrangements share: a blob, a cache, and names for parts."""

    def __init__(self, blob: Blob | None = None, cache_bytes: int = 1 << 20) -> None:
        self.blob: Blob = blob if blob is not None else MemoryBlob()
        self.cache = RowGroupCache(cache_bytes)
        self._count = count(1)

    def new_name(self) -> Name:
        return Name("w", next(self._count), "parquet")

    def arrangement(
        self,
        schema: Any = SCHEMA,
        key: Sequence[str] = ("id",),
        settings: ArrangementSettings = TINY,
        parts: tuple[PartEntry, ...] = (),
    ) -> Arrangement:
        return Arrangement(
            "a",
            schema,
            tuple(key),
            blob=self.blob,
            cache=self.cache,
            new_name=self.new_name,
            settings=settings,
            parts=[PartRun(parts)] if parts else (),
        )

    def restore(self, manifest: ArrangementManifest) -> Arrangement:
        """The arrangement as a process that starts restores it: nothing is decoded yet."""
        self.cache = RowGroupCache(self.cache.bytes_max)
        return Arrangement.restore(manifest, blob=self.blob, cache=self.cache, new_name=self.new_name, settings=TINY)


def delta(rows: Any, diffs: Any = 1) -> Any:
    """Changes from rows, a table or tuples of `SCHEMA`, with their diffs or one diff for all."""
    if not isinstance(rows, pa.Table):
        arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(SCHEMA)]
        rows = pa.Table.from_arrays(arrays, schema=SCHEMA)
    weights = np.full(rows.num_rows, diffs, np.int64) if isinstance(diffs, int) else np.array(diffs, np.int64)
    return rows.append_column(pa.field(DIFF, pa.int64(), nullable=False), pa.array(weights))


def keys(*ids: int | None) -> Any:
    return pa.table({"id": pa.array(ids, pa.int64())})


def content(table: Any, names: Sequence[str] | None = None) -> Content:
    """The rows of a lookup or scan, each of which must occur once; if `names` are given, only these columns."""
    rows = canonical_rows(table.drop_columns([DIFF]))
    assert len(set(rows)) == len(rows), "the result is not consolidated"
    counts = table.column(DIFF).to_pylist()
    assert all(counts)
    chosen = rows if names is None else canonical_rows(table.select(names))
    found: Content = Counter()
    for row, times in zip(chosen, counts, strict=True):
        found[row] += times
    return found


def grouped(value: Any) -> Any:
    """A canonical value as Spark groups it: -0.0 is 0.0, at any depth."""
    if isinstance(value, tuple):
        return tuple(grouped(inner) for inner in value)
    return struct.pack("<d", 0.0) if value == struct.pack("<d", -0.0) else value
