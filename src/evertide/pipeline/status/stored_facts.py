"""`StoredFacts`: the part of a status that is read from storage, and its last known value.

1. A status is needed most during a storage outage. It then has the last known facts, their time, and a problem that
   names the error.
2. Before the first successful read, the facts are what the process has in memory.
3. A status waits at most `WAIT_S` for storage that refuses calls. A single call that does not return may take longer.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from evertide.errors import EvertideError, OutcomeUnknown, Unavailable
from evertide.pipeline.input.source_positions import read_positions
from evertide.pipeline.process_context import ProcessContext
from evertide.pipeline.records.replica_record import read_replica_statuses
from evertide.pipeline.replicas.leader_tasks import LeaderTasks
from evertide.pipeline.status.status import Facts, find_stall, make_collection_statuses
from evertide.pipeline.transaction.runner import Runner
from evertide.problem import ComponentState, Problem
from evertide.store.retry import limit_retries

WAIT_S = 2.0


class StoredFacts:
    def __init__(self, context: ProcessContext, runner: Runner, leader_tasks: LeaderTasks) -> None:
        self._context = context
        self._runner = runner
        self._leader_tasks = leader_tasks
        self._lock = threading.Lock()
        self._last: Facts | None = None
        self._answered_at_s = context.runtime.wall_s()
        self._since_s: float | None = None
        """Since when storage could not be read."""

    def read(self) -> Facts:
        try:
            with limit_retries(WAIT_S):
                found = self._read()
        except EvertideError as error:
            return self.read_last_known(error)
        with self._lock:
            self._last, self._since_s, self._answered_at_s = found, None, self._context.runtime.wall_s()
        return found

    def read_last_known(self, error: EvertideError) -> Facts:
        """The facts without a storage call. `error` is why no call is made."""
        with self._lock:
            if self._since_s is None:
                self._since_s = self._context.runtime.wall_s()
            last, since_s, answered_at_s = self._last, self._since_s, self._answered_at_s
        found = self._read_memory() if last is None else last
        is_away = isinstance(error, Unavailable | OutcomeUnknown)
        state = ComponentState.STALLED if is_away else ComponentState.WARNING
        problem = Problem.from_error(state, error, since_s)
        bound = max(found.bound, self._runner.time - 1)
        return replace(found, bound=bound, stalled=None, problem=problem, stored_at_s=answered_at_s)

    def _read(self) -> Facts:
        context, runner = self._context, self._runner
        members, journal = runner.members, context.journal
        return Facts(
            stalled=find_stall(context.meta, journal, members, context.runtime, context.settings),
            positions=read_positions(journal, runner.definition, runner.sources),
            sinks=self._leader_tasks.read_sink_statuses(runner.time - 1),
            bound=journal.upper - 1,
            collections=make_collection_statuses(members),
            checkpoints=tuple((entry.number, entry.time) for entry in context.checkpoints.entries()),
            replicas=read_replica_statuses(context.meta, journal.committed_upper, context.runtime, context.settings),
        )

    def _read_memory(self) -> Facts:
        runner = self._runner
        collections = make_collection_statuses(runner.members, is_fresh=False)
        return Facts(runner.time - 1, None, dict.fromkeys(runner.sources, ""), collections, (), (), ())
