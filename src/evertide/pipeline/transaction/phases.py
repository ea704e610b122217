"""`PhaseTracker`: the current phase of a runner, and the duration of each phase of a transaction.

1. A transaction enters its phases one after the other, in one thread; entering a phase ends the previous one.
2. Observers are notified once, at the end. Laps without a transaction (no source had input) are discarded.
3. The first transaction with rows, for which Spark compiles the plans of all views, is not reported as slow.
4. Entering a phase sets the transaction number of log lines.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from evertide.errors import EvertideError
from evertide.logs import TRANSACTION
from evertide.observer import FailureEvent, Observer, TimedPhase, TransactionEvent, TransactionOrigin, WrittenSize
from evertide.runtime import Runtime
from evertide.settings import Settings

logger = logging.getLogger(__name__)


class Phase(enum.Enum):
    OPEN = "open"
    """Before the pipeline is open."""
    WAIT = "wait"
    READ = "read"
    BIND = "bind"
    COMPUTE = "compute"
    COMMIT = "commit"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class CurrentPhase:
    phase: Phase
    time: int
    since_s: float
    what: str = ""
    """What is being opened, if the phase is `OPEN`."""


class PhaseTracker:
    def __init__(self, observer: Observer, runtime: Runtime, settings: Settings, time: int) -> None:
        self.observer = observer
        self._clock = runtime.monotonic_s
        self._slow_s = settings.slow_transaction_s
        self.current = CurrentPhase(Phase.WAIT, time, self._clock())
        self._phases: list[TimedPhase] = []
        self._had_rows = False
        self._was_slow = False
        """Whether the last transaction was slow, and the log says so."""

    def enter(self, phase: Phase, time: int) -> None:
        now_s, last = self._clock(), self.current
        if last.phase is not Phase.WAIT:
            self._phases.append(TimedPhase(last.phase.value, last.since_s, now_s - last.since_s))
        self.current = CurrentPhase(phase, time, now_s)
        TRANSACTION.set(None if phase is Phase.WAIT else time)

    def enter_wait(self, time: int) -> None:
        """Discard the phases: there was no transaction."""
        if self.current.phase is not Phase.WAIT:
            self._end_phases(time)

    def finish(
        self, time: int, how: TransactionOrigin, sources: Mapping[str, int], collections: Mapping[str, WrittenSize]
    ) -> None:
        event = TransactionEvent(time, how, self._end_phases(time + 1), sources, collections)
        had_rows, self._had_rows = self._had_rows, self._had_rows or any(sources.values())
        was_slow, self._was_slow = self._was_slow, had_rows and event.took_s > self._slow_s
        if event.took_s > self._slow_s:
            took: dict[str, float] = {}
            for phase in event.phases:
                took[phase.phase] = took.get(phase.phase, 0.0) + phase.took_s
            durations = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in took.items())
            if had_rows:
                level = logging.INFO if was_slow else logging.WARNING
                logger.log(
                    level, "transaction %d took %.1f s, over slow_transaction_s: %s", time, event.took_s, durations
                )
            else:
                logger.info("the first transaction, %d, took %.1f s: %s", time, event.took_s, durations)
        self.observer.on_transaction(event)

    def fail(self, time: int, error: EvertideError) -> None:
        """Report the failed transaction with its phases."""
        self.observer.on_failure(FailureEvent("transaction", "", error.error_code, self._end_phases(time), time))

    def _end_phases(self, time: int) -> tuple[TimedPhase, ...]:
        self.enter(Phase.WAIT, time)
        phases, self._phases = tuple(self._phases), []
        return phases
