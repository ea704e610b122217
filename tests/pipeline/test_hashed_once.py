"""Each row of a transaction is hashed once, and what is carried on equals what would be computed."""

from __future__ import annotations

import gc

import numpy as np
import pyarrow as pa
import pytest

from evertide.pipeline.engine import DeclaredTable, StateStore
from evertide.pipeline.state.machine import make_state_store
from evertide.pipeline.state.table_deltas import Tables, measure_content
from evertide.rows import digest
from evertide.rows.changes import DIFF, consolidate_delta
from evertide.rows.digest import RowHashes, compute_digest, find_hashes, hash_rows, keep_hashes, to_hex
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.sources.contract import OP, UPSERT, Rows
from evertide.store.memory import MemoryBlob
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import NOTES, ORDERS, Row, ScriptedSource, batch, open_pipeline, storage, with_sources


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that were hashed, per call, of tables that have a row."""
    counts: list[int] = []
    original = digest.hash_rows

    def count(columns: pa.Table) -> RowHashes:
        if columns.num_rows:
            counts.append(columns.num_rows)
        return original(columns)

    for module in (
        "evertide.rows.digest",
        "evertide.rows.changes",
        "evertide.pipeline.state.table_input",
        "evertide.pipeline.state.table_deltas",
        "evertide.shard.parts.part",
        "evertide.flow.state.block",
    ):
        monkeypatch.setattr(f"{module}.hash_rows", count)
    return counts


@pytest.mark.parametrize("table", [ORDERS, NOTES])
def test_each_row_of_a_transaction_is_hashed_once(table: DeclaredTable, hashed: list[int]) -> None:
    """Fails without `HashedBatch`, or if netting or the part hash the rows again."""
    make = order if table.key else note
    with with_sources(source := ScriptedSource("s", (table.name,))):
        pipeline = open_pipeline(storage(), SmallEngine([table], []))
        pipeline.run(until_idle=True)
        hashed.clear()
        source.batches.append(batch(table, [make(number) for number in range(50)]))
        pipeline.run(until_idle=True)
        assert hashed == [50]
        hashed.clear()
        source.batches.append(batch(table, [make(number) for number in range(45, 55)]))
        pipeline.run(until_idle=True)
        assert sorted(hashed) == ([5, 10] if table.key else [10]), "5 rows of the table have these keys"
        assert len(pipeline.view(table.name).to_pylist()) == (55 if table.key else 60)
        pipeline.close()


def order(number: int) -> Row:
    return {"id": number, "customer": "a", "amount": number}


def note(number: int) -> Row:
    return {"text": f"note {number}"}


def test_kept_hashes_are_those_of_the_rows() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        size = int(rng.integers(0, 40))
        rows = pa.table(
            {
                "a": pa.array(rng.integers(0, 4, size)),
                "b": pa.array([None if x > 0.5 else f"{x:.1f}" for x in rng.random(size)], pa.string()),
                DIFF: pa.array(rng.integers(-2, 3, size)),
            }
        )
        for is_sorted in (False, True):
            found = consolidate_delta(rows, is_sorted=is_sorted)
            kept, expected = find_hashes(found), hash_rows(found.drop_columns([DIFF]))
            assert kept is not None
            assert kept.high.tolist() == expected.high.tolist()
            assert kept.low.tolist() == expected.low.tolist()


@pytest.mark.parametrize("key", [(), ("id",)])
def test_rows_that_are_converted_are_hashed_as_they_are_stored(key: tuple[str, ...]) -> None:
    """Seen to fail: the shard recorded the digest of the given types, so that a compaction found its part damaged."""
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("ratio", pa.float64()), ("at", pa.timestamp("us"))]
    )
    given = pa.schema([("id", pa.int64()), ("ratio", pa.float32()), ("at", pa.timestamp("s")), (OP, pa.int8())])
    rows = pa.Table.from_pylist([{"id": 1, "ratio": 0.5, "at": 7, OP: UPSERT}], given)
    tables = Tables({"t": DeclaredTable("t", schema, key)}, make_store())
    delta = tables.compute_deltas([("s", Rows("t", rows))], tables.make_empty).tables["t"]
    assert delta.drop_columns([DIFF]).schema.types == schema.types
    assert measure_content(delta).digest == to_hex(compute_digest(delta.drop_columns([DIFF]), np.ones(1, np.int64)))


def make_store() -> StateStore:
    return make_state_store(MemoryBlob(), "writer", SystemRuntime(), Settings())


def test_the_hash_of_a_row_with_one_more_column() -> None:
    rows = pa.table({"a": [1, None, 3], "b": ["x", "y", None]})
    ops = pa.chunked_array([pa.array([0, 1, 0], pa.int8())])
    found, expected = hash_rows(rows).add_column(OP, ops), hash_rows(rows.append_column(OP, ops))
    assert found.high.tolist() == expected.high.tolist()
    assert found.low.tolist() == expected.low.tolist()


def test_hashes_are_kept_as_long_as_their_table() -> None:
    """Fails if another table at the same address gets them, or if they stay in memory."""
    table = pa.table({"a": [1, 2]})
    keep_hashes(table, hash_rows(table))
    assert find_hashes(table) is not None
    assert find_hashes(table.slice(0)) is None
    count = len(digest._kept)
    del table
    gc.collect()
    assert len(digest._kept) < count
