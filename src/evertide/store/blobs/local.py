"""`LocalBlob`: blobs as files below a directory, `<root>/<key>`.

A put writes a temporary file beside the final name:

1. take the lock of the key, so that threads of this process take turns;
2. if the final name exists with other bytes, raise `Conflict`;
3. create the missing directories and sync the parent of each, once per process;
4. write `<name>.tmp` (it must be new), and sync it;
5. rename it to the final name;
6. sync the directory.

Up to step 4 nothing has happened: a failure is `Unavailable`, and the temporary file is removed. From step 5 on a
failure is `OutcomeUnknown`. A failed sync is never repeated on the same file, because the kernel may have dropped the
pages. A repeated put writes the bytes again, even if the final name exists, because that name may not be durable yet. A
directory whose name could not be synced is removed, and the repeated put creates it again. A directory that is not
empty stays: its name is durable, because every process syncs it before it writes the first file there.

If `<name>.tmp` exists, either a crash left it or another process is writing it. The put cannot tell which, so it leaves
that file alone and uses `<name>.1.tmp` (then 2, ...). So no process renames a file that another one is writing. Such a
file is itself an unfinished put, of the key `<name>.1`, with the same writer in its name.

A put never creates the root: if the root is missing, its disk may not be mounted. `make_root` creates it, for a new
storage. Two processes that put *other* bytes under one key at the same moment are not detected (step 2 checks, step 5
replaces): keys contain the id of their writer, so no two processes put the same key.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evertide.errors import (
    BlobMissing,
    Conflict,
    OutcomeUnknown,
    StorageForbidden,
    StorageFull,
    Unavailable,
)
from evertide.store.blob import BlobEntry
from evertide.store.blobs.file_system import Files, SystemFiles
from evertide.store.keys import TEMPORARY, KeyLocks, check_blob_key, check_blob_prefix, check_range, is_reserved
from evertide.store.paths import FORMAT

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}
_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}


def convert_os_error(path: Path | str, error: OSError) -> Unavailable:
    """Convert an `OSError` to the kind of `Unavailable` that it means."""
    why = error.strerror or str(error)
    if error.errno in _FULL:
        return StorageFull(path=str(path), why=why)
    if error.errno in _FORBIDDEN:
        return StorageForbidden(path=str(path), why=why)
    return Unavailable(path=str(path), why=why)


class LocalBlob:
    """Blobs as files below a directory."""

    def __init__(self, root: Path | str, files: Files | None = None) -> None:
        self._root = Path(root)
        self._files: Files = files or SystemFiles()
        self._init_locks()

    def _init_locks(self) -> None:
        self._durable_directories: set[Path] = {self._root}
        self._directory_lock = threading.Lock()
        """Held until the name of a new directory is synced: no other thread relies on it before."""
        self._key_locks = KeyLocks()

    def __getstate__(self) -> dict[str, Any]:
        return {"_root": self._root, "_files": self._files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._init_locks()

    def __repr__(self) -> str:
        return f"LocalBlob({str(self._root)!r})"

    def path(self, key: str) -> str:
        return str(self._root / key)

    def make_root(self) -> None:
        """Create the root durably, if it is missing; its parent must exist.

        The root was durable before FORMAT was put into it. So a process that finds FORMAT does not need the parent.
        """
        try:
            if not self._files.exists(self._root / FORMAT):
                self._make_directory(self._root)
        except OSError as error:
            raise convert_os_error(self._root, error) from error

    def get(self, key: str) -> bytes:
        path = self._root / check_blob_key(key)
        with self._convert_read_errors(path):
            return self._files.read(path)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        path = self._root / check_blob_key(key)
        check_range(key, offset, length)
        with self._convert_read_errors(path):
            return self._files.read_range(path, offset, length)

    def put(self, key: str, data: bytes) -> None:
        path = self._root / check_blob_key(key)
        with self._key_locks.take(key):
            try:
                self._check_free(path, data)
                self._make_directories(path.parent)
                temporary = self._write_temporary(path, data)
            except OSError as error:
                self._durable_directories = {self._root}  # a directory may have been removed: check again next time
                raise convert_os_error(path, error) from error
            try:
                self._files.rename(temporary, path)
                self._files.sync_directory(path.parent)
            except OSError as error:
                self._remove_quietly(temporary)
                raise _to_unknown_outcome(path, error) from error

    def delete(self, key: str) -> bool:
        """Sync the directory even if the blob is missing: an earlier delete may have failed before its sync."""
        path = self._root / check_blob_key(key)
        with self._key_locks.take(key):
            try:
                found = self._remove(path)
            except OSError as error:
                raise (convert_os_error if error.errno in _FORBIDDEN else _to_unknown_outcome)(path, error) from error
            try:
                self._remove(_temporary_path(path, 0))
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    self._files.sync_directory(path.parent)
            except OSError as error:
                raise _to_unknown_outcome(path, error) from error
        return found

    def list(self, prefix: str) -> Iterator[BlobEntry]:
        for entry in self._walk(check_blob_prefix(prefix)):
            if not is_reserved(entry.key):
                yield entry

    def list_unfinished(self, prefix: str) -> Iterator[str]:
        for entry in self._walk(check_blob_prefix(prefix)):
            key = entry.key.removesuffix(TEMPORARY)
            if key != entry.key and not is_reserved(key) and not self._exists(self._root / key):
                yield key

    @contextlib.contextmanager
    def _convert_read_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _MISSING and self._exists(self._root):
                raise BlobMissing(path=str(path), why=error.strerror or "no such file") from error
            raise convert_os_error(path, error) from error

    def _check_free(self, path: Path, data: bytes) -> None:
        if self._files.exists(path) and (self._files.size(path) != len(data) or self._files.read(path) != data):
            raise Conflict(where=str(path), why="the key exists with other bytes")

    def _make_directories(self, directory: Path) -> None:
        if directory in self._durable_directories:
            return
        self._make_directories(directory.parent)
        self._make_directory(directory)
        self._durable_directories.add(directory)

    def _make_directory(self, directory: Path) -> None:
        """Sync the parent even if the directory exists: its creator may have stopped before the sync."""
        with self._directory_lock:
            with contextlib.suppress(FileExistsError):
                self._files.make_directory(directory)
            try:
                self._files.sync_directory(directory.parent)
            except OSError:
                with contextlib.suppress(OSError):
                    self._files.remove_directory(directory)
                raise

    def _write_temporary(self, path: Path, data: bytes) -> Path:
        attempt = 0
        while True:
            temporary = _temporary_path(path, attempt)
            try:
                self._files.write_new(temporary, data)
                self._files.sync(temporary)
            except FileExistsError:
                attempt += 1
            except OSError:
                self._remove_quietly(temporary)
                raise
            else:
                return temporary

    def _remove(self, path: Path) -> bool:
        try:
            self._files.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _remove_quietly(self, temporary: Path) -> None:
        """Try to remove a temporary file. If that fails, `list_unfinished` yields it, as after a crash."""
        with contextlib.suppress(OSError):
            self._files.unlink(temporary)

    def _exists(self, path: Path) -> bool:
        try:
            return self._files.exists(path)
        except OSError as error:
            raise convert_os_error(path, error) from error

    def _walk(self, prefix: str) -> Iterator[BlobEntry]:
        """Yield files in key order: a directory sorts as its name and `/`, because its keys continue that way."""
        directory = self._root / prefix
        try:
            entries = self._files.list_directory(directory)
        except OSError as error:
            if prefix and error.errno in _MISSING and self._exists(self._root):
                return
            raise convert_os_error(directory, error) from error
        for name, entry in sorted((f"{entry.name}/" if entry.is_dir else entry.name, entry) for entry in entries):
            if entry.is_dir:
                yield from self._walk(prefix + name)
            else:
                yield BlobEntry(prefix + name, entry.bytes)


def _temporary_path(path: Path, attempt: int) -> Path:
    return path.with_name(f"{path.name}.{attempt}{TEMPORARY}" if attempt else f"{path.name}{TEMPORARY}")


def _to_unknown_outcome(path: Path, error: OSError) -> OutcomeUnknown:
    return OutcomeUnknown(path=str(path), why=error.strerror or str(error))
