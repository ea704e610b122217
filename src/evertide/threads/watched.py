"""Threads whose unexpected end is seen: every thread of Evertide is a `WatchedThread` one.

1. Whatever ends a thread, of any class, is logged with its traceback and stays as its `problem`, which `status` shows
   (`Pipeline.watch`). What waits for the thread learns of it by `died`.
2. A thread that does the same work again and again does it within `trying`: an error is logged and shows, the thread
   lives on, and the problem is gone when the work succeeds.
3. Errors that a thread expects are its own to handle, before they come here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from evertide.errors import Unexpected
from evertide.problem import Problem
from evertide.runtime import SystemRuntime

__all__ = ["WatchedThread", "unexpected_error"]

logger = logging.getLogger(__name__)


def unexpected_error(where: str, error: BaseException) -> Unexpected:
    """The error that stands for one of any class, for those who handle errors of Evertide."""
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return Unexpected(where=where, why=f"{type(error).__name__}: {said}" if said else type(error).__name__)


class WatchedThread(threading.Thread):
    """A daemon thread. It calls `run` with the arguments; `died` gets what it died of, in the thread itself."""

    def __init__(
        self, name: str, run: Callable[..., None], *args: Any, died: Callable[[Unexpected], None] | None = None
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.problem: Problem | None = None
        self._work = run
        self._args = args
        self._died = died

    def run(self) -> None:
        try:
            self._work(*self._args)
        except BaseException as error:  # nothing above it would ever see this
            logger.exception("the thread %s died", self.name)
            self._has("died", error)
            if self._died is not None:
                self._died(unexpected_error(f"thread {self.name}", error))
        finally:
            self._work = _nothing
            self._args = ()

    @contextmanager
    def retrying(self) -> Iterator[None]:
        """Work that is done again later: an unexpected error ends the block, and not the thread."""
        try:
            yield
        except Exception as error:  # whatever it is, the next try may succeed
            if self._has("failed, and tries again", error):
                logger.exception("the thread %s failed, and tries again", self.name)
        else:
            self.problem = None

    def troubles(self) -> list[Problem]:
        return [] if self.problem is None else [self.problem]

    def _has(self, what: str, error: BaseException) -> bool:
        """Whether the problem is a new one."""
        told = unexpected_error(f"thread {self.name}", error)
        why = f"the thread {self.name} {what}: {told.why}"
        if self.problem is not None and self.problem.why == why:
            return False
        self.problem = Problem("warning", told.error_code, why, told.remedy, SystemRuntime().wall_s())
        return True


def _nothing(*_: Any) -> None:
    """What a thread that has ended does: it holds nothing any more."""
