"""Compaction: which batches it chooses, and that it preserves the content."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from evertide.errors import Conflict, Unexpected
from evertide.rows.changes import DIFF, TIME, advance_times
from evertide.rows.digest import hash_rows
from evertide.settings import Settings
from evertide.shard import compaction
from evertide.shard.compaction import choose
from evertide.shard.parts.part import Part
from evertide.shard.shard import Shard
from evertide.shard.state import Batch, ShardState
from evertide.store.writers import Writer
from evertide.types import Time
from tests.shard.kit import BLOBS, SCHEMA, changes, concat_changes, make_shards, make_writer, rows_at

FAN_IN = Settings().compaction_fan_in


def batch(lower: int, rows: int, retractions: int = 0, since: int = 0) -> Batch:
    part = Part(rows, rows * 10, "", "0" * 32, rows, retractions, lower, lower, {})
    return Batch(Time(lower), Time(lower + 1), (part,), Time(since))


def state(*sizes: int) -> ShardState:
    return ShardState(
        "t", b"", upper=Time(len(sizes)), batches=tuple(batch(time, rows) for time, rows in enumerate(sizes))
    )


@given(st.lists(st.integers(1, 5000), max_size=300))
@examples(max_examples=100, deadline=None)
def test_batches_stay_few_and_rows_are_seldom_rewritten(sizes: list[int]) -> None:
    """For any sizes of transactions: fewer than `fan_in` batches per level, and few rewrites of each row."""
    batches: tuple[Batch, ...] = ()
    rewritten = 0
    for time, rows in enumerate(sizes):
        batches += (batch(time, rows),)
        while run := choose(ShardState("t", b"", upper=Time(time + 1), batches=batches), Settings()):
            rewritten += sum(one.rows for one in run)
            at = batches.index(run[0])
            whole = Batch(run[0].lower, run[-1].upper, batch(run[0].lower, sum(one.rows for one in run)).parts)
            batches = (*batches[:at], whole, *batches[at + len(run) :])
    levels = 1 + compaction._level(max(sum(sizes), 1), FAN_IN)
    assert len(batches) <= levels * (FAN_IN - 1)
    assert rewritten <= sum(sizes) * levels * FAN_IN


def test_a_small_batch_between_large_ones_is_merged_in_the_end() -> None:
    assert len(choose(state(*[9000, 1] * 4), Settings())) == 0
    assert len(choose(state(*[9000, 1] * 4, 9000), Settings())) == 9


def test_times_below_since_are_merged_if_there_are_enough_retractions() -> None:
    """Also in an idle shard, and only once for each since."""
    run = (batch(0, 70), batch(1, 10, retractions=10))
    idle = ShardState("t", b"", since=Time(1), upper=Time(2), batches=run)
    assert choose(idle, Settings()) == run
    assert choose(replace_batches(idle, (batch(0, 70), batch(1, 10, retractions=9))), Settings()) == ()
    assert choose(replace_batches(idle, tuple(batch(b.lower, b.rows, b.retractions, 1) for b in run)), Settings()) == ()
    assert choose(ShardState("t", b"", since=Time(0), upper=Time(2), batches=run), Settings()) == ()


def replace_batches(before: ShardState, batches: tuple[Batch, ...]) -> ShardState:
    return ShardState("t", b"", since=before.since, upper=before.upper, batches=batches)


def fill_shard(settings: Settings = BLOBS) -> tuple[Shard, Writer, list[Counter[tuple[int, str]]]]:
    """A shard in which each time adds three rows and deletes one earlier row, and its expected contents."""
    shards = make_shards(settings=settings)
    writer = make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    content: Counter[tuple[int, str]] = Counter()
    contents = []
    for time in range(2 * FAN_IN):
        gone = [(3 * time - 3, "row")] if time else []
        added = [(3 * time + each, "row") for each in range(3)]
        shard.compare_and_append(concat_changes(changes(added, time), changes(gone, time, -1)), time, time + 1, writer)
        content.update(added)
        content.subtract(gone)
        contents.append(+content)
    return shard, writer, contents


@pytest.mark.parametrize("since", [0, 5, 2 * FAN_IN - 1])
def test_the_content_of_every_readable_time_stays_the_same(since: int) -> None:
    """Fails if times are moved to since + 1."""
    shard, writer, contents = fill_shard()
    shard.advance_since(since, writer)
    assert shard.compact(writer)
    assert len(shard.log.read().state.batches) < FAN_IN
    for time in range(since, len(contents)):
        assert rows_at(shard, time) == contents[time]


def test_retractions_are_summed_up_below_since() -> None:
    shard, writer, contents = fill_shard()
    before = shard.inspect().rows
    shard.advance_since(len(contents) - 1, writer)
    shard.compact(writer)
    assert shard.inspect().rows == contents[-1].total() < before


@pytest.mark.parametrize("rows_max", [1, 7, 30])
def test_a_large_merge_goes_slice_by_slice(rows_max: int) -> None:
    """A merge of sliced batches reads only the parts of each slice."""
    shard, writer, contents = fill_shard(replace(BLOBS, compaction_rows_max=rows_max, part_rows_max=5))
    assert shard.compact(writer)
    parts = shard.log.read().state.parts
    assert max(part.slice_count for part in parts) > 1
    assert all(part.rows <= 5 for part in parts)
    for time in range(len(contents), len(contents) + FAN_IN):
        shard.compare_and_append(changes([(time, "more")], time), time, time + 1, writer)
    shard.advance_since(len(contents) - 1, writer)
    shard.compact(writer)
    assert rows_at(shard, len(contents) - 1) == contents[-1]
    assert shard.inspect().rows == contents[-1].total() + FAN_IN, "deletions cancelled the rows that they delete"
    with shard.snapshot(len(contents) + FAN_IN - 1) as snapshot:
        for part in snapshot.parts:
            hashes = hash_rows(snapshot.fetch(part).drop_columns([TIME, DIFF])).high
            assert {int(each) * part.slice_count >> 64 for each in hashes} == {part.slice_index}


def test_a_merge_in_slices_reads_each_part_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if each slice reads all parts."""
    shard, writer, _ = fill_shard(replace(BLOBS, compaction_rows_max=7))
    blob, got = shard.log.blob, Counter[str]()
    get = blob.get

    def counting(key: str) -> bytes:
        got[key] += 1
        return get(key)

    monkeypatch.setattr(blob, "get", counting)
    parts = {part.key for part in shard.log.read().state.parts}
    assert shard.compact(writer)
    assert got == Counter(parts)


LARGE = replace(BLOBS, part_rows_max=8)
"""A part of four rows is large."""


def grown(*, shrinks_at: int = -1) -> tuple[Shard, Writer, list[Counter[tuple[int, str]]]]:
    """Most times add six rows, every fifth one row. At `shrinks_at` one row is deleted."""
    shards = make_shards(settings=LARGE)
    writer = make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    content: Counter[tuple[int, str]] = Counter()
    contents = []
    for time in range(3 * FAN_IN):
        added = [(10 * time + each, "row") for each in range(6 if time % 5 else 1)]
        gone = [(0, "row")] if time == shrinks_at else []
        shard.compare_and_append(concat_changes(changes(added, time), changes(gone, time, -1)), time, time + 1, writer)
        content.update(added)
        content.subtract(gone)
        contents.append(+content)
    return shard, writer, contents


def test_large_parts_without_retractions_are_not_rewritten() -> None:
    """Large parts stay as they are, small ones are merged. Fails if all are read and written again."""
    shard, writer, contents = grown()
    large = {part.key for part in shard.log.read().state.parts if part.rows == 6}
    shard.advance_since(4, writer)
    assert shard.compact(writer)
    found = shard.log.read().state
    assert len(found.batches) < FAN_IN
    assert large < {part.key for part in found.parts}
    assert len(found.parts) - len(large) <= 2
    writer.beat()
    shard.collect_garbage(writer)
    assert {entry.key for entry in shard.log.blob.list("parts/t/")} == {part.key for part in found.parts}
    assert [rows_at(shard, time) for time in range(4, len(contents))] == contents[4:]


def test_a_deletion_makes_large_parts_be_rewritten() -> None:
    """Fails if large parts stay as they are: deleted rows would never be removed from them."""
    shard, writer, contents = grown(shrinks_at=3 * FAN_IN - 1)
    shard.advance_since(len(contents) - 1, writer)
    while shard.compact(writer):
        pass
    assert shard.inspect().rows == contents[-1].total()
    assert not any(part.retractions for part in shard.log.read().state.parts)
    assert rows_at(shard, len(contents) - 1) == contents[-1]


def test_a_merge_that_loses_the_race_deletes_only_its_own_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if it also deletes the parts that it would have kept: they belong to the shard."""
    shard, writer, contents = grown()

    def lose_race(*_: object) -> None:
        raise Conflict(where="there", why="a peer was faster")

    monkeypatch.setattr(compaction, "commit", lose_race)
    assert not shard.compact(writer)
    monkeypatch.undo()
    assert {entry.key for entry in shard.log.blob.list("parts/t/")} == {p.key for p in shard.log.read().state.parts}
    assert rows_at(shard, len(contents) - 1) == contents[-1]


def test_a_merge_that_would_change_the_content_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails without the comparison of digests: then the state machine refuses the swap, as `RecordDamaged`."""
    shard, writer, contents = fill_shard()
    monkeypatch.setattr(compaction, "advance_times", lambda table, since: advance_times(table.slice(1), since))
    with pytest.raises(Unexpected, match="returned other rows than its parts have"):
        shard.compact(writer)
    monkeypatch.undo()
    assert [rows_at(shard, time) for time in range(len(contents))] == contents
    writer.beat()
    named = {part.key for part in shard.log.read().state.parts}
    assert {entry.key for entry in shard.log.blob.list("parts/t/")} == named, (
        "the merge withdrew the parts that it wrote"
    )
