"""The only clock, ids, randomness and sleep.

Whatever depends on them takes a `Runtime`, so that tests decide what time it is and what comes up. Nothing here is
relied on for safety (I16): a wrong clock may end a lease early, never corrupt a shard.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from typing import Protocol

__all__ = ["Runtime", "SystemRuntime"]


class Runtime(Protocol):
    def wall_s(self) -> float:
        """Seconds since the epoch: for records that other processes read."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back: for durations within this process."""
        ...

    def new_id(self) -> str:
        """A name nobody ever had: 16 lower-case hexadecimal digits."""
        ...

    def random(self) -> float:
        """In [0, 1): for jitter."""
        ...

    def sleep_s(self, seconds: float) -> None: ...

    def wait_s(self, condition: threading.Condition, seconds: float) -> None:
        """Wait on a condition whose lock is held, at most `seconds`."""
        ...


class SystemRuntime:
    """The machine's own; picklable, as it travels to executors."""

    def wall_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def new_id(self) -> str:
        return secrets.token_hex(8)

    def random(self) -> float:
        return random.random()

    def sleep_s(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait_s(self, condition: threading.Condition, seconds: float) -> None:
        condition.wait(seconds)
