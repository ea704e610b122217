"""A checkpoint as one file: out, in, and every kind of damage on the way."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from evertide.checkpoint.archive import export, import_archive
from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.fsck import check
from evertide.checkpoint.manifest import Manifest, manifest_key
from evertide.checkpoint.records import read_holds
from evertide.errors import (
    BlobDamaged,
    CheckpointDamaged,
    Conflict,
    Damaged,
    EvertideError,
    InvalidInput,
    RecordDamaged,
    UnsupportedFormat,
)
from evertide.store import open_storage
from evertide.store.paths import checkpoint_key
from evertide.store.writers import read_registrations
from tests.checkpoint.kit import SHARDS, TTL_S, Memory, Process, Watched
from tests.shard.test_log import SETTINGS, content_of


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def process(memory: Memory) -> Process:
    made = memory.started(3)
    made.publish()
    return made


@pytest.fixture
def archive(process: Process, tmp_path: Path) -> Path:
    path = tmp_path / "shop.tar"
    export(process.checkpoints, process.checkpoints.entries()[0], path)
    return path


def brought_in(memory: Memory, archive: Path, location: Path) -> Manifest:
    return import_archive(archive, location, runtime=memory.runtime, settings=SETTINGS)


def test_out_and_in(memory: Memory, process: Process, archive: Path, tmp_path: Path) -> None:
    location = tmp_path / "copy.evertide"
    manifest = brought_in(memory, archive, location)
    assert (manifest.number, manifest.time) == (1, 3)
    storage = open_storage(location, runtime=memory.runtime, settings=SETTINGS)
    copy = Process(storage.blob, storage.meta, memory.runtime)
    assert copy.restored_time() == 3
    for name in SHARDS:
        assert content_of(copy.shard(name), 2) == {0: 1, 1: 1, 2: 1}
    copy.step()
    assert copy.publish().number == 2
    assert check(StorageContext(storage.blob, storage.meta, memory.runtime, SETTINGS)).is_sound
    storage.close()


def test_the_archive_holds_what_the_manifest_names(process: Process, archive: Path) -> None:
    [entry] = process.checkpoints.entries()
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    assert names[:2] == ["FORMAT", entry.key]
    assert set(names[1:]) == set(process.checkpoints.read(entry).names())
    assert len(names) == len(set(names))


def test_the_same_checkpoint_gives_the_same_archive(process: Process, archive: Path) -> None:
    before = archive.read_bytes()
    export(process.checkpoints, process.checkpoints.entries()[0], archive)
    assert archive.read_bytes() == before


@pytest.mark.parametrize(
    ("at", "outcome"), [(1, "refused"), (4, "refused"), (7, "whole"), (10, "whole"), (20, "whole")]
)
def test_nobody_collects_it_meanwhile(memory: Memory, process: Process, tmp_path: Path, at: int, outcome: str) -> None:
    """The checkpoint is dropped, and collected, before some operation. Seen to fail without the hold."""

    def drop() -> None:
        for _ in range(2):
            process.merge()
            process.publish()
        for name in SHARDS:
            process.shard(name).compact(process.writer)
            process.shard(name).collect_garbage(process.writer, process.checkpoints.pinned)
        process.collect()

    path = tmp_path / "x.tar"
    [entry] = process.checkpoints.entries()
    watched = Watched(memory, at, drop)
    if outcome == "refused":
        with pytest.raises(Conflict, match="not in the catalog"):
            watched.run(lambda one: export(one.checkpoints, entry, path))
        assert not path.exists()
    else:
        assert watched.run(lambda one: export(one.checkpoints, entry, path)) >= at
        brought_in(memory, path, tmp_path / "copy")
    assert set(read_registrations(memory.meta)) == {process.writer.id, watched.process.writer.id}
    assert read_holds(memory.meta) == {}


def test_a_damaged_file_is_not_exported_and_leaves_nothing(memory: Memory, process: Process, tmp_path: Path) -> None:
    memory.corrupt(process.parts[1].key)
    path = tmp_path / "shop.tar"
    path.write_bytes(b"the one of yesterday")
    with pytest.raises(BlobDamaged, match=process.parts[1].key):
        export(process.checkpoints, process.checkpoints.entries()[0], path)
    assert path.read_bytes() == b"the one of yesterday"
    assert list(tmp_path.iterdir()) == [path]
    assert read_holds(memory.meta) == {}


def test_an_export_into_nowhere_is_said(process: Process, tmp_path: Path) -> None:
    with pytest.raises(EvertideError, match=r"nowhere"):
        export(process.checkpoints, process.checkpoints.entries()[0], tmp_path / "nowhere" / "shop.tar")


# Coming in


def rewritten(archive: Path, change: Callable[[str, bytes], tuple[str, bytes] | None]) -> None:
    """Each member as `change` says; None leaves it out."""
    with tarfile.open(archive) as tar:
        members = [(member.name, file.read()) for member in tar if (file := tar.extractfile(member)) is not None]
    with tarfile.open(archive, "w") as tar:
        for name, content in members:
            changed = change(name, content)
            if changed is not None:
                info = tarfile.TarInfo(changed[0])
                info.size = len(changed[1])
                tar.addfile(info, io.BytesIO(changed[1]))


def refused(memory: Memory, archive: Path, kind: type[EvertideError], match: str) -> None:
    """And what is left is no storage."""
    location = archive.parent / "copy.evertide"
    with pytest.raises(kind, match=match):
        brought_in(memory, archive, location)
    with pytest.raises(Damaged):
        open_storage(location, runtime=memory.runtime, settings=SETTINGS)


def test_a_file_with_other_bytes(memory: Memory, process: Process, archive: Path) -> None:
    key = process.parts[0].key
    rewritten(archive, lambda name, content: (name, content[::-1] if name == key else content))
    refused(memory, archive, BlobDamaged, key)


def test_files_that_are_missing_are_all_named(memory: Memory, process: Process, archive: Path) -> None:
    keys = [process.parts[0].key, checkpoint_key(1, "state.bin")]
    rewritten(archive, lambda name, content: None if name in keys else (name, content))
    refused(memory, archive, CheckpointDamaged, f"{keys[1]}; {keys[0]}")


def test_a_file_that_the_manifest_does_not_name(memory: Memory, archive: Path) -> None:
    """Wherever it would lie: nothing is taken on trust."""
    rewritten(
        archive, lambda name, content: (name, content) if name != checkpoint_key(1, "state.bin") else ("../x", b"")
    )
    refused(memory, archive, RecordDamaged, "does not name it")


def test_a_damaged_manifest(memory: Memory, archive: Path) -> None:
    key = manifest_key(1)
    rewritten(archive, lambda name, content: (name, content.replace(b'"time": 3', b'"time": 4')))
    location = archive.parent / "copy.evertide"
    with pytest.raises(RecordDamaged, match=f"{key}.*checksum"):
        brought_in(memory, archive, location)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.9, 0.99])
def test_an_archive_that_was_cut_off(memory: Memory, archive: Path, part: float) -> None:
    content = archive.read_bytes().rstrip(b"\0")
    archive.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(Damaged):
        brought_in(memory, archive, archive.parent / "copy.evertide")


def test_something_else(memory: Memory, archive: Path) -> None:
    archive.write_bytes(b"not a tar at all" * 1000)
    with pytest.raises(RecordDamaged, match="not an archive"):
        brought_in(memory, archive, archive.parent / "copy.evertide")
    with pytest.raises(InvalidInput, match="no such archive"):
        brought_in(memory, archive.with_name("other.tar"), archive.parent / "copy2.evertide")


def test_a_newer_format(memory: Memory, archive: Path) -> None:
    rewritten(archive, lambda name, content: (name, b"2\n" if name == "FORMAT" else content))
    with pytest.raises(UnsupportedFormat, match="format version 2"):
        brought_in(memory, archive, archive.parent / "copy.evertide")


def test_only_into_an_empty_place(memory: Memory, archive: Path, tmp_path: Path) -> None:
    location = tmp_path / "copy.evertide"
    brought_in(memory, archive, location)
    memory.runtime.advance_s(TTL_S + 1)
    with pytest.raises(InvalidInput, match="an import needs an empty place"):
        brought_in(memory, archive, location)
    for path in location.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif not path.name.startswith("meta.db"):
            path.unlink()
    with pytest.raises(InvalidInput, match="an import needs an empty Meta"):
        brought_in(memory, archive, location)
