"""F3 and F4: fetches that complete in any order, and a stop in mid-stream, with the real threads behind gates."""

from __future__ import annotations

from itertools import permutations

import pytest

from evertide.shard.lease import LeaseRecord
from evertide.shard.shard import Shard, Shards
from evertide.shard.source import Delivered, Event, Progressed, ShardSource
from evertide.store import MemoryBlob, MemoryMeta
from evertide.store.paths import lease_prefix
from evertide.store.sealed import unseal
from evertide.types import Time
from tests.shard.kit import BLOBS, SCHEMA, GateBlob, StillMeta, changes, events_until_still, make_shards, make_writer

pytestmark = pytest.mark.usefixtures("quick_stop")

TIMES = 4


class World:
    def __init__(self, times: int = TIMES) -> None:
        self.gate = GateBlob(MemoryBlob())
        self.meta = StillMeta(MemoryMeta())
        self.shards: Shards = make_shards(self.gate, self.meta, settings=BLOBS)
        self.writer = make_writer(self.shards)
        self.shard: Shard = self.shards.create("t", SCHEMA, self.writer)
        for time in range(times):
            self.append(time)

    def append(self, time: int) -> None:
        self.shard.compare_and_append(changes([(time, "row")], time), time, time + 1, self.writer)

    @property
    def keys(self) -> list[str]:
        return [part.key for part in self.shard.log.read().state.parts]

    def standing(self) -> tuple[int, int]:
        """Diff and time of the one lease, as the next heartbeat will say it."""
        (standing,) = self.shards.leases._by_key.values()
        return standing.record.seqno, standing.record.time

    def told(self) -> list[LeaseRecord]:
        """The leases as Meta has them."""
        return [unseal(found.data, LeaseRecord, key) for key, found in self.meta.heads(lease_prefix("t")).items()]


def next_event(source: ShardSource) -> Event:
    event = source.poll(30.0)
    assert event is not None, "the source does not move"
    return event


@pytest.mark.parametrize("order", list(permutations(range(TIMES)))[::3], ids=str)
def test_f3_fetches_complete_in_any_order(order: tuple[int, ...]) -> None:
    """Guards I5 and I6 in the source: after each part the frontier is the smallest time that is outstanding, it is said
    after the data below it, and the lease moves at exactly those moments.

    (`test_frontier.py` enumerates all orders of several listings on the pure `Frontier`.) Taken out once, each time
    this failed: counting before handing out (`Progressed` came first), the lease never advanced.
    """
    world = World()
    with world.shard.listen(-1) as source, world.gate:
        world.gate.wait_until_asked(world.keys)
        head = world.shard.log.read().seqno
        assert world.standing() == (head, 0)
        missing = set(range(TIMES))
        frontier = 0
        for time in order:
            world.gate.open(world.keys[time])
            event = next_event(source)
            assert isinstance(event, Delivered)
            assert event.time == time
            missing.remove(time)
            reached = min(missing, default=TIMES)
            if reached > frontier:
                assert next_event(source) == Progressed(Time(reached))
                frontier = reached
            assert source.frontier == frontier
            assert world.standing() == (head, max(frontier - 1, 0))
        assert events_until_still(source, world.meta) == []
        assert source.frontier == TIMES
    assert world.told() == []


def test_f3_the_lease_keeps_the_oldest_listing_that_is_still_needed() -> None:
    """Two windows at a time: the diff of the lease follows the older one until its last part is there."""
    world = World(2)
    first = world.keys
    with world.shard.listen(-1) as source, world.gate:
        world.gate.wait_until_asked(first)
        diff = world.shard.log.read().seqno
        world.append(2)
        world.append(3)
        second = world.keys[2:]
        world.gate.wait_until_asked(second)
        for key in (*second, first[1]):
            world.gate.open(key)
            assert isinstance(next_event(source), Delivered)
            assert (source.frontier, world.standing()) == (0, (diff, 0))
        world.gate.open(first[0])
        assert isinstance(next_event(source), Delivered)
        assert next_event(source) == Progressed(Time(4))
        assert world.standing() == (world.shard.log.read().seqno, 3)
        world.shards.leases.beat()
        assert [(record.seqno, record.time) for record in world.told()] == [world.standing()]


def test_f4_a_stop_in_mid_stream_holds_the_frontier() -> None:
    """Guards the two phases of a stop: whoever combines sources takes the least of their frontiers, and a source that
    was stopped with parts under way holds that back, also when those parts come in afterwards.

    Taken out once (neither `Frontier.stop` nor the look at `_stopping` before counting): the late parts moved the
    stopped source to 4, and with it the combined frontier past what was handed on.
    """
    mine, other = World(), World()
    other.gate.open_all()
    with mine.shard.listen(-1) as stopped, other.shard.listen(-1) as running, mine.gate:
        mine.gate.wait_until_asked(mine.keys)
        mine.gate.open(mine.keys[0])
        assert isinstance(next_event(stopped), Delivered)
        assert next_event(stopped) == Progressed(Time(1))
        stopped.stop()
        mine.gate.open_all()
        events_until_still(running, other.meta)
        for thread in stopped._threads:
            thread.join(30.0)
        assert (stopped.frontier, running.frontier) == (1, TIMES)
        assert min(stopped.frontier, running.frontier) == 1
        assert not any(isinstance(stopped.poll(0.0), Progressed) for _ in range(TIMES))
        stopped.stop()
        stopped.join()
        assert stopped.frontier == 1


def test_f4_the_lease_is_kept_until_the_threads_are_gone() -> None:
    """First phase: the parts under way stay protected. Second phase: the lease is given back, once.

    Taken out once (the lease released in `stop`): it was gone while fetchers still read."""
    world = World()
    source = world.shard.listen(-1).start()
    world.gate.wait_until_asked(world.keys)
    source.stop()
    assert len(world.told()) == 1
    world.gate.open_all()
    source.join()
    assert world.told() == []
    source.join()
    assert (source.frontier, world.shards.leases._by_key) == (0, {})


def test_f4_nobody_takes_the_events() -> None:
    """Stopping works while every thread waits for room in a queue."""
    world = World(40)
    world.gate.open_all()
    source = world.shard.listen(-1).start()
    while not (source._events.full() and source._tasks.full()):
        world.shards.runtime.sleep_s(0.001)
    source.stop()
    fixed = source.frontier
    source.join()
    assert source.frontier == fixed < 40
    handed_out = {event.time for event in iter(lambda: source.poll(0.0), None) if isinstance(event, Delivered)}
    assert set(range(fixed)) <= handed_out
    assert world.told() == []


def test_f4_a_source_that_was_never_started_can_be_ended() -> None:
    world = World()
    source = world.shard.subscribe(2)
    source.stop()
    source.join()
    assert source.frontier == 2
    assert world.told() == []
