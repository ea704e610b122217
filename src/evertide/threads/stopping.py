"""End long work early when its owner stops: the work checks `is_stopping` now and then, and raises `Stopped`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

IsStopping = Callable[[], bool]
_Item = TypeVar("_Item")


class Stopped(Exception):
    """Raised in the middle of work whose result is no longer needed."""


def never_stopping() -> bool:
    return False


def check_not_stopping(is_stopping: IsStopping) -> None:
    if is_stopping():
        raise Stopped


def until_stopping(items: Iterable[_Item], is_stopping: IsStopping) -> Iterator[_Item]:
    """Yield the items; raise `Stopped` once `is_stopping` returns true."""
    for item in items:
        check_not_stopping(is_stopping)
        yield item
