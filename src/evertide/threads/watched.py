"""`WatchedThread`: a thread whose unexpected end is reported. Every thread of Evertide is one.

1. If an exception of any class ends a thread, it is logged with its traceback and becomes the thread's `problem`, which
   `status` shows (`Pipeline.watch`). A component that waits for the thread gets the error through `on_death`.
2. A thread that repeats its work does it within `report_and_retry`: an error is logged and becomes the problem, the
   thread continues, and the problem ends when the work succeeds.
3. A thread handles the errors that it expects. Only unexpected errors become its problem.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from evertide.errors import Unexpected
from evertide.problem import ComponentState, Problem
from evertide.runtime import SystemRuntime

logger = logging.getLogger(__name__)


def make_unexpected_error(where: str, error: BaseException) -> Unexpected:
    """Convert an error of any class to an error of Evertide."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return Unexpected(where=where, why=f"{type(error).__name__}: {text}" if text else type(error).__name__)


class WatchedThread(threading.Thread):
    """A daemon thread that calls `run` with the arguments. If an error ends the thread, it calls `on_death` with it."""

    def __init__(
        self, name: str, run: Callable[..., None], *args: Any, on_death: Callable[[Unexpected], None] | None = None
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.problem: Problem | None = None
        self._work = run
        self._args = args
        self._on_death = on_death

    def run(self) -> None:
        try:
            self._work(*self._args)
        except BaseException as error:  # no caller would see it
            logger.exception("the thread %s died", self.name)
            self._record_problem("died", error)
            if self._on_death is not None:
                self._on_death(make_unexpected_error(f"thread {self.name}", error))
        finally:
            self._work = _do_nothing
            self._args = ()

    @contextmanager
    def report_and_retry(self) -> Iterator[None]:
        """Within the block, an unexpected error ends the block and not the thread: the work is repeated later."""
        try:
            yield
        except Exception as error:  # of any class: the next attempt may succeed
            if self._record_problem("failed, will retry", error):
                logger.exception("the thread %s failed, will retry", self.name)
        else:
            self.problem = None

    def list_thread_problems(self) -> list[Problem]:
        return [] if self.problem is None else [self.problem]

    def _record_problem(self, what: str, error: BaseException) -> bool:
        """Record the problem. Return whether it is new."""
        unexpected = make_unexpected_error(f"thread {self.name}", error)
        why = f"the thread {self.name} {what}: {unexpected.why}"
        if self.problem is not None and self.problem.why == why:
            return False
        now_s = SystemRuntime().wall_s()
        self.problem = Problem(ComponentState.WARNING, unexpected.error_code, why, unexpected.remedy, now_s)
        return True


def _do_nothing(*_: Any) -> None:
    """The work of a thread that has ended, so that the thread holds no references to its former work."""
