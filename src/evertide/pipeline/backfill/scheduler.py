"""Decides which views are backfilled, and when: new, failed and diverged ones.

1. A view that failed at transaction t is due when a later transaction changed one of its tables, so a row that is
   repaired during a backfill makes the view due again. It is retried at most every `retry_view_s`.
2. All due views are backfilled together, as one may read another. A view over a table that is not kept is never due.
3. A view whose state diverged is recomputed at once; each further time within an hour waits twice as long.
4. One backfill runs at a time, in its own thread; without threads it runs in the caller's.
5. After an unexpected error the views are due again, and status shows the error until the next backfill. If data is
   damaged, the backfill is retried with exponential backoff; transactions continue, and status has a warning.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from evertide.errors import (
    Damaged,
    EvertideError,
    GenerationMoved,
    InvalidInput,
    NotAllowedNow,
    OutcomeUnknown,
    StateInconsistent,
    TimeCompacted,
    Unavailable,
    ViewFailed,
)
from evertide.errors.running_errors import name_views
from evertide.pipeline.backfill.backfill import Backfill
from evertide.pipeline.definition import find_tables_under
from evertide.pipeline.state.divergence import RecomputationBackoff, list_divergences
from evertide.pipeline.transaction.runner import Runner
from evertide.problem import ComponentState, Problem
from evertide.suggestions import list_names
from evertide.threads.outage_log import OutageLogs
from evertide.threads.stopping import never_stopping
from evertide.threads.watched import WatchedThread

logger = logging.getLogger(__name__)

_TRANSIENT = (Unavailable, OutcomeUnknown, GenerationMoved, TimeCompacted)
"""Errors after which a new backfill may succeed."""


class BackfillScheduler:
    """Starts backfills of the views that are due, one at a time."""

    def __init__(  # noqa: PLR0917
        self,
        runner: Runner,
        turn: AbstractContextManager[Any],
        stopping: threading.Event,
        progress: Callable[[str, int, int], None],
        failed: Callable[[EvertideError], object],
        complete_and_keep_up: Callable[[], None],
        *,
        threads: bool,
    ) -> None:
        """`failed` is called with an error that ends the pipeline; `turn` and `complete_and_keep_up` are as in
        `Backfill`."""
        self._runner = runner
        self._turn = turn
        self._stopping = stopping
        self._progress = progress
        self._failed = failed
        self._complete_and_keep_up = complete_and_keep_up
        self._has_threads = threads
        self._thread: WatchedThread | None = None
        self._one = threading.RLock()
        """Held by the running backfill."""
        self._is_running = False
        self._starting = threading.Lock()
        self._is_stopped = False
        self._due: set[str] = set()
        self._tried_s: dict[str, float] = {}
        self._backoffs: dict[str, RecomputationBackoff] = {}
        """Of views that diverged or are in `_stuck`."""
        self._stuck: dict[str, Problem] = {}
        """Views that damaged data keeps from being computed."""
        self._outages = OutageLogs(logger, runner.runtime)
        self._seen: set[str] = set()
        """Failed views whose tables were checked in storage once."""

    def start_due(self) -> None:
        """Start a backfill of the due views, unless one runs."""
        if self._is_running or (self._thread is not None and self._thread.is_alive()):
            return
        definition, now_s = self._runner.definition, self._runner.runtime.monotonic_s()
        failed = definition.list_away(ComponentState.FAILED)
        self._due = {*self._due.intersection(failed), *definition.list_away(ComponentState.HYDRATING)}
        if failed:
            self._due.update(self._find_changed(failed))
        diverged = definition.find_diverged()
        views = [name for name in sorted(self._due) if not self._wait_s(name, now_s)]
        if not views:
            return
        self._due.difference_update(views)
        self._tried_s |= dict.fromkeys(views, now_s)
        for name in diverged.keys() & set(views):
            self._backoffs.setdefault(name, RecomputationBackoff(self._runner.settings.retry_view_s)).note_try(now_s)
        self._start(views)

    def _wait_s(self, view: str, now_s: float) -> float:
        """The time until the next try of a view is allowed."""
        wait_s = self._tried_s.get(view, -1e9) + self._runner.settings.retry_view_s - now_s
        backoff = self._backoffs.get(view)
        if backoff is not None and (view in self._stuck or view in self._runner.definition.find_diverged()):
            wait_s = backoff.wait_s(now_s)
        return max(0.0, wait_s)

    def problems(self) -> list[Problem]:
        """The problems of views that diverged or that damaged data keeps from being computed."""
        now_s = self._runner.runtime.monotonic_s()
        found = {**list_divergences(self._runner.definition), **self._stuck}
        return [replace(one, wait_s=self._wait_s(name, now_s) or None) for name, one in found.items()]

    def _find_changed(self, failed: Iterable[str]) -> list[str]:
        """The failed views with a table that changed since the failure."""
        members = self._runner.members
        found = []
        for name in failed:
            away, tables = members.definition.views[name].away, self._find_tables(name)
            if away is None or not tables:
                continue
            if name not in self._seen:  # it may have failed before this process led: read the shards
                is_changed = any(members.is_changed_since(table, away.time) for table in tables)
                self._seen.add(name)
            else:
                is_changed = any(self._runner.last_changed.get(table, -1) > away.time for table in tables)
            if is_changed:
                found.append(name)
        return found

    def _find_tables(self, view: str) -> set[str]:
        """The tables under a view; empty if one of them is not kept."""
        definition = self._runner.definition
        tables = find_tables_under(definition.views, view)
        return tables if all(definition.tables[name].shard for name in tables) else set()

    def retry(self, view: str) -> None:
        """Backfill a failed view now, and wait for the result. Raise `ViewFailed` if the view fails again."""
        name = self._find_failed(view)
        with self._one:
            self._run([name])  # nothing, if a backfill that was under way has computed it
            away = self._runner.definition.views[name].away
            if away is not None:
                raise ViewFailed(views=(name,), time=away.time, why=away.why)

    def _find_failed(self, view: str) -> str:
        failed = {name.lower(): name for name in self._runner.definition.list_away(ComponentState.FAILED)}
        if view.lower() in failed:
            return failed[view.lower()]
        known = self._runner.definition.views
        if view.lower() not in {name.lower() for name in known}:
            why = self._runner.members.explain_plain(view)
            why = why or f"the pipeline has no such view{list_names(view, sorted(known), 'it has')}"
            raise InvalidInput(where=f"view {view!r}", why=why)
        why = f"only a failed view can be retried; failed views: {', '.join(sorted(failed)) or 'none'}"
        raise NotAllowedNow(where=f"view {view!r}", why=why)

    def list_thread_problems(self) -> list[Problem]:
        """The error that ended the last backfill's thread."""
        return [] if self._thread is None else self._thread.list_thread_problems()

    def wait(self, timeout_s: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    def stop(self) -> None:
        """The caller must not hold the turn, which a running backfill may need to end."""
        with self._starting:
            self._is_stopped = True
        self.wait()

    def _start(self, views: Collection[str]) -> None:
        if not self._has_threads:
            self._try(views)
            return
        with self._starting:
            if not self._is_stopped:
                thread = WatchedThread("evertide-backfill", self._run_in_thread, views)
                self._thread = thread
                thread.start()

    def _run_in_thread(self, views: Collection[str]) -> None:
        try:
            self._try(views)
        except EvertideError as error:
            logger.exception("the backfill of %s failed", name_views(views))
            self._failed(error)
        except BaseException:  # the thread ends and reports the error; the views are due again
            self._due.update(views)
            raise

    def _try(self, views: Collection[str]) -> None:
        """Run a backfill. After a `_TRANSIENT` error, damage or inconsistent rows, the views are due again."""
        what = f"the backfill of {name_views(views)} failed, will retry"
        try:
            self._run(views)
            self._stuck = {name: one for name, one in self._stuck.items() if name not in views}
            self._outages.end(what)
        except _TRANSIENT as error:
            self._outages.note(what, error)
            self._due.update(views)
        except (Damaged, StateInconsistent) as error:
            self._outages.note(what, error)
            runtime, settings = self._runner.runtime, self._runner.settings
            for name in views:
                why = f"view {name!r} cannot be computed from the tables: {error.message}"
                self._stuck[name] = Problem.from_error(ComponentState.WARNING, error, runtime.wall_s(), why)
                self._backoffs.setdefault(name, RecomputationBackoff(settings.retry_view_s)).note_try(
                    runtime.monotonic_s()
                )
            self._due.update(views)

    def _run(self, views: Collection[str]) -> None:
        with self._one:
            known = self._runner.definition.views
            views = [name for name in views if known[name].away is not None]  # others joined while this call waited
            if not views:
                return
            self._is_running = True
            try:
                wait = self._wait if self._has_threads else never_stopping
                backfill = Backfill(self._runner, views, self._turn, self._progress, self._complete_and_keep_up, wait)
                backfill.run(self._stopping.is_set)
            finally:
                self._is_running = False
                self._progress("backfill", 0, 0)  # else it would be reported as under way forever

    def _wait(self) -> bool:
        """Wait before a retry after a storage error; False if the pipeline stops."""
        return not self._stopping.wait(self._runner.settings.retry_wait_max_s)
