"""F5 and F6: readers, leases and garbage collection.

The parts that a reader needs stay while its lease is live. If the lease ends, the reader gets "lease lost", and never
an error about a missing file.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from evertide.errors import BlobMissing, LeaseLost, RecordDamaged, StorageForbidden, TimeCompacted
from evertide.rows.changes import TIME
from evertide.shard.shard import Shards
from evertide.shard.source import Delivered, Event, Frozen, Progressed, Restarted, ShardSource
from evertide.store import Guard, MemoryBlob, MemoryMeta, Meta, Record, Stale, Write
from tests.kit.runtime import ManualRuntime
from tests.shard.kit import (
    BLOBS,
    SCHEMA,
    GateBlob,
    Row,
    StillMeta,
    changes,
    events_until_still,
    make_shards,
    make_writer,
    rows_at,
    totals,
)

pytestmark = pytest.mark.usefixtures("shorten_stop_checks")

TIMES = BLOBS.compaction_fan_in
SETTINGS = replace(
    BLOBS,
    inline_bytes_max=1,
    fetchers=TIMES,
)


class LeaseRefusingMeta(StillMeta):
    """Refuses the next leases, and runs a hook before the reader's next scan of the log."""

    def __init__(self, inner: Meta) -> None:
        super().__init__(inner)
        self.refusals = 0
        self.refused = threading.Event()
        self.before_scan: Callable[[], None] | None = None

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        hook, self.before_scan = self.before_scan, None
        if hook is not None:
            hook()
        return super().scan(key, after, limit)

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        if self.refusals and writes[0].key.startswith("lease/") and writes[0].expected == 0:
            self.refusals -= 1
            self.refused.set()
            raise StorageForbidden(path=self.path(writes[0].key), why="for a moment")
        return super().commit(writes, guards)


class World:
    """A reader whose fetches wait at gates, and a peer that writes, compacts and collects. The test controls
    the clock.
    """

    def __init__(self) -> None:
        self.runtime = ManualRuntime(1)
        self.blob, inner = MemoryBlob(), MemoryMeta()
        self.gate = GateBlob(self.blob)
        self.meta = LeaseRefusingMeta(inner)
        self.readers: Shards = make_shards(self.gate, self.meta, runtime=self.runtime, settings=SETTINGS)
        self.peers = make_shards(self.blob, inner, runtime=self.runtime, settings=SETTINGS)
        self.writer = make_writer(self.peers)
        self.peer = self.peers.create("t", SCHEMA, self.writer)
        for time in range(TIMES):
            self.append(time)
        self.keys = [part.key for part in self.peer.log.read().state.parts]
        self.shard = self.readers.open("t")

    def append(self, time: int) -> None:
        delta = changes([(time, "row"), (-1, "each time")], time)
        self.peer.compare_and_append(delta, time, time + 1, self.writer)

    def clean_up(self, since: int = 0) -> None:
        """All that a peer does to old parts: compaction, roll-up, garbage collection."""
        self.peer.advance_since(since, self.writer)
        assert self.peer.compact(self.writer)
        self.peer.collect_garbage(self.writer)

    def clean_up_and_append(self) -> None:
        """Clean up, and append something to clean up the next time."""
        self.clean_up()
        for time in range(self.peer.upper, self.peer.upper + TIMES):
            self.append(time)

    def assert_tidy(self) -> None:
        """The state names every part that is stored."""
        named = {part.key for part in self.peer.log.read().state.parts}
        assert {entry.key for entry in self.blob.list("parts/t")} == named

    def stall(self, since: int = 0) -> None:
        """The reader is silent for longer than its lease, and the peer cleans up meanwhile."""
        self.runtime.advance_s(SETTINGS.lease_ttl_s + 1)
        self.clean_up(since)
        assert not any(self.is_there(key) for key in self.keys)

    def is_there(self, key: str) -> bool:
        try:
            return bool(self.blob.get(key))
        except BlobMissing:
            return False

    def content(self, time: int) -> Counter[Row]:
        return Counter({(-1, "each time"): time + 1} | {(at, "row"): 1 for at in range(time + 1)})


class Consumer:
    """The content below the frontier, built from events."""

    def __init__(self) -> None:
        self.frontier = 0
        self.errors: list[Frozen] = []
        self.restarts: list[int] = []
        self.tables: list[pa.Table] = []

    def take(self, events: Sequence[Event]) -> Consumer:
        for event in events:
            match event:
                case Delivered():
                    self.tables.append(event.changes)
                case Progressed():
                    assert event.frontier > self.frontier
                    self.frontier = event.frontier
                case Restarted():
                    assert event.frontier == self.frontier
                    self.restarts.append(event.frontier)
                    self.tables = [table.filter(_below(table, event.frontier)) for table in self.tables]
                case Frozen():
                    self.errors.append(event)
        return self

    def content(self) -> Counter[Row]:
        return totals(*(table.filter(_below(table, self.frontier)) for table in self.tables))


def _below(table: pa.Table, time: int) -> pa.Array:
    return pa.array([at < time for at in table[TIME].to_pylist()], pa.bool_())


def one_event(source: ShardSource) -> list[Event]:
    event = source.poll(10.0)
    assert event is not None, "the source produced no event"
    return [event]


STARTS: dict[str, Callable[[World], ShardSource]] = {
    "listen": lambda world: world.shard.listen(-1),
    "subscribe": lambda world: world.shard.subscribe(TIMES - 1),
}


@pytest.mark.parametrize("start", STARTS)
def test_f5_a_stalled_reader_restarts_by_itself(start: str) -> None:
    """Guards I6: a part that is missing without a lease is "lease lost", and the source lists again from its frontier.

    Fails if `BlobMissing` is raised without a check of the lease: the reader freezes.
    """
    world = World()
    consumer = Consumer()
    with STARTS[start](world) as source, world.gate:
        world.gate.wait_until_asked(world.keys)
        world.stall()
        world.gate.open_all()
        consumer.frontier = source.frontier
        consumer.take(events_until_still(source, world.meta))
        assert (consumer.errors, source.error) == ([], None)
        assert len(consumer.restarts) == 1
        assert source.frontier == consumer.frontier == TIMES
        assert consumer.content() == world.content(TIMES - 1)
        world.append(TIMES)
        consumer.take(events_until_still(source, world.meta))
        assert consumer.content() == world.content(TIMES)


def test_f5_every_fetch_under_way_finds_its_own_lease_lost() -> None:
    """Several fetchers are in flight when the lease is lost, and notice one after the other, the later ones when the
    source already has a new lease. That lease says nothing about parts listed under the old one.

    Fails if a fetcher checks the source's present lease, and freezes for a part of an old listing: `Frozen`.
    """
    world = World()
    consumer = Consumer()
    with world.shard.listen(-1) as source, world.gate:
        world.gate.wait_until_asked(world.keys)
        world.stall()
        world.gate.open(world.keys[0])
        consumer.take(one_event(source))
        assert consumer.restarts == [0]
        (merged,) = (part.key for part in world.peer.log.read().state.parts)
        world.gate.wait_until_asked([merged])
        world.gate.open_all()
        consumer.take(events_until_still(source, world.meta))
        assert consumer.errors == []
        assert consumer.content() == world.content(TIMES - 1)


def test_f5_a_restart_continues_from_the_frontier() -> None:
    """Changes below the frontier are not delivered again; those above it are, after `Restarted`."""
    world = World()
    consumer = Consumer()
    with world.shard.listen(-1) as source, world.gate:
        world.gate.wait_until_asked(world.keys)
        for time in (0, 1, 2, 5):
            world.gate.open(world.keys[time])
            consumer.take(one_event(source))
            if time < 3:
                consumer.take(one_event(source))
        assert (consumer.frontier, len(consumer.tables)) == (3, 4)
        world.stall(since=2)
        world.gate.open(world.keys[3])
        consumer.take(one_event(source))
        assert consumer.restarts == [3]
        assert sum(table.num_rows for table in consumer.tables) == 2 * 3
        (merged,) = (part.key for part in world.peer.log.read().state.parts)
        world.gate.open(merged)
        while consumer.frontier < TIMES:
            consumer.take(one_event(source))
            assert consumer.errors == []
        assert consumer.content() == world.content(TIMES - 1)
        assert sum(table.num_rows for table in consumer.tables) == 2 * TIMES, "no change is delivered twice"


@pytest.mark.parametrize("away", [1, 3])
def test_f5_a_source_restarts_from_its_frontier_after_storage_was_unavailable(away: int) -> None:
    """The new lease is refused at first. The source tries again, and still begins at its frontier, not where its old
    listing ended. Fails if the old lister is kept: the frontier passes times 0 to 7, which are never delivered
    again.
    """
    world = World()
    consumer = Consumer()
    with world.shard.listen(-1) as source, world.gate:
        world.gate.wait_until_asked(world.keys)
        world.meta.refusals = away
        world.stall()
        world.gate.open(world.keys[0])
        consumer.take(one_event(source))
        assert consumer.restarts == [0]
        assert world.meta.refused.wait(10.0)
        world.append(TIMES)
        merged = [part.key for part in world.peer.log.read().state.parts]
        for key in merged:
            world.gate.open(key)
        while consumer.frontier < TIMES + 1:
            consumer.take(one_event(source))
        assert consumer.content() == world.content(TIMES)
        assert (world.meta.refusals, len(world.readers.leases._by_key)) == (0, 1)


def test_f5_an_error_of_an_ended_listing_does_not_freeze_the_restarted_source() -> None:
    """An error of a listing that has ended says nothing about the next one: the lister must neither freeze the source
    nor end silently (I13).
    """
    world = World()
    consumer = Consumer()
    with world.shard.listen(-1) as source, world.gate:
        world.gate.wait_until_asked(world.keys)
        world.stall()

        def fail() -> None:
            world.gate.open_all()
            while not source._epoch:
                world.peers.runtime.sleep_s(0.0)
            raise RecordDamaged(path="t", why="for a moment")

        world.meta.before_scan = fail
        while consumer.frontier < TIMES:
            consumer.take(one_event(source))
            assert consumer.errors == []
        assert consumer.restarts == [0]
        assert consumer.content() == world.content(TIMES - 1)


@pytest.mark.parametrize("start", ["listen", "subscribe"])
def test_f5_a_source_whose_time_was_compacted_reports_time_compacted(start: str) -> None:
    """The source cannot continue from its frontier: it reports `TimeCompacted`, with the time that can be read, and
    stays there.

    Fails without either check in `listing`: no `TimeCompacted`.
    """
    world = World()
    consumer = Consumer()
    source = world.shard.listen(-1) if start == "listen" else world.shard.subscribe(3)
    with source, world.gate:
        if start == "listen":
            world.gate.wait_until_asked(world.keys)
            for time in range(3):
                world.gate.open(world.keys[time])
                consumer.take(one_event(source)).take(one_event(source))
        else:
            world.gate.wait_until_asked(world.keys[:4])
            consumer.frontier = 3
        assert source.frontier == consumer.frontier == 3
        world.stall(since=6)
        world.gate.open(world.keys[3])
        consumer.take(one_event(source))
        assert consumer.restarts == [3]
        consumer.take(one_event(source))
        (said,) = consumer.errors
        assert isinstance(said.error, TimeCompacted)
        assert (said.error.as_of, said.error.since) == (2 if start == "listen" else 3, 6)
        world.gate.open_all()
        consumer.take(events_until_still(source, world.meta))
        assert (source.frontier, len(consumer.errors)) == (3, 1)


def test_f5_a_reader_that_beats_keeps_its_parts() -> None:
    """The opposite case: silence ends a lease, not age."""
    world = World()
    consumer = Consumer()
    with world.shard.listen(-1) as source, world.gate:
        world.gate.wait_until_asked(world.keys)
        for _ in range(3):
            world.runtime.advance_s(SETTINGS.lease_ttl_s - 1)
            world.readers.leases.beat()
        world.runtime.advance_s(SETTINGS.lease_ttl_s - 1)
        world.clean_up(since=6)
        assert world.peer.since == 0
        assert all(world.is_there(key) for key in world.keys)
        world.gate.open_all()
        consumer.take(events_until_still(source, world.meta))
        assert (consumer.errors, consumer.restarts) == ([], [])
        assert consumer.content() == world.content(TIMES - 1)


def test_f5_a_snapshot_says_lease_lost_and_never_file_missing() -> None:
    """Guards the same for a snapshot, which its caller restarts.

    Fails without `Lease.check`: `BlobMissing`.
    """
    world = World()
    with world.shard.snapshot(TIMES - 1) as snapshot:
        world.stall()
        world.gate.open_all()
        with pytest.raises(LeaseLost) as caught:
            snapshot.to_arrow()
        assert (caught.value.shard, caught.value.restart_from) == ("t", TIMES - 1)
    assert rows_at(world.shard, caught.value.restart_from) == world.content(TIMES - 1)


def test_f5_a_lost_file_under_a_live_lease_is_a_lost_file() -> None:
    world = World()
    world.gate.open_all()
    with world.shard.snapshot(TIMES - 1) as snapshot:
        world.blob.delete(world.keys[4])
        with pytest.raises(BlobMissing, match=world.keys[4]):
            snapshot.to_arrow()


def test_f6_a_long_scan_keeps_its_parts_during_garbage_collections() -> None:
    """Guards I6 in garbage collection: a part that a diff removed stays while there is a lease below that diff.
    Afterwards it is deleted.

    Fails if the lease floor is ignored (parts of the scan are deleted), and if parts that a diff removed are never
    deleted (the old parts still exist at the end).
    """
    world = World()
    with world.shard.snapshot(TIMES - 1) as snapshot:
        world.gate.open(world.keys[0])
        scan = snapshot.scan()
        for _ in range(3):
            world.clean_up_and_append()
            assert all(world.is_there(key) for key in world.keys)
        world.gate.open_all()
        assert totals(*scan) == world.content(TIMES - 1)
    world.peer.collect_garbage(world.writer)
    assert not any(world.is_there(key) for key in world.keys)
    world.assert_tidy()


def test_f6_each_of_two_scans_keeps_only_its_own_parts() -> None:
    """Each scan protects its own parts: the second, which began later, needs none that only the first needs."""
    world = World()
    first = world.shard.snapshot(TIMES - 1)
    world.clean_up_and_append()
    second = world.readers.open("t").snapshot(TIMES - 1)
    needed = {part.key for part in second.parts}
    world.clean_up_and_append()
    world.gate.open_all()
    assert all(world.is_there(key) for key in {*world.keys, *needed})
    assert totals(first.to_arrow()) == world.content(TIMES - 1)
    first.close()
    world.peer.collect_garbage(world.writer)
    assert not any(world.is_there(key) for key in world.keys)
    assert all(world.is_there(key) for key in needed)
    assert totals(second.to_arrow()) == world.content(TIMES - 1)
    second.close()
    world.peer.collect_garbage(world.writer)
    world.assert_tidy()


def test_f6_the_lease_of_a_stream_advances_with_its_reads() -> None:
    """A source in progress protects outstanding parts; once it is caught up and has sent a heartbeat, it
    protects none.
    """
    world = World()
    with world.shard.listen(-1) as source, world.gate:
        world.gate.wait_until_asked(world.keys)
        world.clean_up_and_append()
        world.readers.leases.beat()
        world.peer.collect_garbage(world.writer)
        assert all(world.is_there(key) for key in world.keys)
        world.gate.open_all()
        consumer = Consumer().take(events_until_still(source, world.meta))
        assert (consumer.frontier, consumer.errors) == (2 * TIMES, [])
        assert consumer.content() == world.content(2 * TIMES - 1)
        world.readers.leases.beat()
        world.peer.collect_garbage(world.writer)
        assert not any(world.is_there(key) for key in world.keys)
        world.assert_tidy()
    assert world.meta.heads("lease/") == {}
