"""`Pool`: database connections, each used by one thread at a time.

1. The pool has as many connections as were ever in use at once; a thread that ends leaves none behind.
2. A connection that is not reusable afterwards (inside a transaction, broken, interrupted) is closed.
3. A forked child neither uses nor closes a connection: it shares the parent's sockets and locks.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from evertide.errors import Closed, EvertideError, NotAllowedNow

__all__ = ["Pool"]


class _Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)


class Pool(Generic[C]):
    def __init__(self, place: str, connect: Callable[[], C], is_reusable: Callable[[C], bool]) -> None:
        self._place = place
        self._connect = connect
        self._is_reusable = is_reusable
        self._lock = threading.Lock()
        self._idle: list[C] = []
        self._closed = False
        self._pid = os.getpid()

    @contextlib.contextmanager
    def use(self) -> Iterator[C]:
        connection = self._take() or self._connect()
        keep = False
        try:
            yield connection
            keep = self._is_reusable(connection)
        except EvertideError:
            keep = self._is_reusable(connection)
            raise
        finally:
            self._give_back(connection, keep=keep)

    def drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> bool:
        """Return False in a forked child, where nothing is closed."""
        if self._pid != os.getpid():
            return False
        self._closed = True
        self.drop_idle()
        return True

    def _take(self) -> C | None:
        if self._pid != os.getpid():
            raise NotAllowedNow(
                where=self._place, why="Meta was opened before this process was forked; start processes with spawn"
            )
        with self._lock:
            if self._closed:
                raise Closed(where=self._place)
            return self._idle.pop() if self._idle else None

    def _give_back(self, connection: C, *, keep: bool) -> None:
        with self._lock:
            keep = keep and not self._closed
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
