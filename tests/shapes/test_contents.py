"""Clients that come together: the collection is read once for all of them, whatever each asks for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from evertide.shard.shard import Shard
from tests.shapes.kit import OPTIONS, Shop, ids, order, shop


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str] | None]]:
    """Time and columns of each."""
    found: list[tuple[int, list[str] | None]] = []
    snapshot = Shard.snapshot

    def counted(self: Shard, time: int, **options: Any) -> Any:
        found.append((time, options.get("columns")))
        return snapshot(self, time, **options)

    monkeypatch.setattr(Shard, "snapshot", counted)
    return found


def begin(s: Shop, customer: int) -> list[int]:
    return ids(s.get(where=f"customer = 'c{customer}'", columns="id").changes)


def test_a_small_collection_is_read_once_for_all_who_begin(reads: list[tuple[int, list[str] | None]]) -> None:
    with shop(follow=False) as s:
        t = s.push(rows=[order(number, f"c{number % 20}") for number in range(60)])
        with ThreadPoolExecutor(8) as several:
            found = [*several.map(lambda customer: begin(s, customer), range(20))]
        assert found == [[customer, customer + 20, customer + 40] for customer in range(20)]
        assert reads == [(t, None)]
        assert ids(s.get(log="changes_only", subset__where="id < 3").body["data"]) == [0, 1, 2]
        assert reads == [(t, None)], "neither for a subset"

        later = s.push(rows=[order(60, "c0")])
        assert begin(s, 0) == [0, 20, 40], "that shape is as it was"
        assert ids(s.get(where="customer = 'c0' AND true").changes) == [0, 20, 40, 60]
        assert [time for time, _ in reads] == [t, later]
        s.service.shapes.rest()
        s.get(where="id = 1")
        assert len(reads) == 3, "what nobody may ask for again was let go"


def test_of_a_large_one_only_the_columns_that_are_needed_are_read(reads: list[tuple[int, list[str] | None]]) -> None:
    with shop(options=replace(OPTIONS, memory_bytes=100), follow=False) as s:
        s.push(rows=[order(number, f"c{number}") for number in range(60)])
        assert begin(s, 3) == [3]
        assert begin(s, 4) == [4]
        assert [columns for _, columns in reads] == [["id", "customer"]] * 2
