"""`Liveness`: whether a process that runs a pipeline is alive. `status` says whether it is healthy.

1. A process is alive if all its threads run and, within `hang_after_s`, its loop (`evertide.pipeline.advance.loop`)
   began a new round, or the current phase made a step (`evertide.threads.steps`). Tasks that Spark finished count as
   steps.
2. A process that waits for input, for storage or for the end of a pause is alive.
3. The check reads memory only, and Spark's progress after half of `hang_after_s`, so it works during a storage outage.
4. A leader that hangs stops its heartbeat, so that another replica takes the lead (decision 15). This applies from the
   registration on. A hang before it shows in the log and in the liveness of the process (`watch_for_hang`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from evertide.pipeline.transaction.phases import CurrentPhase, Phase
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.threads.steps import watch_steps
from evertide.threads.ticker import Ticker

logger = logging.getLogger(__name__)

_CHECK_EVERY_S = 5.0

_OPENING: list[Liveness] = []
"""One per pipeline that this process is opening: a server reports liveness before its pipeline is open."""

_OPENING_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class LivenessReport:
    is_alive: bool
    why: str
    """Empty if the process is alive."""
    phase: str
    """`open`, `wait`, `read`, `bind`, `compute`, `commit` or `replay`."""
    transaction: int
    since_s: float
    """How long the phase has lasted."""


class Liveness:
    def __init__(
        self,
        current: Callable[[], CurrentPhase],
        ended: Callable[[], Iterable[str]],
        runtime: Runtime,
        hang_after_s: float,
        activity: Callable[[], object] = lambda: None,
    ) -> None:
        """`ended` names threads that ended unexpectedly; `activity` returns a new value when Spark made progress."""
        self._current = current
        self._ended = ended
        self._clock = runtime.monotonic_s
        self._hang_after_s = hang_after_s
        self._activity = activity
        self._seen: object = None
        self._moved_s = 0.0
        """When the current phase made its last step."""
        self._round_s: float | None = None
        """When the loop last began a round; None while no loop runs."""

    def note_round(self) -> None:
        self._round_s = self._clock()

    def end_loop(self) -> None:
        """Note that the loop has ended in order."""
        self._round_s = None

    def note_step(self) -> None:
        self._moved_s = self._clock()

    def report(self) -> LivenessReport:
        current = self._current()
        ended = sorted(self._ended())
        why = f"the threads {ended} have ended; the log has the error" if ended else self.find_hang()
        return LivenessReport(not why, why, current.phase.value, current.time, self._clock() - current.since_s)

    def find_hang(self) -> str:
        """Why this process hangs; empty if it does not."""
        if self._measure_pause_s() > self._hang_after_s / 2 and (seen := self._activity()) != self._seen:
            self._seen = seen
            self.note_step()
        still_s, current = self._measure_pause_s(), self._current()
        if still_s <= self._hang_after_s:
            return ""
        if current.phase is Phase.OPEN:
            return f"{current.what} has made no step for {still_s:.0f} s"
        if current.phase is not Phase.WAIT:
            return f"transaction {current.time} has made no step in phase {current.phase.value!r} for {still_s:.0f} s"
        return f"the loop has made no step for {still_s:.0f} s"

    def find_stall(self, after_s: float) -> tuple[str, float] | None:
        """Why the next transaction is not bound (S1), and for how long; None if it is not stalled.

        Opening makes long steps (Spark analyzes views), so opening is stalled only once it hangs.
        """
        current, still_s = self._current(), self._measure_pause_s()
        if current.phase is Phase.OPEN:
            why = self.find_hang()
            return (why, still_s) if why else None
        if current.phase not in (Phase.READ, Phase.BIND) or still_s <= after_s:
            return None
        what = "its sources are read" if current.phase is Phase.READ else "it is bound"
        return f"transaction {current.time} makes no progress while {what}: a call does not return", still_s

    def _measure_pause_s(self) -> float:
        """The time since the last sign of progress; 0 if no loop runs."""
        current, now_s = self._current(), self._clock()
        if current.phase is not Phase.WAIT:
            return now_s - max(current.since_s, self._moved_s)
        if self._round_s is None:
            return 0.0
        return now_s - max(self._round_s, current.since_s, self._moved_s)


class HeartbeatGate:
    """Returns why the heartbeat is withheld: this process leads, and hangs. Empty otherwise; logged once."""

    def __init__(self, liveness: Liveness, leads: Callable[[], bool]) -> None:
        self._liveness = liveness
        self._leads = leads
        self._is_on = False

    def __call__(self) -> str:
        why = self._liveness.find_hang() if self._leads() else ""
        if why and not self._is_on:
            logger.error("withholding the heartbeat, so that another replica can take the lead: %s", why)
        self._is_on = bool(why)
        return why


class HangLog(Ticker):
    """Logs once that a process hangs, and once that it recovered. It calls no storage, which may be what hangs."""

    def __init__(self, liveness: Liveness, settings: Settings) -> None:
        super().__init__("evertide-hang", min(_CHECK_EVERY_S, settings.hang_after_s / 4))
        self._liveness = liveness
        self._is_logged = False

    def tick(self) -> bool:
        why = self._liveness.find_hang()
        if why and not self._is_logged:
            logger.error("this process hangs: %s (hang_after_s); a call to storage or to Spark may not return", why)
        elif self._is_logged and not why:
            logger.warning("this process makes progress again")
        self._is_logged = bool(why)
        return True


@contextmanager
def register_opening(liveness: Liveness) -> Iterator[None]:
    """Within the block, steps of this thread count for `liveness`, and `find_opening_hang` includes `liveness`."""
    with _OPENING_LOCK:
        _OPENING.append(liveness)
    try:
        with watch_steps(liveness.note_step):
            yield
    finally:
        with _OPENING_LOCK:
            _OPENING.remove(liveness)


@contextmanager
def watch_for_hang(what: str, runtime: Runtime, settings: Settings) -> Iterator[None]:
    """Report a hang if the block, which runs before the registration, makes no step for `hang_after_s`."""
    current = CurrentPhase(Phase.OPEN, -1, runtime.monotonic_s(), what)
    liveness = Liveness(lambda: current, tuple, runtime, settings.hang_after_s)
    with HangLog(liveness, settings), register_opening(liveness):
        yield


def find_opening_hang() -> str:
    """Why the opening of a pipeline hangs; empty if none does."""
    with _OPENING_LOCK:
        several = [*_OPENING]
    return next((why for liveness in several if (why := liveness.find_hang())), "")
