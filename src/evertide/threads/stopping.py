"""Long work that nobody waits for any more, as its owner stops: it asks now and then, and gives up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["IsStopping", "Stopped", "check_not_stopping", "never_stopping", "until_stopping"]

IsStopping = Callable[[], bool]
_Item = TypeVar("_Item")


class Stopped(Exception):
    """Raised in the middle of work. What was done of it is not needed."""


def never_stopping() -> bool:
    return False


def check_not_stopping(is_stopping: IsStopping) -> None:
    if is_stopping():
        raise Stopped


def until_stopping(items: Iterable[_Item], is_stopping: IsStopping) -> Iterator[_Item]:
    """The items, as long as nobody stops."""
    for item in items:
        check_not_stopping(is_stopping)
        yield item
