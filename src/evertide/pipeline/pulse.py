"""`Pulse`: whether a process that runs a pipeline is alive: not whether it fares well, which `status` says.

Alive is a process whose threads all run, and which gets on: its loop comes round, or what it is at began not longer ago
than it may take (`hang_after_s`). To wait is to be alive: for input, for storage, for a pause to end. It reads nothing
but memory, so that it can be asked while storage is away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from evertide.pipeline.course import Doing, Phase
from evertide.runtime import Runtime

__all__ = ["Beat", "Pulse"]


@dataclass(frozen=True, slots=True)
class Beat:
    is_alive: bool
    why: str
    """What is wrong; empty if nothing is."""
    phase: str
    """What it is at: `wait`, `read`, `bind`, `compute`, `commit` or `replay`."""
    transaction: int
    since_s: float
    """For how long."""


class Pulse:
    def __init__(
        self, doing: Callable[[], Doing], ended: Callable[[], Iterable[str]], runtime: Runtime, hang_after_s: float
    ) -> None:
        """`ended` names the threads that should run, and do not."""
        self._doing = doing
        self._ended = ended
        self._clock = runtime.monotonic_s
        self._hang_after_s = hang_after_s
        self._round_s: float | None = None
        """When the loop last came round; None while there is none."""

    def comes_round(self) -> None:
        self._round_s = self._clock()

    def is_over(self) -> None:
        """The loop has ended, as it was asked to."""
        self._round_s = None

    def beat(self) -> Beat:
        doing, now_s = self._doing(), self._clock()
        why = ""
        ended = sorted(self._ended())
        since_s = now_s - doing.since_s
        if ended:
            why = f"the threads {ended} have ended: see the log"
        elif doing.phase is not Phase.WAIT and since_s > self._hang_after_s:
            why = f"transaction {doing.time} is in phase {doing.phase.value!r} for {since_s:.0f} s"
        elif self._round_s is not None and now_s - max(self._round_s, doing.since_s) > self._hang_after_s:
            why = f"the loop has not come round for {now_s - self._round_s:.0f} s"
        return Beat(not why, why, doing.phase.value, doing.time, since_s)
