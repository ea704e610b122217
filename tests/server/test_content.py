"""The content of a collection in tables of bounded size, compared with a model over random changes, and rows with many
copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from evertide.errors import StateInconsistent
from evertide.pgexpr.clause import parse_where
from evertide.pipeline.reading import content
from evertide.pipeline.reading.content import CollectionContent
from evertide.rows import changes as shard_changes
from evertide.rows.changes import DIFF, TIME, expand_in_tables, make_changes_schema
from evertide.settings import Settings
from evertide.shard.parts.part import Part
from evertide.shard.parts.split import Group, split
from evertide.shard.shard import Shard
from tests.shard.kit import make_shards, make_writer

SCHEMA = pa.schema([("id", pa.int64()), ("f", pa.float64()), ("name", pa.string()), ("amount", pa.int32())])
BLOBS = Settings(inline_bytes_max=1, part_rows_max=40, row_group_rows=16)
FLOATS = [0.5, float("nan"), None]
NAMES = ["ann", "bob", "", None]

Row = tuple[Any, ...]


def shard_of(deltas: list[list[tuple[Row, int]]], schema: pa.Schema = SCHEMA, settings: Settings = BLOBS) -> Shard:
    """Return a shard with one append per delta."""
    shards = make_shards(settings=settings)
    writer = make_writer(shards)
    shard = shards.create("c", schema, writer)
    for time, delta in enumerate(deltas):
        columns = [[row[at] for row, _ in delta] for at in range(len(schema))]
        given = [*columns, [time] * len(delta), [diff for _, diff in delta]]
        fields = make_changes_schema(schema)
        arrays = [pa.array(values, field.type) for values, field in zip(given, fields, strict=True)]
        shard.compare_and_append(pa.Table.from_arrays(arrays, schema=fields), time, time + 1, writer)
    return shard


def rows_in(tables: Any) -> Counter[Row]:
    return Counter(tuple(map(repr, row.values())) for table in tables for row in table.to_pylist())


def random_deltas(rng: np.random.Generator) -> tuple[list[list[tuple[Row, int]]], Counter[Row]]:
    """Return rows that are added and deleted: many at first, then few; sorted, as after a compaction; some with many
    copies."""
    held: Counter[Row] = Counter()
    deltas = []
    for time in range(int(rng.integers(2, 5))):
        delta: Counter[Row] = Counter()
        first = int(rng.integers(0, 300))
        for number in range(first, first + int(rng.integers(1, 30) if time else rng.integers(1, 1000))):
            row = (
                None if rng.random() < 0.03 else number,
                FLOATS[int(rng.integers(len(FLOATS)))],
                NAMES[int(rng.integers(len(NAMES)))],
                int(rng.integers(-3, 4)),
            )
            delta[row] += int(rng.integers(1, 4))
        for row in [*held] if time else []:
            if rng.random() < 0.02:
                delta[row] -= int(rng.integers(1, held[row] + 1))
        held.update(delta)
        held = Counter({row: count for row, count in held.items() if count})
        in_order = sorted(delta.items(), key=lambda one: (one[0][0] is not None, one[0][0]))
        deltas.append([(row, diff) for row, diff in in_order if diff])
    return deltas, held


@pytest.mark.parametrize("seed", range(8))
def test_content_in_groups_is_what_the_changes_add_up_to(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By spans of a column, or as a whole; with some columns and a where clause. Fails if two spans contain a row, if
    NULL is in no span or in two, or if deletes of one part do not apply to another."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(content, "_WHOLE_BYTES", 1)
    monkeypatch.setattr(content, "_GROUP_BYTES", int(rng.integers(8000, 30_000)))
    monkeypatch.setattr(shard_changes, "_TABLE_ROWS", int(rng.integers(1, 50)))
    deltas, held = random_deltas(rng)
    shard = shard_of(deltas)
    for columns, where in [
        (tuple(SCHEMA.names), ""),
        (("name", "f"), ""),
        (("id",), "amount > 0"),
        (("amount", "name"), "name = 'ann' OR id IS NULL"),
    ]:
        clause = parse_where(where, {}, SCHEMA) if where else None
        found = rows_in(CollectionContent(shard, "c", len(deltas) - 1, columns, clause).tables())
        places = [SCHEMA.names.index(name) for name in columns]
        expected: Counter[Row] = Counter()
        for row, count in held.items():
            number, _, name, amount = row
            is_in = {"": True, "amount > 0": amount > 0}.get(where, name == "ann" or number is None)
            if is_in:
                expected[tuple(repr(row[at]) for at in places)] += count
        assert found == expected


def test_content_in_groups_is_read_by_several_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would not test spans."""
    seen: list[list[Group]] = []

    def watched(parts: Sequence[Part], schema: pa.Schema, bytes_max: int) -> list[Group]:
        seen.append(split(parts, schema, bytes_max))
        return seen[-1]

    monkeypatch.setattr(content, "_WHOLE_BYTES", 1)
    monkeypatch.setattr(content, "_GROUP_BYTES", 15_000)
    monkeypatch.setattr(content, "split", watched)
    for seed in range(8):
        deltas, _ = random_deltas(np.random.default_rng(seed))
        assert list(CollectionContent(shard_of(deltas), "c", len(deltas) - 1, ("id",)).tables())
    spans = [len([group for group in groups if group.span is not None]) for groups in seen]
    assert sum(count > 1 for count in spans) >= 3, spans


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_row_with_a_billion_copies_comes_in_groups(*, is_whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails with a `MemoryError`, or never ends, if all copies are produced at once."""
    if not is_whole:
        monkeypatch.setattr(content, "_WHOLE_BYTES", 1)
    wide = "x" * 100_000
    often = 10**12
    schema = pa.schema([("name", pa.string())])
    shard = shard_of([[(("a",), 2), ((wide,), often), (("z",), often)], [(("a",), -1)]], schema, Settings())
    found = CollectionContent(shard, "c", 1, ("name",))
    sizes = [(rows.num_rows, rows.nbytes) for rows in islice(found.tables(), 20)]
    assert max(rows for rows, _ in sizes) <= 65_536
    assert max(size for _, size in sizes) <= 16 * 1024 * 1024
    assert sum(table.num_rows for table in found.tables(limit=150_000)) == 150_000
    assert not shard.log.meta.heads("lease/")


def test_tables_of_every_size_hold_the_rows_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    for rows, size in [(1, 1), (7, 100), (1000, 40), (65_536, 10**7)]:
        monkeypatch.setattr(shard_changes, "_TABLE_ROWS", rows)
        monkeypatch.setattr(shard_changes, "_TABLE_BYTES", size)
        counts = rng.integers(0, 30, 50)
        names = [str(at) * int(rng.integers(1, 9)) for at in range(50)]
        table = pa.table({"name": names, TIME: [0] * 50, DIFF: counts})
        told = [name for rows in expand_in_tables(table) for name in rows.column("name").to_pylist()]
        assert told == [name for name, count in zip(names, counts, strict=True) for _ in range(count)]


def test_a_negative_count_is_reported_as_damage() -> None:
    with pytest.raises(StateInconsistent, match="count -1"):
        list(expand_in_tables(pa.table({"name": ["a"], DIFF: [-1]}), "notes"))
