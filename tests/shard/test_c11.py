"""C11: a consumer stands at time 4 while compaction wants to fold 5 to 9: it waits for it.

What each transaction changed stays there until every durable consumer has it; after that a read says so, loudly.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from evertide.errors import TimeCompacted
from evertide.shard import compaction
from evertide.shard.read import Window, fetch, list_parts
from evertide.shard.shard import Shard
from tests.shard.test_log import Host, Memory, content_of

TIMES = 10
HELD = 4


@pytest.fixture
def memory() -> Memory:
    return Memory()


def delta(time: int) -> dict[int, int]:
    """A row that comes, one that goes, and one that only flickers."""
    return {time: 1, **({time - 1: -1} if time % 2 else {}), 1000: 1 if time % 2 else -1} if time else {0: 1}


def filled(host: Host) -> Shard:
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
    """What a consumer that has everything below `lower` is told next, by time."""
    listed = list_parts(shard.log, shard.log.read(), Window(lower, upper))
    found: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for part in listed.parts:
        for row in fetch(shard.log, part, listed).to_pylist():
            found[row["__time"]][row["k"]] += row["__diff"]
    return {time: {row: diff for row, diff in rows.items() if diff} for time, rows in sorted(found.items())}


def test_c11_compaction_waits_for_the_consumer(memory: Memory) -> None:
    """Seen to fail with the holds left out of `allowed` in `advance_since`."""
    host = memory.host()
    shard = filled(host)
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


def test_c11_step_by_step_each_content_is_there_until_the_hold_moves(memory: Memory) -> None:
    host = memory.host()
    shard = filled(host)
    for held in range(TIMES):
        shard.hold("sink", held)
        assert shard.advance_since(TIMES - 1, host.writer) == held
        shard.compact(host.writer)
        shard.collect_garbage(host.writer)
        assert [content_of(shard, time) for time in range(held, TIMES)] == [model(t) for t in range(held, TIMES)]
        assert deltas(shard, held + 1, TIMES) == {time: delta(time) for time in range(held + 1, TIMES)}
    shard.release("sink")
    assert shard.since == TIMES - 1


def test_c11_once_the_hold_moves_the_times_fold_and_reading_them_is_refused(memory: Memory) -> None:
    host = memory.host()
    shard = filled(host)
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


def test_c11_a_window_below_a_fold_is_refused_not_told_twice(memory: Memory) -> None:
    """A consumer has times 0 to 3. The batches below were folded up to since, beyond its place.

    Their rows now carry the time of since: told from 4 on, they would come a second time.
    """
    host = memory.host()
    shard = filled(host)
    shard.advance_since(8, host.writer)
    only_the_first(host, shard, HELD)
    with pytest.raises(TimeCompacted):
        deltas(shard, HELD, TIMES)
    assert deltas(shard, 9, TIMES) == {9: delta(9)}


def test_c11_a_fold_that_leaves_nothing_is_refused_too(memory: Memory) -> None:
    """A consumer has the row of time 0; at time 1 it goes. Folded, nothing is left, not even its going."""
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


def only_the_first(host: Host, shard: Shard, count: int) -> None:
    """Compact the oldest batches and no others, as happens when the young ones are still too few for a merge."""
    chosen = compaction.choose
    compaction.choose = lambda state, _settings: state.batches[:count]  # type: ignore[assignment]
    try:
        assert compaction.compact(shard.log, host.writer)
    finally:
        compaction.choose = chosen
