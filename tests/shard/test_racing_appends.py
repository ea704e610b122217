"""U2, U7: writers race every append on the same shard, or append ranges that overlap or leave a gap."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from evertide.errors import UpperMismatch
from evertide.runtime import SystemRuntime
from evertide.shard.append import store_parts, withdraw
from evertide.shard.parts.part import Part
from tests.kit.runtime import RandomStream
from tests.shard.conftest import Storage
from tests.shard.kit import (
    BLOBS,
    INLINE,
    SCHEMA,
    Row,
    changes,
    concat_changes,
    make_shards,
    make_writer,
    rows_at,
    updates_of,
)

WAIT_S = 120.0
TRANSACTIONS = {"memory": 2000, "sqlite": 300}


def test_u2_two_writers_race_every_append(storage: Storage) -> None:
    """The writer that lost a race continues from the shard's upper (I3): no time is lost, and none is written twice.

    Fails without the check of the upper when the diff is built again, and without compare-and-set (`RecordDamaged` from
    the state machine, both times).
    """
    count = TRANSACTIONS[storage.kind]
    first = storage.open()
    first.create("t", SCHEMA, make_writer(first))
    written: list[tuple[int, int]] = []
    errors: list[Exception] = []
    start = threading.Barrier(2)

    def write(number: int) -> None:
        stream = RandomStream(2).fork(number)
        try:
            shards = storage.open()
            writer, shard = make_writer(shards), shards.open("t")
            start.wait()
            time = 0
            while time < count:
                upper = min(count, time + 1 + stream.below(3))
                delta = concat_changes(*(transaction(at) for at in range(time, upper)))
                try:
                    shard.compare_and_append(delta, time, upper, writer)
                    written.append((time, upper))
                    time = upper
                except UpperMismatch as error:
                    time = error.upper
                if stream.below(8) == 0:
                    SystemRuntime().sleep_s(stream.random() / 1000)
        except Exception as error:  # noqa: BLE001 - handed to the test
            start.abort()
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert errors == []
    assert not any(thread.is_alive() for thread in threads), "a writer does not finish"

    shard = storage.open().open("t")
    assert shard.upper == count
    expected: Counter[tuple[int, Row, int]] = Counter()
    for time in range(count):
        for row in transaction(time).to_pylist():
            expected[time, (row["id"], row["name"]), row["__diff"]] += 1
    assert updates_of(shard) == expected
    assert rows_at(shard, count - 1) == Counter({(time, "new"): 1 for time in range(max(0, count - 5), count)})
    written.sort()
    assert [lower for lower, _ in written] == [0, *(upper for _, upper in written[:-1])]
    assert written[-1][1] == count


def transaction(time: int) -> pa.Table:
    """Adds a row and deletes one, so that a lost or doubled transaction changes the content."""
    gone = [(time - 5, "new")] if time >= 5 else []
    return concat_changes(changes([(time, "new")], time), changes(gone, time, -1))


def test_u2_four_writers_with_blobs_race_every_append(storage: Storage) -> None:
    """The same with four writers, batches that are blobs, and roll-ups: the losers' blobs are withdrawn.

    Fails without `withdraw` after a lost race: blobs are left that no batch names.
    """
    count = TRANSACTIONS[storage.kind] // 20
    settings = replace(INLINE, inline_bytes_max=1, rollup_every_diffs=16)
    first = storage.open(settings)
    first.create("t", SCHEMA, make_writer(first))
    errors: list[Exception] = []

    def write() -> None:
        try:
            shards = storage.open(settings)
            writer, shard = make_writer(shards), shards.open("t")
            for time in range(count):
                with suppress(UpperMismatch):  # another writer wrote this time
                    shard.compare_and_append(changes([(time, "x" * 50)], time), time, time + 1, writer)
        except Exception as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    threads = [threading.Thread(target=write, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert errors == []
    assert not any(thread.is_alive() for thread in threads), "a writer does not finish"
    shard = storage.open(settings).open("t")
    assert updates_of(shard) == Counter({(time, (time, "x" * 50), 1): 1 for time in range(count)})
    named = {part.key for part in shard.log.read().state.parts}
    assert {entry.key for entry in storage.blob.list("parts/t")} == named


@pytest.mark.parametrize("has_stored_parts", [False, True], ids=["rows", "parts"])
@pytest.mark.parametrize(
    ("lower", "upper", "why"),
    [
        (0, 5, "a peer wrote these times"),
        (0, 3, "a peer wrote these times"),
        (2, 3, "a peer wrote these times"),
        (4, 5, "earlier times are missing"),
    ],
)
def test_u7_an_append_starts_exactly_at_the_upper(lower: int, upper: int, why: str, has_stored_parts: bool) -> None:
    """The shard has [0, 3). An append that overlaps it and one behind a gap change nothing, and say which it is.

    Of rows, as of one portion, and of parts, as of several. Fails without `_check_upper` in both of its places: the
    overlapping appends and the one behind a gap then damage the log (`RecordDamaged`).
    """
    shards = make_shards(settings=BLOBS)
    first, second = make_writer(shards), make_writer(shards)
    shard = shards.create("t", SCHEMA, first)
    shard.compare_and_append(concat_changes(*(transaction(time) for time in range(3))), 0, 3, first)
    delta = concat_changes(*(transaction(time) for time in range(lower, upper)))
    before, blobs = shard.log.read(), list(shards.blob.list("parts/t"))
    given: pa.Table | tuple[Part, ...] = delta
    if has_stored_parts:
        with second.claim() as seq:
            given = store_parts(
                delta,
                shard="t",
                blob=shards.blob,
                writer=second.id,
                seq=seq,
                runtime=shards.runtime,
                settings=shards.settings,
            )
    with pytest.raises(UpperMismatch) as caught:
        shard.compare_and_append(given, lower, upper, second)
    assert (caught.value.why, caught.value.expected, caught.value.upper) == (why, lower, 3)
    assert shard.log.read() == before
    withdraw(shards.blob, given if isinstance(given, tuple) else ())
    assert list(shards.blob.list("parts/t")) == blobs
