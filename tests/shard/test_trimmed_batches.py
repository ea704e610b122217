"""U7: batches of replicated writers are trimmed to the missing times; a gap is an error; a batch with none missing is a
success.
"""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput, UpperMismatch
from evertide.settings import Settings
from evertide.shard.append import Outcome
from evertide.shard.shard import Shards
from evertide.store import MemoryBlob, MemoryMeta
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

RANGES = ((0, 5), (0, 5), (0, 3))


@pytest.mark.parametrize("settings", [INLINE, BLOBS], ids=["inline", "blobs"])
@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_u7_three_writers_in_every_order(order: tuple[int, ...], settings: Settings) -> None:
    """Guards the trimming in `append_missing` (I3): changes below the upper are dropped, the rest is written.

    Fails if all changes are passed on: `InvalidInput` instead of an append. Fails without "an upper beyond ours is
    success": `InvalidInput` too, as the batch has no times left.
    """
    processes = fleet(3, settings=settings)
    processes[0].create("t", SCHEMA, make_writer(processes[0]))
    upper = 0
    for number in order:
        shards = processes[number]
        lower, wanted = RANGES[number]
        outcome = shards.open("t").append(batch(lower, wanted), lower, wanted, make_writer(shards))
        assert outcome == (Outcome(upper, wanted) if wanted > upper else Outcome(wanted, wanted))
        upper = max(upper, wanted)
    shard = make_shards(processes[0].blob, processes[0].meta).open("t")
    assert shard.upper == 5
    assert updates_of(shard) == updates(0, 5)
    for time in range(5):
        assert rows_at(shard, time) == Counter({(at, "row"): 1 for at in range(time + 1)})
    assert len(list(shards.blob.list("parts/t"))) == sum(1 for part in shard.log.read().state.parts if part.key)


@pytest.mark.parametrize(("lower", "upper"), [(0, 9), (2, 9), (4, 9), (5, 9), (6, 9), (6, 7)])
def test_u7_batches_that_straddle_the_upper(lower: int, upper: int) -> None:
    """The append starts exactly at the shard's upper, whether a batch begins below it or at it.

    Fails without the filter by time: the batches that straddle the upper are refused.
    """
    first, second = fleet(2)
    shard = first.create("t", SCHEMA, make_writer(first))
    shard.append(batch(0, 6), 0, 6, make_writer(first))
    outcome = second.open("t").append(batch(lower, upper), lower, upper, make_writer(second))
    assert outcome == Outcome(6, upper)
    assert updates_of(shard) == updates(0, upper)


def test_u7_a_batch_whose_rows_are_all_trimmed_still_moves_the_upper() -> None:
    first, second = fleet(2)
    shard = first.create("t", SCHEMA, make_writer(first))
    shard.append(batch(0, 4), 0, 4, make_writer(first))
    assert second.open("t").append(batch(1, 3), 1, 7, make_writer(second)) == Outcome(4, 7)
    assert (shard.upper, updates_of(shard)) == (7, updates(0, 4))


@pytest.mark.parametrize("behind", [1, 3])
def test_u7_a_gap_is_an_error_and_writes_nothing(behind: int) -> None:
    """Guards against times that no writer appended. Fails without the check: the shard has times that no writer
    wrote.
    """
    (shards,) = fleet(1)
    writer = make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    shard.append(batch(0, 2), 0, 2, writer)
    seqno = shard.log.read().seqno
    with pytest.raises(UpperMismatch) as caught:
        shard.append(batch(2 + behind, 9), 2 + behind, 9, writer)
    assert (caught.value.expected, caught.value.upper) == (2 + behind, 2)
    assert f"times 2 to {1 + behind} " in caught.value.why
    assert shard.log.read().seqno == seqno
    assert list(shards.blob.list("parts/t")) == []


@pytest.mark.parametrize(("lower", "upper"), [(0, 5), (0, 3), (4, 5), (3, 3)])
def test_u7_nothing_missing_is_success_without_work(lower: int, upper: int) -> None:
    """An upper at or beyond the batch's: no commit, no blob, no error. Fails without the check: an error about the
    empty range.
    """
    first, second = fleet(2, settings=BLOBS)
    shard = first.create("t", SCHEMA, make_writer(first))
    shard.append(batch(0, 5), 0, 5, make_writer(first))
    before = shard.log.read(), list(first.blob.list(""))
    writer = make_writer(second)
    assert second.open("t").append(batch(lower, upper), lower, upper, writer) == Outcome(upper, upper)
    assert (shard.log.read(), list(first.blob.list(""))) == before


def test_u7_compare_and_append_is_exact() -> None:
    """I2: the plain append trims nothing: another upper is refused in both directions, with distinct errors."""
    (shards,) = fleet(1)
    writer = make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    shard.compare_and_append(batch(0, 3), 0, 3, writer)
    for expected, why in ((2, "a peer wrote these times"), (4, "earlier times are missing")):
        with pytest.raises(UpperMismatch) as caught:
            shard.compare_and_append(batch(expected, 6), expected, 6, writer)
        assert (caught.value.why, caught.value.expected, caught.value.upper) == (why, expected, 3)
    with pytest.raises(InvalidInput, match="which is not in"):
        shard.compare_and_append(batch(2, 6), 3, 6, writer)
    assert updates_of(shard) == updates(0, 3)


def fleet(count: int, settings: Settings = INLINE) -> list[Shards]:
    blob, meta = MemoryBlob(), MemoryMeta()
    return [make_shards(blob, meta, settings=settings) for _ in range(count)]


def batch(lower: int, upper: int) -> pa.Table:
    return concat_changes(*(changes([(time, "row")], time) for time in range(lower, upper)))


def updates(lower: int, upper: int) -> Counter[tuple[int, Row, int]]:
    return Counter({(time, (time, "row"), 1): 1 for time in range(lower, upper)})
