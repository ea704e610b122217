"""Which views are computed beside the transactions, and when: those that are new, and those that failed.

A view that failed is tried again when a transaction changed a table that it is made of: at most every `retry_view_s`,
and all that are due at once, as one may read another. One backfill runs at a time, in a thread of its own; without
threads it runs in line.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any

from evertide.errors import EvertideError, GenerationMoved, InvalidInput, Unavailable
from evertide.pipeline.backfill import Backfill
from evertide.pipeline.runner import Runner

__all__ = ["Backfills"]

logger = logging.getLogger(__name__)


class Backfills:
    def __init__(
        self,
        runner: Runner,
        turn: AbstractContextManager[Any],
        stopping: threading.Event,
        progress: Callable[[str, int, int], None],
        failed: Callable[[EvertideError], None],
        *,
        threads: bool,
    ) -> None:
        """`turn` is that of the transactions; `failed` is told what ends the pipeline."""
        self._runner = runner
        self._turn = turn
        self._stopping = stopping
        self._progress = progress
        self._failed = failed
        self._has_threads = threads
        self._thread: threading.Thread | None = None
        self._one = threading.RLock()
        """Held by the backfill that runs."""
        self._starting = threading.Lock()
        self._is_stopped = False
        self._due: set[str] = set()
        self._tried_s: dict[str, float] = {}

    def begin(self) -> None:
        """Those that the definition says are to be computed."""
        self._start(self._runner.definition.away("hydrating"))

    def touched(self, tables: set[str]) -> None:
        """The last transaction changed these tables."""
        self._due.update(self._runner.definition.touched(tables, self._runner.time - 1))
        self.go_on()

    def go_on(self) -> None:
        """Try what is due, unless one runs."""
        if not self._due or (self._thread is not None and self._thread.is_alive()):
            return
        now_s, wait_s = self._runner.runtime.monotonic_s(), self._runner.settings.retry_view_s
        definition = self._runner.definition
        self._due &= {*definition.away("failed"), *definition.away("hydrating")}
        views = [name for name in sorted(self._due) if now_s - self._tried_s.get(name, -1e9) >= wait_s]
        self._due.difference_update(views)
        self._tried_s |= dict.fromkeys(views, now_s)
        self._start(views)

    def retry(self, view: str) -> None:
        """Try one that failed, now, and wait for it."""
        with self._one:
            failed = {name.lower(): name for name in self._runner.definition.away("failed")}
            if view.lower() not in failed:
                raise InvalidInput(where=f"view {view!r}", why=f"it has not failed; these have: {sorted(failed)}")
            self._run([failed[view.lower()]])

    def wait(self, timeout_s: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    def stop(self) -> None:
        """Whoever calls it must not hold the turn, which the one that runs may need to come to its end."""
        with self._starting:
            self._is_stopped = True
        self.wait()

    def _start(self, views: Collection[str]) -> None:
        if not views:
            return
        if not self._has_threads:
            self._run(views)
            return
        with self._starting:
            if not self._is_stopped:
                thread = threading.Thread(target=self._beside, args=(views,), name="evertide-backfill", daemon=True)
                self._thread = thread
                thread.start()

    def _beside(self, views: Collection[str]) -> None:
        try:
            self._run(views)
        except EvertideError as error:
            if isinstance(error, Unavailable | GenerationMoved):  # nothing was changed
                logger.warning("the views %s are tried again later: %s", views, error)
                self._due.update(views)
                return
            logger.exception("the views %s could not be computed", views)
            self._failed(error)

    def _run(self, views: Collection[str]) -> None:
        with self._one:
            try:
                Backfill(self._runner, views, self._turn, self._progress).run(self._stopping.is_set)
            finally:
                self._progress("backfill", 0, 0)  # or it would seem to be under way for ever
