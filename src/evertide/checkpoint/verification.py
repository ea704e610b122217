"""Read whole files and compare them with their recorded digests.

All files are read, even after a damaged one, so that the operator gets the complete list (C5). Files are read
concurrently (`Settings.fetchers`), because each is a round trip on an object store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import xxhash

from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.records import CatalogEntry, Manifest, StateFile, decode_manifest, manifest_key
from evertide.errors import BlobDamaged, BlobMissing, CheckpointDamaged, Damaged, RecordDamaged, UnsupportedFormat
from evertide.store.blob import Blob


@dataclass(frozen=True, slots=True)
class Progress:
    files: int
    files_all: int
    bytes: int
    bytes_all: int


OnFileRead: TypeAlias = Callable[[Progress], None]
"""Called after each file, from several threads, one at a time."""


def read_file(place: StorageContext, file: StateFile) -> bytes:
    """Return the verified bytes; raise `BlobMissing` or `BlobDamaged` with the path otherwise."""
    content = place.retry_read(lambda: place.blob.get(file.key))
    path = place.blob.path(file.key)
    if len(content) != file.bytes:
        raise BlobDamaged(
            path=path, why="the length in bytes differs", expected=str(file.bytes), found=str(len(content))
        )
    found = xxhash.xxh3_128_hexdigest(content)
    if found != file.digest:
        raise BlobDamaged(path=path, why="the digest differs", expected=file.digest, found=found)
    return content


def check_files(place: StorageContext, files: Iterable[StateFile], progress: OnFileRead | None = None) -> list[Damaged]:
    """Read all files, each once; return the errors in the order given."""
    wanted = list(dict.fromkeys(files))
    done = _ProgressCounter(len(wanted), sum(file.bytes for file in wanted), progress)

    def check(file: StateFile) -> Damaged | None:
        try:
            read_file(place, file)
        except (BlobMissing, BlobDamaged) as error:
            return error
        finally:
            done.add(file)
        return None

    with ThreadPoolExecutor(max_workers=place.settings.fetchers, thread_name_prefix="evertide-verify") as pool:
        return [error for error in pool.map(check, wanted) if error is not None]


def read_manifest(blob: Blob, entry: CatalogEntry) -> Manifest:
    """Return the manifest of a catalog entry, if it is the published one."""
    content = blob.get(entry.key)
    path = blob.path(entry.key)
    if xxhash.xxh3_128_hexdigest(content) != entry.digest or len(content) != entry.bytes:
        try:
            decode_manifest(content, path)
        except UnsupportedFormat as error:  # the catalog has the published digest: another version is damage
            why = f"the manifest has version {error.found}, but another one was published"
            raise RecordDamaged(path=path, why=why) from error
        why = f"the file is not the manifest that was published as checkpoint {entry.number}"
        raise RecordDamaged(path=path, why=why)
    return decode_manifest(content, path)


def verify_manifest(
    place: StorageContext, manifest: Manifest, files: Iterable[StateFile], progress: OnFileRead | None = None
) -> None:
    """Read these files of a manifest; one error names all damaged ones."""
    files = tuple(files)
    found = check_files(place, files, progress)
    if found:
        listed = "; ".join(f"{error.path} ({_describe_damage(error)})" for error in found)
        why = f"{len(found)} files of {len(set(files))} are missing or damaged"
        raise CheckpointDamaged(path=place.blob.path(manifest_key(manifest.number)), why=why, files=listed)


def _describe_damage(error: Damaged) -> str:
    if isinstance(error, BlobDamaged):
        return f"damaged: {error.why}, expected {error.expected}, found {error.found}"
    return "missing"


class _ProgressCounter:
    def __init__(self, files: int, size: int, progress: OnFileRead | None) -> None:
        self._lock = threading.Lock()
        self._now = Progress(0, files, 0, size)
        self._progress = progress

    def add(self, file: StateFile) -> None:
        with self._lock:
            now = self._now
            self._now = Progress(now.files + 1, now.files_all, now.bytes + file.bytes, now.bytes_all)
            if self._progress is not None:
                self._progress(self._now)
