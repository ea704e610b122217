"""Stored shape records: every later version must read them (`EVERTIDE_GOLDEN=write` writes the golden files)."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from evertide.shapes.log.numbers import VisibleNumbers
from evertide.shapes.log.record import EndRecord, ShapeRecord, estimate_log_rows
from evertide.shapes.log.record import _key as key_of
from evertide.shard.parts.part import Part
from evertide.shard.state import Batch, ShardState
from evertide.store.meta import seal, unseal
from evertide.types import Time
from tests.shapes.kit import OPTIONS, order, shop

GOLDEN = Path(__file__).parents[1] / "golden"
RECORD = ShapeRecord(
    handle="0123456789abcdef0123456789abcdef-1794769520285214526",
    definition='{"collection":"orders"}',
    collection="orders",
    shard="orders.01234567",
    time=2**40,
    rows=7,
    chunk_bytes=10 * 2**20,
    made_at_s=1.5,
    change="0123456789abcdef",
)
RECORDS: dict[str, msgspec.Struct] = {
    "shape": RECORD,
    "shape-visible": msgspec.structs.replace(RECORD, visible=VisibleNumbers(939, 1004, (939, 1002))),
    "shape-pushed": msgspec.structs.replace(
        RECORD, visible=VisibleNumbers(939, 1004, (939, 1002)), pushed=(2**32 + 7, 2**32 + 9)
    ),
    "shape-ended": EndRecord(RECORD.handle, "its log grew too long", "0123456789abcdef"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records_equal_the_golden_files(name: str) -> None:
    value = RECORDS[name]
    path = GOLDEN / f"record-{name}-v1.bin"
    if os.environ.get("EVERTIDE_GOLDEN") == "write":
        path.write_bytes(seal(value))
    stored = path.read_bytes()
    assert unseal(stored, type(value), "there") == value
    assert seal(value) == stored


def test_a_handle_names_the_key_of_its_record() -> None:
    assert key_of(RECORD.handle) == "shape/0123456789abcdef0123456789abcdef/1794769520285214526"
    for wrong in ("", "-", "x-1", "0" * 32, "0" * 32 + "-", "0" * 32 + "-x", "0" * 31 + "/-1", "0" * 32 + "-\u0661"):
        assert key_of(wrong) is None


def test_a_handle_is_never_reused_even_if_the_clock_goes_back() -> None:
    with shop(follow=False) as s:
        s.push(rows=[order(1)])
        s.service.shapes.runtime.wall_s = lambda: 1.0  # type: ignore[method-assign]
        handles = set()
        for _ in range(5):
            handle = s.get().handle
            handles.add(handle)
            assert s.ask("DELETE", handle=handle).status == 202
        assert len(handles) == 5


def batch(lower: int, upper: int, rows: int, since: int | None = None) -> Batch:
    part = Part(rows, 1, "", "", rows, 0, lower if since is None else since, upper - 1, {})
    return Batch(Time(lower), Time(upper), (part,))


def test_the_size_kept_for_a_shape_is_known_after_merging() -> None:
    record = msgspec.structs.replace(RECORD, time=10, rows=100)
    before, after = batch(0, 11, 100), [batch(11, 20, 30), batch(20, 25, 5)]
    assert estimate_log_rows(record, ShardState("s", b"", Time(0), Time(25), (before, *after))) == 35
    assert estimate_log_rows(record, ShardState("s", b"", Time(0), Time(25), (batch(0, 25, 135),))) == 35
    assert estimate_log_rows(record, ShardState("s", b"", Time(0), Time(25), (batch(0, 20, 130), after[1]))) == 35
    assert estimate_log_rows(record, ShardState("s", b"", Time(0), Time(11), (before,))) == 0


def test_truncated_ends_are_found_by_listing_all_shapes() -> None:
    with shop(options=replace(OPTIONS), follow=False) as s:
        s.push(rows=[order(1)])
        shapes = s.service.shapes
        one, other = s.get().handle, s.get(where="id = 1").handle
        shapes.records.end(one, "by another process")
        shapes.records.end(s.get(where="id = 2").handle, "as well")
        shapes.meta.truncate("shapes", 2)
        shapes.forget_ended()
        assert [shape.handle for shape in shapes.live()] == [other]
        assert s.get(offset="0_0", handle=one).status == 409


def test_logs_are_the_same_bytes_in_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients continue in the middle of a log with a newer process. Changing the log needs a new record version."""
    told = []
    with shop(follow=False) as s:
        s.push(rows=[order(1, "a/b", 1), order(2, None, None), order(3, 'q"', 3)])
        tables = ("orders", "revenue", "buyers")
        new = [s.get(table, where="true").body for table in tables]
        numbers = s.service.shapes.numbers
        monkeypatch.setattr(numbers, "find_visible", lambda time: msgspec.UNSET)  # as earlier versions did
        handles = {table: s.get(table).handle for table in tables}
        s.push(rows=[order(1, "a/b", 2), order(4, "é", -1), order(5, "é", 0)], deletes=[2])
        s.push(rows=[order(3, 'q"', 3), order(5, None, 7)], deletes=[4])
        for table, handle in handles.items():
            told += [s.get(table).content, s.get(table, "0_inf", handle=handle).content]
    path = GOLDEN / "shape-log-v1.json"
    if os.environ.get("EVERTIDE_GOLDEN") == "write":
        path.write_bytes(b"\n".join(told) + b"\n")
    assert path.read_bytes().splitlines() == told
    for old, with_end in zip(told[::2], new, strict=True):
        assert with_end[:-1] == json.loads(old)
        assert with_end[-1]["headers"]["control"] == "snapshot-end"


def test_the_status_has_the_number_of_shapes_of_each_collection() -> None:
    with shop(follow=False) as s:
        s.push(rows=[order(1)])
        s.get()
        s.get(where="id = 1")
        gone = s.get("revenue").handle
        s.get("buyers")
        assert s.ask("DELETE", handle=gone).status == 202
        found = {one.name: one.shapes for one in s.pipeline.status().collections}
        assert found == {"orders": 2, "notes": 0, "revenue": 0, "buyers": 1, "evertide_errors": 0}
