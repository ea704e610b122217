"""What replicas append when their transactions overlap (U1, U7): the first to commit a time writes it, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import permutations

import pytest

from evertide.errors import Unavailable
from evertide.pipeline.pipeline import Pipeline
from evertide.settings import Settings
from evertide.shard.shard_log import ShardLog
from evertide.shard.state import Appended, LogEntry
from evertide.store.open import Storage
from evertide.types import Time
from tests.pipeline.kit import engine, rows_of
from tests.pipeline.replica_kit import QUICK, caught_up, order, pair, replica, shared

BLOBS = replace(QUICK, inline_bytes_max=1)
"""Every batch that has rows is a blob, so that a part that no shard should have is visible."""
PORTIONS = replace(BLOBS, push_buffer_bytes=1, portion_rows_max=1)
"""Every push is a portion of its own, and its result is stored before the commit."""


def read_entries(log: ShardLog, after: int = 0) -> list[LogEntry]:
    return [log.decode_entry(record) for record in log.meta.scan(log.key, after)]


def list_parts(log: ShardLog) -> set[str]:
    return {entry.key for entry in log.blob.list(f"parts/{log.shard}")}


@contextmanager
def three(kept: Storage, settings: Settings) -> Iterator[list[Pipeline]]:
    replicas = [replica(kept, engine(), settings=settings) for _ in range(3)]
    try:
        yield replicas
    finally:
        for one in replicas:
            one.close(checkpoint=False)


@contextmanager
def no_commits() -> Iterator[None]:
    def refuse(*_: object, **__: object) -> None:
        raise Unavailable(path="meta", why="it is away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evertide.pipeline.transaction.runner.append_together", refuse)
        yield


def test_u1_changes_below_the_upper_are_not_appended_again() -> None:
    """A follower is at 5. A peer commits 5 to 9, and changes `revenue` at 5 and 7. Then the follower commits 10.

    Fails if the commit of 10 also has what the replay of 5 to 9 computed: `Runner.replay` only compares that.
    """
    kept = shared()
    with pair(kept, settings=BLOBS) as (first, second):
        for number in range(4):
            first.push("orders", [order(number)])
            assert first.commit() == number + 1
        caught_up(second)
        assert second._runner.time == 5
        for time in range(5, 10):
            if time in (5, 7):
                first.push("orders", [order(time)])
            else:
                first.push("notes", [{"text": f"n{time}"}])
            assert first.commit() == time
        log = first._runner.members.open_collection("revenue").log
        before, parts = log.read(), list_parts(log)
        assert parts == {part.key for part in before.state.parts}
        assert [batch.lower for batch in before.state.batches if batch.lower >= 5] == [5, 7]

        second.push("notes", [{"text": "n10"}])
        assert (second._runner.time, second.commit(), second._runner.time) == (5, 10, 11)

        [entry] = read_entries(log, before.seqno)
        assert (entry.writer, entry.diff) == (second._writer.id, Appended(Time(10), Time(11), ()))
        after = log.read().state
        assert (before.state.upper, after.upper, after.batches) == (10, 11, before.state.batches)
        assert list_parts(log) == parts
        assert rows_of(second, "revenue") == [("c0", 20), ("c1", 40)]


@pytest.mark.parametrize("settings", [BLOBS, PORTIONS], ids=["whole", "portions"])
@pytest.mark.parametrize("turns", list(permutations(range(3))), ids=str)
def test_u7_three_replicas_append_only_the_missing_times(turns: tuple[int, ...], settings: Settings) -> None:
    """Each replica commits the transactions from its own state on; the states are at 5, at 3, and at 1.

    A replica that is behind replays the times that exist, and appends the one that is missing. One that computed a time
    that exists appends nothing. Fails if `PeerFollower` does not recognise that a peer committed what it computed (the
    replica ends with `Conflict`), and if the claim on the losing parts is not settled (they are never deleted).
    """
    kept = shared()
    with three(kept, settings) as replicas:
        first, second, _ = replicas
        for number in (1, 2):
            first.push("orders", [order(number)])
            first.commit()
        assert second.advance() == 2
        second.push("orders", [order(3)])
        second.push("orders", [order(13)])
        with no_commits(), pytest.raises(Unavailable):
            second.commit()  # computed, and its portions are stored; not appended
        assert first.advance() == 3, "the leader appends it"
        first.push("orders", [order(4)])
        assert first.commit() == 4
        assert [one._runner.time for one in replicas] == [5, 3, 1]

        for count, number in enumerate(turns):
            one = replicas[number]
            one.push("orders", [order(20 + number)])
            assert one.commit() == 5 + count
        caught_up(*replicas)

        log = first._runner.members.open_collection("orders").log
        appended = [(entry.writer, entry.diff) for entry in read_entries(log) if isinstance(entry.diff, Appended)]
        assert [(diff.lower, diff.upper) for _, diff in appended] == [(time, time + 1) for time in range(8)]
        wrote = [first, first, first, first, first, *(replicas[number] for number in turns)]
        assert [writer for writer, _ in appended] == [one._writer.id for one in wrote]
        for one in replicas:
            assert rows_of(one, "counts") == [(8, 0)]
        second._writer.beat()  # publishes that it will name none of its parts any more
        for name in ("orders", "revenue"):
            shard = first._runner.members.open_collection(name)
            shard.collect_garbage(first._writer, first._context.checkpoints.find_pins)
            assert list_parts(shard.log) == {part.key for part in shard.log.read().state.parts}, "no orphan"
