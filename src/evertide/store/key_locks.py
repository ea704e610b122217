"""`KeyLocks`: a lock per key. Threads take turns on the same key; different keys do not wait for each other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

__all__ = ["KeyLocks"]


class KeyLocks:
    def __init__(self) -> None:
        self._busy: set[str] = set()
        self._free = threading.Condition()

    @contextlib.contextmanager
    def take(self, key: str) -> Iterator[None]:
        with self._free:
            while key in self._busy:
                self._free.wait()
            self._busy.add(key)
        try:
            yield
        finally:
            with self._free:
                self._busy.remove(key)
                self._free.notify_all()
