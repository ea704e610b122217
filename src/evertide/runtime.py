"""`Runtime`: the only source of time, ids, random numbers and sleep.

Components take a `Runtime`, so that tests control all four. Safety does not depend on the clock (I16): a wrong clock
may end a lease early, but never corrupts a shard.
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
        """Seconds since the epoch, for records that other processes read."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never decrease, for durations within this process."""
        ...

    def new_id(self) -> str:
        """A unique name: 16 lower-case hexadecimal digits."""
        ...

    def random(self) -> float:
        """A number in [0, 1), for jitter."""
        ...

    def sleep_s(self, seconds: float) -> None: ...

    def wait_s(self, condition: threading.Condition, seconds: float) -> None:
        """Wait on a condition whose lock is held, at most `seconds`."""
        ...


class SystemRuntime:
    """The clock and randomness of the machine. Picklable, since it is sent to executors."""

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
