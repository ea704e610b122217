"""A thread that does something again and again beside the appends, until it is stopped.

An error that `tick` does not handle shows as a problem until a tick succeeds; the thread goes on."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from evertide.problem import Problem
from evertide.threads.watched import WatchedThread

__all__ = ["Ticker"]


class Ticker(ABC):
    """Use it as a context manager, or `start` and `stop` it. It ends by itself when `tick` says so."""

    def __init__(self, name: str, interval_s: float) -> None:
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = WatchedThread(name, self._run)

    @abstractmethod
    def tick(self) -> bool:
        """Once every interval, in the thread. False ends it."""

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def ended(self) -> list[str]:
        """Its name, if it should run, and does not."""
        is_over = self._thread.ident is not None and not self._thread.is_alive() and not self._stopping.is_set()
        return [self._thread.name] if is_over else []

    def troubles(self) -> list[Problem]:
        return self._thread.troubles()

    def _run(self) -> None:
        is_going = True
        while is_going and not self._stopping.wait(self._interval_s):
            with self._thread.retrying():
                is_going = self.tick()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
