"""`Runtime`: the only source of time, ids, random numbers and sleep.

Components take a `Runtime`, so that tests control all four. Safety does not depend on the clock (I16): a wrong clock
may end a lease early, but never corrupts a shard.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from typing import Any, Protocol

STOP_LIMIT_S = 3.0
_NAP_S = 0.25


class Runtime(Protocol):
    """Clock, ids, random numbers and sleep of a process; tests replace it."""

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

    def is_giving_up(self, since_s: float) -> bool:
        """Whether a call that has failed since that monotonic time is no longer retried, because its caller stops."""
        ...

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

    def is_giving_up(self, since_s: float) -> bool:  # noqa: ARG002 - it is never stopped
        return False

    def wait_s(self, condition: threading.Condition, seconds: float) -> None:
        condition.wait(seconds)


class StoppableRuntime:
    """The runtime of a pipeline that may be stopped while its storage does not answer.

    Once `stopping` is set, a sleep ends soon, and a call that fails is retried for at most `STOP_LIMIT_S`; after the
    first call for which this was too short, no failed call is retried.
    """

    def __init__(self, inner: Runtime, stopping: threading.Event) -> None:
        self._inner = inner
        self._stopping = stopping
        self._has_given_up = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Executors get the runtime without the event."""
        return _return_runtime, (self._inner,)

    def wall_s(self) -> float:
        return self._inner.wall_s()

    def monotonic_s(self) -> float:
        return self._inner.monotonic_s()

    def new_id(self) -> str:
        return self._inner.new_id()

    def random(self) -> float:
        return self._inner.random()

    def wait_s(self, condition: threading.Condition, seconds: float) -> None:
        self._inner.wait_s(condition, seconds)

    def sleep_s(self, seconds: float) -> None:
        while seconds > 0:
            self._inner.sleep_s(min(seconds, _NAP_S))
            seconds = 0 if self._stopping.is_set() else seconds - _NAP_S

    def is_giving_up(self, since_s: float) -> bool:
        if self._stopping.is_set() and self.monotonic_s() - since_s >= STOP_LIMIT_S:
            self._has_given_up = True
        return self._has_given_up


def _return_runtime(runtime: Runtime) -> Runtime:
    return runtime
