"""Garbage collection: it deletes what is not needed, and nothing else; with an unreadable record it deletes nothing
(I12, C3).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evertide.checkpoint.records import Catalog, manifest_key, read_catalog, read_holds
from evertide.errors import BlobMissing, Damaged, Fenced, RecordDamaged
from evertide.shard.maintenance import Maintenance
from evertide.store import Write
from evertide.store.meta import seal
from evertide.store.paths import CHECKPOINTS, Name, beat_key, checkpoint_key, restoring_key, state_part_key, writer_key
from tests.checkpoint.kit import SHARDS, TTL_S, Memory, Process
from tests.shard.hosts import HookedBlob


@pytest.fixture
def memory() -> Memory:
    return Memory()


def check_complete(process: Process) -> None:
    """Every checkpoint of the catalog is complete, down to the parts of the shards."""
    for entry in process.checkpoints.entries():
        process.checkpoints.verify(entry, shards=True)


def check_no_garbage(memory: Memory) -> None:
    """With every other writer ended, a garbage collection leaves exactly what the catalog names."""
    memory.runtime.advance_s(TTL_S + 1)
    last = memory.process()
    last.collect_garbage()
    check_complete(last)
    named = {key for entry in last.checkpoints.entries() for key in last.checkpoints.read(entry).names()}
    assert last.blobs("state") | last.blobs("checkpoints") == {key for key in named if not key.startswith("parts/")}
    assert read_holds(memory.meta) == {}


def test_checkpoints_that_left_the_catalog_are_deleted(memory: Memory) -> None:
    process = memory.start_process()
    process.publish()
    old = process.live()
    process.merge()
    for _ in range(2):
        process.publish()
    parts, files = process.collect_garbage()
    assert parts == old
    assert files == {key for key in files if key.startswith("checkpoints/00000001/")}
    assert len(files) == 5
    check_complete(process)
    check_no_garbage(memory)


def test_a_part_that_the_engine_uses_stays(memory: Memory) -> None:
    """No checkpoint has it yet. Fails if `live` is ignored."""
    process = memory.start_process()
    process.publish()
    process.step()
    assert process.collect_garbage() == (set(), set())


def test_parts_saved_for_a_draft_stay_if_they_are_live(memory: Memory) -> None:
    process = memory.start_process()
    draft = process.draft()
    saved = process.live()
    process.merge()
    found = process.checkpoints.collect_garbage(lambda: process.live() | saved, process.writer)
    assert found.parts == ()
    process.checkpoints.publish(draft.time, lambda: draft, process.writer)
    check_complete(process)


def test_all_parts_of_a_live_peer_stay(memory: Memory) -> None:
    """The peer may be about to publish them. Fails if only `live` and the catalog are considered."""
    process = memory.start_process()
    peer = memory.process()
    peer.merge()
    assert process.collect_garbage() == (set(), set())
    peer.publish()
    check_complete(process)


def test_the_parts_of_a_dead_peer_are_deleted(memory: Memory) -> None:
    process = memory.start_process()
    peer = memory.process()
    peer.merge()
    memory.runtime.advance_s(TTL_S + 1)
    process.writer.beat()
    assert process.collect_garbage() == (peer.live(), set())


def test_files_without_a_writers_name_are_left_alone(memory: Memory) -> None:
    process = memory.start_process()
    process.publish()
    own = ["state/readme.txt", "state/by_customer/copy of 1.parquet", "checkpoints/notes.txt", "checkpoints/7/x"]
    for key in own:
        memory.blob.put(key, b"not of a writer")
    process.merge()
    process.collect_garbage()
    assert set(own) <= process.blobs()


def test_the_manifest_is_deleted_first(memory: Memory) -> None:
    """Otherwise a crash leaves a directory that a repair takes for a checkpoint, with missing parts."""
    deleted: list[str] = []

    def note(operation: str, key: str) -> None:
        if operation == "delete" and key.startswith("checkpoints/"):
            deleted.append(key)

    memory.start_process().publish()
    memory.blob.put(checkpoint_key(1, "accounts.state"), b"comes first by name")
    process = Process(HookedBlob(memory.blob, note), memory.meta, memory.runtime)
    process.publish()
    process.publish()
    process.collect_garbage()
    assert deleted[0] == manifest_key(1)
    assert len(deleted) == 6


def test_c3_a_damaged_manifest_keeps_everything(memory: Memory) -> None:
    """Checkpoints A, B, C and D; A is collected. B needs 12 parts, C needs 18 of which it shares 12. C's manifest is
    damaged, then D is published.

    Dropping B would delete parts that C needs. Fails if `_named` skips damaged manifests.
    """
    process = memory.start_process(0)
    process.step()
    process.publish()  # A
    process.merge()
    for _ in range(11):
        process.step()
    b = process.publish()
    assert len(process.checkpoints.read(b).state_parts) == 12
    for _ in range(6):
        process.step()
    c = process.publish()
    assert len(process.checkpoints.read(c).state_parts) == 18
    assert len(process.collect_garbage()[0]) == 1, "A is dropped"
    memory.damage(c.key, b"{not valid json")
    process.merge()
    d = process.publish()
    assert [entry.number for entry in process.checkpoints.entries()] == [d.number, c.number]
    before = process.blobs()
    for shard in SHARDS:
        process.shard(shard).compact(process.writer)
    found = process.checkpoints.collect_garbage(process.live, process.writer)
    assert (found.parts, found.files) == ((), ())
    assert isinstance(found.refused, RecordDamaged)
    assert c.key in str(found.refused)
    with pytest.raises(RecordDamaged, match="00000003/manifest"):
        process.shard("orders").collect_garbage(process.writer, process.checkpoints.find_pins)
    assert before <= process.blobs(), "no file was deleted"
    process.step()
    process.publish()
    assert process.collect_garbage()[0], "C is dropped, so all manifests are readable again"
    check_no_garbage(memory)


@pytest.mark.parametrize("key", [CHECKPOINTS, "restoring", "writer", "beat"])
def test_i12_any_unreadable_record_prevents_deletion(memory: Memory, key: str) -> None:
    process = memory.start_process()
    process.publish()
    process.restore()
    process.merge()
    for _ in range(2):
        process.publish()
    keys = {"restoring": restoring_key, "writer": writer_key, "beat": beat_key}
    peer = memory.process()
    peer.restore()
    memory.put_record(keys[key](peer.writer.id) if key in keys else key, b"\x01" + b"garbage!" * 4)
    before = process.blobs()
    assert isinstance(process.checkpoints.collect_garbage(process.live, process.writer).refused, Damaged)
    assert process.blobs() == before


def test_a_fenced_writer_collects_nothing(memory: Memory) -> None:
    process = memory.start_process()
    memory.runtime.advance_s(TTL_S + 1)
    memory.process().collect_garbage()
    before = process.blobs()
    with pytest.raises(Fenced):
        process.collect_garbage()
    assert process.blobs() == before


# Claims


def test_the_directory_that_a_live_writer_claims_stays(memory: Memory) -> None:
    """Fails without the claims in `Pins.numbers`."""
    process = memory.start_process()
    process.publish()
    peer = memory.process()
    seqno, catalog = read_catalog(memory.blob, memory.meta)
    claimed = Catalog(catalog.entries, {peer.writer.id: 2}, 2, "x")
    assert memory.meta.commit([Write(CHECKPOINTS, seqno, seal(claimed))]) is None
    memory.blob.put(checkpoint_key(2, "state.bin"), b"under way")
    assert process.collect_garbage() == (set(), set())
    memory.runtime.advance_s(TTL_S + 1)
    process.writer.beat()
    assert process.collect_garbage()[1] == {checkpoint_key(2, "state.bin")}
    assert process.publish().number == 3
    assert read_catalog(memory.blob, memory.meta)[1].claims == {}, "claims of dead writers are removed"


# The hold of a restored engine


def test_the_parts_of_a_restored_engine_stay(memory: Memory) -> None:
    """A peer publishes until that checkpoint is dropped, and collects. Fails if `_named` ignores holds."""
    process = memory.start_process()
    process.publish()
    replica = memory.process()
    replica.restore()
    for _ in range(3):
        process.merge()
        process.publish()
        process.collect_garbage()
    for part in replica.parts:
        memory.blob.get(part.key)
    assert manifest_key(1) in process.blobs(), "the manifest stays, because it lists the parts of the hold"
    assert [entry.number for entry in process.checkpoints.entries()] == [4, 3]


def test_the_hold_ends_when_nothing_of_it_is_used(memory: Memory) -> None:
    process = memory.start_process()
    process.publish()
    replica = memory.process()
    replica.restore()
    replica.step()
    replica.collect_garbage()
    assert replica.writer.id in read_holds(memory.meta)
    replica.merge()
    replica.collect_garbage()
    assert read_holds(memory.meta) == {}
    check_complete(process)


def test_the_hold_of_a_dead_writer_ends(memory: Memory) -> None:
    process = memory.start_process()
    process.publish()
    replica = memory.process()
    replica.restore()
    old = process.live()
    process.merge()
    for _ in range(2):
        process.publish()
    process.collect_garbage()
    assert old <= process.blobs()
    memory.runtime.advance_s(TTL_S + 1)
    process.writer.beat()
    assert process.collect_garbage()[0] == old
    check_no_garbage(memory)


# The parts of shards


def compact_shards(process: Process) -> set[str]:
    """Compact all shards. Returns the parts that they no longer name."""
    before = {part.key for name in SHARDS for part in process.shard(name).log.read().state.parts}
    for name in SHARDS:
        assert process.shard(name).compact(process.writer)
    after = {part.key for name in SHARDS for part in process.shard(name).log.read().state.parts}
    return before - after


def collect_shards(process: Process) -> set[str]:
    deleted: set[str] = set()
    for name in SHARDS:
        found = process.shard(name).collect_garbage(process.writer, process.checkpoints.find_pins)
        deleted |= {*found.parts, *found.orphans}
    return deleted


def test_parts_that_a_checkpoint_names_stay(memory: Memory) -> None:
    """Fails without `pinned` for removed parts in `evertide.shard.garbage`."""
    process = memory.start_process()
    process.publish()
    old = compact_shards(process)
    assert old
    assert collect_shards(process) == set()
    check_complete(process)


def test_parts_that_were_pinned_when_their_diff_was_truncated_are_deleted_later(memory: Memory) -> None:
    """They are orphans then. Fails if only diffs determine orphans: the parts are never deleted."""
    process = memory.start_process()
    process.publish()
    old = compact_shards(process)
    process.step()  # otherwise the diff that removed them is the newest, which always stays
    for name in SHARDS:
        log = process.shard(name).log
        assert log.roll_up(process.writer)
    assert collect_shards(process) == set()
    for name in SHARDS:
        log = process.shard(name).log
        assert len(memory.meta.scan(log.key)) == 1, "the diff that removed them is truncated"
    assert collect_shards(process) == set(), "orphans are pinned, too"
    check_complete(process)
    for _ in range(2):
        process.publish()
    assert collect_shards(process) == old
    check_complete(process)


def test_nothing_is_deleted_if_pins_are_unknown(memory: Memory) -> None:
    process = memory.start_process()
    entry = process.publish()
    compact_shards(process)
    before = process.blobs()
    memory.blob.delete(entry.key)
    with pytest.raises(BlobMissing):
        collect_shards(process)
    assert process.blobs() == before - {entry.key}


def test_maintenance_asks_for_pins(memory: Memory) -> None:
    process = memory.start_process()
    process.publish()
    Maintenance(process.host.shards, process.writer, process.checkpoints.find_pins).run_once()
    check_complete(process)
    for _ in range(2):
        process.publish()
    before = process.blobs("parts")
    Maintenance(process.host.shards, process.writer, process.checkpoints.find_pins).run_once()
    assert len(process.blobs("parts")) < len(before)


def test_an_unfinished_put_of_a_dead_writer_is_deleted(memory: Memory) -> None:
    process = memory.start_process()
    key = state_part_key("by_customer", Name("00000000000000aa", 1, "parquet"))

    class Unfinished(HookedBlob):
        def list_unfinished(self, prefix: str) -> Iterator[str]:
            return iter([key] if key.startswith(prefix) else [])

    other = Process(Unfinished(memory.blob, lambda _operation, _key: None), memory.meta, memory.runtime)
    assert other.checkpoints.collect_garbage(process.live, other.writer).parts == (key,)
