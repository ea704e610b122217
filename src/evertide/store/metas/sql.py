"""`SqlMeta`: what the Metas in a SQL database share; and `Pool`: connections, each used by one thread at a time.

1. The pool has as many connections as were ever in use at once; a thread that ends leaves none behind.
2. A connection that is not reusable afterwards (inside a transaction, broken, interrupted) is closed.
3. A forked child neither uses nor closes a connection: it shares the parent's sockets and locks.
"""

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from evertide.errors import Closed, EvertideError, NotAllowedNow
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.key_notifier import KeyNotifier
from evertide.store.keys import check_commit, check_limit, check_meta_key, key_end
from evertide.store.meta import Guard, Record, Stale, Write


class _Connection(Protocol):
    def execute(self, sql: Any, values: Any, /) -> Any: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=_Connection)
T = TypeVar("T")


class SqlMeta(ABC, Generic[C]):
    """A log in a table of a database. `sql` has the statements by name; subclasses connect, read and write."""

    def __init__(self, place: str, sql: Mapping[str, Any], runtime: Runtime, settings: Settings) -> None:
        self._place = place
        self._sql = sql
        self._runtime = runtime
        self._settings = settings
        self._notifier = KeyNotifier(runtime)
        self._pool = Pool(place, self._connect, self._is_reusable)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._place!r})"

    def path(self, key: str) -> str:
        return f"{self._place}:{key}"

    def head(self, key: str) -> Record | None:
        rows = self._read("head", {"key": check_meta_key(key)})
        return Record(*rows[0]) if rows else None

    def heads(self, prefix: str) -> dict[str, Record]:
        rows = self._read("heads", {"start": prefix, "end": key_end(prefix)})
        return {key: Record(seqno, data) for key, seqno, data in rows}

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        check_limit(key, limit)
        rows = self._read("scan", {"key": check_meta_key(key), "after": after, "limit": limit})
        return [Record(*row) for row in rows]

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        checks = check_commit(writes, guards)
        stale = self._write(lambda connection: self._commit(connection, checks, writes))
        if stale is None:
            self._notifier.notify(write.key for write in writes)
        return stale

    def truncate(self, key: str, below: int) -> None:
        values = {"key": check_meta_key(key), "below": below}
        self._write(lambda connection: connection.execute(self._sql["truncate"], values))

    def wait(self, key: str, after: int, timeout_s: float) -> bool:
        def has_newer() -> bool:
            rows = self._read("number", {"key": key})
            return bool(rows) and rows[0][0] > after

        check_meta_key(key)
        return self._notifier.wait(key, has_newer, timeout_s, self._settings.poll_interval_s)

    def close(self) -> None:
        """Waiting calls end with `Closed`. A forked child closes nothing: the connections are the parent's."""
        if self._pool.close():
            self._notifier.notify_all_keys()

    @abstractmethod
    def _connect(self) -> C: ...

    @abstractmethod
    def _is_reusable(self, connection: C) -> bool: ...

    @abstractmethod
    def _read(self, name: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """The rows of a statement."""

    @abstractmethod
    def _write(self, body: Callable[[C], T]) -> T:
        """Run `body` in a transaction and commit, unless it returns a `Stale`."""

    @abstractmethod
    def _commit(self, connection: C, checks: Sequence[Write | Guard], writes: Sequence[Write]) -> Stale | None: ...


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
