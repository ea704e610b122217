"""`Files`: the file-system calls that `LocalBlob` uses, one operation per method.

`SystemFiles` calls the operating system. A simulated disk implements the same protocol to record, fail or power-cut
each operation, so the production code runs on it unchanged.

An implementation promises the following, and no more:

1. Every method is one operation. It returns when the operating system has accepted the operation, or raises a plain
   `OSError` with its `errno` set; the caller turns that into an outcome (I14).
2. Only `sync` and `sync_directory` make anything durable. Before that, a power cut may keep all, some or none of the
   changes: the bytes of a file need `sync(file)`, a name in a directory (created, renamed or removed) needs
   `sync_directory(directory)`.
3. `rename` is atomic for readers: the new name has the old bytes or the new ones, complete.
4. Repeating a failed `sync` or `sync_directory` proves nothing: the kernel may have dropped the pages and report
   success the next time. Write the bytes to a new file, or create the directory again.
5. Methods may be called from several threads at once. Paths are absolute or relative to the working directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class DirectoryEntry:
    """One name in a directory. `bytes` is the size of a file, 0 for a directory."""

    name: str
    is_dir: bool
    bytes: int


class Files(Protocol):
    def read(self, path: Path) -> bytes:
        """Return all bytes. Raise FileNotFoundError, NotADirectoryError or IsADirectoryError if it is no file."""
        ...

    def read_range(self, path: Path, offset: int, length: int) -> bytes:
        """Return at most `length` bytes from `offset` on, fewer at the end of the file. Fails as `read` does."""
        ...

    def write_new(self, path: Path, data: bytes) -> None:
        """Create a file that must not exist (FileExistsError) and write `data`, without sync.

        If the write fails half-way, for example because the disk is full, the file may remain with some of the bytes.
        """
        ...

    def sync(self, path: Path) -> None:
        """Make the bytes of a file durable; its name is not."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file within its directory, replacing any file of that name. Not durable yet."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable: those created, renamed and removed so far."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file; FileNotFoundError if there is none. Not durable yet."""
        ...

    def make_directory(self, path: Path) -> None:
        """Create one directory; FileExistsError if the name exists, FileNotFoundError without its parent.

        Not durable before `sync_directory` of the parent.
        """
        ...

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory; OSError if it is missing or not empty. Not durable yet."""
        ...

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        """Return the entries in any order; FileNotFoundError or NotADirectoryError if there is no directory."""
        ...

    def exists(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int:
        """Bytes of a file; FileNotFoundError if there is none."""
        ...


class SystemFiles:
    """The operating system's files. Picklable, because executors use it, too."""

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def read_range(self, path: Path, offset: int, length: int) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # pread allocates the requested length, so request no more than the file has.
            length = max(0, min(length, os.fstat(descriptor).st_size - offset))
            data = os.pread(descriptor, length, offset)
            while len(data) < length and (more := os.pread(descriptor, length - len(data), offset + len(data))):
                data += more
        finally:
            os.close(descriptor)
        return data

    def write_new(self, path: Path, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)

    def sync(self, path: Path) -> None:
        _sync(path, os.O_RDONLY | os.O_CLOEXEC)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def sync_directory(self, path: Path) -> None:
        _sync(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def make_directory(self, path: Path) -> None:
        path.mkdir()

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        entries = []
        with os.scandir(path) as found:
            for item in found:
                is_dir = item.is_dir(follow_symlinks=True)
                try:
                    entries.append(DirectoryEntry(item.name, is_dir, 0 if is_dir else item.stat().st_size))
                except FileNotFoundError:
                    continue  # removed since the directory was listed
        return entries

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size(self, path: Path) -> int:
        return path.stat().st_size


def _sync(path: Path, flags: int) -> None:
    """Sync through a new descriptor: Linux reports to it any write-back error that no process has seen yet."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
