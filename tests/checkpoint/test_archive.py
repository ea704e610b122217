"""A checkpoint as one file: export, import, and every kind of damage in between."""

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
from evertide.checkpoint.records import Manifest, manifest_key, read_holds
from evertide.errors import (
    ArchiveDamaged,
    BlobDamaged,
    Conflict,
    Damaged,
    EvertideError,
    InvalidInput,
    UnsupportedFormat,
)
from evertide.store import open_storage
from evertide.store.paths import checkpoint_key
from evertide.store.writers import read_registrations
from tests.checkpoint.kit import SHARDS, TTL_S, Memory, Process, Watched
from tests.shard.hosts import SETTINGS, content_of


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def process(memory: Memory) -> Process:
    made = memory.start_process(3)
    made.publish()
    return made


@pytest.fixture
def archive(process: Process, tmp_path: Path) -> Path:
    path = tmp_path / "shop.tar"
    export(process.checkpoints, process.checkpoints.entries()[0], path)
    return path


def import_into(memory: Memory, archive: Path, location: Path) -> Manifest:
    return import_archive(archive, location, runtime=memory.runtime, settings=SETTINGS)


def test_an_exported_checkpoint_is_imported(memory: Memory, process: Process, archive: Path, tmp_path: Path) -> None:
    location = tmp_path / "copy.evertide"
    manifest = import_into(memory, archive, location)
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


def test_the_archive_has_the_files_of_the_manifest(process: Process, archive: Path) -> None:
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
def test_garbage_collection_keeps_a_checkpoint_during_its_export(
    memory: Memory, process: Process, tmp_path: Path, at: int, outcome: str
) -> None:
    """The checkpoint is dropped, and collected, before some operation. Fails without the hold."""

    def drop() -> None:
        for _ in range(2):
            process.merge()
            process.publish()
        for name in SHARDS:
            process.shard(name).compact(process.writer)
            process.shard(name).collect_garbage(process.writer, process.checkpoints.find_pins)
        process.collect_garbage()

    path = tmp_path / "x.tar"
    [entry] = process.checkpoints.entries()
    watched = Watched(memory, at, drop)
    if outcome == "refused":
        with pytest.raises(Conflict, match="not in the catalog"):
            watched.run(lambda one: export(one.checkpoints, entry, path))
        assert not path.exists()
    else:
        assert watched.run(lambda one: export(one.checkpoints, entry, path)) >= at
        import_into(memory, path, tmp_path / "copy")
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


def test_an_export_to_a_missing_directory_is_an_error(process: Process, tmp_path: Path) -> None:
    with pytest.raises(EvertideError, match=r"nowhere"):
        export(process.checkpoints, process.checkpoints.entries()[0], tmp_path / "nowhere" / "shop.tar")


# Import


def rewrite(archive: Path, change: Callable[[str, bytes], tuple[str, bytes] | None]) -> None:
    """The archive with each member replaced by the result of `change`; None omits it."""
    with tarfile.open(archive) as tar:
        members = [(member.name, file.read()) for member in tar if (file := tar.extractfile(member)) is not None]
    with tarfile.open(archive, "w") as tar:
        for name, content in members:
            changed = change(name, content)
            if changed is not None:
                info = tarfile.TarInfo(changed[0])
                info.size = len(changed[1])
                tar.addfile(info, io.BytesIO(changed[1]))


def check_refused(memory: Memory, archive: Path, match: str) -> None:
    """Import fails with a text that matches, and what it leaves is not a storage."""
    location = archive.parent / "copy.evertide"
    with pytest.raises(ArchiveDamaged, match=match):
        import_into(memory, archive, location)
    with pytest.raises(Damaged):
        open_storage(location, runtime=memory.runtime, settings=SETTINGS)


def test_a_file_with_other_bytes_is_refused(memory: Memory, process: Process, archive: Path) -> None:
    key = process.parts[0].key
    rewrite(archive, lambda name, content: (name, content[::-1] if name == key else content))
    check_refused(memory, archive, key)


def test_the_error_names_all_missing_files(memory: Memory, process: Process, archive: Path) -> None:
    keys = [process.parts[0].key, checkpoint_key(1, "state.bin")]
    rewrite(archive, lambda name, content: None if name in keys else (name, content))
    check_refused(memory, archive, f"{keys[1]}; {keys[0]}")


def test_a_file_that_the_manifest_does_not_name_is_refused(memory: Memory, archive: Path) -> None:
    """Whatever its path: a file that the manifest does not list is refused."""
    rewrite(archive, lambda name, content: (name, content) if name != checkpoint_key(1, "state.bin") else ("../x", b""))
    check_refused(memory, archive, "does not name this file")


def test_a_damaged_manifest_is_refused(memory: Memory, archive: Path) -> None:
    key = manifest_key(1)
    rewrite(archive, lambda name, content: (name, content.replace(b'"time": 3', b'"time": 4')))
    location = archive.parent / "copy.evertide"
    with pytest.raises(ArchiveDamaged, match=f"{key}.*checksum"):
        import_into(memory, archive, location)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.9, 0.99])
def test_a_truncated_archive_is_refused(memory: Memory, archive: Path, part: float) -> None:
    content = archive.read_bytes().rstrip(b"\0")
    archive.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(ArchiveDamaged):
        import_into(memory, archive, archive.parent / "copy.evertide")


def test_a_file_that_is_not_an_archive_is_refused(memory: Memory, archive: Path) -> None:
    archive.write_bytes(b"not a tar at all" * 1000)
    with pytest.raises(ArchiveDamaged, match="not an archive"):
        import_into(memory, archive, archive.parent / "copy.evertide")
    with pytest.raises(InvalidInput, match="the archive does not exist"):
        import_into(memory, archive.with_name("other.tar"), archive.parent / "copy2.evertide")


def test_a_newer_format_is_refused(memory: Memory, archive: Path) -> None:
    rewrite(archive, lambda name, content: (name, b"2\n" if name == "FORMAT" else content))
    with pytest.raises(UnsupportedFormat, match="format version 2"):
        import_into(memory, archive, archive.parent / "copy.evertide")


def test_an_import_needs_an_empty_location(memory: Memory, archive: Path, tmp_path: Path) -> None:
    location = tmp_path / "copy.evertide"
    import_into(memory, archive, location)
    memory.runtime.advance_s(TTL_S + 1)
    with pytest.raises(InvalidInput, match="the place is not empty"):
        import_into(memory, archive, location)
    for path in location.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif not path.name.startswith("meta.db"):
            path.unlink()
    with pytest.raises(InvalidInput, match="Meta is not empty"):
        import_into(memory, archive, location)
