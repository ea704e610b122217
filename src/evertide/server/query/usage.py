"""The memory, the disk space and the stderr output of worker processes, as the server observes them.

Each worker leads a session, and every process that it starts belongs to that session, whatever its process group. On a
system without `/proc`, no process is found.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from evertide.threads.watched import WatchedThread

__all__ = ["OutputTail", "list_processes", "measure_disk_bytes", "measure_memory_bytes"]

_PROC = Path("/proc")
_SESSION = 3
"""Index of the session among the fields of `stat` after the name: state, parent, group, session."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TAIL = 4096
_CHUNK = 65_536


def list_processes(session: int) -> list[int]:
    """The running processes of a session."""
    found = []
    for place in _PROC.iterdir() if _PROC.is_dir() else ():
        if place.name.isdigit():
            with suppress(OSError, IndexError, ValueError):  # the process has just ended
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                if int(fields[_SESSION]) == session and fields[0] != "Z":
                    found.append(int(place.name))
    return found


def measure_memory_bytes(processes: Iterable[int]) -> int:
    """Private memory of the processes; shared memory, such as code, does not count."""
    pages = 0
    for pid in processes:
        with suppress(OSError, ValueError):
            _, resident, shared, *_ = map(int, (_PROC / str(pid) / "statm").read_text().split())
            pages += resident - shared
    return pages * _PAGE


def measure_disk_bytes(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted meanwhile
                total += (Path(place) / name).lstat().st_blocks * 512
    return total


class OutputTail:
    """The last output of a process. A thread reads continuously, so that the process never blocks on a full pipe."""

    def __init__(self, stream: Any) -> None:
        """`stream` is unbuffered, and is closed at its end."""
        self._tail = b""
        self._stream = stream
        WatchedThread("evertide-query-output", self._listen).start()

    def __str__(self) -> str:
        lines = self._tail.decode(errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines[-8:] if line.strip()) or "none"

    def _listen(self) -> None:
        with self._stream:
            while block := self._stream.read(_CHUNK):
                self._tail = (self._tail + block)[-_TAIL:]
