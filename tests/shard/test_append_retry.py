"""U8: a shard that changes between read and append, without a new upper, costs a retry and is not a lost race."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from evertide.errors import Conflict, EvertideError, Fenced, UpperMismatch
from evertide.shard.append import Append, append_together
from evertide.shard.hold import encode_first_holds
from evertide.shard.shard import Shard, Shards
from evertide.shard.state import Created, LogEntry
from evertide.store import MemoryBlob, MemoryMeta, Write
from evertide.store.meta import seal
from evertide.store.paths import hold_key, shard_key
from evertide.store.writers import Writer
from evertide.types import Time
from tests.shard.conftest import Storage
from tests.shard.kit import BLOBS, SCHEMA, HookMeta, changes, make_shards, make_writer, rows_at

SHARDS = 1000


class World:
    """A shard with batches to compact. Its Meta lets a peer act right before the commit under test."""

    def __init__(self) -> None:
        blob, inner = MemoryBlob(), MemoryMeta()
        self.peers = make_shards(blob, inner, settings=BLOBS)
        self.peer_writer = make_writer(self.peers)
        self.peer = self.peers.create("t", SCHEMA, self.peer_writer)
        for time in range(BLOBS.compaction_fan_in):
            self.peer.compare_and_append(changes([(time, "row")], time), time, time + 1, self.peer_writer)
        self.lease = self.peers.leases.take(self.peer.log, Time(3))
        self.meta = HookMeta(inner)
        self.shards = make_shards(blob, self.meta, settings=BLOBS)
        self.writer = make_writer(self.shards)
        self.shard = self.shards.open("t")
        self.upper = self.shard.upper


def beat(world: World) -> None:
    world.peers.leases.beat()
    world.peer_writer.beat()
    world.writer.beat()


def compact(world: World) -> None:
    assert world.peer.compact(world.peer_writer)


def roll_up(world: World) -> None:
    assert world.peer.log.roll_up(world.peer_writer)


def advance_since(world: World) -> None:
    assert world.peer.advance_since(3, world.peer_writer) == 3


def hold(world: World) -> None:
    world.peer.hold("sink", 4)
    world.peer.hold("sink", 5)
    world.peer.release("sink")


def take_and_release_leases(world: World) -> None:
    world.lease.release()
    world.peers.leases.take(world.peer.log, Time(4))


def collect_garbage(world: World) -> None:
    roll_up(world)
    assert world.peer.collect_garbage(world.peer_writer).diffs > 0


def everything(world: World) -> None:
    """All of them. The log is truncated beyond the state that the appending process knows."""
    for change in (beat, hold, advance_since, compact, take_and_release_leases, collect_garbage):
        change(world)


CHANGES = [beat, compact, roll_up, advance_since, hold, take_and_release_leases, collect_garbage, everything]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_u8_a_change_that_does_not_move_the_upper_costs_a_retry(change: Callable[[World], None]) -> None:
    """Guards step 3 of `log.commit`: after a stale write the upper decides, not the record number.

    Fails if a stale shard key is raised at once: compaction and since then fail the append.
    """
    world = World()
    world.meta.before_commit(lambda: change(world))
    upper = world.upper
    world.shard.compare_and_append(changes([(upper, "ours")], upper), upper, upper + 1, world.writer)
    expected = Counter({(time, "row"): 1 for time in range(upper)} | {(upper, "ours"): 1})
    assert rows_at(world.shard, upper) == expected
    assert rows_at(world.peer, upper) == expected


def test_u8_changes_before_every_one_of_several_tries() -> None:
    """Each retry meets another change, and the append still succeeds: only the upper decides."""
    world = World()
    for change in (advance_since, compact, beat, hold, collect_garbage):
        world.meta.before_commit(lambda change=change: change(world))  # type: ignore[misc]
    upper = world.upper
    for time in range(upper, upper + 5):
        world.shard.compare_and_append(changes([(time, "row")], time), time, time + 1, world.writer)
    assert rows_at(world.peer, upper + 4) == Counter({(time, "row"): 1 for time in range(upper + 5)})


def test_u8_a_heartbeat_fails_no_append() -> None:
    """Heartbeats of leases and writers touch no key that an append writes or guards: no retry is needed.

    Fails if appends guard the heartbeat (the append fails), and if heartbeats of leases also write to their shard (a
    second try is needed).
    """
    world = World()
    before = world.shard.log.read().seqno
    world.meta.before_commit(lambda: beat(world))
    tries: list[int] = []
    world.meta.before_commit(lambda: tries.append(1))
    upper = world.upper
    world.shard.compare_and_append(changes([(upper, "ours")], upper), upper, upper + 1, world.writer)
    assert tries == []
    assert world.shard.log.read().seqno == before + 1


def test_u8_an_append_that_did_move_the_upper_is_a_lost_race() -> None:
    """The opposite case: a peer moved the upper. The append reports that, and leaves no blobs."""
    world = World()
    upper = world.upper
    world.meta.before_commit(
        lambda: world.peer.compare_and_append(changes([(upper, "peer")], upper), upper, upper + 1, world.peer_writer)
    )
    with pytest.raises(UpperMismatch) as caught:
        world.shard.compare_and_append(changes([(upper, "ours")], upper), upper, upper + 1, world.writer)
    assert (caught.value.expected, caught.value.upper) == (upper, upper + 1)
    assert rows_at(world.shard, upper)[upper, "peer"] == 1
    assert not any(world.writer.id in entry.key for entry in world.shards.blob.list("parts/t"))


def test_u8_a_stale_guard_of_the_caller_is_a_conflict_and_a_fence_is_a_fence() -> None:
    """Conflicts that a new read cannot resolve are not retried."""
    world = World()
    upper = world.upper
    delta = changes([(upper, "ours")], upper)

    def bump() -> None:
        world.meta.inner.commit([Write("other", 0, b"x")])

    world.meta.before_commit(bump)
    with pytest.raises(Conflict, match="other"):
        append_together(
            [Append(world.shard.log, delta, upper, upper + 1)], world.writer, writes=lambda _: [Write("other", 0, b"y")]
        )
    world.meta.before_commit(world.writer.unregister)
    with pytest.raises(Fenced):
        world.shard.compare_and_append(delta, upper, upper + 1, world.writer)
    assert world.shard.upper == upper


def test_u8_a_thousand_shards_under_constant_heartbeats(storage: Storage) -> None:
    """Guards invariant 5 of `lease`: heartbeats have keys of their own. A thread beats for a reader on each of a
    thousand shards without pause, and appends to all of them succeed.

    Fails if each heartbeat also writes to its shard, as a lease inside the state would: on SQLite the appends time out.
    """
    shards = storage.open()
    writer = make_writer(shards)
    readers = storage.open()
    opened = create_all(shards, writer)
    for shard in opened:
        readers.leases.take(shard.log, Time(0))
    stop, failed, beats = threading.Event(), list[EvertideError](), [0]

    def beat_on() -> None:
        try:
            while not stop.wait(0.005):
                readers.leases.beat()
                beats[0] += 1
        except EvertideError as error:
            failed.append(error)

    thread = threading.Thread(target=beat_on)
    thread.start()
    try:
        append_to_all(shards, opened, writer, together=2 if storage.kind == "memory" else 20)
    finally:
        stop.set()
        thread.join()
    assert failed == []
    assert beats[0] > 0
    assert len(readers.leases._by_key) == SHARDS, "no lease was lost"
    peer = storage.open()
    for number in range(0, SHARDS, 97):
        assert rows_at(peer.open(f"t{number}"), 1) == Counter({(number, "one"): 1, (number, "all"): 1})
    assert all(shard.log.read().state.upper == 2 for shard in opened)


def create_all(shards: Shards, writer: Writer) -> list[Shard]:
    """As `Shards.create`, but in one commit: creation is not under test here."""
    writes: list[Write] = []
    names = [f"t{number}" for number in range(SHARDS)]
    for name in names:
        created = LogEntry(writer.id, writer.new_token(), Created(name, SCHEMA.serialize().to_pybytes()))
        writes += [Write(shard_key(name), 0, seal(created)), Write(hold_key(name), 0, encode_first_holds(name))]
    assert shards.meta.commit(writes, writer.guards()) is None
    return [shards.open(name) for name in names]


def append_to_all(shards: Shards, opened: list[Shard], writer: Writer, together: int) -> None:
    """Append to `together` shards at a time, then to all in one commit."""
    numbered = list(enumerate(opened))
    for start in range(0, len(opened), together):
        some = numbered[start : start + together]
        shards.append_together([(shard, changes([(number, "one")], 0), 0, 1) for number, shard in some], writer)
    shards.append_together([(shard, changes([(number, "all")], 1), 1, 2) for number, shard in numbered], writer)
