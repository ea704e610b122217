"""`ProcessState`: the state of the process that runs a pipeline. The leader also writes it to storage.

1. An error that the process cannot continue after stays, and every later call raises it.
2. Without such an error, the state is that of a stalled source or pipeline, else `paused`, else `running`.
3. Warnings do not change the state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from evertide.errors import EvertideError, Fenced
from evertide.pipeline.input.input_reader import InputReader
from evertide.pipeline.pause import Pause
from evertide.pipeline.records.state_record import PipelineStateReporter
from evertide.pipeline.replicas.leader_tasks import LeaderTasks
from evertide.pipeline.replicas.leadership import Leadership
from evertide.pipeline.status.status import Facts, Problem, SourceStatus, Status, assemble_status, make_problem
from evertide.pipeline.transaction.runner import Runner
from evertide.problem import ComponentState
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Meta
from evertide.store.writers import Writer

logger = logging.getLogger(__name__)


class ProcessState:
    def __init__(
        self, meta: Meta, writer: Writer, leadership: Leadership, runtime: Runtime, settings: Settings
    ) -> None:
        self.pause = Pause(runtime)
        self.error: EvertideError | None = None
        self._failed: Problem | None = None
        self._stalled: dict[str, Problem] = {}
        self._warnings: list[Problem] = []
        self._stall: Callable[[], tuple[str, float] | None] = lambda: None
        self._leadership = leadership
        self._writer = writer
        self._reporter = PipelineStateReporter(meta, writer.id, runtime, settings)
        self.runtime = runtime
        self._opened_s = runtime.wall_s()

    def watch_stall(self, stall: Callable[[], tuple[str, float] | None]) -> None:
        """`stall` returns why opening or the next transaction makes no progress, and for how long."""
        self._stall = stall

    def watch(self, input_reader: InputReader) -> None:
        """Include the reader's stalled sources in the state."""
        self._stalled = input_reader.stalled

    def fail(self, error: EvertideError) -> EvertideError:
        """Record an error that the pipeline cannot continue after; return it, or `Fenced` if a fence caused it."""
        if not isinstance(error, Fenced):
            try:
                self._writer.check_registered()
            except Fenced as fenced:
                fenced.__cause__ = error
                error = fenced
            except EvertideError:
                logger.warning("could not read whether this process is still registered")
        self.error, self._failed = error, make_problem(error, self.runtime.wall_s())
        return error

    def warn(self, code: str, why: str, remedy: str) -> None:
        self._warnings.append(Problem(ComponentState.WARNING, code, why, remedy, self.runtime.wall_s()))

    def publish(self) -> None:
        self._publish(self.find_worst())

    def publish_replaying(self) -> None:
        """Publish that the pipeline opens, or the problem that keeps it from opening."""
        begun = Problem(
            ComponentState.REPLAYING, "", "the pipeline restarts from its last checkpoint", "", self._opened_s
        )
        self._publish(next(iter(self.problems()), begun))

    def report_storage_wait(self, error: EvertideError) -> None:
        now_s = self.runtime.wall_s()
        known = self._stalled.get("")
        since_s = known.since_s if known is not None else now_s
        self._stalled[""] = Problem.from_error(ComponentState.STALLED, error, since_s)
        self.publish()

    def clear_storage_wait(self) -> None:
        if self._stalled.pop("", None) is not None:
            self.publish_replaying()

    def publish_stopped(self) -> None:
        self._publish(Problem(ComponentState.STOPPED, "", "the pipeline was closed", "", self.runtime.wall_s()))

    def problems(self) -> list[Problem]:
        """The worst first."""
        return [*self._list_known(), *self._find_hang()]

    def _list_known(self) -> list[Problem]:
        return [*([] if self._failed is None else [self._failed]), *self._stalled.values()]

    def _find_hang(self) -> list[Problem]:
        """A hang before the bind. A hang after it shows in the journal, which every process can read."""
        found = self._stall()
        if found is None:
            return []
        why, still_s = found
        remedy = (
            "Check the log, and whether sources, storage and Spark answer; another replica leads after hang_after_s."
        )
        return [Problem(ComponentState.STALLED, "stalled", why, remedy, self.runtime.wall_s() - still_s)]

    def find_worst(self) -> Problem:
        return next(iter(self.problems()), self.pause.problem(self._opened_s))

    def status(
        self,
        runner: Runner,
        input_reader: InputReader,
        leader_tasks: LeaderTasks,
        facts: Facts,
        thread_problems: Iterable[Problem],
    ) -> Status:
        """`facts` come from storage, `thread_problems` from threads."""
        found = self.problems() if facts.stalled is None else [*self._list_known(), facts.stalled]
        if facts.problem is not None and all(one.error_code != facts.problem.error_code for one in found):
            is_warning = facts.problem.state == ComponentState.WARNING
            found = [*found, facts.problem] if is_warning or self._failed else [facts.problem, *found]
        first = next((one for one in found if one.state != ComponentState.WARNING), self.pause.problem(self._opened_s))
        sources = [
            SourceStatus(name, record.tables, facts.positions[name], record.state, record.lag, record.problems)
            for name, record in input_reader.make_records().items()
        ]
        problems = (*found, *self._warnings, *leader_tasks.warnings(), *thread_problems)
        generation, writer = runner.definition.generation, self._writer.id
        return assemble_status(
            first, problems, facts, sources, time=runner.time - 1, generation=generation, writer=writer
        )

    def _publish(self, now: Problem) -> None:
        if self._leadership.is_leader:
            self._reporter(now)
