"""Limit the rows per second of sources that could generate any number of rows at once."""

from __future__ import annotations

from evertide.runtime import Runtime

__all__ = ["RateLimit"]


class RateLimit:
    """Counts from the first call, so that a pause before it is not caught up. A rate of 0 means no limit."""

    def __init__(self, per_s: float, runtime: Runtime) -> None:
        self._per_s = per_s
        self._runtime = runtime
        self._from: tuple[float, int] | None = None

    def count_due(self, position: int, wanted: int) -> int:
        """How many of the `wanted` rows after a position are due."""
        if not self._per_s:
            return wanted
        now_s = self._runtime.monotonic_s()
        self._from = self._from or (now_s, position)
        since_s, first = self._from
        due = first + int((now_s - since_s) * self._per_s)
        return max(0, min(wanted, due - position))
