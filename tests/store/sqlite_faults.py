"""SQLite connections whose opening, statements and fetches fail by plan."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

CODES = {
    "full": sqlite3.SQLITE_FULL,
    "busy": sqlite3.SQLITE_BUSY,
    "write": sqlite3.SQLITE_IOERR_WRITE,
    "fsync": sqlite3.SQLITE_IOERR_FSYNC,
    "read": sqlite3.SQLITE_IOERR_READ,
    "shared memory": sqlite3.SQLITE_IOERR_SHMSIZE,
    "cannot open": sqlite3.SQLITE_CANTOPEN,
}


@dataclass
class Faults:
    """From step `first` on, `times` steps fail with `code`. A step is the opening of a connection, a statement or a
    fetch.
    """

    first: int = -1
    times: int = 0
    code: int = sqlite3.SQLITE_IOERR
    rolls_back: bool = False
    """SQLite ends a transaction by itself after some errors, and leaves it to the caller after others."""
    after: bool = False
    """COMMIT and reads fail after they took effect."""
    seen: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def plan(self, first: int, code: int, times: int, rolls_back: bool, after: bool) -> None:
        self.first, self.times, self.code = first, times, code
        self.rolls_back, self.after = rolls_back, after
        self.seen, self.failed = [], []

    def lift(self) -> None:
        self.first, self.times = -1, 0

    def fails(self, step: str) -> bool:
        number = len(self.seen)
        self.seen.append(step)
        if self.first < 0 or not self.first <= number < self.first + self.times:
            return False
        self.failed.append(step)
        return True

    def done_before(self, sql: str) -> str | None:
        """What SQLite does before it reports the error."""
        if self.after and sql == "COMMIT":
            return sql
        return "ROLLBACK" if self.rolls_back else None

    def error(self) -> sqlite3.OperationalError:
        error = sqlite3.OperationalError("injected")
        error.sqlite_errorcode = self.code
        error.sqlite_errorname = "injected"
        return error


@contextmanager
def inject_faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """All SQLite connections that are opened meanwhile follow the plan."""
    faults = Faults()
    connect = sqlite3.connect

    class FailingCursor(sqlite3.Cursor):
        def fetchone(self) -> Any:
            self._fetch()
            return super().fetchone()

        def fetchall(self) -> list[Any]:
            self._fetch()
            return super().fetchall()

        def _fetch(self) -> None:
            if faults.fails("fetch"):
                self.close()  # an error resets the statement
                raise faults.error()

    class FailingConnection(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
            if not faults.fails(sql):
                return self.cursor(FailingCursor).execute(sql, parameters)
            before = faults.done_before(sql)
            if before is not None and self.in_transaction:
                super().execute(before)
            raise faults.error()

    def opened(*args: Any, **options: Any) -> sqlite3.Connection:
        if faults.fails("open"):
            raise faults.error()
        return connect(*args, **options, factory=FailingConnection)

    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", opened)
        yield faults
