"""Collection: what nobody needs goes, everything else stays; unreadable evidence deletes nothing (I12, C3)."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from evertide.checkpoint.manifest import manifest_key
from evertide.checkpoint.records import Catalog, read_catalog, read_holds
from evertide.errors import BlobMissing, Damaged, Fenced, RecordDamaged
from evertide.shard.maintenance import Maintenance
from evertide.store import Write
from evertide.store.paths import CHECKPOINTS, Name, beat_key, checkpoint_key, restoring_key, state_part_key, writer_key
from evertide.store.sealed import seal
from tests.checkpoint.kit import SHARDS, TTL_S, Memory, Process
from tests.shard.test_log import HookedBlob


@pytest.fixture
def memory() -> Memory:
    return Memory()


def sound(process: Process) -> None:
    """Every checkpoint of the catalog is complete, down to the parts of the shards."""
    for entry in process.checkpoints.entries():
        process.checkpoints.verify(entry, shards=True)


def clean(memory: Memory) -> None:
    """With every other writer ended, a collection leaves exactly what the catalog names."""
    memory.runtime.advance_s(TTL_S + 1)
    last = memory.process()
    last.collect()
    sound(last)
    named = {key for entry in last.checkpoints.entries() for key in last.checkpoints.read(entry).names()}
    assert last.blobs("state") | last.blobs("checkpoints") == {key for key in named if not key.startswith("parts/")}
    assert read_holds(memory.meta) == {}


def test_what_the_catalog_dropped_goes(memory: Memory) -> None:
    process = memory.started()
    process.publish()
    old = process.live()
    process.merge()
    for _ in range(2):
        process.publish()
    parts, files = process.collect()
    assert parts == old
    assert files == {key for key in files if key.startswith("checkpoints/00000001/")}
    assert len(files) == 5
    sound(process)
    clean(memory)


def test_a_part_that_the_engine_uses_stays(memory: Memory) -> None:
    """Not in any checkpoint yet. Seen to fail with `live` left out."""
    process = memory.started()
    process.publish()
    process.step()
    assert process.collect() == (set(), set())


def test_what_is_saved_for_a_draft_stays_if_the_caller_says_so(memory: Memory) -> None:
    process = memory.started()
    draft = process.draft()
    saved = process.live()
    process.merge()
    found = process.checkpoints.collect(lambda: process.live() | saved, process.writer)
    assert found.parts == ()
    process.checkpoints.publish(draft.time, lambda: draft, process.writer)
    sound(process)


def test_the_parts_of_a_peer_that_lives_stay_whatever_they_are(memory: Memory) -> None:
    """It may be about to publish them. Seen to fail with only `live` and the catalog asked."""
    process = memory.started()
    peer = memory.process()
    peer.merge()
    assert process.collect() == (set(), set())
    peer.publish()
    sound(process)


def test_the_parts_of_a_dead_peer_go(memory: Memory) -> None:
    process = memory.started()
    peer = memory.process()
    peer.merge()
    memory.runtime.advance_s(TTL_S + 1)
    process.writer.beat()
    assert process.collect() == (peer.live(), set())


def test_what_no_writer_made_is_left_alone(memory: Memory) -> None:
    process = memory.started()
    process.publish()
    own = ["state/readme.txt", "state/by_customer/copy of 1.parquet", "checkpoints/notes.txt", "checkpoints/7/x"]
    for key in own:
        memory.blob.put(key, b"somebody's own")
    process.merge()
    process.collect()
    assert set(own) <= process.blobs()


def test_the_manifest_goes_first(memory: Memory) -> None:
    """Or a crash leaves a directory that a repair takes for a checkpoint, of which parts are gone."""
    deleted: list[str] = []

    def note(operation: str, key: str) -> None:
        if operation == "delete" and key.startswith("checkpoints/"):
            deleted.append(key)

    memory.started().publish()
    memory.blob.put(checkpoint_key(1, "accounts.state"), b"comes first by name")
    process = Process(HookedBlob(memory.blob, note), memory.meta, memory.runtime)
    process.publish()
    process.publish()
    process.collect()
    assert deleted[0] == manifest_key(1)
    assert len(deleted) == 6


def test_c3_a_damaged_manifest_keeps_everything(memory: Memory, caplog: pytest.LogCaptureFixture) -> None:
    """A, B, C, D; A is collected. B needs 12 parts, C 18 of which it shares 12; C's manifest is damaged, then D comes.

    Dropping B would delete parts that C needs. Seen to fail with damaged manifests skipped in `_named`.
    """
    process = memory.started(0)
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
    assert len(process.collect()[0]) == 1, "A is dropped"
    memory.damage(c.key, b"{not valid json")
    process.merge()
    d = process.publish()
    assert [entry.number for entry in process.checkpoints.entries()] == [d.number, c.number]
    before = process.blobs()
    for shard in SHARDS:
        process.shard(shard).compact(process.writer)
    with caplog.at_level(logging.ERROR):
        found = process.checkpoints.collect(process.live, process.writer)
    assert (found.parts, found.files) == ((), ())
    assert isinstance(found.refused, RecordDamaged)
    assert c.key in str(found.refused)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert c.key in caplog.records[0].getMessage()
    with pytest.raises(RecordDamaged, match="00000003/manifest"):
        process.shard("orders").collect_garbage(process.writer, process.checkpoints.pinned)
    assert before <= process.blobs(), "nothing is gone"
    process.step()
    process.publish()
    assert process.collect()[0], "C is dropped, so all evidence is readable again"
    clean(memory)


@pytest.mark.parametrize("key", [CHECKPOINTS, "restoring", "writer", "beat"])
def test_i12_any_unreadable_evidence_deletes_nothing(memory: Memory, key: str) -> None:
    process = memory.started()
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
    assert isinstance(process.checkpoints.collect(process.live, process.writer).refused, Damaged)
    assert process.blobs() == before


def test_a_fenced_writer_collects_nothing(memory: Memory) -> None:
    process = memory.started()
    memory.runtime.advance_s(TTL_S + 1)
    memory.process().collect()
    before = process.blobs()
    with pytest.raises(Fenced):
        process.collect()
    assert process.blobs() == before


# Claims


def test_the_directory_that_a_live_writer_claims_stays(memory: Memory) -> None:
    """Seen to fail without the claims in `Pins.numbers`."""
    process = memory.started()
    process.publish()
    peer = memory.process()
    seqno, catalog = read_catalog(memory.blob, memory.meta)
    claimed = Catalog(catalog.entries, {peer.writer.id: 2}, 2, "x")
    assert memory.meta.commit([Write(CHECKPOINTS, seqno, seal(claimed))]) is None
    memory.blob.put(checkpoint_key(2, "state.bin"), b"under way")
    assert process.collect() == (set(), set())
    memory.runtime.advance_s(TTL_S + 1)
    process.writer.beat()
    assert process.collect()[1] == {checkpoint_key(2, "state.bin")}
    assert process.publish().number == 3
    assert read_catalog(memory.blob, memory.meta)[1].claims == {}, "dead claims are forgotten"


# The hold of an engine that was restored


def test_an_engine_keeps_what_it_was_restored_from(memory: Memory) -> None:
    """A peer publishes until that checkpoint is dropped, and collects. Seen to fail with holds left out of `_named`."""
    process = memory.started()
    process.publish()
    replica = memory.process()
    replica.restore()
    for _ in range(3):
        process.merge()
        process.publish()
        process.collect()
    for part in replica.parts:
        memory.blob.get(part.key)
    assert manifest_key(1) in process.blobs(), "or nobody could tell what is held"
    assert [entry.number for entry in process.checkpoints.entries()] == [4, 3]


def test_the_hold_ends_when_nothing_of_it_is_used(memory: Memory) -> None:
    process = memory.started()
    process.publish()
    replica = memory.process()
    replica.restore()
    replica.step()
    replica.collect()
    assert replica.writer.id in read_holds(memory.meta)
    replica.merge()
    replica.collect()
    assert read_holds(memory.meta) == {}
    sound(process)


def test_the_hold_of_a_dead_writer_ends(memory: Memory) -> None:
    process = memory.started()
    process.publish()
    replica = memory.process()
    replica.restore()
    old = process.live()
    process.merge()
    for _ in range(2):
        process.publish()
    process.collect()
    assert old <= process.blobs()
    memory.runtime.advance_s(TTL_S + 1)
    process.writer.beat()
    assert process.collect()[0] == old
    clean(memory)


# The parts of shards


def compacted(process: Process) -> set[str]:
    """Compact all shards; the parts that they do not name any more."""
    before = {part.key for name in SHARDS for part in process.shard(name).log.read().state.parts}
    for name in SHARDS:
        assert process.shard(name).compact(process.writer)
    after = {part.key for name in SHARDS for part in process.shard(name).log.read().state.parts}
    return before - after


def collect_shards(process: Process) -> set[str]:
    deleted: set[str] = set()
    for name in SHARDS:
        found = process.shard(name).collect_garbage(process.writer, process.checkpoints.pinned)
        deleted |= {*found.parts, *found.orphans}
    return deleted


def test_parts_that_a_checkpoint_names_stay(memory: Memory) -> None:
    """Seen to fail without `pinned` for removed parts in `evertide.shard.garbage`."""
    process = memory.started()
    process.publish()
    old = compacted(process)
    assert old
    assert collect_shards(process) == set()
    sound(process)


def test_parts_that_were_pinned_when_their_diff_was_truncated_go_later(memory: Memory) -> None:
    """They are orphans then. Seen to fail (never deleted) with orphans judged by diffs only."""
    process = memory.started()
    process.publish()
    old = compacted(process)
    process.step()  # or the diff that took them out is the newest, which always stays
    for name in SHARDS:
        log = process.shard(name).log
        assert log.roll_up(process.writer)
    assert collect_shards(process) == set()
    for name in SHARDS:
        log = process.shard(name).log
        assert len(memory.meta.scan(log.key)) == 1, "the diff that took them out is forgotten"
    assert collect_shards(process) == set(), "pinned as orphans, too"
    sound(process)
    for _ in range(2):
        process.publish()
    assert collect_shards(process) == old
    sound(process)


def test_nothing_is_deleted_if_pins_cannot_be_told(memory: Memory) -> None:
    process = memory.started()
    entry = process.publish()
    compacted(process)
    before = process.blobs()
    memory.blob.delete(entry.key)
    with pytest.raises(BlobMissing):
        collect_shards(process)
    assert process.blobs() == before - {entry.key}


def test_maintenance_asks_for_pins(memory: Memory) -> None:
    process = memory.started()
    process.publish()
    Maintenance(process.host.shards, process.writer, process.checkpoints.pinned).run_once()
    sound(process)
    for _ in range(2):
        process.publish()
    before = process.blobs("parts")
    Maintenance(process.host.shards, process.writer, process.checkpoints.pinned).run_once()
    assert len(process.blobs("parts")) < len(before)


def test_an_unfinished_put_of_a_dead_writer_goes(memory: Memory) -> None:
    process = memory.started()
    key = state_part_key("by_customer", Name("00000000000000aa", 1, "parquet"))

    class Unfinished(HookedBlob):
        def unfinished(self, prefix: str) -> Iterator[str]:
            return iter([key] if key.startswith(prefix) else [])

    other = Process(Unfinished(memory.blob, lambda _operation, _key: None), memory.meta, memory.runtime)
    assert other.checkpoints.collect(process.live, other.writer).parts == (key,)
