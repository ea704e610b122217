"""`Watch`: the first rows of a collection in a cell of a notebook, updated after each transaction.

1. The cell says if the rows are those of an earlier transaction, because the view failed.
2. A read that fails is repeated until it succeeds: the storage may answer again, or the view be computed. Until then,
   the cell shows the error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from html import escape

from evertide.errors import Closed, EvertideError
from evertide.notebook import Cell
from evertide.threads.watched import WatchedThread

_EVERY_S = 0.5
"""The least time between two updates, so that a browser keeps up."""


class Watch:
    """Ends with `stop`, or when the pipeline closes."""

    def __init__(
        self,
        name: str,
        wait_for_upper: Callable[[int, float], int],
        find_notes: Callable[[], Sequence[str]],
        render: Callable[[Sequence[str]], str],
    ) -> None:
        """`wait_for_upper` waits until the upper is above a number, or for a number of seconds, and returns it.

        The cell shows `render`, with the notes, when the upper or the notes change.
        """
        self._wait_for_upper = wait_for_upper
        self._find_notes = find_notes
        self._render = render
        self._stopping = threading.Event()
        self._cell = Cell()
        self._thread = WatchedThread(f"watch {name}", self._follow)
        self._thread.start()

    def stop(self) -> None:
        """Leave the rows as they are shown."""
        self._stopping.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _follow(self) -> None:
        upper, shown = -1, ""
        known: tuple[int, Sequence[str]] | None = None
        while not self._stopping.is_set():
            try:
                upper = self._wait_for_upper(upper, _EVERY_S)
                state = (upper, self._find_notes())
                if state == known:
                    continue
                html, known = self._render(state[1]), state
            except EvertideError as error:
                html, known, upper = f"<div>{escape(str(error))}</div>", None, -1
                if isinstance(error, Closed):
                    self._stopping.set()
            if html != shown:
                self._cell.show(html)
                shown = html
            self._stopping.wait(_EVERY_S)

    def __repr__(self) -> str:
        state = "active" if self._thread.is_alive() else "stopped"
        return f"<Watch {state}>"
