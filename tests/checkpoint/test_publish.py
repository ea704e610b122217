"""Publishing: all or nothing under every fault; numbers, retention, and the rules of a draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from evertide.checkpoint.publication import Draft
from evertide.checkpoint.records import read_catalog
from evertide.checkpoint.verification import Progress
from evertide.errors import CheckpointDamaged, Conflict, Fenced, OutcomeUnknown, StorageFull, Unavailable, Unexpected
from evertide.store.paths import checkpoint_key
from evertide.types import Time
from tests.checkpoint.kit import SHARDS, TTL_S, Memory, Process, Watched, each_step
from tests.kit.faulty import Fault, Faults, FaultyMeta
from tests.shard.hosts import HookedBlob, LateMeta, changes, content_of


def test_a_published_checkpoint_is_in_the_catalog_and_names_all_its_files() -> None:
    memory = Memory()
    process = memory.start_process()
    entry = process.publish()
    assert process.checkpoints.entries() == (entry,)
    assert (entry.number, entry.time) == (1, 3)
    manifest = process.checkpoints.verify(entry, shards=True)
    assert manifest.members == SHARDS
    assert {part.key for part in manifest.state_parts} == process.live()
    assert {file.key for file in manifest.shard_files} == process.blobs("parts")
    assert set(manifest.names()) == process.blobs("state") | process.blobs("parts") | process.blobs("checkpoints")
    assert checkpoint_key(1, "orders.state") in process.blobs()


def test_progress_counts_every_file() -> None:
    process = Memory().start_process()
    told: list[Progress] = []
    process.checkpoints.verify(process.publish(), told.append)
    assert [one.files for one in told] == list(range(1, len(told) + 1))
    assert (told[-1].files, told[-1].bytes) == (told[-1].files_all, told[-1].bytes_all)


# Retention and numbers


def test_the_newest_checkpoint_is_first_and_those_beyond_keep_are_dropped() -> None:
    process = Memory().start_process(0)
    for number in range(1, 6):
        process.step()
        process.publish(keep=3)
        assert [entry.number for entry in process.checkpoints.entries()] == list(range(number, 0, -1))[:3]


@pytest.mark.parametrize("keep", [-1, 0, 1, 2])
def test_at_least_two_checkpoints_are_kept(keep: int) -> None:
    """Fails if `keep` is used as given: then one damaged file loses all state."""
    process = Memory().start_process()
    for _ in range(3):
        process.publish(keep)
    assert [entry.number for entry in process.checkpoints.entries()] == [3, 2]


def test_a_number_is_above_every_directory() -> None:
    """Also above one that no record names. Fails without the directories in `Publication.claim`."""
    memory = Memory()
    process = memory.start_process()
    assert process.publish().number == 1
    memory.blob.put(checkpoint_key(7, "state.bin"), b"of a crashed one")
    assert process.publish().number == 8
    process.collect_garbage()
    assert process.publish().number == 9


def test_a_time_before_a_peers_checkpoint_is_refused() -> None:
    """Its journal may already be truncated. Fails without `_check_time`, which both steps call."""
    memory = Memory()
    process = memory.start_process()
    late = process.draft()
    process.step()
    process.publish()
    with pytest.raises(Conflict, match="published checkpoint 1 at time 4, which is later than 3"):
        process.checkpoints.publish(late.time, lambda: late, process.writer)
    peer = memory.process()

    def ahead() -> None:
        process.step()
        process.publish()

    same = replace(process.draft(), time=Time(process.upper))
    watched = Watched(memory, 10, ahead)
    with pytest.raises(Conflict, match="later than"):
        watched.run(lambda victim: victim.checkpoints.publish(same.time, lambda: same, peer.writer))
    assert [entry.time for entry in process.checkpoints.entries()] == [5, 4]


def test_concurrent_peers_fill_separate_directories() -> None:
    """A peer publishes before every operation of another. Fails if the claims ignore `last`."""

    def run(at: int) -> int:
        memory = Memory()
        process = memory.start_process()
        draft = process.draft()
        watched = Watched(memory, at, lambda: process.publish(keep=3))
        count = watched.run(lambda victim: victim.checkpoints.publish(draft.time, lambda: draft, victim.writer, keep=3))
        entries = process.checkpoints.entries()
        assert len(entries) == 1 + (at <= count)
        for entry in entries:
            process.checkpoints.verify(entry, shards=True)
        assert len(process.blobs("checkpoints")) == len(entries) * 5
        return count

    each_step(run, least=12)


# C1


FAULTS: list[tuple[Sequence[Fault], type[Exception] | None]] = [
    ([Fault.DONE, Fault.REFUSED], None),
    ([Fault.DONE, Fault.LOST], None),
    ([Fault.DONE, Fault.DONE_LOST], None),
    ([Fault.DONE, Fault.DONE_LOST, Fault.DONE_LOST, Fault.LOST], None),
    ([Fault.LOST, Fault.DONE_LOST], None),
    ([Fault.DONE_LOST, Fault.DONE], None),
    ([Fault.DONE, *[Fault.REFUSED] * 60], Unavailable),
    ([Fault.REFUSED] * 60, Unavailable),
    ([Fault.DONE, *[Fault.LOST] * 60], OutcomeUnknown),
    ([Fault.DONE, Fault.DONE_LOST, *[Fault.REFUSED] * 60], OutcomeUnknown),
]


@pytest.mark.parametrize(("faults", "expected"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_c1_a_commit_that_fails_is_listed_nowhere(faults: Sequence[Fault], expected: type[Exception] | None) -> None:
    """Claim and publication each end in every way. A publication that took effect is listed once, also if its answer
    was lost.

    Fails with `meta.commit` instead of `commit_settled`: a commit of unknown outcome is not read back, and one that did
    not happen is not retried.
    """
    memory = Memory()
    process = memory.start_process()
    draft = process.draft()
    first = process.publish()
    faulty_meta = FaultyMeta(memory.meta, Faults.none())
    faulty = Process(memory.blob, faulty_meta, memory.runtime)
    faulty_meta._faults = Faults.scripted(faults)
    listed = [first.number]
    if expected is None:
        listed.insert(0, faulty.checkpoints.publish(draft.time, lambda: draft, faulty.writer).number)
    else:
        with pytest.raises(expected):
            faulty.checkpoints.publish(draft.time, lambda: draft, faulty.writer)
        if Fault.DONE_LOST in faults:
            listed.insert(0, 2)
    faulty_meta._faults = Faults.none()
    for one in (faulty, process, memory.process()):
        assert [entry.number for entry in one.checkpoints.entries()] == listed
        assert one.restored_time() == 3
    assert faulty.checkpoints.publish(draft.time, lambda: draft, faulty.writer).number > max(listed)
    assert read_catalog(memory.blob, memory.meta)[1].claims == {}


def test_c1_files_of_a_publication_in_doubt_are_not_collected() -> None:
    """Its commit is in flight at the server, and takes effect after a garbage collection by its own process.

    Fails if `_drafts` is cleared after `OutcomeUnknown`: the parts of the checkpoint are deleted.
    """
    memory = Memory()
    memory.start_process()
    late = LateMeta(memory.meta)
    process = Process(memory.blob, late, memory.runtime)
    process.merge()
    draft = process.draft()
    late.script = ["done", "late", *["full"] * 60]
    with pytest.raises(OutcomeUnknown):
        process.checkpoints.publish(draft.time, lambda: draft, process.writer)
    late.script.clear()
    process.merge()  # the engine no longer uses the part of the draft
    for name in SHARDS:
        process.shard(name).compact(process.writer)
        process.shard(name).collect_garbage(process.writer, process.checkpoints.find_pins)
    process.collect_garbage()
    late.arrive()
    [entry] = process.checkpoints.entries()
    process.checkpoints.verify(entry, shards=True)
    process.publish()
    assert [one.number for one in process.checkpoints.entries()] == [2, 1]


def test_a_failed_publication_releases_its_claim_and_leaves_its_files_to_garbage_collection() -> None:
    memory = Memory()
    process = memory.start_process()

    def full(operation: str, key: str) -> None:
        if operation == "put" and key.endswith("manifest.json"):
            raise StorageFull(path=key, why="no space left on device")

    failing = Process(HookedBlob(memory.blob, full), memory.meta, memory.runtime)
    with pytest.raises(StorageFull, match="Free some space"):
        failing.checkpoints.publish(process.upper, process.draft, failing.writer)
    _, catalog = read_catalog(memory.blob, memory.meta)
    assert (catalog.entries, catalog.claims, catalog.last) == ((), {}, 1)
    assert process.restore() is None
    names = ("orders.state", "revenue.state", "pipeline.bin", "state.bin")
    assert process.collect_garbage()[1] == {checkpoint_key(1, name) for name in names}
    assert process.publish().number == 2


# Fencing


@pytest.mark.parametrize("at", range(1, 16))
def test_a_writer_that_was_ended_publishes_nothing(at: int) -> None:
    """Ended before each of its operations. Fails without the writer's guards in `Publication._try_change`."""
    memory = Memory()
    process = memory.start_process()
    draft = process.draft()

    def end() -> None:
        memory.runtime.advance_s(TTL_S + 1)
        process.writer.beat()
        process.collect_garbage()

    watched = Watched(memory, at, end)
    try:
        count = watched.run(lambda victim: victim.checkpoints.publish(draft.time, lambda: draft, victim.writer))
    except Fenced:
        assert process.checkpoints.entries() == ()
    else:
        assert count < at, "the publication was complete before"
        process.checkpoints.verify(process.checkpoints.entries()[0], shards=True)


def test_a_writer_of_an_old_generation_publishes_nothing() -> None:
    memory = Memory()
    process = memory.start_process()
    memory.process().writer.change_generation(["orders"])
    with pytest.raises(Fenced, match="generation"):
        process.publish()
    assert process.checkpoints.entries() == ()


def test_a_claim_that_was_replaced_is_a_conflict() -> None:
    """Two threads of one process with two catalogs: one of them gets an error, and no directory is filled by both."""
    memory = Memory()
    process = memory.start_process()
    draft = process.draft()

    def publish_too() -> None:
        Process.publish(process)

    watched = Watched(memory, 9, publish_too)
    with pytest.raises(Conflict, match="claim of checkpoint 1 was removed"):
        watched.run(lambda victim: victim.checkpoints.publish(draft.time, lambda: draft, process.writer))
    assert [entry.number for entry in process.checkpoints.entries()] == [2]


# Drafts


def test_an_invalid_draft_is_refused() -> None:
    process = Memory().start_process()
    draft = process.draft()
    wrong = msgspec.structs.replace(draft.shards["orders"], upper=2)
    for bad in (
        replace(draft, time=Time(4)),
        replace(draft, members=("orders",)),
        replace(draft, members=(*SHARDS, "other")),
        replace(draft, shards={**draft.shards, "orders": wrong}),
        replace(draft, shards={**draft.shards, "orders": draft.shards["revenue"]}),
    ):
        with pytest.raises(Unexpected, match="checkpoint at time"):
            process.checkpoints.publish(bad.time, partial(replace, bad), process.writer)
    assert process.blobs("checkpoints") == set()


def test_x5_a_shard_that_is_compacted_after_the_draft_was_made_keeps_its_parts() -> None:
    """A collector deletes no part that a shard removes from its state after the claim."""
    memory = Memory()
    process = memory.start_process()

    def make_draft() -> Draft:
        draft = process.draft()
        process.step()
        for name in SHARDS:
            assert process.shard(name).compact(process.writer)
            process.shard(name).collect_garbage(process.writer, process.checkpoints.find_pins)
        return draft

    entry = process.checkpoints.publish(process.upper, make_draft, process.writer)
    assert entry.time == 3
    process.checkpoints.verify(entry, shards=True)
    assert process.publish().time == 4


def test_a_missing_catalog_is_not_created_again() -> None:
    """C4, when publishing: a new catalog would lose the numbers and the files in use."""
    memory = Memory()
    process = memory.start_process()
    process.publish()
    memory.forget("checkpoints")
    with pytest.raises(CheckpointDamaged, match=r"catalog is missing.*fsck --repair"):
        process.publish()


def test_published_states_are_readable_by_shards() -> None:
    """The state beside the manifest is that of the shard: its content at the checkpoint's time is the same."""
    process = Memory().start_process()
    process.publish()
    shard = process.shard("orders")
    shard.compare_and_append(changes({50: 1}, 3), 3, 4, process.writer)
    assert content_of(shard, 2) == {0: 1, 1: 1, 2: 1}
