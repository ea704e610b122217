"""Output in a cell of a Jupyter notebook that is updated later, from any thread.

IPython is not imported unless the process runs in a notebook, which has imported it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from html import escape
from typing import Any

from evertide.runtime import SystemRuntime

_EVERY_S = 0.1


def is_notebook() -> bool:
    """Whether the output of this process goes to cells, and not to a terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


class Cell:
    """Part of the output of the cell that runs now."""

    def __init__(self) -> None:
        self._handle: Any = sys.modules["IPython"].display.display(_Html(""), display_id=True)

    def show(self, html: str) -> None:
        self._handle.update(_Html(html))


class _Html:
    def __init__(self, html: str) -> None:
        self._html = html

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return ""


class _CellProgress:
    """Shows a bar for each work under way; called as the `progress` of `Pipeline.open`, by any thread."""

    def __init__(self) -> None:
        self._runtime = SystemRuntime()
        self._lock = threading.Lock()
        self._cell: Cell | None = None
        self._works: dict[str, tuple[int, int]] = {}
        self._shown_s = 0.0

    def __call__(self, work: str, done: int, total: int) -> None:
        with self._lock:
            self._works[work] = (done, total)
            if not total:  # the work has ended
                del self._works[work]
                if self._cell is None:
                    return
            now_s = self._runtime.monotonic_s()
            if done < total and now_s < self._shown_s + _EVERY_S:
                return
            self._shown_s = now_s
            if self._cell is None:
                self._cell = Cell()
            self._cell.show("".join(_render_bar(name, *counts) for name, counts in self._works.items()))
            self._works = {name: counts for name, counts in self._works.items() if counts[0] < counts[1]}


def find_progress() -> Callable[[str, int, int], None]:
    """Bars in a notebook; elsewhere progress is not shown."""
    return _CellProgress() if is_notebook() else lambda *_: None


def _render_bar(work: str, done: int, total: int) -> str:
    return f'<div>{escape(work)} <progress value="{done}" max="{total}"></progress> {done:,} of {total:,}</div>'
