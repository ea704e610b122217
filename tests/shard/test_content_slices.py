"""The content of a shard in slices: they add up to it, no slice deletes a row that is not there, memory follows the
slice.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from evertide.errors import ScratchUnavailable
from evertide.rows.changes import DIFF, consolidate_delta, make_changes_schema
from evertide.shard.parts.content_slices import read_content_slices
from evertide.shard.shard import Shard
from tests.shard.kit import BLOBS, make_shards, make_writer

Row = tuple[Any, ...]
SCHEMA = pa.schema([("number", pa.float64()), ("text", pa.string()), ("list", pa.list_(pa.int64()))])
MANY = 1 << 40


def delta(rng: np.random.Generator, held: list[Row], *, is_added_only: bool) -> list[Row]:
    """Added rows, some of them several times, NULL and NaN included, and some deletions."""
    numbers = [0.0, -0.0, float("nan"), None, 1.5, -2.0]
    come: list[Row] = [
        (numbers[rng.integers(6)], "abcd"[rng.integers(4)], [[], None, [1, None]][rng.integers(3)], 1)
        for _ in range(rng.integers(12))
    ]
    gone = [] if is_added_only else [held.pop(rng.integers(len(held))) for _ in range(len(held) // 3)]
    held += [row[:3] for row in come]
    return come + [(*row, -1) for row in gone]


def fill_shard(times: int, seed: int, *, is_added_only: bool = False) -> Shard:
    shards = make_shards(settings=BLOBS)
    writer = make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    rng, held = np.random.default_rng(seed), list[Row]()
    for time in range(times):
        rows = [(*row[:3], time, row[3]) for row in delta(rng, held, is_added_only=is_added_only)]
        columns = zip(*rows, strict=True) if rows else [[]] * 5
        schema = make_changes_schema(SCHEMA)
        arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
        shard.compare_and_append(pa.Table.from_arrays(arrays, schema=schema), time, time + 1, writer)
    return shard


@pytest.mark.parametrize("is_added_only", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_slices_add_up_to_the_content(seed: int, is_added_only: bool) -> None:
    """Fails if rows are not distributed by their hash: a row is deleted in a slice before the one that adds it."""
    shard = fill_shard(12, seed, is_added_only=is_added_only)
    for time in (11, 6):
        with shard.snapshot(time) as snapshot:
            whole = snapshot.to_arrow()
            diffs = pa.array(-whole.column(DIFF).to_numpy())
            taken_away = whole.set_column(whole.num_columns - 1, whole.schema.field(DIFF), diffs)
            for rows_max, bytes_max in ((1, MANY), (5, MANY), (1_000, MANY), (1_000, 600)):
                found = list(read_content_slices(snapshot, rows_max, bytes_max))
                assert all(min(content_slice.column(DIFF).to_pylist()) > 0 for content_slice in found)
                assert consolidate_delta(pa.concat_tables([*found, taken_away])).num_rows == 0
                assert len(found) == 1 if (rows_max, bytes_max) == (1_000, MANY) else len(found) > 1


def test_an_empty_shard_has_no_slices() -> None:
    shards = make_shards()
    writer = make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    shard.compare_and_append(make_changes_schema(SCHEMA).empty_table(), 0, 1, writer)
    with shard.snapshot(0) as snapshot:
        assert list(read_content_slices(snapshot, 1, 1)) == []


@contextmanager
def measure_peak() -> Iterator[pa.MemoryPool]:
    """The peak of Arrow's memory meanwhile."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


@pytest.mark.parametrize("is_added_only", [True, False])
def test_memory_is_bounded_by_the_size_of_a_slice(is_added_only: bool) -> None:
    """40 MB in slices of 1 MB. Fails if everything is read before the first slice is returned."""
    settings = replace(BLOBS, part_rows_max=2_000, row_group_rows=2_000, fetchers=2)
    shards = make_shards(settings=settings)
    writer = make_writer(shards)
    shard = shards.create("t", pa.schema([("at", pa.int64()), ("line", pa.binary())]), writer)
    for time in range(20):
        lines = np.random.default_rng(time).bytes(2_000_000)
        added = [(time * 2_000 + at, lines[at * 1_000 : at * 1_000 + 1_000], time, 1) for at in range(2_000)]
        gone = [] if is_added_only or not time else [(0, lines[:1_000], time, 1), (0, lines[:1_000], time, -1)]
        arrays = [list(column) for column in zip(*added, *gone, strict=True)]
        schema = make_changes_schema(shard.schema)
        table = pa.Table.from_arrays([pa.array(a, f.type) for a, f in zip(arrays, schema, strict=True)], schema=schema)
        shard.compare_and_append(table, time, time + 1, writer)
    with shard.snapshot(19) as snapshot, measure_peak() as pool:
        rows = sum(content_slice.num_rows for content_slice in read_content_slices(snapshot, 1_000, 1_000_000))
        assert rows == 40_000
        assert 1_000_000 < pool.max_memory() < 20_000_000


def test_a_full_temporary_directory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the error is a bare OSError: it would end the compaction thread."""

    class Full(BytesIO):
        def write(self, data: object, /) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    with fill_shard(12, 0).snapshot(11) as snapshot, pytest.raises(ScratchUnavailable, match="TMPDIR"):
        list(read_content_slices(snapshot, 1, MANY))
