"""`Wake`: a commit wakes the threads of this process that wait for its key; they poll for commits of other processes.

1. A waiter first joins the key's bell, then checks, then sleeps. A commit is done before it rings. So either the check
   sees the commit or the waiter gets the ring: no wake-up is lost, and no thread spins.
2. Only the waiters of the written keys wake up; a commit without waiters costs one dictionary lookup.
3. Commits of other processes do not ring: a waiter sees them after at most `poll_s`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from evertide.runtime import Runtime

__all__ = ["Wake"]


class _Bell:
    def __init__(self, lock: threading.Lock) -> None:
        self.condition = threading.Condition(lock)
        self.rings = 0
        self.waiters = 0


class Wake:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._bells: dict[str, _Bell] = {}

    def ring(self, keys: Iterable[str]) -> None:
        if not self._bells:
            return
        with self._lock:
            for key in keys:
                bell = self._bells.get(key)
                if bell is not None:
                    bell.rings += 1
                    bell.condition.notify_all()

    def ring_all(self) -> None:
        with self._lock:
            keys = list(self._bells)
        self.ring(keys)

    def wait(self, key: str, check: Callable[[], bool], timeout_s: float, poll_s: float) -> bool:
        """Return True once `check` does. It is called at the start, at every ring, every `poll_s`, and at the end."""
        bell = self._join(key)
        try:
            deadline_s = self._runtime.monotonic_s() + timeout_s
            while True:
                rings = bell.rings
                if check():
                    return True
                left_s = deadline_s - self._runtime.monotonic_s()
                if left_s <= 0:
                    return False
                with self._lock:
                    if bell.rings == rings:
                        self._runtime.wait_s(bell.condition, min(left_s, poll_s))
        finally:
            self._leave(key, bell)

    def _join(self, key: str) -> _Bell:
        with self._lock:
            bell = self._bells.setdefault(key, _Bell(self._lock))
            bell.waiters += 1
            return bell

    def _leave(self, key: str, bell: _Bell) -> None:
        with self._lock:
            bell.waiters -= 1
            if not bell.waiters:
                del self._bells[key]
