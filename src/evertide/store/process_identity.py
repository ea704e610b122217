"""Identify the process that wrote a record, and prove that it has ended.

A pid and a host name do not identify a process: a restarted container has the same of both, and several containers may
share a host name. `Origin` adds what distinguishes them on Linux:

- the boot id of the kernel: the same in all containers of a machine, different on every machine and after a reboot;
- the PID namespace: a pid is valid only within it;
- the start of the process, in clock ticks after boot: a reused pid has another start.

A process has ended if its boot id and PID namespace are those of the observing process, and its pid is free, is a
zombie, or started at another time. (The kernel may reuse the number of a namespace that has ended; then the process has
ended, too.) In every other case nothing is proven, and only missing heartbeats count. On systems other than Linux, host
name and pid decide, as there are no namespaces.
"""

from __future__ import annotations

import os
import socket
import sys
from functools import cache
from pathlib import Path

import msgspec

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_START_FIELD = 19
"""The index after the command's name in `/proc/<pid>/stat`: field 22, `starttime`."""


class Origin(msgspec.Struct, frozen=True):
    host: str
    pid: int
    boot: str = ""
    namespace: str = ""
    start_ticks: int = 0

    def has_ended(self) -> bool:
        """Whether this process can prove that the other has ended."""
        here = this_process()
        if sys.platform != "linux":
            return self.host == here.host and not _exists(self.pid)
        if (self.boot, self.namespace) != (here.boot, here.namespace) or not self.start_ticks:
            return False
        return _start_ticks(self.pid) not in (self.start_ticks, None)


def this_process() -> Origin:
    return _process(os.getpid())


@cache
def _process(pid: int) -> Origin:
    """Cached by pid, because a forked process is another one."""
    try:
        boot, namespace = _BOOT_ID.read_text(encoding="ascii").strip(), str(_NAMESPACE.readlink())
    except OSError:
        boot, namespace = "", ""
    return Origin(socket.gethostname(), pid, boot, namespace, _start_ticks(pid) or 0 if boot else 0)


def _start_ticks(pid: int) -> int | None:
    """When the process with this pid started; 0 if there is none, or it is a zombie; None if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None if _exists(pid) else 0  # `/proc` may hide processes of other users
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] in ("Z", "X") else int(fields[_START_FIELD])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
