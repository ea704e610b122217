"""Snapshots: times, columns, skipped parts; and the output of `inspect`."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput, NotAllowedNow, RecordDamaged, ShardEnded, TimeCompacted, Unavailable
from evertide.rows.changes import DIFF
from evertide.shard.read import Snapshot
from evertide.shard.shard import Shard, Shards
from evertide.store.writers import Writer
from tests.shard.kit import BLOBS, SCHEMA, changes, make_shards, make_writer, rows_at


@pytest.fixture
def shards() -> Shards:
    return make_shards(settings=BLOBS)


@pytest.fixture
def writer(shards: Shards) -> Writer:
    return make_writer(shards)


@pytest.fixture
def shard(shards: Shards, writer: Writer) -> Shard:
    """Time t holds the rows 0 to t."""
    shard = shards.create("t", SCHEMA, writer)
    for time in range(5):
        shard.compare_and_append(changes([(time, f"row {time}")], time), time, time + 1, writer)
    return shard


def test_a_snapshot_waits_for_its_time(shard: Shard, writer: Writer) -> None:
    later = threading.Timer(0.05, lambda: shard.compare_and_append(changes([], 5), 5, 7, writer))
    later.start()
    assert rows_at(shard, 6).total() == 5
    later.join()


def test_a_snapshot_that_waited_too_long_is_an_error(shard: Shard) -> None:
    """Fails if it is `Unavailable`: storage did answer."""
    with pytest.raises(NotAllowedNow, match=r"time 5 was not committed within .* the upper is 5"):
        shard.snapshot(5, timeout_s=0.01)
    assert shard.wait_for_upper(5, timeout_s=0.01) == 5


def test_a_time_below_since_is_refused_with_the_smallest_legal_one(shard: Shard, writer: Writer) -> None:
    shard.advance_since(3, writer)
    with pytest.raises(TimeCompacted, match="time 2 cannot be read, the earliest is 3") as refused:
        shard.snapshot(2)
    assert rows_at(shard, refused.value.since).total() == 4
    assert shard.inspect().leases == (), "the refused snapshot released its lease"


def test_a_failed_release_of_the_lease_does_not_hide_why_a_read_failed(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Snapshot) -> None:
        raise Unavailable(path="meta", why="away")

    monkeypatch.setattr(Snapshot, "close", refuse)
    with pytest.raises(ValueError, match="the cause"), shard.snapshot(4):
        raise ValueError("the cause")
    assert "could not release a lease, which expires by itself: storage at meta is unavailable" in caplog.text
    with pytest.raises(Unavailable), shard.snapshot(4):
        pass


def test_columns_narrow_what_is_read(shard: Shard) -> None:
    with shard.snapshot(4, columns=["name"]) as snapshot:
        assert snapshot.to_arrow().schema.names == ["name", DIFF]


def test_parts_after_the_time_are_not_read(shard: Shard) -> None:
    with shard.snapshot(1) as snapshot:
        assert len(snapshot.parts) == 2


def test_an_empty_shard_has_an_empty_content(shards: Shards, writer: Writer) -> None:
    empty = shards.create("empty", SCHEMA, writer)
    empty.compare_and_append(changes([], 0), 0, 3, writer)
    with empty.snapshot(2) as snapshot:
        assert snapshot.to_arrow().schema.names == ["id", "name", DIFF]
        assert snapshot.to_arrow().num_rows == 0


def test_a_finalized_shard_has_no_content_and_its_parts_are_collected(shard: Shard, writer: Writer) -> None:
    shard.finalize(writer)
    shard.finalize(writer)
    with pytest.raises(ShardEnded, match="finalized"):
        shard.snapshot(4)
    with pytest.raises(ShardEnded, match="finalized"):
        shard.compare_and_append(changes([], 5), 5, 6, writer)
    assert len(shard.collect_garbage(writer).parts) == 5
    assert shard.inspect().finalized


def test_a_missing_shard_is_an_error_with_its_name(shards: Shards) -> None:
    with pytest.raises(RecordDamaged, match="the log of shard 'nothing' is missing"):
        shards.open("nothing")


def test_the_same_shard_with_other_columns_is_refused(shards: Shards, shard: Shard, writer: Writer) -> None:
    with pytest.raises(InvalidInput, match="the shard exists with other columns"):
        shards.create("t", pa.schema([("other", pa.int8())]), writer)
    with pytest.raises(InvalidInput, match="__time"):
        shards.create("u", pa.schema([("__time", pa.int64())]), writer)
    assert shards.names() == ["t"]


def test_inspect_shows_the_state(shard: Shard, writer: Writer) -> None:
    shard.hold("sink", 2)
    with shard.snapshot(3):
        inside = shard.inspect()
        text = str(inside)
    assert (inside.since, inside.upper, inside.rows, inside.holds) == (0, 5, 5, {"sink": 2})
    assert [lease.time for lease in inside.leases] == [3]
    assert len(inside.to_dict()["batches"]) == 5
    for expected in ("shard t at", "since 0  upper 5  rows 5", "hold sink at 2", "[4, 5)", "time 3"):
        assert expected in text
    meta, key = shard.log.meta, shard.log.key
    assert inside.diffs == len(meta.scan(key)) == 6
    meta.truncate(key, 3)
    assert shard.inspect().diffs == len(meta.scan(key)) == 4


def test_inline_changes_are_read_without_a_lease() -> None:
    """Saves two commits for every small read. Fails without `inline_changes`, and if it is used for blobs as well."""
    small, large = make_shards(), make_shards(settings=BLOBS)
    for shards, leases in ((small, 0), (large, 1)):
        writer = make_writer(shards)
        shard = shards.create("t", SCHEMA, writer)
        for time in range(3):
            shard.compare_and_append(changes([(time, f"row {time}")], time), time, time + 1, writer)
        taken: list[tuple[object, ...]] = []
        take = shards.leases.take
        shards.leases.take = lambda *of, take=take, taken=taken: taken.append(of) or take(*of)  # type: ignore[method-assign]
        assert shard.changes(1, 3).column("name").to_pylist() == ["row 1", "row 2"]
        assert len(taken) == leases
        shard.advance_since(2, writer)
        with pytest.raises(TimeCompacted):
            shard.changes(1, 3)
        with pytest.raises(NotAllowedNow):
            shard.changes(2, 9, timeout_s=0.01)
