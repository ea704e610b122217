"""Views are hydrated in portions when the tables do not fit into memory, with the same result."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from evertide.checkpoint.verification import read_manifest
from evertide.errors import NotAllowedNow, RecomputationDelayed, Unavailable
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.state import hydration
from evertide.pipeline.state.hydration import _ContentPortions
from evertide.pipeline.state.members import Members
from evertide.problem import ComponentState
from evertide.settings import Settings
from evertide.store.memory import MemoryBlob
from evertide.store.open import Storage
from tests.kit.small_engine import SmallCohort, SmallEngine, SmallView
from tests.pipeline.kit import NOTES, ORDERS, SETTINGS, VIEWS, Row, crash, engine, open_pipeline, rows_of, storage

SMALL = replace(SETTINGS, inline_bytes_max=64, portion_rows_max=3)
ALL = ("revenue", "counts", "share")


def order(number: int, amount: int) -> Row:
    return {"id": number, "customer": f"c{number % 3}", "amount": amount}


def open_filled(seed: int, *views: str) -> Storage:
    """Return a pipeline with rows that were added, changed and deleted."""
    kept, chance = storage(), np.random.default_rng(seed)
    with open_pipeline(kept, engine(*views)) as p:
        for _ in range(8):
            p.push("orders", [order(int(number), int(chance.integers(1, 9))) for number in chance.integers(30, size=5)])
            p.push("notes", [{"text": "abc"[at]} for at in chance.integers(3, size=3)])
            p.push("orders", deletes=[int(chance.integers(30))])
            p.commit()
        crash(p)
    return kept


def contents(p: Pipeline) -> dict[str, list[tuple[object, ...]]]:
    return {name: rows_of(p, name) for name in ("orders", "notes", *ALL)}


def steps_with(view: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the rows of each later step of a cohort that has the view."""
    seen: list[int] = []
    step = SmallCohort.step

    def watched(self: SmallCohort, deltas: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        if view in self.views:
            seen.append(sum(delta.num_rows for delta in deltas.values()))
        return step(self, deltas)

    monkeypatch.setattr(SmallCohort, "step", watched)
    return seen


def check_no_orphan_parts(p: Pipeline) -> None:
    """Check that no orphan is left: neither a part of a shard nor, after garbage collection, of state."""
    blob = p.storage.blob
    assert isinstance(blob, MemoryBlob)
    shards = p._runner.members.shards
    named = {part.key for name in shards.names() for part in shards.open(name).log.read().state.parts}
    assert {entry.key for entry in blob.list("parts/")} == named - {""}
    p.checkpoint()
    p._leader_tasks.checkpointer.collect_garbage()
    used = {part.key for part in p._runner.machine.parts()}
    used |= {key for entry in p._context.checkpoints.entries() for key in read_manifest(blob, entry).names()}
    assert {entry.key for entry in blob.list("state/")} <= used


@pytest.mark.parametrize("seed", range(3))
def test_an_added_view_is_computed_in_portions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a portion's delta is not stored before the next one replaces it: rows would be missing."""
    with open_pipeline(open_filled(seed, "revenue"), engine(*ALL)) as p:
        whole = contents(p)
    seen = steps_with("share", monkeypatch)
    kept = open_filled(seed, "revenue")
    with open_pipeline(kept, engine(*ALL), settings=SMALL) as p:
        assert len(seen) > 4
        assert max(seen) <= 2 * SMALL.portion_rows_max  # rows with one hash are in one portion
        assert contents(p) == whole
        p.push("orders", [order(1, 5)])
        p.commit()
        p.push("orders", deletes=[1])
        p.commit()
        assert len(rows_of(p, "share")) == len(rows_of(p, "orders"))
        crash(p)
    with open_pipeline(kept, engine(*ALL), settings=SMALL) as p:
        assert len(rows_of(p, "share")) == len(rows_of(p, "orders"))


def test_state_without_a_checkpoint_is_computed_in_portions_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """I8. Fails if the digests of portions are not added up, or not compared."""
    kept = storage()
    with open_pipeline(kept, engine(*ALL)) as p:
        for number in range(1, 20):
            p.push("orders", [order(number, number)])
            p.commit()
        expected = contents(p)
    for entry in [*kept.blob.list("state"), *kept.blob.list("checkpoints")]:
        if not entry.key.endswith("manifest.json"):
            kept.blob.delete(entry.key)
    other = replace(VIEWS["revenue"], function=lambda tables: [{"customer": "x", "amount": len(tables["orders"])}])
    replica = SmallEngine([ORDERS, NOTES], [other, VIEWS["counts"], VIEWS["share"]])
    follower = open_pipeline(kept, replica, settings=SMALL, role=ProcessRole.READ_ONLY)
    with pytest.raises(RecomputationDelayed, match="revenue"):
        follower.advance()
    follower.close()
    seen = steps_with("share", monkeypatch)
    with open_pipeline(kept, engine(*ALL), settings=SMALL) as p:
        assert len(seen) > 4
        assert contents(p) == expected
        p.push("orders", [order(1, 5)])
        p.commit()
        assert (1, 20) in rows_of(p, "share")


def inverse(tables: Mapping[str, list[Row]]) -> list[Row]:
    """Fail over exactly fifteen rows."""
    return [{"n": 100 // (len(tables["notes"]) - 15)}]


PICKY = SmallView("picky", pa.schema([("n", pa.int64())]), ("notes",), inverse)


def noted(count: int) -> Storage:
    kept = storage()
    with open_pipeline(kept, engine("revenue")) as p:
        for number in range(count):
            p.push("notes", [{"text": f"note {number}"}])
            p.commit()
    return kept


@pytest.mark.parametrize("limit", ["rows", "bytes"])
def test_a_view_that_fails_only_in_a_portion_is_computed_from_all_rows(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """No transaction ever left the view in that state. Fails if a portion counts as a transaction."""
    made = SmallEngine([ORDERS, NOTES], [VIEWS["revenue"], PICKY])
    most = {"portion_rows_max": 5} if limit == "rows" else {"portion_bytes_max": 1}
    five = replace(SETTINGS, inline_bytes_max=1, **most)
    monkeypatch.setattr(hydration, "_WHOLE_PORTIONS", 20)
    with open_pipeline(noted(20), made, settings=five) as p:
        assert rows_of(p, "picky") == [(20,)]
        check_no_orphan_parts(p)
    monkeypatch.setattr(hydration, "_WHOLE_PORTIONS", 2)
    with open_pipeline(noted(20), made, settings=five) as p:
        with pytest.raises(NotAllowedNow, match=rf"ZeroDivisionError.*portion of .*portion_{limit}_max"):
            p.view("picky").to_arrow()
        assert rows_of(p, "revenue") == []
        p.push("notes", [{"text": "one more"}])
        p.commit()
        check_no_orphan_parts(p)


def test_a_hydration_that_storage_interrupts_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SmallEngine([ORDERS, NOTES], [VIEWS["revenue"], VIEWS["counts"]])
    kept = noted(9)
    read_portions = Members.read_table_portions

    def broken(self: Members, table: str, upper: int) -> object:
        for number, portion in enumerate(read_portions(self, table, upper)):
            if number == 2:
                raise Unavailable(path="there", why="it does not answer")
            yield portion

    monkeypatch.setattr(Members, "read_table_portions", broken)
    p = open_pipeline(kept, made, settings=SMALL)
    assert p.definition.list_away(ComponentState.HYDRATING) == ["counts"]
    crash(p)
    monkeypatch.undo()
    with open_pipeline(kept, made, settings=SMALL) as p:
        assert rows_of(p, "counts") == [(0, 9)]
        check_no_orphan_parts(p)


def test_a_table_that_gets_a_column_is_rewritten_in_portions() -> None:
    """Fails if only the last portion is stored."""
    kept = open_filled(7, "revenue")
    with open_pipeline(kept, engine("revenue")) as p:
        before, notes = rows_of(p, "orders"), rows_of(p, "notes")
    wider = replace(ORDERS, schema=pa.schema([*ORDERS.schema, ("city", pa.string())]))
    longer = replace(NOTES, schema=pa.schema([*NOTES.schema, ("by", pa.string())]))
    with open_pipeline(kept, SmallEngine([wider, longer], [VIEWS["revenue"]]), settings=SMALL) as p:
        assert rows_of(p, "orders") == [(*row, None) for row in before]
        assert rows_of(p, "notes") == [(*row, None) for row in notes]
        number = before[0][0]
        p.push("orders", [{**order(int(str(number)), 3), "city": "x"}])
        p.push("orders", deletes=[before[1][0]])
        p.commit()
        assert len(rows_of(p, "orders")) == len(before) - 1
        assert (number, f"c{int(str(number)) % 3}", 3, "x") in rows_of(p, "orders")


def test_stopping_a_pipeline_does_not_wait_for_a_backfill(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = noted(9)
    made = SmallEngine([ORDERS, NOTES], [VIEWS["revenue"], VIEWS["counts"]])
    step = SmallCohort.step
    seen, is_open = 0, threading.Event()

    def stopping(self: SmallCohort, deltas: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        nonlocal seen
        if "counts" in self.views:
            seen += 1
            assert is_open.wait(60)
            p._stopping.set()
        return step(self, deltas)

    with open_pipeline(kept, engine("revenue"), settings=SMALL) as p:
        p.push("notes", [{"text": "x"}])
        p.commit()
    monkeypatch.setattr(SmallCohort, "step", stopping)
    p = open_pipeline(kept, made, settings=SMALL, threads=True)
    is_open.set()
    p.close()
    assert seen == 1
    monkeypatch.undo()
    with open_pipeline(kept, made, settings=SMALL) as p:
        assert rows_of(p, "counts") == [(0, 10)]


class _TrackedMembers:
    """Keeps its generators alive, as the traceback of an error does."""

    def __init__(self) -> None:
        self.shards = SimpleNamespace(settings=Settings(portion_rows_max=1))
        self.generators: list[Any] = []
        self.released = 0

    def count_table_rows(self, _: str) -> int:
        return 3

    def read_table_portions(self, _: str, __: int) -> Iterator[pa.Table]:
        self.generators.append(self._read())
        found: Iterator[pa.Table] = self.generators[-1]
        return found

    def _read(self) -> Iterator[pa.Table]:
        try:
            for number in range(3):
                yield pa.table({"a": [number]})
        finally:
            self.released += 1


def test_a_reading_that_is_left_releases_its_lease_at_once() -> None:
    members: Any = _TrackedMembers()
    portions = _ContentPortions(members, ["t"], 1)
    assert portions.has_more_than(1)
    assert members.released == 1
    with closing(iter(portions)) as read:
        assert next(read)[0]["t"].num_rows == 1
    assert members.released == 2
