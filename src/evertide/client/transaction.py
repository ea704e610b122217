"""`RemoteTransaction`: rows for several tables, sent as they come, that become visible together."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from evertide.errors import EvertideError, InvalidInput

__all__ = ["RemoteTransaction"]

Send = Callable[..., dict[str, Any]]


class RemoteTransaction:
    """Use it as a context manager: it is committed at the end of the block, and aborted if the block fails."""

    def __init__(self, begin: Callable[[], dict[str, Any]], push: Send, end: Send) -> None:
        """For `Client.transaction`."""
        self._begin = begin
        self._push = push
        self._end = end
        self.id = ""
        self.rows = 0
        self.time: int | None = None
        """The transaction's number, once it is committed."""

    def push(self, table: str, rows: Any = (), *, deletes: Any = ()) -> None:
        if not self.id:
            raise InvalidInput(where="transaction", why="it has not begun: use it in a with block")
        self.rows = self._push(f"/v1/transactions/{self.id}/tables", table, rows, deletes)["total"]

    def commit(self) -> int:
        """May be called again: it answers the same."""
        found = self._end(f"/v1/transactions/{self.id}/commit")
        self.time, self.rows = found["time"], found["rows"]
        return found["time"]  # type: ignore[no-any-return]

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
            return  # it ends by itself, and whoever failed is told of something else
