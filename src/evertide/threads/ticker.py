"""`Ticker`: a thread that repeats its work at an interval until it is stopped.

An error that `tick` does not handle shows as a problem until a tick succeeds; the thread continues.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from evertide.problem import Problem
from evertide.threads.watched import WatchedThread


class Ticker(ABC):
    """Use it as a context manager, or call `start` and `stop`. The thread ends when `tick` returns False."""

    def __init__(self, name: str, interval_s: float) -> None:
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = WatchedThread(name, self._run)

    @abstractmethod
    def tick(self) -> bool:
        """Do the work once; called every `interval_s` in the thread. Return False to end the thread."""

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def list_ended(self) -> list[str]:
        """The thread's name, if the thread ended without `stop`."""
        has_ended = self._thread.ident is not None and not self._thread.is_alive() and not self._stopping.is_set()
        return [self._thread.name] if has_ended else []

    def list_thread_problems(self) -> list[Problem]:
        return self._thread.list_thread_problems()

    def _run(self) -> None:
        has_more = True
        while has_more and not self._stopping.wait(self._interval_s):
            with self._thread.report_and_retry():
                has_more = self.tick()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
