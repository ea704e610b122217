"""`ManualRuntime`: time, ids and chance that a test decides.

1. The clock stands still until somebody moves it: `advance_s`, a `sleep_s`, or a `wait_s` that nobody ended.
2. The wall clock may also jump, back too (`jump_wall_s`), as on real machines; the monotonic one never goes back.
3. Ids and random numbers follow from the seed alone, each from its own stream: asking for one more random number does
   not change the ids. Ids never repeat within one runtime, nor, but for a chance of 2^-64 or so, between two seeds.
4. `wait_s` lets other threads run for a real moment. If the condition was not notified in it, the time asked for has
   passed on the manual clock.
5. It may be shared between threads. With one thread everything is the same in every run.
"""

from __future__ import annotations

import threading

from evertide.sources.generated.seeded import RandomStream

__all__ = ["ManualRuntime", "RandomStream"]

_REAL_WAIT_S = 0.001
_START_S = 1_700_000_000.0


class ManualRuntime:
    """A `Runtime` in which nothing happens by itself."""

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
        """Every `sleep_s` so far, in order: how a test sees that a retry backs off."""
        with self._lock:
            return tuple(self._slept_s)

    def advance_s(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}; see jump_wall_s")
        with self._lock:
            self._passed_s += seconds

    def jump_wall_s(self, seconds: float) -> None:
        """Somebody sets the machine's clock; durations do not notice."""
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

    def wait_s(self, condition: threading.Condition, seconds: float) -> None:
        if not condition.wait(min(_REAL_WAIT_S, max(0.0, seconds))):
            self.advance_s(max(0.0, seconds))
