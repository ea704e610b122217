"""A process that answers queries, and nothing else: `python -m evertide.server.query.worker`, started by `Workers`.

Whatever a query takes, it takes here. It starts like this:

1. First come what to be (the engine), the storage, and settings: by the pipe, as a command line and an environment are
   for others to see.
2. It gives up whatever else it could reach (`isolation`), for itself and for all that it starts. That needs a process
   with one thread, so nothing is imported before that could start one; then it answers (`answering`).
3. It ends with the server, however that ends: when nobody holds the other side of the pipes any more, the kernel kills
   it and all that it started, also while one call keeps the interpreter.
4. If the machine has no memory left, it is the first that the kernel ends. Transactions go before queries for the
   processor, too.
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
from evertide.server.query.isolation import Wanted, isolate
from evertide.server.query.wire import read_frame

__all__ = ["main"]

_NICE = 5


def main() -> None:
    _give_way()
    given, out = _own_pipes()
    first = read_frame(given)
    if first is None:
        return
    opening = first.told
    os.environ.update(opening["environment"])
    isolation = isolate(_wanted(opening))
    _end_with(opening["lifeline"])
    from evertide.server.query.answering import answer_questions  # noqa: PLC0415 - libraries that start threads

    answer_questions(opening, isolation, given, out)


def _wanted(opening: Mapping[str, Any]) -> Wanted:
    is_spark = opening["engine"] == "spark"
    return Wanted(
        storage=opening["location"],
        scratch=opening["scratch"],
        has_network=opening["is_remote"] or (is_spark and not is_local(opening["master"] or "local")),
        has_processes=is_spark,
        environment=os.environ,
    )


def _own_pipes() -> tuple[int, int]:
    """Standard input and output as they were given; what is printed by others, here or in a child, goes elsewhere."""
    given, out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return given, out


def _give_way() -> None:
    os.nice(_NICE)
    with suppress(OSError):  # a system that has no such thing
        Path("/proc/self/oom_score_adj").write_text("1000")


def _end_with(lifeline: int) -> None:
    """When the other end of this pipe is closed, by whatever, the kernel kills this group of processes."""
    fcntl.fcntl(lifeline, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)


if __name__ == "__main__":
    main()
