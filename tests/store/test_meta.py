"""The contract of `Meta`, rule by rule, for every implementation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evertide.errors import Unexpected
from evertide.observer import Observer
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store import Guard, MemoryMeta, Meta, PostgresMeta, Record, SqliteMeta, Stale, Write
from evertide.store.observed import ObservedMeta
from evertide.types import SequenceNumber
from tests.kit.faulty import Faults, FaultyMeta
from tests.kit.runtime import ManualRuntime
from tests.servers.postgres import PostgresServer
from tests.store.race import together
from tests.store.settled import SettledMeta

KEY = "shard/orders"
WAKE_LIMIT_S = 2.0
"""Generous: a waiter wakes within milliseconds, but the machine may be loaded."""


@pytest.fixture(params=["memory", "sqlite", "postgres", "observed", "faulty", "faulty, settled"])
def meta(request: pytest.FixtureRequest, tmp_path: Path, runtime: SystemRuntime, settings: Settings) -> Iterator[Meta]:
    """No implementation polls within the time of a test: only a wake-up ends a wait."""
    opened = open_meta(request, tmp_path / "meta.db", runtime, replace(settings, poll_interval_s=50.0))
    yield opened
    opened.close()


def open_meta(request: pytest.FixtureRequest, path: Path, runtime: SystemRuntime, settings: Settings) -> Meta:
    if request.param == "memory":
        return MemoryMeta()
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return PostgresMeta(server.dsn, runtime, settings, schema=f"test_{runtime.new_id()}")
    if request.param == "sqlite":
        return SqliteMeta(path, runtime, settings)
    if request.param == "observed":
        return ObservedMeta(SqliteMeta(path, runtime, settings), Observer(), runtime)
    if request.param == "faulty":
        return FaultyMeta(SqliteMeta(path, runtime, settings), Faults.none())
    rng = ManualRuntime(seed=11)
    return SettledMeta(FaultyMeta(MemoryMeta(), Faults.seeded(rng, 0.3)), rng, settings)


def append(meta: Meta, key: str, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        assert meta.commit([Write(key, number, record(key, number + 1))]) is None


def record(key: str, seqno: int) -> bytes:
    return f"{key} {seqno}".encode()


def numbers(meta: Meta, prefix: str = "") -> dict[str, int]:
    return {key: head.seqno for key, head in meta.heads(prefix).items()}


def test_rule_1_records_are_numbered_from_one(meta: Meta) -> None:
    assert meta.head(KEY) is None
    assert meta.scan(KEY) == []
    append(meta, KEY, 3)
    assert meta.head(KEY) == Record(SequenceNumber(3), record(KEY, 3))
    assert meta.scan(KEY) == [Record(SequenceNumber(number), record(KEY, number)) for number in (1, 2, 3)]


@pytest.mark.parametrize("data", [b"", b"\0", bytes(range(256)) * 4096], ids=["empty", "zero", "a megabyte"])
def test_rule_1_any_bytes(meta: Meta, data: bytes) -> None:
    assert meta.commit([Write(KEY, 0, data)]) is None
    assert meta.head(KEY) == Record(SequenceNumber(1), data)
    assert meta.heads("shard/") == {KEY: Record(SequenceNumber(1), data)}


def test_rule_1_several_keys_change_together(meta: Meta) -> None:
    append(meta, "b", 2)
    append(meta, "gone", 2)
    assert meta.commit([Write("a", 0, b"a1"), Write("b", 2, b"b3"), Write("gone", 2, None)], [Guard("c", 0)]) is None
    assert meta.heads("") == {"a": Record(SequenceNumber(1), b"a1"), "b": Record(SequenceNumber(3), b"b3")}
    assert meta.scan("gone") == []


@pytest.mark.parametrize("expected", [0, 1, 3, 17, -1])
def test_rule_1_and_2_a_write_with_another_number_changes_nothing(meta: Meta, expected: int) -> None:
    append(meta, KEY, 2)
    before = meta.heads("")
    assert meta.commit([Write("a", 0, b"1"), Write(KEY, expected, b"new")]) == Stale(KEY, expected, SequenceNumber(2))
    assert meta.commit([Write("a", 0, b"1"), Write(KEY, expected, None)]) == Stale(KEY, expected, SequenceNumber(2))
    assert meta.heads("") == before


@pytest.mark.parametrize("expected", [0, 1, 3, -1])
def test_rule_1_and_2_a_guard_with_another_number_changes_nothing(meta: Meta, expected: int) -> None:
    append(meta, "writer/w", 2)
    assert meta.commit([Write(KEY, 0, b"new")], [Guard("writer/w", expected)]) == Stale(
        "writer/w", expected, SequenceNumber(2)
    )
    assert meta.commit([], [Guard("writer/w", expected)]) == Stale("writer/w", expected, SequenceNumber(2))
    assert meta.head(KEY) is None


def test_rule_1_a_guard_that_holds_writes_nothing(meta: Meta) -> None:
    append(meta, "writer/w", 2)
    assert meta.commit([Write(KEY, 0, b"1")], [Guard("writer/w", 2), Guard("writer/none", 0)]) is None
    assert meta.commit([], [Guard("writer/w", 2)]) is None
    assert meta.commit([]) is None
    assert numbers(meta) == {KEY: 1, "writer/w": 2}


def test_rule_1_a_key_may_be_guarded_and_written(meta: Meta) -> None:
    append(meta, KEY, 1)
    assert meta.commit([Write(KEY, 1, b"2")], [Guard(KEY, 1), Guard(KEY, 1)]) is None
    assert meta.commit([Write(KEY, 2, b"3")], [Guard(KEY, 1)]) == Stale(KEY, 1, SequenceNumber(2))
    assert numbers(meta) == {KEY: 2}


def test_rule_1_several_records_of_a_key_are_appended_at_once(meta: Meta) -> None:
    meta.commit([Write("a", 0, b"1")])
    following = [Write("a", 1, b"2"), Write("b", 0, b"x"), Write("a", 2, b"3")]
    stale = meta.commit([Write("a", 0, b"2"), Write("a", 1, b"3")])
    assert stale is not None
    assert (stale.key, stale.expected, stale.found) == ("a", 0, 1)
    assert meta.commit(following) is None
    assert [(record.seqno, record.data) for record in meta.scan("a")] == [(1, b"1"), (2, b"2"), (3, b"3")]
    for others in ([Write("a", 3, b"4"), Write("a", 5, b"5")], [Write("a", 3, b"4"), Write("a", 4, None)]):
        with pytest.raises(Unexpected, match="twice"):
            meta.commit(others)


def test_rule_1_no_key_is_written_twice(meta: Meta) -> None:
    with pytest.raises(Unexpected, match="twice"):
        meta.commit([Write("a", 0, b"1"), Write(KEY, 0, b"1"), Write(KEY, 0, b"2")])
    assert meta.heads("") == {}


def test_rule_2_the_first_stale_key_in_order_is_named(meta: Meta) -> None:
    append(meta, "b", 1)
    append(meta, "c", 2)
    writes = [Write("d", 7, b""), Write("b", 0, b"")]
    assert meta.commit(writes, [Guard("c", 0)]) == Stale("b", 0, SequenceNumber(1))
    assert meta.commit([Write("d", 7, b"")], [Guard("c", 0)]) == Stale("c", 0, SequenceNumber(2))
    assert meta.commit([Write("a", 0, b"")], [Guard("z", 1), Guard("é", 1)]) == Stale("z", 1, SequenceNumber(0))
    assert numbers(meta) == {"b": 1, "c": 2}


def test_rule_3_a_removed_key_starts_again(meta: Meta) -> None:
    append(meta, KEY, 3)
    assert meta.commit([Write(KEY, 3, None)]) is None
    assert meta.head(KEY) is None
    assert meta.scan(KEY) == []
    assert meta.heads("") == {}
    assert meta.commit([Write(KEY, 0, b"anew")], [Guard(KEY, 0)]) is None
    assert meta.scan(KEY) == [Record(SequenceNumber(1), b"anew")]


def test_rule_3_removing_a_missing_key_is_a_guard(meta: Meta) -> None:
    assert meta.commit([Write(KEY, 0, None), Write("a", 0, b"1")]) is None
    assert meta.commit([Write("a", 0, None)]) == Stale("a", 0, SequenceNumber(1))
    assert numbers(meta) == {"a": 1}


def test_rule_4_scan_from_anywhere(meta: Meta) -> None:
    append(meta, KEY, 12)
    append(meta, KEY + "0", 1)
    for after in (0, 1, 9, 11):
        assert [found.seqno for found in meta.scan(KEY, after)] == list(range(after + 1, 13))
    assert meta.scan(KEY, 12) == []
    assert meta.scan(KEY, 99) == []


def test_rule_4_scan_yields_at_most_limit_records(meta: Meta) -> None:
    append(meta, KEY, 12)
    append(meta, KEY + "0", 1)
    assert meta.scan(KEY, limit=1) == [Record(SequenceNumber(1), record(KEY, 1))]
    assert [found.seqno for found in meta.scan(KEY, 4, 3)] == [5, 6, 7]
    assert [found.seqno for found in meta.scan(KEY, 10, 3)] == [11, 12]
    assert meta.scan(KEY, 12, 1) == meta.scan("nothing", limit=1) == []
    meta.truncate(KEY, 9)
    assert [found.seqno for found in meta.scan(KEY, 2, 2)] == [9, 10], "counted from the first record that is kept"
    assert [found.seqno for found in meta.scan(KEY, 9)] == [10, 11, 12]


@pytest.mark.parametrize("limit", [0, -1])
def test_rule_4_a_limit_below_one_is_refused(meta: Meta, limit: int) -> None:
    append(meta, KEY, 2)
    with pytest.raises(Unexpected, match="must be at least 1"):
        meta.scan(KEY, 0, limit)


def test_rule_4_heads_by_prefix_in_key_order(meta: Meta) -> None:
    keys = ["lease/a", "lease/a-b", "lease/a.b", "lease/a/x", "lease/a0", "lease/é", "lease", "leasf", "leas"]
    for position, key in enumerate(keys):
        append(meta, key, position + 1)
    assert list(numbers(meta)) == sorted(keys)
    assert list(numbers(meta, "lease/")) == ["lease/a", "lease/a-b", "lease/a.b", "lease/a/x", "lease/a0", "lease/é"]
    assert numbers(meta, "lease/a/") == {"lease/a/x": 4}
    assert numbers(meta, "lease/a") == {"lease/a": 1, "lease/a-b": 2, "lease/a.b": 3, "lease/a/x": 4, "lease/a0": 5}
    assert meta.heads("lease/a/")["lease/a/x"].data == record("lease/a/x", 4)
    assert meta.heads("none/") == {}
    assert numbers(meta, "LEASE") == {}


def test_rule_4_heads_and_scan_are_consistent(meta: Meta) -> None:
    """A writer always advances both keys in one commit; a reader never sees them differ, nor a gap."""
    done = threading.Event()
    seen: list[dict[str, int]] = []

    def read() -> None:
        while not done.is_set():
            heads = numbers(meta, "pair/")
            assert heads.get("pair/a", 0) == heads.get("pair/b", 0)
            found = [entry.seqno for entry in meta.scan("pair/a")]
            assert found == list(range(1, len(found) + 1))
            seen.append(heads)

    def work(thread: int) -> None:
        if thread:
            read()
            return
        try:
            for number in range(60):
                data = b"%d" % number
                assert meta.commit([Write("pair/a", number, data), Write("pair/b", number, data)]) is None
        finally:
            done.set()

    assert together(3, work) == [None] * 3
    assert seen


@pytest.mark.parametrize(
    ("below", "left"), [(0, [1, 2, 3, 4]), (1, [1, 2, 3, 4]), (3, [3, 4]), (4, [4]), (5, [4]), (99, [4])]
)
def test_rule_5_truncate_keeps_the_head(meta: Meta, below: int, left: list[int]) -> None:
    append(meta, KEY, 4)
    append(meta, KEY + "x", 4)
    meta.truncate(KEY, below)
    assert [found.seqno for found in meta.scan(KEY)] == left
    assert meta.head(KEY) == Record(SequenceNumber(4), record(KEY, 4))
    assert numbers(meta) == {KEY: 4, KEY + "x": 4}
    assert len(meta.scan(KEY + "x")) == 4
    append(meta, KEY, 1, start=4)
    assert [found.seqno for found in meta.scan(KEY)] == [*left, 5]


def test_rule_5_truncating_a_missing_key(meta: Meta) -> None:
    meta.truncate(KEY, 5)
    assert meta.heads("") == {}


def test_rule_7_wait_returns_at_once_if_the_record_exists(meta: Meta) -> None:
    append(meta, KEY, 2)
    assert meta.wait(KEY, 0, 0.0) is True
    assert meta.wait(KEY, 1, 5.0) is True
    assert meta.wait(KEY, 2, 0.0) is False
    assert meta.wait(KEY, 2, 0.02) is False
    assert meta.wait("nothing", 0, 0.02) is False


def test_rule_7_wait_wakes_at_a_commit_through_this_object(meta: Meta, runtime: SystemRuntime) -> None:
    woken_s: list[float] = []
    waiting = threading.Event()

    def work(thread: int) -> None:
        if thread:
            waiting.set()
            assert meta.wait(KEY, 0, 60.0) is True
            woken_s.append(runtime.monotonic_s())
            return
        waiting.wait()
        runtime.sleep_s(0.03)
        append(meta, "another", 1)
        started_s.append(runtime.monotonic_s())
        append(meta, KEY, 1)

    started_s: list[float] = []
    assert together(3, work) == [None] * 3
    assert len(woken_s) == 2
    assert max(woken_s) - started_s[0] < WAKE_LIMIT_S


def test_rule_8_of_racing_threads_one_wins_each_number(meta: Meta) -> None:
    wins: list[tuple[int, int]] = []

    def work(thread: int) -> None:
        number = 0
        while number < 20:
            data = b"%d by %d" % (number + 1, thread)
            if meta.commit([Write(KEY, number, data)]) is None:
                wins.append((number + 1, thread))
            number += 1

    assert together(4, work) == [None] * 4
    assert sorted(number for number, _ in wins) == list(range(1, 21))
    expected = [Record(SequenceNumber(number), b"%d by %d" % (number, thread)) for number, thread in sorted(wins)]
    assert meta.scan(KEY) == expected


def test_rule_8_opposite_orders_do_not_deadlock(meta: Meta) -> None:
    def work(thread: int) -> None:
        keys = ["a", "b", "c"] if thread % 2 else ["c", "b", "a"]
        for _ in range(10):
            heads = numbers(meta)
            meta.commit([Write(key, heads.get(key, 0), b"%d" % thread) for key in keys])

    assert together(4, work) == [None] * 4
    assert len(set(numbers(meta).values())) == 1


def test_rule_1_guard_on_an_absent_key_against_its_creation(meta: Meta) -> None:
    """Each of two threads guards the absence of the key that the other creates: at most one commit succeeds."""
    for attempt in range(15):
        pair = [f"left/{attempt}", f"right/{attempt}"]
        answers: list[Stale | None] = []

        def work(thread: int, pair: list[str] = pair, answers: list[Stale | None] = answers) -> None:
            mine, other = pair if thread else reversed(pair)
            answers.append(meta.commit([Write(mine, 0, b"%d" % thread)], [Guard(other, 0)]))

        assert together(2, work) == [None] * 2
        assert answers.count(None) == 1
        assert sum(key in numbers(meta) for key in pair) == 1


def test_rule_1_guard_against_removal(meta: Meta) -> None:
    """A registered writer appends or is unregistered: an append never follows the removal (I16)."""
    for attempt in range(15):
        writer, shard = f"writer/{attempt}", f"shard/{attempt}"
        append(meta, writer, 1)
        appended: list[Stale | None] = []

        def work(thread: int, writer: str = writer, shard: str = shard, seen: list[Stale | None] = appended) -> None:
            if thread:
                assert meta.commit([Write(writer, 1, None), Write(f"{shard}/end", 0, b"x")]) is None
            else:
                seen.append(meta.commit([Write(shard, 0, b"late?")], [Guard(writer, 1)]))

        assert together(2, work) == [None] * 2
        assert (appended[0] is None) == (meta.head(shard) is not None)
        assert meta.commit([Write(shard, numbers(meta).get(shard, 0), b"!")], [Guard(writer, 1)]) == Stale(
            writer, 1, SequenceNumber(0)
        )


@pytest.mark.parametrize("key", ["", "a\0b", "a\nb", "\ud800"])
def test_keys_that_cannot_be_stored_are_refused(meta: Meta, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: meta.head(key),
        lambda: meta.scan(key),
        lambda: meta.commit([Write(key, 0, b"")]),
        lambda: meta.commit([], [Guard(key, 0)]),
        lambda: meta.truncate(key, 1),
        lambda: meta.wait(key, 0, 0.0),
    ]
    for call in calls:
        with pytest.raises(Unexpected):
            call()
    assert meta.heads("") == {}


def test_paths_name_the_record(meta: Meta) -> None:
    assert meta.path(KEY).endswith(f":{KEY}")
