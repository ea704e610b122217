"""`PhaseTracker`: what a runner is at, lap by lap, and what a transaction took when it is over.

A transaction goes through its phases one after the other, in one thread; when the next one begins, the last is over.
Laps that came to nothing (no source had input) are forgotten. Observers are told once, at the end.
The log gets the number of the transaction that a line belongs to from here.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from evertide.errors import EvertideError
from evertide.logs import TRANSACTION
from evertide.observer import Fault, Lap, Observer, TransactionEvent, WrittenSize
from evertide.runtime import Runtime
from evertide.settings import Settings

__all__ = ["CurrentPhase", "Phase", "PhaseTracker"]

logger = logging.getLogger(__name__)


class Phase(enum.Enum):
    OPEN = "open"
    """Before there is a runner."""
    WAIT = "wait"
    READ = "read"
    BIND = "bind"
    COMPUTE = "compute"
    COMMIT = "commit"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class CurrentPhase:
    """What a runner is at, for those who wonder why nothing moves."""

    phase: Phase
    time: int
    since_s: float
    what: str = ""
    """Of what is opened: the part that it is at."""


class PhaseTracker:
    def __init__(self, observer: Observer, runtime: Runtime, settings: Settings, time: int) -> None:
        self.observer = observer
        self._clock = runtime.monotonic_s
        self._slow_s = settings.slow_transaction_s
        self.current = CurrentPhase(Phase.WAIT, time, self._clock())
        self._laps: list[Lap] = []

    def enter(self, phase: Phase, time: int) -> None:
        now_s, last = self._clock(), self.current
        if last.phase is not Phase.WAIT:
            self._laps.append(Lap(last.phase.value, last.since_s, now_s - last.since_s))
        self.current = CurrentPhase(phase, time, now_s)
        TRANSACTION.set(None if phase is Phase.WAIT else time)

    def enter_wait(self, time: int) -> None:
        """There was nothing to do."""
        if self.current.phase is not Phase.WAIT:
            self._over(time)

    def finish(self, time: int, how: str, sources: Mapping[str, int], collections: Mapping[str, WrittenSize]) -> None:
        made = TransactionEvent(time, how, self._over(time + 1), sources, collections)
        if made.took_s > self._slow_s:
            took: dict[str, float] = {}
            for lap in made.laps:
                took[lap.phase] = took.get(lap.phase, 0.0) + lap.took_s
            told = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in took.items())
            logger.warning("transaction %d took %.1f s, which is slow: %s", time, made.took_s, told)
        self.observer.on_transaction(made)

    def fail(self, time: int, error: EvertideError) -> None:
        """What is under way comes to nothing, for now."""
        self.observer.on_fault(Fault("transaction", "", error.error_code, self._over(time), time))

    def _over(self, time: int) -> tuple[Lap, ...]:
        self.enter(Phase.WAIT, time)
        laps, self._laps = tuple(self._laps), []
        return laps
