"""`ManualRuntime`: a `Runtime` whose time, ids and random numbers a test controls.

1. The clock advances only by `advance_s`, by `sleep_s`, and by a `wait_s` that no notification ended.
2. `jump_wall_s` moves the wall clock, also backwards, as on real machines. The monotonic clock never decreases.
3. Ids and random numbers depend only on the seed, and have separate streams: one more random number does not change
   the ids. Ids never repeat within one runtime; between two seeds, they repeat with a probability of about 2^-64.
4. `wait_s` lets other threads run for `_REAL_WAIT_S`. If the condition is not notified in that time, the manual clock
   advances by the requested time.
5. Threads may share a runtime. With one thread, every run is identical.
"""

from __future__ import annotations

import threading

from evertide.sources.generated.seeded import RandomStream

__all__ = ["ManualRuntime", "RandomStream"]

_REAL_WAIT_S = 0.001
_START_S = 1_700_000_000.0


class ManualRuntime:
    def __init__(self, seed: int = 0, start_s: float = _START_S) -> None:
        self._lock = threading.Lock()
        self._start_s = start_s
        self._passed_s = 0.0
        self._jumped_s = 0.0
        self._slept_s: list[float] = []
        self._ids = RandomStream(seed).fork(1)
        self._chance = RandomStream(seed).fork(2)

    @property
    def slept_s(self) -> tuple[float, ...]:
        """The durations of all `sleep_s` calls in order, for tests of backoff."""
        with self._lock:
            return tuple(self._slept_s)

    def advance_s(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}; see jump_wall_s")
        with self._lock:
            self._passed_s += seconds

    def jump_wall_s(self, seconds: float) -> None:
        """Set the wall clock forward or back; durations are not affected."""
        with self._lock:
            self._jumped_s += seconds

    def wall_s(self) -> float:
        with self._lock:
            return self._start_s + self._passed_s + self._jumped_s

    def monotonic_s(self) -> float:
        with self._lock:
            return self._passed_s

    def new_id(self) -> str:
        with self._lock:
            return f"{self._ids.bits():016x}"

    def random(self) -> float:
        with self._lock:
            return self._chance.random()

    def sleep_s(self, seconds: float) -> None:
        with self._lock:
            self._slept_s.append(seconds)
            self._passed_s += max(0.0, seconds)

    def is_giving_up(self, since_s: float) -> bool:
        return False

    def wait_s(self, condition: threading.Condition, seconds: float) -> None:
        if not condition.wait(min(_REAL_WAIT_S, max(0.0, seconds))):
            self.advance_s(max(0.0, seconds))
