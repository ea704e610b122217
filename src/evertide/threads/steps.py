"""`note_step`: report progress from inside long work, so that its thread is not mistaken for one that hangs.

Long work consists of many small steps: an answered storage call, a computed stage of a view, a batch of rows from a
source. The code calls `note_step` after each. A call costs one read of a thread-local variable, and does nothing in a
thread that is not watched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_Item = TypeVar("_Item")

_watched = threading.local()


def note_step() -> None:
    on_step = getattr(_watched, "on_step", None)
    if on_step is not None:
        on_step()


def note_each_step(items: Iterable[_Item]) -> Iterator[_Item]:
    """Yield the items, and note a step for each."""
    for item in items:
        note_step()
        yield item


@contextmanager
def watch_steps(on_step: Callable[[], None]) -> Iterator[None]:
    """Within the block, call `on_step` at each step of this thread."""
    before = getattr(_watched, "on_step", None)
    _watched.on_step = on_step
    try:
        yield
    finally:
        _watched.on_step = before
