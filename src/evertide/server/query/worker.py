"""The main program of a worker process: `python -m evertide.server.query.worker`, started by `Workers`.

All memory, disk and time of a query are used here, not in the server. The process starts as follows:

1. It reads the engine, the storage and the settings from its pipe, because other processes can see a command line and
   an environment.
2. It gives up access to everything else (`isolation`), for itself and its children. That requires a process with a
   single thread, so no library that starts threads is imported earlier. Then it answers queries (`answering`).
3. It ends with the server, however the server ends: when the server's end of the lifeline pipe closes, the kernel kills
   the process group, even while a native call holds the interpreter.
4. It has the highest OOM score and a lower CPU priority: the kernel kills a worker first, and transactions run before
   queries.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from evertide.plan.catalyst.network import is_local
from evertide.server.query.isolation import NeededAccess, isolate
from evertide.server.query.wire import read_frame

_NICE = 5


def main() -> None:
    _lower_priority()
    given, out = _move_pipes()
    first = read_frame(given)
    if first is None:
        return
    start = first.facts
    os.environ.update(start["environment"])
    isolation = isolate(_find_needed_access(start))
    _end_with(start["lifeline"])
    from evertide.server.query.answering import answer_questions  # noqa: PLC0415 - libraries that start threads

    answer_questions(start, isolation, given, out)


def _find_needed_access(start: Mapping[str, Any]) -> NeededAccess:
    is_spark = start["engine"] == "spark"
    return NeededAccess(
        storage=start["location"],
        scratch=start["scratch"],
        has_network=start["is_remote"] or (is_spark and not is_local(start["master"] or "local")),
        has_processes=is_spark,
        environment=os.environ,
    )


def _move_pipes() -> tuple[int, int]:
    """Copies of stdin and stdout. Output that libraries and children print to stdout goes to stderr instead."""
    given, out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return given, out


def _lower_priority() -> None:
    os.nice(_NICE)
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000")


def _end_with(lifeline: int) -> None:
    """Let the kernel kill this process group when the other end of the pipe is closed (Linux)."""
    fcntl.fcntl(lifeline, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)


if __name__ == "__main__":
    main()
