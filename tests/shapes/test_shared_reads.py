"""Clients that begin together: the collection is read once for all of them, whatever their clauses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from evertide.pipeline.engine import DeclaredTable
from evertide.rows import changes
from evertide.shard import read
from evertide.shard.shard import Shard
from tests.kit.small_engine import SmallEngine
from tests.shapes.kit import OPTIONS, Shop, ids, order, shop

SMALL, LARGE = OPTIONS, replace(OPTIONS, memory_bytes=100)
"""Collections are small or large in relation to the memory of the process."""
LATE = DeclaredTable(
    "late",
    pa.schema([("b", pa.string()), pa.field("id", pa.int64(), nullable=False), ("a", pa.float64()), ("c", pa.int64())]),
    key=("id",),
)
"""Its key is not the first column, so rows are in another order if the first column is omitted."""


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str] | None]]:
    """The time and columns of each read."""
    found: list[tuple[int, list[str] | None]] = []
    snapshot = Shard.snapshot

    def counted(self: Shard, time: int, **options: Any) -> Any:
        found.append((time, options.get("columns")))
        return snapshot(self, time, **options)

    monkeypatch.setattr(Shard, "snapshot", counted)
    return found


def begin(s: Shop, customer: int) -> list[int]:
    return ids(s.get(where=f"customer = 'c{customer}'", columns="id").changes)


def test_a_small_collection_is_read_once_for_all_clients_that_begin(reads: list[tuple[int, list[str] | None]]) -> None:
    with shop(follow=False) as s:
        t = s.push(rows=[order(number, f"c{number % 20}") for number in range(60)])
        with ThreadPoolExecutor(8) as several:
            found = [*several.map(lambda customer: begin(s, customer), range(20))]
        assert found == [[customer, customer + 20, customer + 40] for customer in range(20)]
        assert reads == [(t, None)]
        assert ids(s.get(log="changes_only", subset__where="id < 3").body["data"]) == [0, 1, 2]
        assert reads == [(t, None)], "a subset needs no read either"

        later = s.push(rows=[order(60, "c0")])
        assert begin(s, 0) == [0, 20, 40], "the shape did not change"
        assert ids(s.get(where="customer = 'c0' AND true").changes) == [0, 20, 40, 60]
        assert [time for time, _ in reads] == [t, later]
        s.service.shapes.release_idle()
        s.get(where="id = 1")
        assert len(reads) == 3, "content that no request can ask for again was dropped"


def test_only_the_needed_columns_of_a_large_collection_are_read(reads: list[tuple[int, list[str] | None]]) -> None:
    with shop(options=LARGE, follow=False) as s:
        s.push(rows=[order(number, f"c{number}") for number in range(60)])
        assert begin(s, 3) == [3]
        assert begin(s, 4) == [4]
        assert [columns for _, columns in reads] == [["id", "customer"]] * 2


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"columns": "id,c"},
        {"columns": "a,id"},
        {"columns": "b,id"},
        {"where": "c = 1", "columns": "id,a"},
        {"where": "b > 'b5'", "columns": "id"},
        {"where": "true", "columns": "id"},
    ],
)
def test_a_snapshot_is_the_same_bytes_however_it_is_read(query: dict[str, str]) -> None:
    """Fails if the order of rows differs: a client that gets the next chunk from another read would miss rows."""
    rows = [
        {"b": f"b{number * 7 % 10}", "id": number * 13 % 40, "a": None if number % 3 else number / 4, "c": number % 2}
        for number in range(40)
    ]
    bodies = []
    for options in (SMALL, LARGE):
        with shop(options=options, made=SmallEngine([LATE], []), follow=False) as s:
            s.push("late", rows[:30])
            s.push("late", rows[20:], deletes=[rows[0]["id"]])
            bodies.append([{**one, "headers": None} for one in s.get("late", **query).changes])
    assert bodies[0]
    assert bodies[0] == bodies[1]


def test_rows_that_are_not_in_the_shape_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def content(table: pa.Table, *rest: Any) -> Any:
        counts.append(table.num_rows)
        return changes.compute_content(table, *rest)

    with shop(options=LARGE, follow=False) as s:
        s.push(rows=[order(number, f"c{number}") for number in range(60)])
        monkeypatch.setattr(read, "compute_content", content)
        assert begin(s, 3) == [3]
        assert counts == [1]
