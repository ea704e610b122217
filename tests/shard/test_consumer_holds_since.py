"""C11: a consumer is at time 4 while compaction would merge times 5 to 9. Compaction waits for the consumer.

The changes of each transaction stay readable until every durable consumer has them. A later read is refused.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from evertide.errors import TimeCompacted
from evertide.shard import compaction
from evertide.shard.read import TimeWindow, fetch, list_parts
from evertide.shard.shard import Shard
from tests.shard.hosts import Host, Memory, content_of

TIMES = 10
HELD = 4


def delta(time: int) -> dict[int, int]:
    """One row is added; at odd times the previous row is deleted; row 1000 is added at odd times and deleted at even
    ones.
    """
    return {time: 1, **({time - 1: -1} if time % 2 else {}), 1000: 1 if time % 2 else -1} if time else {0: 1}


def fill_shard(host: Host) -> Shard:
    shard = host.create()
    for time in range(TIMES):
        host.append(shard, delta(time))
    return shard


def model(as_of: int) -> dict[int, int]:
    total: dict[int, int] = defaultdict(int)
    for time in range(as_of + 1):
        for row, diff in delta(time).items():
            total[row] += diff
    return {row: diff for row, diff in total.items() if diff}


def deltas(shard: Shard, lower: int, upper: int) -> dict[int, dict[int, int]]:
    """The changes that a consumer that has everything below `lower` receives next, by time."""
    listed = list_parts(shard.log, shard.log.read(), TimeWindow(lower, upper))
    found: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for part in listed.parts:
        for row in fetch(shard.log, part, listed).to_pylist():
            found[row["__time"]][row["k"]] += row["__diff"]
    return {time: {row: diff for row, diff in rows.items() if diff} for time, rows in sorted(found.items())}


def test_c11_compaction_waits_for_the_consumer(memory: Memory) -> None:
    """Fails if `advance_since` ignores the holds in `allowed`."""
    host = memory.host()
    shard = fill_shard(host)
    shard.hold("sink", HELD)
    assert shard.advance_since(TIMES - 1, host.writer) == HELD
    assert shard.compact(host.writer)
    shard.collect_garbage(host.writer)
    for time in range(HELD, TIMES):
        assert content_of(shard, time) == model(time)
    assert deltas(shard, HELD + 1, TIMES) == {time: delta(time) for time in range(HELD + 1, TIMES)}
    with pytest.raises(TimeCompacted) as gone:
        content_of(shard, HELD - 1)
    assert gone.value.since == HELD


def test_c11_each_content_stays_readable_until_the_hold_moves(memory: Memory) -> None:
    host = memory.host()
    shard = fill_shard(host)
    for held in range(TIMES):
        shard.hold("sink", held)
        assert shard.advance_since(TIMES - 1, host.writer) == held
        shard.compact(host.writer)
        shard.collect_garbage(host.writer)
        assert [content_of(shard, time) for time in range(held, TIMES)] == [model(t) for t in range(held, TIMES)]
        assert deltas(shard, held + 1, TIMES) == {time: delta(time) for time in range(held + 1, TIMES)}
    shard.release("sink")
    assert shard.since == TIMES - 1


def test_c11_once_the_hold_moves_the_times_are_merged_and_reading_them_is_refused(memory: Memory) -> None:
    host = memory.host()
    shard = fill_shard(host)
    shard.hold("sink", HELD)
    shard.advance_since(TIMES - 1, host.writer)
    shard.compact(host.writer)
    shard.hold("sink", TIMES - 1)
    assert shard.advance_since(TIMES - 1, host.writer) == TIMES - 1
    host.append(shard, {5000: 1})
    assert shard.compact(host.writer)
    with pytest.raises(TimeCompacted):
        content_of(shard, HELD)
    with pytest.raises(TimeCompacted):
        deltas(shard, HELD + 1, TIMES)
    assert content_of(shard, TIMES - 1) == model(TIMES - 1)


def test_c11_a_window_below_merged_times_is_refused(memory: Memory) -> None:
    """A consumer has times 0 to 3. The batches below were merged up to since, past its position.

    Their rows now have the time since: read from 4 on, they would be delivered twice.
    """
    host = memory.host()
    shard = fill_shard(host)
    shard.advance_since(8, host.writer)
    compact_oldest(host, shard, HELD)
    with pytest.raises(TimeCompacted):
        deltas(shard, HELD, TIMES)
    assert deltas(shard, 9, TIMES) == {9: delta(9)}


def test_c11_a_window_below_a_merge_that_left_no_changes_is_refused(memory: Memory) -> None:
    """A consumer has the row of time 0, which time 1 deletes. The merge leaves neither: its deletion would be lost."""
    host = memory.host()
    shard = host.create()
    host.append(shard, {1: 1})
    host.append(shard, {1: -1})
    host.append(shard, {}, upper=TIMES)
    shard.advance_since(TIMES - 1, host.writer)
    assert shard.compact(host.writer)
    with pytest.raises(TimeCompacted):
        deltas(shard, 1, TIMES)
    assert content_of(shard, TIMES - 1) == {}


def compact_oldest(host: Host, shard: Shard, count: int) -> None:
    """Compact only the oldest batches, as happens while there are too few young ones for a merge."""
    chosen = compaction.choose
    compaction.choose = lambda state, _settings: state.batches[:count]  # type: ignore[assignment]
    try:
        assert compaction.compact(shard.log, host.writer)
    finally:
        compaction.choose = chosen
