"""Restoring: state is verified before use, use of an older checkpoint is logged, and damage is never taken for "no
checkpoint".
"""

from __future__ import annotations

import logging
import pickle

import msgspec
import pytest

from evertide.checkpoint.records import (
    Catalog,
    decode_manifest,
    make_state_file,
    manifest_key,
    read_catalog,
    read_holds,
)
from evertide.errors import (
    BlobDamaged,
    CheckpointDamaged,
    EvertideError,
    Fenced,
    RecordDamaged,
    Unavailable,
    UnsupportedFormat,
)
from evertide.store.meta import seal
from evertide.store.paths import CHECKPOINTS, checkpoint_key, restoring_key, state_prefix
from tests.checkpoint.kit import TTL_S, Memory, Process, Watched
from tests.shard.hosts import HookedBlob, LateMeta


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def process(memory: Memory) -> Process:
    """Checkpoints 1 at time 3 and 2 at time 5, which share the first three parts."""
    made = memory.start_process(3)
    made.publish()
    made.step()
    made.step()
    made.publish()
    return made


def check_error_names(error: EvertideError, *names: str) -> None:
    for name in names:
        assert name in str(error)
    assert str(error).endswith(error.remedy)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_newest_checkpoint_is_restored(memory: Memory, process: Process) -> None:
    fresh = memory.process()
    found = fresh.restore()
    assert found is not None
    fresh.check_state(found)
    assert (found.entry.number, found.entry.time, found.skipped) == (2, 5, ())
    assert found.pipeline == b"CREATE TABLE orders"
    assert found.manifest.fingerprint == "f1"


def test_there_is_no_checkpoint_only_if_none_was_ever_published(memory: Memory) -> None:
    assert memory.process().restore() is None
    process = memory.start_process()
    assert process.restore() is None
    assert read_holds(memory.meta) == {}


def test_a_first_attempt_that_crashed_is_no_checkpoint(memory: Memory) -> None:
    process = memory.start_process()

    class Crash(BaseException):
        pass

    def crash() -> None:
        raise Crash

    watched = Watched(memory, 12, crash)
    with pytest.raises(Crash):
        watched.run(lambda victim: victim.checkpoints.publish(process.upper, process.draft, victim.writer))
    assert memory.process().blobs("checkpoints")
    assert memory.process().restore() is None


# C2: the manifest


@pytest.mark.parametrize(
    "content", [b"{not valid json", b"", b"[]", b'{"version": 1}', b"\xff\xfe", b'{"version": "x"}']
)
def test_c2_a_damaged_manifest_is_an_error_that_names_the_file(
    memory: Memory, process: Process, content: bytes
) -> None:
    """Fails if `MsgspecError` is not converted."""
    memory.damage(manifest_key(2), content)
    [newest, _] = process.checkpoints.entries()
    with pytest.raises(RecordDamaged) as caught:
        process.checkpoints.read(newest)
    check_error_names(caught.value, "memory:checkpoints/00000002/manifest.json")
    assert memory.process().restored_time() == 3


def test_c2_a_change_of_any_byte_of_a_manifest_is_detected(memory: Memory, process: Process) -> None:
    """Also without the catalog, as a repair reads it. Fails without the checksum in `decode_manifest`."""
    content = memory.blob.get(manifest_key(2))
    before = decode_manifest(content, "there")
    for at in range(len(content)):
        changed = content[:at] + bytes([content[at] ^ 0x01]) + content[at + 1 :]
        try:
            found = decode_manifest(changed, "there")
        except (RecordDamaged, UnsupportedFormat):
            continue
        assert found == before, f"byte {at}"  # whitespace between tokens


def test_c2_a_newer_manifest_is_refused_and_no_older_checkpoint_is_used(memory: Memory, process: Process) -> None:
    """A newer version of Evertide wrote it, and this version cannot know what else it wrote."""
    memory.damage(manifest_key(2), newer := b'{"version": 2, "something": "else"}')
    _, catalog = read_catalog(memory.blob, memory.meta)
    named = make_state_file(manifest_key(2), newer)
    entry = msgspec.structs.replace(catalog.entries[-1], bytes=named.bytes, digest=named.digest)
    memory.put_record(CHECKPOINTS, seal(msgspec.structs.replace(catalog, entries=(*catalog.entries[:-1], entry))))
    fresh = memory.process()
    with pytest.raises(UnsupportedFormat) as caught:
        fresh.restore()
    check_error_names(caught.value, "00000002/manifest.json", "format version 2", "reads 1")


def test_x8_a_flipped_version_is_damage_and_not_another_version(memory: Memory, process: Process) -> None:
    """The catalog records which bytes were published."""
    content = memory.blob.get(manifest_key(2))
    memory.damage(manifest_key(2), content.replace(b'"version": 1', b'"version": 3'))
    found = memory.process().restore()
    assert found is not None
    assert found.entry.number == 1
    assert "the manifest has version 3, but another one was published" in str(found.skipped[0].error)


def test_c2_the_manifest_of_another_checkpoint_is_not_taken(memory: Memory, process: Process) -> None:
    """It is intact, but not the published one. Fails without the digest in the catalog's entry."""
    memory.damage(manifest_key(2), memory.blob.get(manifest_key(1)))
    found = memory.process().restore()
    assert found is not None
    assert found.entry.number == 1
    [skipped] = found.skipped
    assert "not the manifest that was published as checkpoint 2" in str(skipped.error)


# C4: the catalog


def test_c4_a_missing_catalog_refuses_to_start(memory: Memory, process: Process) -> None:
    """Fails if a missing key is taken for an empty catalog: the process starts from nothing, silently."""
    memory.forget(CHECKPOINTS)
    before = process.blobs()
    fresh = memory.process()
    with pytest.raises(CheckpointDamaged) as caught:
        fresh.restore()
    check_error_names(
        caught.value, "memory:checkpoints", "checkpoints/00000001", "checkpoints/00000002", "fsck --repair"
    )
    assert fresh.checkpoints.collect_garbage(set, fresh.writer).refused is not None
    with pytest.raises(CheckpointDamaged):
        fresh.checkpoints.find_pins()
    with pytest.raises(CheckpointDamaged):
        fresh.checkpoints.entries()
    assert fresh.blobs() == before


def test_c4_a_damaged_catalog_is_an_error_with_its_path(memory: Memory, process: Process) -> None:
    memory.put_record(CHECKPOINTS, b"\x01" + b"garbage!" * 4)
    with pytest.raises(RecordDamaged) as caught:
        memory.process().restore()
    check_error_names(caught.value, "memory:checkpoints")
    memory.put_record(CHECKPOINTS, seal(Catalog(), version=2))
    with pytest.raises(UnsupportedFormat):
        memory.process().restore()


# C5, C6: the files


def test_c5_every_missing_file_is_named(memory: Memory, process: Process) -> None:
    """Fails if the first error is raised at once."""
    [newest, _] = process.checkpoints.entries()
    gone = [
        process.parts[3].key,
        process.parts[4].key,
        checkpoint_key(2, "orders.state"),
        checkpoint_key(2, "state.bin"),
    ]
    for key in gone:
        memory.blob.delete(key)
    with pytest.raises(CheckpointDamaged) as caught:
        process.checkpoints.verify(newest)
    check_error_names(caught.value, "00000002/manifest.json", "4 files of 9", *gone)
    assert process.parts[0].key not in str(caught.value)


def test_c5_missing_state_is_damage_and_never_no_checkpoint(memory: Memory, process: Process) -> None:
    memory.blob.delete(process.parts[0].key)
    memory.corrupt(process.parts[4].key)
    fresh = memory.process()
    with pytest.raises(CheckpointDamaged) as caught:
        fresh.checkpoints.restore(fresh.writer, reads_parts=True)
    check_error_names(caught.value, "none of 2 checkpoints is intact", process.parts[0].key, process.parts[4].key)
    assert read_holds(memory.meta) == {}, "an unusable checkpoint is not held"


@pytest.mark.parametrize("which", ["part", "state.bin", "pipeline.bin", "orders.state"])
def test_c6_random_content_of_the_right_length_is_detected(
    memory: Memory, process: Process, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The older one is used, and a log line says so. Fails if only the length is compared."""
    key = process.parts[-1].key if which == "part" else checkpoint_key(2, which)
    memory.corrupt(key)
    fresh = memory.process()
    with caplog.at_level(logging.WARNING):
        found = fresh.restore(reads_parts=which == "part")
    assert found is not None
    fresh.check_state(found)
    assert found.entry.number == 1
    [skipped] = found.skipped
    assert skipped.entry.number == 2
    check_error_names(skipped.error, key, "digest")
    assert any(key in record.getMessage() for record in caplog.records)


def test_unavailable_storage_is_not_damage(memory: Memory, process: Process) -> None:
    """No older checkpoint is used instead. Fails if `check_files` takes every error for damage."""

    def away(_operation: str, key: str) -> None:
        if key == checkpoint_key(2, "state.bin"):
            raise Unavailable(path=key, why="no answer")

    fresh = Process(HookedBlob(memory.blob, away), memory.meta, memory.runtime)
    with pytest.raises(Unavailable):
        fresh.restore()


# State parts, which a restore reads only if asked to


@pytest.mark.parametrize("reads_parts", [False, True])
def test_a_restore_reads_state_parts_only_if_asked_to(memory: Memory, process: Process, reads_parts: bool) -> None:
    """So that the time of a restore does not depend on the size of the state."""
    read: list[str] = []
    fresh = Process(HookedBlob(memory.blob, lambda _, key: read.append(key)), memory.meta, memory.runtime)
    assert fresh.checkpoints.restore(fresh.writer, reads_parts=reads_parts)
    assert read
    assert {key for key in read if key.startswith(state_prefix())} == {
        part.key for part in process.parts if reads_parts
    }


def test_the_checkpoints_that_name_a_damaged_file_are_known_to_be_damaged(memory: Memory, process: Process) -> None:
    """Fails if a checkpoint that does not name the file counts as damaged, too."""
    checkpoints = memory.process().checkpoints
    for key, numbers in (("state/elsewhere/part", set()), (process.parts[-1].key, {2}), (process.parts[0].key, {1, 2})):
        checkpoints.note_damaged_file(BlobDamaged(path=memory.blob.path(key), why="a byte differs"))
        assert checkpoints.damage.list_catalogued() == numbers


# The hold


def test_the_hold_covers_all_checkpoints_during_the_restore_and_one_after_it(memory: Memory, process: Process) -> None:
    seen: list[list[int]] = []
    fresh = memory.process()

    def look(*_progress: object) -> None:
        [(_, hold)] = read_holds(memory.meta).values()
        seen.append([entry.number for entry in hold.entries])
        assert not hold.is_read

    memory.corrupt(checkpoint_key(2, "state.bin"))
    assert fresh.checkpoints.restore(fresh.writer, look)
    assert seen
    assert all(numbers == [1, 2] for numbers in seen)
    [(_, hold)] = read_holds(memory.meta).values()
    assert ([entry.number for entry in hold.entries], hold.is_read) == ([1], True)
    fresh.checkpoints.release(fresh.writer)
    fresh.checkpoints.release(fresh.writer)
    assert read_holds(memory.meta) == {}


def test_restoring_twice_succeeds(memory: Memory, process: Process) -> None:
    fresh = memory.process()
    assert fresh.restored_time() == 5
    assert fresh.restored_time() == 5


def test_a_restore_succeeds_if_its_hold_cannot_be_narrowed(memory: Memory, process: Process) -> None:
    late = LateMeta(memory.meta)
    fresh = Process(memory.blob, late, memory.runtime)
    late.script = ["done", "full"]
    assert fresh.restored_time() == 5
    [(_, hold)] = read_holds(memory.meta).values()
    assert not hold.is_read


@pytest.mark.parametrize("at", range(1, 25))
def test_a_writer_that_was_ended_while_it_restores_is_fenced(memory: Memory, process: Process, at: int) -> None:
    """Its hold ended with it: a missing file is then no damage. Fails without `check_registered`."""

    def end() -> None:
        memory.runtime.advance_s(TTL_S + 1)
        process.writer.beat()
        process.merge()
        for _ in range(2):
            process.publish()
        process.collect_garbage()

    watched = Watched(memory, at, end)
    try:
        watched.run(Process.restore)
    except Fenced:
        assert watched.count >= at
    else:
        assert watched.count < at, "the restore was complete before"


def test_the_record_of_a_hold_has_its_writer_and_time(memory: Memory, process: Process) -> None:
    fresh = memory.process()
    fresh.restore()
    record = memory.meta.head(restoring_key(fresh.writer.id))
    assert record is not None
    [(_, hold)] = read_holds(memory.meta).values()
    assert (hold.writer, hold.held_at_s) == (fresh.writer.id, memory.runtime.wall_s())


def test_a_damaged_hold_is_an_error(memory: Memory, process: Process) -> None:
    fresh = memory.process()
    fresh.restore()
    memory.put_record(restoring_key(fresh.writer.id), b"\x01" + b"garbage!" * 3)
    with pytest.raises(RecordDamaged, match="restoring/"):
        process.checkpoints.find_pins()
