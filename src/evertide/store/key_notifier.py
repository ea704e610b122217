"""`KeyNotifier`: a commit wakes the threads of this process that wait for its key; they poll for commits of other
processes.

1. A waiter first registers for the key, then checks, then sleeps. A commit is done before it notifies. So either the
   check sees the commit or the waiter is notified: no wake-up is lost, and no thread spins.
2. Only the waiters of the written keys wake up; a commit without waiters costs one dictionary lookup.
3. Commits of other processes do not notify: a waiter sees them after at most `poll_s`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from evertide.runtime import Runtime


class _Waiters:
    def __init__(self, lock: threading.Lock) -> None:
        self.condition = threading.Condition(lock)
        self.notifications = 0
        self.count = 0


class KeyNotifier:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._waiters: dict[str, _Waiters] = {}

    def notify(self, keys: Iterable[str]) -> None:
        if not self._waiters:
            return
        with self._lock:
            for key in keys:
                waiters = self._waiters.get(key)
                if waiters is not None:
                    waiters.notifications += 1
                    waiters.condition.notify_all()

    def notify_all_keys(self) -> None:
        with self._lock:
            keys = list(self._waiters)
        self.notify(keys)

    def wait(self, key: str, check: Callable[[], bool], timeout_s: float, poll_s: float) -> bool:
        """Return True once `check` does. It is called at the start, at every notification, every `poll_s`, and at the
        end."""
        waiters = self._join(key)
        try:
            deadline_s = self._runtime.monotonic_s() + timeout_s
            while True:
                notifications = waiters.notifications
                if check():
                    return True
                left_s = deadline_s - self._runtime.monotonic_s()
                if left_s <= 0:
                    return False
                with self._lock:
                    if waiters.notifications == notifications:
                        self._runtime.wait_s(waiters.condition, min(left_s, poll_s))
        finally:
            self._leave(key, waiters)

    def _join(self, key: str) -> _Waiters:
        with self._lock:
            waiters = self._waiters.setdefault(key, _Waiters(self._lock))
            waiters.count += 1
            return waiters

    def _leave(self, key: str, waiters: _Waiters) -> None:
        with self._lock:
            waiters.count -= 1
            if not waiters.count:
                del self._waiters[key]
