"""Which process wrote a record, and whether another process can prove that it has ended.

A pid and a host name do not name a process: containers restart with the same of both, and several containers may have
one host name. `Origin` adds what tells them apart on Linux:

- the boot id of the kernel: the same in all containers of a machine, another one on every machine and after a reboot;
- the PID namespace: a pid means something only there;
- when the process started, in clock ticks after boot: a pid that is used again has another start.

A process has ended if its boot id and its PID namespace are ours, and its pid is free, is a zombie, or started at
another time. (The kernel may give the number of a namespace that is gone to a new one; then the process is gone, too.)
In every other case nothing is proven, and only its silence counts. On other systems than Linux, host name and pid
decide, as there are no namespaces.
"""

from __future__ import annotations

import os
import socket
import sys
from functools import cache
from pathlib import Path

import msgspec

__all__ = ["Origin", "this_process"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_START_FIELD = 19
"""Of what follows the command's name in `/proc/<pid>/stat`: field 22, `starttime`."""


class Origin(msgspec.Struct, frozen=True):
    host: str
    pid: int
    boot: str = ""
    namespace: str = ""
    start_ticks: int = 0

    def has_ended(self) -> bool:
        """Whether that is proven, as seen by this process."""
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
    """By pid, as a forked process is another one."""
    try:
        boot, namespace = _BOOT_ID.read_text(encoding="ascii").strip(), str(_NAMESPACE.readlink())
    except OSError:
        boot, namespace = "", ""
    return Origin(socket.gethostname(), pid, boot, namespace, _start_ticks(pid) or 0 if boot else 0)


def _start_ticks(pid: int) -> int | None:
    """When the process with this pid started; 0 if there is none, or it is a zombie; None if that cannot be told."""
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
