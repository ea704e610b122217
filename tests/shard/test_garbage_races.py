"""C9: several garbage collections at once, and during other work: no needed file is lost, and no unneeded one remains.

Deterministic: a collector runs before one Blob or Meta operation of the victim, with one run per operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from evertide.errors import Fenced, LeaseLost, OutcomeUnknown
from evertide.shard.append import store_parts
from evertide.shard.parts.part import Part
from evertide.shard.read import Snapshot
from evertide.shard.shard import Shard
from evertide.store import Blob, Meta
from tests.shard.hosts import HookedBlob, HookedMeta, Host, LateMeta, Memory, changes, content_of
from tests.store.race import together

TIMES = 4
TTL_S = 60.0


@dataclass
class Scene:
    """A shard with some history, a victim whose calls are hooked, and a collector."""

    memory: Memory
    victim: Host
    collector: Host
    expected: dict[int, int]

    def collect_garbage(self) -> None:
        """All maintenance, by another writer: compaction and roll-up leave blobs to collect."""
        shard = self.collector.open()
        shard.log.roll_up(self.collector.writer)
        shard.collect_garbage(self.collector.writer)

    def compact_and_collect(self) -> None:
        shard = self.collector.open()
        shard.advance_since(TIMES - 1, self.collector.writer)
        shard.compact(self.collector.writer)
        self.collect_garbage()

    def end_victim_and_collect(self) -> None:
        """The victim is stopped for longer than a writer may be silent."""
        self.memory.runtime.advance_s(TTL_S + 1)
        self.collector.writer.beat()
        self.collect_garbage()


def scene(hook: Callable[[str, str], None]) -> Scene:
    memory = Memory()
    blob: Blob = HookedBlob(memory.blob, hook)
    meta: Meta = HookedMeta(memory.meta, hook)
    first, collector = memory.host(), memory.host()
    shard = first.create()
    for time in range(TIMES):
        first.append(shard, {time: 1, 100: 1 if time % 2 else -1} if time else {time: 1, 100: 1})
    return Scene(memory, memory.host(blob, meta), collector, content_of(shard, TIMES - 1))


def check_complete(memory: Memory, shard: Shard) -> None:
    """Every blob that the shard names exists, and every time from since on can be read."""
    state = shard.log.read().state
    there = {entry.key for entry in memory.blob.list("")}
    assert {part.key for part in state.parts if part.key} <= there, "a shard names a deleted blob"
    for time in range(state.since, state.upper):
        content_of(shard, time)


def check_no_garbage(memory: Memory) -> None:
    """With every other writer ended, a garbage collection of each shard leaves exactly the blobs that are named."""
    memory.runtime.advance_s(TTL_S + 1)
    last = memory.host()
    named: set[str] = set()
    for name in last.shards.names():
        shard = last.open(name)
        shard.collect_garbage(last.writer)
        shard.collect_garbage(last.writer)
        check_complete(memory, shard)
        rollup = shard.log.read_newest_rollup()
        named |= {part.key for part in shard.log.read().state.parts if part.key}
        named |= {rollup[1].key} if rollup else set()
    assert last.blobs() == named, "a blob leaked or was lost"


def append(scene: Scene) -> None:
    shard = scene.victim.open()
    shard.compare_and_append(changes({7: 1}, TIMES), TIMES, TIMES + 1, scene.victim.writer)
    scene.expected[7] = 1


def append_two(scene: Scene) -> None:
    """Two shards in one commit. The append creates the other one."""
    shards, writer = scene.victim.shards, scene.victim.writer
    both = [shards.open("a"), scene.victim.create("b")]
    rows = [changes({7: 1}, TIMES), changes({8: 1}, 0)]
    shards.append_together([(both[0], rows[0], TIMES, TIMES + 1), (both[1], rows[1], 0, 1)], writer)
    scene.expected[7] = 1


def compact(scene: Scene) -> None:
    shard = scene.victim.open()
    shard.advance_since(1, scene.victim.writer)
    shard.compact(scene.victim.writer)


def roll_up(scene: Scene) -> None:
    scene.victim.open().log.roll_up(scene.victim.writer)


def snapshot(scene: Scene) -> None:
    assert content_of(scene.victim.open(), TIMES - 1) == scene.expected


def collect_garbage(scene: Scene) -> None:
    scene.victim.open().collect_garbage(scene.victim.writer)


WORK = [append, append_two, compact, roll_up, snapshot, collect_garbage]
MEANWHILE = [Scene.collect_garbage, Scene.compact_and_collect, Scene.end_victim_and_collect]


@pytest.mark.parametrize("meanwhile", MEANWHILE, ids=lambda act: str(act.__name__))
@pytest.mark.parametrize("work", WORK, ids=lambda work: str(work.__name__))
def test_c9_garbage_collection_between_any_two_steps(
    work: Callable[[Scene], None], meanwhile: Callable[[Scene], None]
) -> None:
    """One run per operation of the victim.

    A victim whose writer was ended is fenced, or was finished already, and its blobs are collected. Fails without
    `_will_not_be_named` (parts of an append in progress are taken for orphans), and without the writer's guards in
    `commit` (the ended writer names deleted blobs).
    """
    at, count = 0, 1
    while at < count:
        at += 1
        count = 0
        made: list[Scene] = []

        def before(_operation: str, _key: str, at: int = at, made: list[Scene] = made) -> None:
            nonlocal count
            if made:
                count += 1
                if count == at:
                    meanwhile(made[0])

        found = scene(before)
        made.append(found)
        expected = dict(found.expected)
        try:
            work(found)
            expected = found.expected
        except (Fenced, LeaseLost):
            if meanwhile is not Scene.end_victim_and_collect:
                raise
        made.clear()
        shard = found.collector.open()
        check_complete(found.memory, shard)
        assert content_of(shard, shard.upper - 1) == expected, f"operation {at}"
        check_no_garbage(found.memory)
    assert at >= 3


def act_while_collecting(memory: Memory, act: Callable[[], None], at: int) -> int:
    """A garbage collection with blobs to delete, which runs `act` before its operation number `at`. Returns how many
    operations there were.
    """
    count = 0

    def before(_operation: str, _key: str) -> None:
        nonlocal count
        count += 1
        if count == at:
            act()

    host = memory.host()
    shard = host.open()
    shard.log.blob, shard.log.meta = HookedBlob(memory.blob, before), HookedMeta(memory.meta, before)
    shard.collect_garbage(host.writer)
    return count


def test_c9_an_append_that_put_its_part_is_named_between_any_two_steps_of_garbage_collection() -> None:
    """The part exists before the garbage collection starts. It is named, and its number settled, during the garbage
    collection.

    Fails if the state is read before the settled numbers: the part is then neither named nor open.
    """
    at, count = 0, 1
    while at < count:
        at += 1
        found = scene(lambda _operation, _key: None)
        host, shard = found.victim, found.victim.open()
        with ExitStack() as claimed:
            seq = claimed.enter_context(host.writer.claim())
            parts = store_parts(
                changes({7: 1}, TIMES),
                shard="a",
                blob=host.blob,
                writer=host.writer.id,
                seq=seq,
                runtime=host.runtime,
                settings=host.settings,
            )

            def name_it(
                host: Host = host, shard: Shard = shard, parts: Sequence[Part] = parts, claimed: ExitStack = claimed
            ) -> None:
                shard.compare_and_append(parts, TIMES, TIMES + 1, host.writer)
                claimed.close()
                host.writer.beat()

            count = act_while_collecting(found.memory, name_it, at)
        if at <= count:
            check_complete(found.memory, found.collector.open())
            assert content_of(found.collector.open(), TIMES) == {**found.expected, 7: 1}
        check_no_garbage(found.memory)
    assert at > 8


def test_c9_a_roll_up_that_was_put_is_named_between_any_two_steps_of_garbage_collection() -> None:
    """Its commit is in flight at the server all the time. Fails if `claim` settles a number in doubt."""
    at, count = 0, 1
    while at < count:
        at += 1
        found = scene(lambda _operation, _key: None)
        host, log = found.victim, found.victim.open().log
        late = LateMeta(found.memory.meta)
        log.meta = late
        late.script = ["late", *["full"] * 50]
        with pytest.raises(OutcomeUnknown):
            log.roll_up(host.writer)
        host.writer.beat()
        count = act_while_collecting(found.memory, late.arrive, at)
        late.arrive()
        assert found.memory.log().read().state.upper == TIMES
        check_no_garbage(found.memory)
    assert at > 8


def test_c9_a_reader_starts_between_any_two_steps_of_garbage_collection() -> None:
    """The reader lists before the garbage collection continues, and fetches after it.

    Fails if the leases are read before the log.
    """
    at, count = 0, 1
    while at < count:
        at += 1
        found = scene(lambda _operation, _key: None)
        snapshots: list[Snapshot] = []
        reader = found.victim.open()
        same = found.collector.open()

        def start(
            snapshots: list[Snapshot] = snapshots,
            reader: Shard = reader,
            same: Shard = same,
            host: Host = found.collector,
        ) -> None:
            snapshots.append(reader.snapshot(TIMES - 1))
            assert same.compact(host.writer), "the parts that it listed are replaced at once"

        count = act_while_collecting(found.memory, start, at)
        for snapshot in snapshots:
            rows = snapshot.to_arrow()
            assert dict(zip(rows["k"].to_pylist(), rows["__diff"].to_pylist(), strict=True)) == found.expected
            snapshot.close()
        check_no_garbage(found.memory)
    assert at > 8


def test_c9_a_writer_ended_between_put_and_commit_is_fenced() -> None:
    """One step of the scenario by name: SIGSTOP after the part is written, before it is named.

    Fails without the guard on the registration: the shard then names the deleted blob.
    """
    made: list[Scene] = []
    collected: list[str] = []

    def before(operation: str, key: str) -> None:
        if made and operation == "commit" and key == "shard/a":
            there = made[0].collector.blobs("parts/a")
            made.pop().end_victim_and_collect()
            collected.extend(there - found.collector.blobs("parts/a"))

    found = scene(before)
    made.append(found)
    with pytest.raises(Fenced, match="unregistered"):
        append(found)
    [orphan] = collected
    assert found.victim.writer.id in orphan
    shard = found.collector.open()
    assert shard.upper == TIMES
    check_complete(found.memory, shard)
    with pytest.raises(Fenced):
        append(found)
    check_no_garbage(found.memory)


def test_c9_blobs_that_a_live_writer_has_not_named_yet_stay() -> None:
    """The same step, but the writer's heartbeat continues. Fails without the settled floor."""
    made: list[Scene] = []

    def before(operation: str, key: str) -> None:
        if made and operation == "commit" and key == "shard/a":
            made.pop().collect_garbage()

    found = scene(before)
    made.append(found)
    append(found)
    assert content_of(found.collector.open(), TIMES) == found.expected


def test_c9_a_late_put_of_an_ended_writer_is_collected_too() -> None:
    """The writer resumes and puts a blob after its orphans were collected: the next garbage collection deletes it."""
    found = scene(lambda _operation, _key: None)
    found.end_victim_and_collect()
    with pytest.raises(Fenced):
        append(found)
    assert any(found.victim.writer.id in key for key in found.collector.blobs("parts/a"))
    check_no_garbage(found.memory)


def test_c9_files_without_a_writers_name_are_left_alone() -> None:
    found = scene(lambda _operation, _key: None)
    for key in ("parts/a/readme.txt", "parts/a/copy of 1.parquet", "rollups/a/backup.state"):
        found.memory.blob.put(key, b"not of a writer")
    found.end_victim_and_collect()
    assert len(found.collector.blobs() & {"parts/a/readme.txt", "rollups/a/backup.state"}) == 2


def test_c9_garbage_collections_compactions_and_readers_at_once() -> None:
    """Threads: one appends, two compact and collect, one rolls up, two read. No blob is missing or left over."""
    memory = Memory()
    host = memory.host(rollup_every_diffs=8)
    shard = host.create()
    host.append(shard, {0: 1})
    times = 40

    def work(number: int) -> None:
        mine = memory.host(rollup_every_diffs=8)
        same = mine.open()
        if number == 0:
            for time in range(1, times):
                same.compare_and_append(changes({time: 1}, time), time, time + 1, mine.writer)
        elif number in (1, 2):
            while same.upper < times:
                same.advance_since(same.upper - 3, mine.writer)
                same.compact(mine.writer)
                same.collect_garbage(mine.writer)
        elif number == 3:
            while same.upper < times:
                same.log.roll_up(mine.writer)
        else:
            while same.upper < times:
                latest = same.upper - 1
                assert content_of(same, latest) == dict.fromkeys(range(latest + 1), 1)

    errors = together(6, work)
    assert errors == [None] * 6
    assert content_of(host.open(), times - 1) == dict.fromkeys(range(times), 1)
    check_no_garbage(memory)
