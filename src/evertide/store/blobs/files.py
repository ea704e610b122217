"""`Files`: the few file-system calls that `LocalBlob` stands on, one operation per method.

`SystemFiles` is the machine's own. A simulated disk implements the same protocol to record, fail or power-cut each
operation, so the production code runs on it unchanged.

What an implementation promises, and what it does not:

1. Every method is one operation. It returns when the operating system took it, or raises a plain `OSError` with its
   `errno` set; turning that into an outcome (I14) is the caller's work.
2. Nothing but `sync` and `sync_directory` makes anything durable. Until then a power cut may keep all, some or none of
   it: the bytes of a file need `sync(file)`, a name in a directory (made, renamed or removed) needs
   `sync_directory(directory)`.
3. `rename` is atomic for those who look: the new name holds the old bytes or the new ones, whole.
4. A `sync` or `sync_directory` that failed is not repeated to good effect: the kernel may have dropped the pages and
   call the next one a success. Write the bytes again under a new file, make the directory again.
5. Methods may be called from several threads at once. Paths are absolute or relative to the working directory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["DirectoryEntry", "Files", "SystemFiles"]


@dataclass(frozen=True, slots=True, order=True)
class DirectoryEntry:
    """One name in a directory. `bytes` is the size of a file, 0 for a directory."""

    name: str
    is_dir: bool
    bytes: int


class Files(Protocol):
    def read(self, path: Path) -> bytes:
        """All bytes of a file. FileNotFoundError, NotADirectoryError or IsADirectoryError if there is no such file."""
        ...

    def read_range(self, path: Path, offset: int, length: int) -> bytes:
        """The bytes of a file from `offset` on, at most `length`, fewer where it ends. Fails as `read` does."""
        ...

    def write_new(self, path: Path, data: bytes) -> None:
        """Create a file that must not exist (FileExistsError) and write `data`, without sync.

        If it fails half-way (no room, say) the file may stay behind with some of the bytes.
        """
        ...

    def sync(self, path: Path) -> None:
        """Make the bytes of a file durable; its name is not."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name in the same directory, replacing a file that has it. Not durable yet."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable: those made, renamed and removed so far."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file; FileNotFoundError if there is none. Not durable yet."""
        ...

    def make_directory(self, path: Path) -> None:
        """Make one directory; FileExistsError if the name is taken, FileNotFoundError without its parent.

        Not durable before `sync_directory` of the parent.
        """
        ...

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory; OSError if it is not empty, or there is none. Not durable yet."""
        ...

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        """The entries in no particular order; FileNotFoundError or NotADirectoryError if there is no directory."""
        ...

    def exists(self, path: Path) -> bool:
        """Whether a file or directory has this name."""
        ...

    def size(self, path: Path) -> int:
        """Bytes of a file; FileNotFoundError if there is none."""
        ...


class SystemFiles:
    """The operating system's own; picklable, as it travels to executors."""

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def read_range(self, path: Path, offset: int, length: int) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Room is made for as much as is asked for, so ask for no more than there is.
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
                    continue  # removed while we looked
        return entries

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size(self, path: Path) -> int:
        return path.stat().st_size


def _sync(path: Path, flags: int) -> None:
    """A fresh descriptor is as good as the writing one: Linux reports a write-back error nobody has seen yet to it."""
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
