"""`Failures`: which background work fails, since when, why, and when it is retried.

The wait before a retry starts at the interval of the thread that does the work and doubles up to one minute. An error
is logged when it first appears and when its reason changes, not on every retry.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from evertide.errors import EvertideError
from evertide.problem import ComponentState, Problem
from evertide.runtime import Runtime
from evertide.threads.outage_log import is_same_reason

logger = logging.getLogger(__name__)

_WAIT_MAX_S = 60.0


@dataclass(frozen=True, slots=True)
class _Failure:
    error: EvertideError
    since_s: float
    wait_s: float
    retry_at_s: float
    """On the monotonic clock."""


class Failures:
    """Failures by the name of the work. Threads may share it."""

    def __init__(self, runtime: Runtime, interval_s: float) -> None:
        self._runtime = runtime
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._failures: dict[str, _Failure] = {}

    def add(self, work: str, error: EvertideError) -> None:
        now_s = self._runtime.monotonic_s()
        with self._lock:
            known = self._failures.get(work)
            since_s = known.since_s if known else self._runtime.wall_s()
            wait_s = min(known.wait_s * 2, _WAIT_MAX_S) if known else self._interval_s
            self._failures[work] = _Failure(error, since_s, wait_s, now_s + wait_s)
        if known is None or not is_same_reason(known.error, error):
            logger.warning("%s failed, will retry: %s", work, error)

    def remove(self, work: str) -> None:
        """Record that the work succeeded."""
        with self._lock:
            known = self._failures.pop(work, None)
        if known is not None:
            logger.warning("%s succeeded again; it had failed for %.1f s", work, self._runtime.wall_s() - known.since_s)

    def is_failing(self, work: str) -> bool:
        return work in self._failures

    def is_waiting(self, work: str) -> bool:
        """Whether the work failed and its retry is not due yet."""
        known = self._failures.get(work)
        return known is not None and self._runtime.monotonic_s() < known.retry_at_s

    @property
    def errors(self) -> dict[str, EvertideError]:
        with self._lock:
            return {work: failure.error for work, failure in self._failures.items()}

    def problems(self) -> list[Problem]:
        """One warning per failing work; the work stops no transactions."""
        with self._lock:
            return [
                Problem.from_error(
                    ComponentState.WARNING, one.error, one.since_s, f"{work} fails: {one.error}", one.wait_s
                )
                for work, one in sorted(self._failures.items())
            ]
