"""Export a checkpoint to one file, and import it as a new storage.

Layout: an uncompressed tar, because its files are already compressed. First `FORMAT`, then the manifest, then every
file that the manifest names, each under its key.

1. `export` holds the checkpoint with its own writer, so that garbage collection keeps it. Every file is verified when
   it is read. The archive is written as `<name>.tmp`, synced, and renamed: it is complete or absent.
2. `import_archive` accepts only files that the manifest names, verifies each, and uses all of them or none. FORMAT and
   the commit that creates the storage come last (`evertide.checkpoint.meta_restore`): until then it cannot be opened.
   An interrupted import leaves no storage; remove its files.
"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import xxhash

from evertide.checkpoint.catalog import Checkpoints
from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.meta_restore import restore_meta
from evertide.checkpoint.records import CatalogEntry, Manifest, StateFile, decode_manifest, parse_number
from evertide.checkpoint.verification import read_file
from evertide.errors import ArchiveDamaged, InvalidInput, RecordDamaged, UnsupportedFormat
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.blobs.file_system import SystemFiles
from evertide.store.blobs.local import convert_os_error
from evertide.store.open import FORMAT_TEXT, FORMAT_VERSION, Storage, open_for_repair
from evertide.store.paths import FORMAT
from evertide.store.writers import Writer


def export(checkpoints: Checkpoints, entry: CatalogEntry, path: Path | str) -> None:
    """Write the checkpoint and all files that it names to one file, replacing an existing file."""
    place = checkpoints.place
    writer = Writer.register(place.meta, runtime=place.runtime, settings=place.settings, label="export")
    try:
        checkpoints.hold(entry, writer)
        manifest = checkpoints.read(entry)
        with _new_file(Path(path)) as file, tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            _add(tar, FORMAT, FORMAT_TEXT, manifest)
            _add(tar, entry.key, read_file(place, StateFile(entry.key, entry.bytes, entry.digest)), manifest)
            beaten_at_s = place.runtime.monotonic_s()
            for named in dict.fromkeys([*manifest.files, *manifest.shard_files]):
                _add(tar, named.key, read_file(place, named), manifest)
                if place.runtime.monotonic_s() - beaten_at_s >= place.settings.heartbeat_interval_s:
                    writer.beat()  # otherwise the hold would end with its writer
                    beaten_at_s = place.runtime.monotonic_s()
    finally:
        checkpoints.release(writer)
        writer.unregister()


def import_archive(
    path: Path | str, location: Path | str, meta: str | None = None, *, runtime: Runtime, settings: Settings
) -> Manifest:
    """Create a new storage at an empty place from an archive. Return the manifest of the checkpoint."""
    _check_empty(location, meta, runtime, settings)
    storage = open_for_repair(location, meta, runtime=runtime, settings=settings, change=True)
    try:
        place = StorageContext(storage.blob, storage.meta, runtime, settings)
        manifest = _unpack(place, Path(path))
        place.put(FORMAT, FORMAT_TEXT)
        writer = Writer.register(place.meta, runtime=runtime, settings=settings, label="import")
        try:
            restore_meta(place, manifest, writer, last=manifest.number)
        finally:
            writer.unregister()
    finally:
        storage.close()
    return manifest


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[io.BufferedWriter]:
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        SystemFiles().sync_directory(path.parent)
    except OSError as error:
        raise convert_os_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _add(tar: tarfile.TarFile, key: str, content: bytes, manifest: Manifest) -> None:
    """Add a file with the checkpoint's time, so that the same checkpoint gives the same archive."""
    member = tarfile.TarInfo(key)
    member.size = len(content)
    member.mtime = int(manifest.made_at_s)
    tar.addfile(member, io.BytesIO(content))


def _check_empty(location: Path | str, meta: str | None, runtime: Runtime, settings: Settings) -> None:
    storage: Storage = open_for_repair(location, meta, runtime=runtime, settings=settings, change=False)
    try:
        first = next(iter(storage.blob.list("")), None)
        if first is not None:
            why = f"the place is not empty: it has {first.key}; import into an empty one"
            raise InvalidInput(where=storage.root, why=why)
        if storage.meta.heads(""):
            raise InvalidInput(where=storage.meta.path(""), why="Meta is not empty; import into an empty one")
    finally:
        storage.close()


def _unpack(place: StorageContext, path: Path) -> Manifest:
    """Put every file of the archive, and return its manifest: see rule 2 of the header."""
    try:
        with tarfile.open(path, "r|") as tar:
            files = _files(tar, path)
            _check_format(files, path)
            key, content = next(files, ("", b""))
            manifest = _decode_manifest(content, f"{path}:{key}")
            if parse_number(key) != manifest.number:
                raise ArchiveDamaged(path=str(path), why=f"the second file is {key!r}, not the manifest")
            place.put(key, content)
            missing = _put(place, path, files, manifest)
    except FileNotFoundError as error:
        raise InvalidInput(where=str(path), why="the archive does not exist") from error
    except OSError as error:
        raise convert_os_error(path, error) from error
    except (tarfile.TarError, EOFError) as error:
        raise ArchiveDamaged(path=str(path), why=f"the file is not an archive, or is incomplete: {error}") from error
    if missing:
        why = f"{len(missing)} files that its manifest names are missing: {'; '.join(missing)}"
        raise ArchiveDamaged(path=str(path), why=why)
    return manifest


def _decode_manifest(content: bytes, path: str) -> Manifest:
    try:
        return decode_manifest(content, path)
    except RecordDamaged as error:
        raise ArchiveDamaged(path=path, why=error.why) from error


def _files(tar: tarfile.TarFile, path: Path) -> Iterator[tuple[str, bytes]]:
    for member in tar:
        file = tar.extractfile(member) if member.isreg() else None
        if file is None:
            raise ArchiveDamaged(path=str(path), why=f"{member.name!r} is not a file")
        content = file.read()
        if len(content) != member.size:
            raise ArchiveDamaged(path=str(path), why=f"the archive ends in the middle of {member.name!r}")
        yield member.name, content


def _check_format(files: Iterator[tuple[str, bytes]], path: Path) -> None:
    key, text = next(files, ("", b""))
    if key != FORMAT or not text.strip().isdigit():
        why = "the file does not begin with FORMAT, so it is not an archive of a checkpoint"
        raise ArchiveDamaged(path=str(path), why=why)
    if int(text) != FORMAT_VERSION:
        raise UnsupportedFormat(path=f"{path}:{FORMAT}", found=int(text), supported=FORMAT_VERSION)


def _put(place: StorageContext, path: Path, files: Iterator[tuple[str, bytes]], manifest: Manifest) -> list[str]:
    """Put the files that the manifest names; return the keys that the archive lacks."""
    named = {file.key: file for file in (*manifest.files, *manifest.shard_files)}
    missing = dict.fromkeys(named)
    for key, content in files:
        file = named.get(key)
        if file is None:
            raise ArchiveDamaged(path=f"{path}:{key}", why="the manifest does not name this file")
        found = xxhash.xxh3_128_hexdigest(content)
        if len(content) != file.bytes or found != file.digest:
            why = f"the digest of the file differs (expected {file.digest}, found {found})"
            raise ArchiveDamaged(path=f"{path}:{key}", why=why)
        place.put(key, content)
        missing.pop(key, None)
    return list(missing)
