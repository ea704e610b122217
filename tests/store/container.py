"""Process 1 of a container: a PID namespace and a host name of its own. It starts processes with a given pid.

Commands, a line each: `start PID ROLE` starts a process that registers as `alone` or `replica`, then sends heartbeats
and tries to lead; `kill` ends it with SIGKILL. Its output: `registered`, `refused WHY`, `leads`, `fenced`; and
`killed`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from evertide.errors import Conflict, Fenced
from evertide.pipeline.records.ownership import ProcessRole, register_as
from evertide.pipeline.replicas.leadership import Leadership
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.open import open_storage
from evertide.store.process_identity import this_process

HOST = "box"
SETTINGS = Settings(writer_ttl_s=2.0, lease_ttl_s=2.0, heartbeat_interval_s=0.2, lead_interval_s=0.1, retry_limit_s=5.0)


def tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def start(pid: int) -> int:
    """Fork a process with this pid, which must be free. Returns 0 in the process itself."""
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1), encoding="ascii")
    found = os.fork()
    assert found in (0, pid), found
    return found


def live(root: str, role: ProcessRole) -> None:
    runtime = SystemRuntime()
    storage = open_storage(root, runtime=runtime, settings=SETTINGS)
    try:
        writer = register_as(role, storage.meta, runtime=runtime, settings=SETTINGS)
    except Conflict as error:
        tell("refused", str(error))
        return
    tell("registered")
    leading = Leadership(storage.meta, writer, runtime, SETTINGS, may_take=True)
    try:
        while True:
            writer.beat()
            led = leading.is_leader
            if leading.try_acquire() and not led:
                tell("leads")
            runtime.sleep_s(SETTINGS.heartbeat_interval_s)
    except Fenced:
        tell("fenced")


def main(root: str) -> None:
    socket.sethostname(HOST)
    assert os.getpid() == 1
    tell("running", Path("/proc/self/ns/pid").readlink())
    child = 0
    for line in sys.stdin:
        what, *given = line.split()
        if what == "start":
            if child:  # the process was refused and ends: then its pid is free
                os.waitpid(child, 0)
            child = start(int(given[0]))
            if child == 0:
                assert (this_process().host, this_process().pid) == (HOST, int(given[0]))
                live(root, ProcessRole(given[1]))
                os._exit(0)
        elif what == "kill":
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            child = 0
            tell("killed")


if __name__ == "__main__":
    main(sys.argv[1])
