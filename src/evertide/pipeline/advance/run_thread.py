"""`RunThread`: makes transactions in a thread of its own (`Pipeline.start`)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from evertide.errors import EvertideError, NotAllowedNow
from evertide.problem import Problem
from evertide.threads.watched import WatchedThread

logger = logging.getLogger(__name__)


class RunThread:
    def __init__(self, run: Callable[[], None]) -> None:
        """`run` returns when the pipeline stops."""
        self._run = run
        self._thread: WatchedThread | None = None

    def start(self) -> None:
        if self._thread is not None:
            raise NotAllowedNow(
                where="start", why="it was called before; a thread makes transactions until the pipeline is closed"
            )
        self._thread = WatchedThread("run", self._run_until_stopped)
        self._thread.start()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def list_thread_problems(self) -> list[Problem]:
        return [] if self._thread is None else self._thread.list_thread_problems()

    def _run_until_stopped(self) -> None:
        try:
            self._run()
        except EvertideError as error:  # the status has it, too
            logger.error("the pipeline stopped: %s", error)  # noqa: TRY400 - no bug
