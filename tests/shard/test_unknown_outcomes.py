"""How two processes interfere when the outcome of a storage call is unknown, in a few steps each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from evertide.errors import (
    EvertideError,
    Fenced,
    OutcomeUnknown,
    TimeCompacted,
)
from evertide.shard import compaction
from evertide.shard.compaction import compact
from evertide.shard.read import Lister, TimeWindow
from evertide.shard.shard import Shards
from evertide.store import MemoryBlob, MemoryMeta, Record, Stale
from evertide.store.paths import beat_key, lease_prefix, shard_key, writer_key
from evertide.store.writers import Writer, read_registrations
from tests.kit.faulty import Fault, Faults, FaultyMeta
from tests.kit.runtime import ManualRuntime
from tests.shard.kit import BLOBS, HookMeta, PassingMeta, make_shards, make_writer, rows_at
from tests.shard.model import SCHEMA, to_rows, to_table


@dataclass
class Two:
    """Two processes on one storage. Commits of the first to shards can be hooked."""

    runtime: ManualRuntime = field(default_factory=ManualRuntime)
    blob: MemoryBlob = field(default_factory=MemoryBlob)
    meta: MemoryMeta = field(default_factory=MemoryMeta)

    def __post_init__(self) -> None:
        self.hook = HookMeta(self.meta)
        self.first = make_shards(self.blob, self.hook, runtime=self.runtime, settings=BLOBS)
        self.second = make_shards(self.blob, self.meta, runtime=self.runtime, settings=BLOBS)
        self.writers = (make_writer(self.first), make_writer(self.second))
        self.shards = (self.first.create("a", SCHEMA, self.writers[0]), self.second.open("a"))

    def append(self, number: int, time: int) -> None:
        changes = to_table([((time, "x"), time, 1)])
        self.shards[number].compare_and_append(changes, time, time + 1, self.writers[number])


def lose_answer() -> None:
    raise OutcomeUnknown(path="memory", why="the answer is lost")


@pytest.mark.parametrize("is_ended", [True, False])
def test_an_append_that_happened_is_not_withdrawn(is_ended: bool) -> None:
    """Its answer is lost; before the outcome is read back, its diff is rolled up and truncated, and its token is
    forgotten or replaced.

    The token goes with the writer that was ended, or with another commit of the same writer, from another thread.
    """
    two = Two()

    def others_go_on() -> None:
        if is_ended:
            two.runtime.jump_wall_s(61.0)  # a wrong clock must not lose data (I16)
        else:
            thread = make_shards(two.blob, two.meta, runtime=two.runtime, settings=BLOBS).open("a")
            thread.compare_and_append(to_table([((1, "x"), 1, 1)]), 1, 2, two.writers[0])
        two.append(1, 1 if is_ended else 2)
        two.shards[1].log.roll_up(two.writers[1])
        two.shards[1].collect_garbage(two.writers[1])
        lose_answer()

    two.hook.after_commit(others_go_on)
    with suppress(EvertideError):
        two.append(0, 0)
    assert rows_at(two.shards[1], 0) == {(0, "x"): 1}


def test_a_heartbeat_of_unknown_outcome_does_not_fence() -> None:
    """Storage became unavailable during a heartbeat that took effect: the writer is still registered."""
    runtime = ManualRuntime()
    meta = MemoryMeta(runtime)
    away = [Fault.DONE_LOST] + [Fault.REFUSED] * 10_000
    writer = Writer.register(meta, runtime=runtime, settings=BLOBS)
    writer._meta = FaultyMeta(meta, Faults.scripted(writes=away))
    with pytest.raises(OutcomeUnknown):
        writer.beat()
    writer._meta = meta
    writer.beat()
    assert writer.id in read_registrations(meta)
    writer.unregister()
    assert writer.id not in read_registrations(meta)


def test_a_lease_beat_of_unknown_outcome_does_not_end_the_lease() -> None:
    two = Two()
    two.append(0, 0)
    with two.shards[0].snapshot(0) as snapshot:
        leases = two.first.leases
        away = [Fault.DONE_LOST] + [Fault.REFUSED] * 10_000
        leases._meta = FaultyMeta(two.meta, Faults.scripted(writes=away))
        with pytest.raises(OutcomeUnknown):
            leases.beat()
        leases._meta = two.meta
        for _ in range(4):
            two.runtime.advance_s(30.0)
            leases.beat()
            two.writers[1].beat()
            two.shards[1].collect_garbage(two.writers[1])
        snapshot._lease.check(0)


def test_a_listener_below_since_gets_time_compacted() -> None:
    """Compaction moved old rows up to since, into the listener's window: they would look like changes of that time."""
    two = Two()
    for time in range(8):
        two.append(0, time)
    two.shards[0].advance_since(6, two.writers[0])
    log = two.shards[0].log
    batches = log.read().state.batches
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "choose", lambda *_: batches[:2])
        assert compact(log, two.writers[0])
    with pytest.raises(TimeCompacted):
        Lister(log, TimeWindow(3, 3)).poll(0.0)


class KeepingMeta(PassingMeta):
    """Commits to keys with a prefix stay in flight: their answer is lost, and they take effect when the test
    says so.
    """

    def __init__(self, inner: MemoryMeta, prefix: str, times: int) -> None:
        super().__init__(inner)
        self.kept: list[tuple[Any, Any]] = []
        self._prefix = prefix
        self._times = times

    def commit(self, writes: Any, guards: Any = ()) -> Stale | None:
        if not writes[0].key.startswith(self._prefix) or len(self.kept) == self._times:
            return self.inner.commit(writes, guards)
        self.kept.append((writes, guards))
        raise OutcomeUnknown(path="memory", why="still under way")


def test_an_ended_writer_stays_ended() -> None:
    """The first try of its registration, still in flight, takes effect after a second try registered the writer and it
    was ended.
    """
    two = Two()
    slow = KeepingMeta(two.meta, writer_key(""), 1)
    shards = make_shards(two.blob, slow, runtime=two.runtime, settings=BLOBS)
    writer = make_writer(shards)
    two.runtime.advance_s(61.0)
    assert writer.id in two.shards[1].collect_garbage(two.writers[1]).writers_ended
    two.meta.commit(*slow.kept[0])
    with pytest.raises(Fenced):
        shards.open("a").compare_and_append(to_table([((0, "x"), 0, 1)]), 0, 1, writer)


def test_a_lease_whose_first_attempt_is_ended_is_taken_under_another_id() -> None:
    """The answer of the first attempt is lost, and a peer ends its lease before the second.

    Fails if the second attempt uses the same id: the first could still arrive and restore its lease.
    """
    two = Two()
    two.append(0, 0)
    ended: list[str] = []

    class EndingMeta(PassingMeta):
        def commit(self, writes: Any, guards: Any = ()) -> Stale | None:
            first = list(two.meta.heads(lease_prefix("a")))
            if first and not ended:
                two.runtime.jump_wall_s(61.0)
                two.shards[1].collect_garbage(two.writers[1])
                assert not two.meta.heads(lease_prefix("a"))
                ended.extend(first)
            return super().commit(writes, guards)

    meta = FaultyMeta(EndingMeta(two.meta), Faults.scripted(writes=[Fault.DONE_LOST]))
    shard = make_shards(two.blob, meta, runtime=two.runtime, settings=BLOBS).open("a")
    with shard.snapshot(0) as snapshot:
        [taken] = two.meta.heads(lease_prefix("a"))
        assert len(ended) == 1
        assert taken not in ended
        assert to_rows(snapshot.to_arrow()) == {(0, "x"): 1}


def test_blobs_of_a_commit_in_doubt_are_not_collected() -> None:
    """A commit of unknown outcome takes effect after others collected: the blobs that it names must exist."""
    two = Two()
    two.append(1, 0)
    slow = KeepingMeta(two.meta, shard_key(""), 10_000)
    shard = Shards(two.blob, slow, runtime=two.runtime, settings=BLOBS).open("a")
    with pytest.raises(OutcomeUnknown):
        shard.compare_and_append(to_table([((1, "x"), 1, 1)]), 1, 2, two.writers[0])
    two.writers[0].beat()
    two.shards[1].collect_garbage(two.writers[1])
    assert two.meta.commit(*slow.kept[0]) is None
    assert rows_at(two.shards[1], 1) == {(0, "x"): 1, (1, "x"): 1}


def test_a_commit_in_doubt_is_never_reported_as_not_happened() -> None:
    """The append took effect, its answer is lost, and storage becomes unavailable before the outcome can be
    read back.
    """
    two = Two()
    away = [Fault.REFUSED] * 10_000
    meta = FaultyMeta(two.meta, Faults.scripted(writes=[Fault.DONE_LOST, *away], reads=[Fault.DONE] * 2 + away))
    shard = Shards(two.blob, meta, runtime=two.runtime, settings=BLOBS).open("a")
    with pytest.raises(OutcomeUnknown):
        shard.compare_and_append(to_table([((0, "x"), 0, 1)]), 0, 1, two.writers[0])
    assert rows_at(two.shards[1], 0) == {(0, "x"): 1}


class BeatenMeta(PassingMeta):
    """Runs an action once, right after a collector read the heartbeats."""

    def __init__(self, inner: MemoryMeta, action: Callable[[], None]) -> None:
        super().__init__(inner)
        self._deeds = [action]

    def heads(self, prefix: str) -> dict[str, Record]:
        found = self.inner.heads(prefix)
        if prefix == beat_key("") and self._deeds:
            self._deeds.pop()()
        return found


def test_a_writer_that_registers_during_a_garbage_collection_is_not_forgotten() -> None:
    """The writer registers and appends, and its answer is lost, all after the collector read the registrations.

    If that collector forgot its token, and its diff were truncated before the read-back, the writer would withdraw its
    parts.
    """
    two = Two()
    two.append(1, 0)
    hook, committed, go_on = HookMeta(two.meta), threading.Event(), threading.Event()

    def pause() -> None:
        committed.set()
        assert go_on.wait(60.0)
        lose_answer()

    def newcomer() -> None:
        shards = make_shards(two.blob, hook, runtime=two.runtime, settings=BLOBS)
        writer, shard = make_writer(shards), shards.open("a")
        hook.after_commit(pause)
        with suppress(EvertideError):
            shard.compare_and_append(to_table([((1, "x"), 1, 1)]), 1, 2, writer)

    def arrive() -> None:
        thread.start()
        assert committed.wait(60.0)

    thread = threading.Thread(target=newcomer)
    collecting = make_shards(two.blob, BeatenMeta(two.meta, arrive), runtime=two.runtime, settings=BLOBS)
    collecting.open("a").collect_garbage(two.writers[1])
    two.append(1, 2)
    two.shards[1].log.roll_up(two.writers[1])
    two.shards[1].collect_garbage(two.writers[1])
    go_on.set()
    thread.join()
    assert rows_at(two.shards[1], 2) == {(0, "x"): 1, (1, "x"): 1, (2, "x"): 1}
