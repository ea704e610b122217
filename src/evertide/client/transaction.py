"""`RemoteTransaction`: push rows to several tables, in several requests, that become visible together."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from evertide.errors import EvertideError, NotAllowedNow

Send = Callable[..., dict[str, Any]]


class RemoteTransaction:
    """A context manager: commits at the end of the block, aborts if the block fails."""

    def __init__(self, begin: Callable[[], dict[str, Any]], push: Send, end: Send) -> None:
        """Called by `Client.transaction`."""
        self._begin = begin
        self._push = push
        self._end = end
        self.id = ""
        self.rows = 0
        self.time: int | None = None
        """The transaction's number after the commit."""
        self.txid: int | None = None
        """The number that clients of shapes can wait for after the commit; None if nothing changed."""

    def push(self, table: str, rows: Any = (), *, deletes: Any = ()) -> None:
        if not self.id:
            raise NotAllowedNow(where="transaction", why="the transaction has not begun; use it in a with block")
        self.rows = self._push(f"/v1/transactions/{self.id}/tables", table, rows, deletes)["total"]

    def commit(self) -> int:
        """May be repeated, with the same result."""
        answer = self._end(f"/v1/transactions/{self.id}/commit")
        self.time, self.rows, self.txid = answer["time"], answer["rows"], answer["txid"]
        return answer["time"]  # type: ignore[no-any-return]

    def abort(self) -> None:
        self._end(f"/v1/transactions/{self.id}/abort")

    def __enter__(self) -> Self:
        self.id = self._begin()["id"]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            if self.time is None:
                self.commit()
            return
        try:
            self.abort()
        except EvertideError:
            return  # the server ends it after a while; the block's own error matters more
