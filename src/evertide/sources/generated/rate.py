"""So many rows a second, for sources that could make any number of them at once."""

from __future__ import annotations

from evertide.runtime import Runtime

__all__ = ["Pace"]


class Pace:
    """Counts from the first question on, so that a pause before a start is not caught up with. 0: as fast as asked."""

    def __init__(self, per_s: float, runtime: Runtime) -> None:
        self._per_s = per_s
        self._runtime = runtime
        self._from: tuple[float, int] | None = None

    def room(self, position: int, wanted: int) -> int:
        """How many of the rows wanted from a position on are due."""
        if not self._per_s:
            return wanted
        now_s = self._runtime.monotonic_s()
        self._from = self._from or (now_s, position)
        since_s, first = self._from
        due = first + int((now_s - since_s) * self._per_s)
        return max(0, min(wanted, due - position))
