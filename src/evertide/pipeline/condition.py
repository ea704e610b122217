"""`Condition`: how the process that runs a pipeline fares, the worst first; the storage is told of it by the leader.

1. An error that the process cannot go on from stays, and is what whoever asks for something gets.
2. Otherwise it is what stalls, a source or all of them; otherwise a pause; otherwise it runs.
3. Warnings stand beside that: they change no state.
"""

from __future__ import annotations

from collections.abc import Iterable

from evertide.errors import EvertideError
from evertide.pipeline.duties import Duties
from evertide.pipeline.health import Telling
from evertide.pipeline.intake import Intake
from evertide.pipeline.leading import Leading
from evertide.pipeline.opening import Hosts, positions
from evertide.pipeline.pausing import Pause
from evertide.pipeline.replica_record import replica_statuses
from evertide.pipeline.runner import Runner
from evertide.pipeline.status import Problem, Status, collection_statuses, problem, stall
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Meta
from evertide.store.writers import Writer

__all__ = ["Condition"]


class Condition:
    def __init__(self, meta: Meta, writer: Writer, leading: Leading, runtime: Runtime, settings: Settings) -> None:
        self.pause = Pause(runtime)
        self.error: EvertideError | None = None
        self._failed: Problem | None = None
        self._stalled: dict[str, Problem] = {}
        self._warnings: list[Problem] = []
        self._leading = leading
        self._telling = Telling(meta, writer.id, runtime, settings)
        self._runtime = runtime
        self._opened_s = runtime.wall_s()

    def watch(self, intake: Intake) -> None:
        """What stalls there counts from now on."""
        self._stalled = intake.stalled

    def fail(self, error: EvertideError) -> None:
        self.error, self._failed = error, problem(error, self._runtime.wall_s())

    def warn(self, code: str, why: str, remedy: str) -> None:
        self._warnings.append(Problem("warning", code, why, remedy, self._runtime.wall_s()))

    def tell(self) -> None:
        self._tell(self.foremost())

    def tell_begun(self) -> None:
        self._tell(Problem("replaying", "", "it comes back from its last checkpoint", "", self._opened_s))

    def tell_ended(self) -> None:
        self._tell(Problem("stopped", "", "it was closed", "", self._runtime.wall_s()))

    def problems(self) -> list[Problem]:
        """The worst first."""
        return [*([] if self._failed is None else [self._failed]), *self._stalled.values()]

    def foremost(self) -> Problem:
        return next(iter(self.problems()), self.pause.problem(self._opened_s))

    def status(
        self, hosts: Hosts, runner: Runner, intake: Intake, duties: Duties, troubles: Iterable[Problem]
    ) -> Status:
        """`troubles` are those of threads."""
        members, journal, time = runner.members, hosts.journal, runner.time - 1
        stalled = stall(hosts.meta, journal, members, hosts.runtime, hosts.settings)
        found = self.problems() if stalled is None else [*self.problems(), stalled]
        first = found[0] if found else self.foremost()
        where = positions(runner)
        sinks = duties.sink_statuses(time)
        return Status(
            state=first.state,
            since_s=first.since_s,
            why=first.why,
            remedy=first.remedy,
            time=time,
            bound=journal.upper - 1,
            generation=runner.definition.generation,
            holder=hosts.writer.id,
            sources=tuple(intake.status(source, where[name]) for name, source in runner.sources.items()),
            collections=collection_statuses(members),
            checkpoints=tuple((entry.number, entry.time) for entry in hosts.checkpoints.entries()),
            problems=(*found, *self._warnings, *duties.warnings(), *troubles),
            sinks=sinks,
            flushed=duties.flushed(time, sinks),
            replicas=replica_statuses(hosts.meta, journal.committed_upper, hosts.runtime, hosts.settings),
        )

    def _tell(self, now: Problem) -> None:
        """The storage is told by the one that leads."""
        if self._leading.is_ours:
            self._telling(now)
