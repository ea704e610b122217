"""`note_step`: a thread says that it gets on, from inside of long work, so that it is not taken for one that hangs.

Long work ends no phase for a long time, but it consists of many small steps: a call to storage that was answered, a
stage of a view that was computed, a batch of rows that a source gave. Where such a step ends, the code calls
`note_step`. It costs a look into a thread-local variable, and does nothing in a thread that nobody watches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["note_each_step", "note_step", "watch_steps"]

_Item = TypeVar("_Item")

_WATCHED = threading.local()


def note_step() -> None:
    mark = getattr(_WATCHED, "mark", None)
    if mark is not None:
        mark()


def note_each_step(items: Iterable[_Item]) -> Iterator[_Item]:
    """The items; each of them is a step."""
    for item in items:
        note_step()
        yield item


@contextmanager
def watch_steps(mark: Callable[[], None]) -> Iterator[None]:
    """Steps of this thread, within the block, are marked."""
    before = getattr(_WATCHED, "mark", None)
    _WATCHED.mark = mark
    try:
        yield
    finally:
        _WATCHED.mark = before
