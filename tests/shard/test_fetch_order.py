"""F3 and F4: fetches that complete in any order, and a stop in mid-stream, with real threads behind gates."""

from __future__ import annotations

from itertools import permutations

import pytest

from evertide.shard.lease import LeaseRecord
from evertide.shard.shard import Shard, Shards
from evertide.shard.source import Delivered, Event, Progressed, ShardSource
from evertide.store import MemoryBlob, MemoryMeta
from evertide.store.meta import unseal
from evertide.store.paths import lease_prefix
from evertide.types import Time
from tests.shard.kit import BLOBS, SCHEMA, GateBlob, StillMeta, changes, events_until_still, make_shards, make_writer

pytestmark = pytest.mark.usefixtures("shorten_stop_checks")

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

    def lease_in_memory(self) -> tuple[int, int]:
        """Diff and time of the one lease, as the next heartbeat will write them."""
        (held,) = self.shards.leases._by_key.values()
        return held.record.seqno, held.record.time

    def leases_in_meta(self) -> list[LeaseRecord]:
        """The leases as Meta has them."""
        return [unseal(found.data, LeaseRecord, key) for key, found in self.meta.heads(lease_prefix("t")).items()]


def next_event(source: ShardSource) -> Event:
    event = source.poll(30.0)
    assert event is not None, "the source produced no event"
    return event


@pytest.mark.parametrize("order", list(permutations(range(TIMES)))[::3], ids=str)
def test_f3_fetches_complete_in_any_order(order: tuple[int, ...]) -> None:
    """Guards I5 and I6 in the source: after each part the frontier is the smallest outstanding time. It is reported
    after the data below it, and the lease moves at exactly those moments.

    (`test_frontier.py` enumerates all orders of several listings on the pure `Frontier`.) Fails if a part is counted
    before it is delivered (`Progressed` comes first), and if the lease never advances.
    """
    world = World()
    with world.shard.listen(-1) as source, world.gate:
        world.gate.wait_until_asked(world.keys)
        head = world.shard.log.read().seqno
        assert world.lease_in_memory() == (head, 0)
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
            assert world.lease_in_memory() == (head, max(frontier - 1, 0))
        assert events_until_still(source, world.meta) == []
        assert source.frontier == TIMES
    assert world.leases_in_meta() == []


def test_f3_the_lease_keeps_the_oldest_listing_that_is_still_needed() -> None:
    """Two windows at a time: the diff of the lease follows the older one until its last part has arrived."""
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
            assert (source.frontier, world.lease_in_memory()) == (0, (diff, 0))
        world.gate.open(first[0])
        assert isinstance(next_event(source), Delivered)
        assert next_event(source) == Progressed(Time(4))
        assert world.lease_in_memory() == (world.shard.log.read().seqno, 3)
        world.shards.leases.beat()
        assert [(record.seqno, record.time) for record in world.leases_in_meta()] == [world.lease_in_memory()]


def test_f4_a_stop_in_mid_stream_holds_the_frontier() -> None:
    """Guards the two phases of a stop. A consumer of several sources takes the minimum of their frontiers. A source
    that was stopped with parts in flight holds that minimum back, also when those parts arrive later.

    Fails without `Frontier.stop` and the check of `_stopping` before counting: the late parts move the stopped source
    to 4, and with it the combined frontier past the delivered data.
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
    """First phase: parts in flight stay protected. Second phase: the lease is released, once.

    Fails if `stop` releases the lease: it is gone while fetchers still read.
    """
    world = World()
    source = world.shard.listen(-1).start()
    world.gate.wait_until_asked(world.keys)
    source.stop()
    assert len(world.leases_in_meta()) == 1
    world.gate.open_all()
    source.join()
    assert world.leases_in_meta() == []
    source.join()
    assert (source.frontier, world.shards.leases._by_key) == (0, {})


def test_f4_a_stop_while_the_event_queue_is_full() -> None:
    """A stop succeeds while every thread waits for room in a queue."""
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
    assert world.leases_in_meta() == []


def test_f4_a_source_that_was_never_started_can_be_ended() -> None:
    world = World()
    source = world.shard.subscribe(2)
    source.stop()
    source.join()
    assert source.frontier == 2
    assert world.leases_in_meta() == []
