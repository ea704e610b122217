"""`Watch`: the first rows of a collection in a cell of a notebook, updated after each transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable
from html import escape

from evertide.errors import EvertideError
from evertide.notebook import Cell
from evertide.threads.watched import WatchedThread

_EVERY_S = 0.5
"""The least time between two updates, so that a browser keeps up."""


class Watch:
    """Ends with `stop`, when the pipeline closes, or after an error, which it shows."""

    def __init__(self, name: str, wait_for_upper: Callable[[int, float], int], render: Callable[[], str]) -> None:
        """`wait_for_upper` waits until the upper is above a number, or for a number of seconds, and returns it."""
        self._wait_for_upper = wait_for_upper
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
        upper = -1
        try:
            while not self._stopping.is_set():
                reached = self._wait_for_upper(upper, _EVERY_S)
                if reached > upper:
                    self._cell.show(self._render())
                    self._stopping.wait(_EVERY_S)
                upper = reached
        except EvertideError as error:
            self._cell.show(f"<div>{escape(str(error))}</div>")

    def __repr__(self) -> str:
        state = "active" if self._thread.is_alive() else "stopped"
        return f"<Watch {state}>"
