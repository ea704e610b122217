"""`SqliteMeta`: the log in one SQLite file, `<root>/meta.db`, for the processes of one machine.

Layout (version 1, in `PRAGMA user_version`): `log(key, seqno, data)`, primary key `(key, seqno)`, no rowid. The head of
a key is its greatest number, and a scan of heads jumps from key to key. So nothing else is stored, and a commit touches
one small B-tree. SQLite keeps its own `-wal` and `-shm` beside the file.

1. Write-ahead log with `synchronous=FULL`: a commit is synced before it is acknowledged. The directory is synced once
   after the file is created; SQLite does so itself for the write-ahead log.
2. A commit takes the write lock first (`BEGIN IMMEDIATE`), then compares, then writes: nothing changes in between.
   Threads of this process queue for it here, processes inside SQLite; both for at most `retry_limit_s`, then
   `Unavailable`.
3. An error before COMMIT is rolled back: nothing happened. So is a full disk during COMMIT, because the frame that
   would complete the commit did not fit. Any other error during COMMIT is `OutcomeUnknown`: a crash may reveal its
   frames, until a later commit, such as a retry with the same expected numbers, overwrites them.
4. The file must stay where it was opened. If it was removed or replaced, a commit would go to a file that no process
   finds again, so every commit checks the inode first.
5. SQLite reports a read that fails with EIO as a malformed database, like damage. So a call that finds it malformed is
   retried, each time on a new connection without cached pages. A database that stays malformed for `retry_limit_s`, at
   most 10 seconds, is `RecordDamaged`; later calls retry once.
6. A connection is used by one thread at a time, and never by a forked child: SQLite's locks do not survive a fork, not
   even for a connection that the child opens itself while it inherits the parent's. Such a child gets an error. For the
   same reason no code in this process may open and close `meta.db` as a plain file: that drops SQLite's locks.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from evertide.errors import (
    EvertideError,
    InvalidInput,
    NotAllowedNow,
    OutcomeUnknown,
    RecordDamaged,
    StorageForbidden,
    StorageFull,
    Unavailable,
    UnsupportedFormat,
)
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.blobs.file_system import SystemFiles
from evertide.store.blobs.local import convert_os_error
from evertide.store.meta import Guard, Stale, Write
from evertide.store.metas.sql import SqlMeta
from evertide.types import SequenceNumber

_VERSION = 1
_BUSY_WAIT_S = 0.25
_CHECKPOINT_PAGES = 2000
_MALFORMED_WAIT_S = 10.0

_CREATE = """
CREATE TABLE IF NOT EXISTS log (
    key TEXT NOT NULL, seqno INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (key, seqno)
) WITHOUT ROWID
"""
_SQL = {
    "number": "SELECT seqno FROM log WHERE key = :key ORDER BY seqno DESC LIMIT 1",
    "head": "SELECT seqno, data FROM log WHERE key = :key ORDER BY seqno DESC LIMIT 1",
    "heads": """
        WITH RECURSIVE hop(key) AS (
            SELECT min(key) FROM log WHERE key >= :start AND key < :end
            UNION ALL
            SELECT (SELECT min(log.key) FROM log WHERE log.key > hop.key AND log.key < :end)
            FROM hop WHERE hop.key IS NOT NULL
        )
        SELECT log.key, log.seqno, log.data FROM hop JOIN log ON log.key = hop.key
        WHERE log.seqno = (SELECT max(newest.seqno) FROM log AS newest WHERE newest.key = hop.key)
        ORDER BY log.key
    """,
    "scan": "SELECT seqno, data FROM log WHERE key = :key AND seqno > :after ORDER BY seqno LIMIT ifnull(:limit, -1)",
    "truncate": """
        DELETE FROM log WHERE key = :key AND seqno < min(:below, (SELECT max(seqno) FROM log WHERE key = :key))
    """,
}
_APPEND = "INSERT INTO log (key, seqno, data) VALUES (?, ?, ?)"
_REMOVE = "DELETE FROM log WHERE key = ?"

T = TypeVar("T")

_open: weakref.WeakValueDictionary[tuple[Path, int, int], SqliteMeta] = weakref.WeakValueDictionary()
"""Path and process of every open SqliteMeta. A forked child inherits it along with SQLite's table of locks (6)."""


class SqliteMeta(SqlMeta[sqlite3.Connection]):
    def __init__(self, path: Path | str, runtime: Runtime, settings: Settings) -> None:
        self._path = Path(path).absolute()
        super().__init__(str(self._path), _SQL, runtime, settings)
        self._writing = threading.Lock()
        self._is_malformed = False
        """Whether damage was established: later calls then retry only once."""
        self._name = (self._path.resolve(), os.getpid(), id(self))
        if any(path == self._name[0] and pid != self._name[1] for path, pid, _ in list(_open)):
            raise NotAllowedNow(
                where=str(self._path), why="Meta was open while this process was forked; start processes with spawn"
            )
        try:
            self._prepare()
            self._inode = self._stat()
        except BaseException:
            self._pool.close()
            raise
        _open[self._name] = self

    def close(self) -> None:
        super().close()
        if self._name[1] == os.getpid():
            _open.pop(self._name, None)

    def _commit(
        self, connection: sqlite3.Connection, checks: Sequence[Write | Guard], writes: Sequence[Write]
    ) -> Stale | None:
        for check in checks:
            row = connection.execute(self._sql["number"], {"key": check.key}).fetchone()
            found = SequenceNumber(row[0] if row else 0)
            if found != check.expected:
                return Stale(check.key, check.expected, found)
        for write in writes:
            if write.data is None:
                connection.execute(_REMOVE, (write.key,))
            else:
                connection.execute(_APPEND, (write.key, write.expected + 1, write.data))
        return None

    def _prepare(self) -> None:
        """Create the file and the table, or check existing ones; durable before any commit is acknowledged."""
        self._use(lambda connection: self._retry_busy(lambda: self._check_schema(connection)))
        try:
            SystemFiles().sync_directory(self._path.parent)
        except OSError as error:
            raise convert_os_error(self._path.parent, error) from error

    def _use(self, call: Callable[[sqlite3.Connection], T]) -> T:
        """Run a call with a connection. A failed call is rolled back; an untrusted connection is closed (5)."""
        deadline_s: float | None = None
        while True:
            try:
                with self._pool.use() as connection:
                    try:
                        return call(connection)
                    except sqlite3.Error as error:
                        _roll_back(connection)
                        if _code(error) in _UNTRUSTED:
                            connection.close()
                        raise self._convert_error(error) from error
            except RecordDamaged as error:
                cause = error.__cause__
                if not isinstance(cause, sqlite3.Error) or _code(cause) not in _UNTRUSTED:
                    raise
                now_s = self._runtime.monotonic_s()
                limit_s = 0.0 if self._is_malformed else min(self._settings.retry_limit_s, _MALFORMED_WAIT_S)
                if deadline_s is not None and now_s >= deadline_s:
                    self._is_malformed = True
                    raise
                deadline_s = now_s + limit_s if deadline_s is None else deadline_s
                self._pool.drop_idle()
                self._runtime.sleep_s(self._settings.retry_wait_s * (0.5 + self._runtime.random()))

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        if self._check_version(connection) < _VERSION:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_CREATE)
                connection.execute(f"PRAGMA user_version = {_VERSION}")
                connection.execute("COMMIT")
            except sqlite3.Error:
                _roll_back(connection)  # the retry starts with BEGIN
                raise
        connection.execute(self._sql["number"], {"key": ""})

    def _check_version(self, connection: sqlite3.Connection) -> int:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > _VERSION:
            raise UnsupportedFormat(path=str(self._path), found=version, supported=_VERSION)
        return version

    def _read(self, name: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        sql = self._sql[name]
        return self._use(lambda connection: self._retry_busy(lambda: connection.execute(sql, values).fetchall()))

    def _write(self, body: Callable[[sqlite3.Connection], T]) -> T:
        """Run `body` under the write lock and commit, unless it returns a `Stale`."""
        if not self._writing.acquire(timeout=self._settings.retry_limit_s):
            raise Unavailable(
                path=str(self._path),
                why=f"another thread has held the write lock for {self._settings.retry_limit_s:g} s",
            )
        try:
            return self._use(lambda connection: self._run_write(connection, body))
        finally:
            self._writing.release()

    def _run_write(self, connection: sqlite3.Connection, body: Callable[[sqlite3.Connection], T]) -> T:
        self._check_unmoved()
        self._retry_busy(lambda: connection.execute("BEGIN IMMEDIATE"))
        answer = body(connection)
        if isinstance(answer, Stale):
            _roll_back(connection)
        else:
            self._commit_transaction(connection)
        return answer

    def _commit_transaction(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            _roll_back(connection)
            if _code(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY):
                raise self._convert_error(error) from error
            connection.close()
            raise OutcomeUnknown(path=str(self._path), why=str(error)) from error

    def _retry_busy(self, call: Callable[[], T]) -> T:
        """Repeat SQLite's own short waits for a lock until `retry_limit_s` has passed."""
        deadline_s = None
        while True:
            try:
                return call()
            except sqlite3.OperationalError as error:
                now_s = self._runtime.monotonic_s()
                if deadline_s is None:
                    deadline_s = now_s + self._settings.retry_limit_s
                if _code(error) != sqlite3.SQLITE_BUSY or now_s >= deadline_s:
                    raise
                self._runtime.sleep_s(self._settings.retry_wait_s * self._runtime.random())

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self._path, timeout=_BUSY_WAIT_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._convert_error(error) from error
        try:
            self._retry_busy(lambda: self._configure(connection))
        except sqlite3.Error as error:
            connection.close()
            raise self._convert_error(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _configure(self, connection: sqlite3.Connection) -> None:
        self._check_version(connection)  # before the first change: the switch to a write-ahead log is one
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise InvalidInput(
                where=str(self._path),
                why="this file system has no shared memory, which the write-ahead log needs; use a local disk",
            )
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")

    def _is_reusable(self, connection: sqlite3.Connection) -> bool:
        try:
            return not connection.in_transaction
        except sqlite3.ProgrammingError:  # the connection is closed
            return False

    def _stat(self) -> tuple[int, int]:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return 0, 0
        except OSError as error:
            raise convert_os_error(self._path, error) from error
        return found.st_dev, found.st_ino

    def _check_unmoved(self) -> None:
        if self._stat() != self._inode:
            raise RecordDamaged(path=str(self._path), why="the file was removed or replaced while it was open")

    def _convert_error(self, error: sqlite3.Error) -> EvertideError:
        """Convert an error that was rolled back, or of a read, to the error for the caller."""
        code, path, why = _code(error), str(self._path), str(error)
        if code == sqlite3.SQLITE_FULL or error.sqlite_errorcode == sqlite3.SQLITE_IOERR_SHMSIZE:
            return StorageFull(path=path, why=why)
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            return RecordDamaged(path=path, why=why)
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) or self._is_forbidden():
            return StorageForbidden(path=path, why=why)
        return Unavailable(path=path, why=why)

    def _is_forbidden(self) -> bool:
        try:
            is_there = self._path.exists()
        except OSError as error:  # an unreachable disk says nothing about permissions
            return isinstance(convert_os_error(self._path, error), StorageForbidden)
        return not os.access(self._path.parent, os.W_OK) or (is_there and not os.access(self._path, os.W_OK))


_UNTRUSTED = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL)
"""Errors after which a connection is not reused, because its cached pages may be wrong."""


def _roll_back(connection: sqlite3.Connection) -> None:
    """SQLite may have rolled back already. A connection that cannot roll back is closed, which has the same effect."""
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_INTERNAL) & 0xFF
