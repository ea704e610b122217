"""C10: the disk is full during a part, a roll-up or a commit. The error says so, no acknowledged data is lost, and work
continues once there is room.

The disk is simulated, with a given number of bytes left. The tests try every number that makes a difference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from evertide.errors import StorageFull
from evertide.shard.shard import Shard
from evertide.store import LocalBlob
from tests.kit.disk import SimulatedDisk
from tests.kit.runtime import ManualRuntime
from tests.shard.hosts import SETTINGS, Host, changes, content_of

TTL_S = 60.0
TIMES = 3


class Full:
    """A host on a disk whose free space the test sets."""

    def __init__(self, **tuned: int) -> None:
        self.disk = SimulatedDisk(ManualRuntime())
        self.host = self.reopen(**tuned)
        self.shard = self.host.create()
        for time in range(TIMES):
            self.host.append(self.shard, {time: 1})

    def reopen(self, **tuned: int) -> Host:
        blob = LocalBlob(self.disk.root, self.disk.files)
        return Host(blob, self.disk.meta, self.disk.runtime, replace(SETTINGS, **tuned))

    def leave(self, room_bytes: int) -> None:
        self.disk.capacity_bytes = self.disk.used_bytes + room_bytes

    def make_room(self) -> None:
        self.disk.capacity_bytes = None


def check_continues(full: Full, expected: dict[int, int]) -> None:
    """With room again: everything acknowledged is there, for this process and the next, and no blob is left over."""
    full.make_room()
    assert content_of(full.shard, full.shard.upper - 1) == expected
    full.host.append(full.shard, {77: 1})
    full.disk.runtime.advance_s(TTL_S + 1)
    fresh = full.reopen()
    shard = fresh.open()
    assert content_of(shard, shard.upper - 1) == {**expected, 77: 1}
    shard.compact(fresh.writer)
    shard.collect_garbage(fresh.writer)
    rollup = shard.log.read_newest_rollup()
    named = {part.key for part in shard.log.read().state.parts if part.key} | ({rollup[1].key} if rollup else set())
    assert fresh.blobs() == named
    assert list(fresh.blob.list_unfinished("")) == []
    assert content_of(shard, shard.upper - 1) == {**expected, 77: 1}


def rooms(work: Callable[[Full], object], **tuned: int) -> Iterator[tuple[int, Full]]:
    """For every amount of free space, from none to enough, in small steps: a disk with just that."""
    room, done = 0, False
    while not done:
        full = Full(**tuned)
        full.leave(room)
        yield room, full
        probe = Full(**tuned)
        probe.leave(room)
        done = run_refused(work, probe) is None and (not tuned or probe.shard.log.read_newest_rollup() is not None)
        room += 1 if room < 2 else 97


def run_refused(work: Callable[[Full], object], full: Full) -> StorageFull | None:
    try:
        work(full)
    except StorageFull as error:
        return error
    return None


def append(full: Full) -> None:
    full.shard.compare_and_append(changes({50: 1}, TIMES), TIMES, TIMES + 1, full.host.writer)


def test_c10_during_an_append() -> None:
    """A part, then its commit: the error names the one that does not fit, and the same append succeeds once there is
    room.

    Fails if `refusal` maps ENOSPC to `Unavailable`: then the append retries for half a minute and gives no useful
    reason.
    """
    before = dict.fromkeys(range(TIMES), 1)
    named: set[str] = set()
    for room, full in rooms(append):
        error = run_refused(append, full)
        if error is not None:
            assert "Free some space" in str(error)
            assert error.path.startswith(("/disk/parts/a/", "simulated:shard/a")), error
            named.add(error.path.split("/")[1])
            assert full.shard.upper == TIMES, "the refused append is not visible"
            full.make_room()
            append(full)
        assert full.disk.runtime.slept_s == (), f"room {room}: a full disk is not retried"
        check_continues(full, {**before, 50: 1})
    assert named == {"disk", "a"}, "the part and the commit were both refused"


def test_c10_during_a_roll_up_the_append_is_not_in_its_way(caplog: pytest.LogCaptureFixture) -> None:
    """The failed roll-up is logged, the append succeeds, and a later append makes the roll-up."""
    caplog.set_level(logging.WARNING)
    before = dict.fromkeys(range(TIMES), 1)
    said: set[str] = set()
    for _room, full in rooms(append, rollup_every_diffs=TIMES + 2):
        caplog.clear()
        if run_refused(append, full) is not None:
            full.make_room()
            append(full)
        assert full.shard.upper == TIMES + 1
        said |= {"part" if "rollups/a/" in record.getMessage() else "commit" for record in caplog.records}
        check_continues(full, {**before, 50: 1})
        assert full.shard.log.read_newest_rollup() is not None
    assert said == {"part", "commit"}


def test_c10_during_a_compaction() -> None:
    def compact(full: Full) -> None:
        full.shard.compact(full.host.writer)

    named: set[str] = set()
    for _room, full in rooms(compact):
        error = run_refused(compact, full)
        named |= {error.path.split("/")[1]} if error is not None else set()
        check_continues(full, dict.fromkeys(range(TIMES), 1))
    assert named == {"disk", "a"}


@pytest.mark.parametrize(
    "work",
    [
        lambda full: full.shard.hold("sink", 1),
        lambda full: full.shard.advance_since(1, full.host.writer),
        lambda full: full.shard.snapshot(1),
        lambda full: full.host.writer.beat(),
        lambda full: full.shard.finalize(full.host.writer),
        lambda full: full.host.create("b"),
        lambda full: full.reopen(),
    ],
    ids=["hold", "since", "lease", "beat", "finalize", "create", "register"],
)
def test_c10_any_commit(work: Callable[[Full], object]) -> None:
    full = Full()
    state = full.shard.log.read()
    full.leave(0)
    with pytest.raises(StorageFull, match="simulated:") as said:
        work(full)
    assert said.value.remedy in str(said.value)
    assert full.shard.log.read() == state
    check_continues(full, dict.fromkeys(range(TIMES), 1))


def test_c10_a_garbage_collection_makes_room() -> None:
    """People run garbage collection when the disk is full, so it must not need room at its start.

    Fails if the heartbeat's `StorageFull` is raised: nothing is deleted.
    """
    full = Full()
    assert full.shard.compact(full.host.writer)
    full.leave(0)
    assert full.shard.collect_garbage(full.host.writer).parts
    full.shard.hold("sink", TIMES - 1)
    check_continues(full, dict.fromkeys(range(TIMES), 1))


def test_c10_reading_needs_no_room_for_what_is_leased_already() -> None:
    full = Full()
    with full.shard.snapshot(TIMES - 1) as snapshot:
        full.leave(0)
        assert snapshot.to_arrow().num_rows == TIMES
        full.make_room()


def test_c10_two_shards_in_one_commit_stay_together() -> None:
    """I4: the second shard's part does not fit. The first shard's part is not visible either, and is collected."""
    full = Full()
    other = full.host.create("b")
    full.leave(1800)
    shards: list[tuple[Shard, pa.Table, int, int]] = [
        (full.shard, changes({50: 1}, TIMES), TIMES, TIMES + 1),
        (other, changes(dict.fromkeys(range(500), 1), 0), 0, 1),
    ]
    with pytest.raises(StorageFull, match="/disk/parts/b/"):
        full.host.shards.append_together(shards, full.host.writer)
    assert (full.shard.upper, other.upper) == (TIMES, 0)
    assert len(full.host.blobs("parts/a")) == TIMES + 1, "the part is stored, but no state names it"
    check_continues(full, dict.fromkeys(range(TIMES), 1))
