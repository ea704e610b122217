"""`repair`: C4 and more. It restores what it can, reports what is lost, and deletes nothing without an explicit
request.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.fsck import LOST, check
from evertide.checkpoint.records import manifest_key, read_catalog
from evertide.checkpoint.repair import RepairReport, repair
from evertide.errors import CheckpointDamaged, NotAllowedNow, RecordDamaged
from evertide.journal.records import Bound, Committed
from evertide.store import Write, open_storage
from evertide.store.meta import unseal
from evertide.store.open import open_for_repair
from evertide.store.paths import CHECKPOINTS, COMMITTED, FORMAT, JOURNAL, PIPELINE, STORAGE, checkpoint_key
from evertide.store.writers import read_generation
from evertide.types import Generation
from tests.checkpoint.kit import SHARDS, TTL_S, Memory, Process
from tests.kit.runtime import ManualRuntime
from tests.shard.hosts import SETTINGS, content_of


class Broken(Memory):
    """Checkpoints 1 at time 2 and 2 at time 4; transactions up to 5 are committed. The process has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.blob.put(FORMAT, b"1\n")
        for seqno in range(2):
            self.meta.commit([Write(STORAGE, seqno, b"1\n")])
        self.first = self.start_process(2)
        self.first.publish()
        self.first.step()
        self.first.step()
        self.first.publish()
        self.first.step()
        self.runtime.advance_s(TTL_S + 1)

    def everything(self) -> dict[str, bytes]:
        """All blobs, by their original key."""
        return {entry.key.removeprefix(LOST): self.blob.get(entry.key) for entry in self.blob.list("")}

    def repair(self) -> RepairReport:
        """Repair, and check that no blob was deleted."""
        before = self.everything()
        done = repair(self.place())
        assert before.items() <= self.everything().items()
        assert not [sentence for sentence in done.done if "fsck" in sentence], "a repair must not advise a repair"
        return done

    def restored(self) -> int:
        self.runtime.advance_s(TTL_S + 1)
        return self.process().restored_time()


@pytest.fixture
def broken() -> Broken:
    return Broken()


def test_a_repair_does_not_change_a_sound_storage(broken: Broken) -> None:
    broken.first.writer.unregister()
    before = (broken.everything(), broken.meta.heads(""))
    done = broken.repair()
    assert done.done == ()
    assert done.report.is_sound
    orphan = {part.key for part in broken.first.parts[-1:]}
    assert set(done.moved) == orphan, "the part that no checkpoint has yet"
    assert (broken.everything(), broken.meta.heads("")) == before


def test_a_repair_refuses_live_writers_and_ends_dead_ones(broken: Broken) -> None:
    """A live writer may be about to name what looks like an orphan. Fails without `_check_alone`."""
    alive = broken.process()
    alive.merge()
    with pytest.raises(NotAllowedNow, match=f"writer {alive.writer.id}.*is registered; stop it, or wait"):
        repair(broken.place())
    assert alive.live() <= alive.blobs()


# C4: the catalog


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_c4_the_catalog_is_rebuilt_from_the_directories(broken: Broken, how: str) -> None:
    if how == "missing":
        broken.forget(CHECKPOINTS)
    else:
        broken.put_record(CHECKPOINTS, b"\x01" + b"garbage!" * 4)
    done = broken.repair()
    assert "rebuilt the catalog, with the checkpoints 1 at time 2, 2 at time 4" in done.done[-1]
    assert done.report.is_sound
    assert broken.restored() == 4
    process = broken.process()
    assert [entry.number for entry in process.checkpoints.entries()] == [2, 1]
    process.restore()
    process.merge()
    assert process.publish().number == 3


def test_c4_only_intact_directories_count(broken: Broken) -> None:
    """Also with a directory without a manifest, as a crash leaves it, and one with another's manifest."""
    broken.forget(CHECKPOINTS)
    broken.corrupt(checkpoint_key(2, "state.bin"))
    broken.blob.put(checkpoint_key(3, "state.bin"), b"of a crashed one")
    broken.blob.put(manifest_key(4), broken.blob.get(manifest_key(1)))
    done = broken.repair()
    for number in (2, 3, 4):
        assert any(f"checkpoint {number} is not used" in sentence for sentence in done.done)
    assert broken.restored() == 2
    assert read_catalog(broken.blob, broken.meta)[1].last == 4
    assert f"{LOST}{checkpoint_key(3, 'state.bin')}" in broken.process().blobs()


def test_c4_a_checkpoint_that_cannot_be_replayed_from_is_left_out(broken: Broken) -> None:
    """It had been dropped, and the shards compacted its time. Fails without the check of since."""
    process = broken.process()
    process.shard("orders").advance_since(3, process.writer)
    process.writer.unregister()
    broken.forget(CHECKPOINTS)
    done = broken.repair()
    assert any("checkpoint 1 at time 2 is not used: shard 'orders' can be read in [3, 5)" in one for one in done.done)
    assert [entry.number for entry in broken.process().checkpoints.entries()] == [2]


def test_c4_without_an_intact_checkpoint_the_catalog_is_empty_and_reported(broken: Broken) -> None:
    broken.forget(CHECKPOINTS)
    broken.blob.delete(manifest_key(1))
    broken.blob.delete(manifest_key(2))
    done = broken.repair()
    assert "no checkpoint: the pipeline rebuilds all state from the tables" in done.done[-1]
    broken.runtime.advance_s(TTL_S + 1)
    assert broken.process().restore() is None
    assert broken.process().checkpoints.entries() == ()


def test_damaged_checkpoints_are_removed_from_the_catalog(broken: Broken) -> None:
    """After C3: then garbage collection knows again which files are needed."""
    broken.damage(manifest_key(2), b"{not valid json")
    done = broken.repair()
    assert "removed checkpoint 2 from the catalog" in done.done[0]
    assert "the catalog now has the checkpoints 1 at time 2" in done.done[-1]
    assert done.report.is_sound
    assert f"{LOST}{manifest_key(2)}" in broken.process().blobs()
    assert broken.restored() == 2
    process = broken.process()
    assert process.checkpoints.collect_garbage(process.live, process.writer).refused is None


# Meta


def test_c4_a_lost_meta_is_restored_from_the_newest_checkpoint(broken: Broken) -> None:
    broken.forget()
    done = broken.repair()
    assert "everything from transaction 4 on is lost" in done.done[-1]
    assert done.report.is_sound
    assert check(broken.place()).orphans == ()
    assert broken.restored() == 4
    process = broken.process()
    for name in SHARDS:
        shard = process.shard(name)
        assert (shard.upper, shard.since, shard.holds) == (4, 0, {})
        for time in range(4):
            assert content_of(shard, time) == dict.fromkeys(range(time + 1), 1)
    bound = broken.meta.head(JOURNAL)
    committed = broken.meta.head(COMMITTED)
    assert bound is not None
    assert committed is not None
    found = unseal(bound.data, Bound, "there")
    assert (found.time, found.generation) == (3, 0)
    assert {source: given.after for source, given in found.inputs.items()} == {"files": '{"at": 4}'}
    assert unseal(committed.data, Committed, "there").time == 3
    pipeline = broken.meta.head(PIPELINE)
    assert pipeline is not None
    assert pipeline.data == b"CREATE TABLE orders"
    assert [entry.number for entry in process.checkpoints.entries()] == [2]


def test_c4_the_storage_works_after_meta_was_restored(broken: Broken) -> None:
    """Appends, compaction, roll-ups and garbage collection on the restored shards; numbers and generation continue."""
    broken.forget()
    broken.repair()
    broken.runtime.advance_s(TTL_S + 1)
    process = broken.process()
    process.restore()
    for _ in range(3):
        process.step()
    assert process.publish().number == 3
    for name in SHARDS:
        shard = process.shard(name)
        shard.advance_since(5, process.writer)
        assert shard.compact(process.writer)
        assert shard.log.roll_up(process.writer)
        shard.collect_garbage(process.writer, process.checkpoints.find_pins)
        shard.collect_garbage(process.writer, process.checkpoints.find_pins)
        assert content_of(broken.process().shard(name), 6) == dict.fromkeys(range(7), 1)
    process.collect_garbage()
    assert check(broken.place()).is_sound
    assert broken.restored() == 7


def test_c4_the_generation_continues_at_its_number(broken: Broken) -> None:
    process = broken.process()
    for _ in range(3):
        process.writer.change_generation(list(SHARDS))
    process.restore()
    draft = process.draft()
    process.checkpoints.publish(draft.time, lambda: replace(draft, generation=Generation(3)), process.writer)
    process.writer.unregister()
    broken.forget()
    broken.repair()
    found = read_generation(broken.meta)
    assert found is not None
    assert (found.number, found.members) == (3, SHARDS)
    assert broken.process().writer.change_generation(["orders"]).number == 4


def test_c4_meta_is_restored_from_the_newest_checkpoint_with_intact_shard_parts(broken: Broken) -> None:
    """After the loss of Meta, the shards' parts come from the checkpoint too. Fails with `shards=False`."""
    manifest = broken.first.checkpoints.read(broken.first.checkpoints.entries()[0])
    older = broken.first.checkpoints.read(broken.first.checkpoints.entries()[1])
    [only_newest, *_] = [file.key for file in manifest.shard_files if file not in older.shard_files]
    broken.corrupt(only_newest)
    broken.forget()
    done = broken.repair()
    assert only_newest in done.done[0]
    assert broken.restored() == 2
    assert broken.process().upper == 2
    assert f"{LOST}{manifest_key(2)}" in broken.process().blobs()
    assert broken.process().checkpoints.entries()[0].number == 1
    assert read_catalog(broken.blob, broken.meta)[1].last == 2, "numbers are not reused"


def test_c4_without_an_intact_checkpoint_a_lost_meta_stays_lost(broken: Broken) -> None:
    for file in broken.first.parts[:1]:
        broken.blob.delete(file.key)
    broken.forget()
    before = broken.everything()
    with pytest.raises(CheckpointDamaged, match="none of 2 checkpoints is intact") as caught:
        repair(broken.place())
    assert broken.first.parts[0].key in str(caught.value)
    assert broken.everything() == before
    assert broken.meta.heads("") == {}, "opening is still refused"


def test_c4_meta_db_is_deleted_and_repaired(tmp_path: Path) -> None:
    """On a real directory, with the real `open_storage`."""
    runtime = ManualRuntime()
    storage = open_storage(tmp_path, runtime=runtime, settings=SETTINGS)
    process = Process(storage.blob, storage.meta, runtime)
    process.create()
    process.step()
    process.publish()
    storage.close()
    for path in tmp_path.glob("meta.db*"):
        path.unlink()
    with pytest.raises(RecordDamaged):
        open_storage(tmp_path, runtime=runtime, settings=SETTINGS)
    storage = open_for_repair(tmp_path, runtime=runtime, settings=SETTINGS, change=True)
    assert repair(StorageContext(storage.blob, storage.meta, runtime, SETTINGS)).report.is_sound
    storage.close()
    storage = open_storage(tmp_path, runtime=runtime, settings=SETTINGS)
    process = Process(storage.blob, storage.meta, runtime)
    assert process.restored_time() == 1
    process.step()
    process.publish()
    storage.close()
