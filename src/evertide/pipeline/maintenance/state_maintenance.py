"""Merges and verifies state, and deletes state that is no longer needed, while transactions continue."""

from __future__ import annotations

import threading
from collections.abc import Callable

from evertide.errors import Damaged, EvertideError, Fenced, GenerationMoved
from evertide.observer import FailureEvent
from evertide.pipeline.maintenance.checkpointer import GARBAGE_COLLECTION, Checkpointer
from evertide.pipeline.maintenance.scrub import Scrub
from evertide.pipeline.transaction.runner import Runner
from evertide.threads.ticker import Ticker

_INTERVAL_S = 0.2
_TURN_WAIT_S = 2.0
_MERGING = "merging of state"
_SCRUBBING = "verification of state"


class StateMaintenance(Ticker):
    """Failures are in `Checkpointer.problems`, and are retried after a wait; they stop no transaction."""

    def __init__(self, runner: Runner, checkpointer: Checkpointer, turn: threading.RLock) -> None:
        super().__init__("evertide-state-maintenance", _INTERVAL_S)
        self._runner = runner
        self._checkpointer = checkpointer
        self._turn = turn
        self._scrub = Scrub(runner)
        self._garbage_at_s = runner.runtime.monotonic_s()

    def tick(self) -> bool:
        try:
            self._try(_MERGING, self._merge)
            self._try(_SCRUBBING, self._verify)
            self._try(GARBAGE_COLLECTION, self._collect_if_due)
        except Fenced as error:  # the heartbeat and the next commit report it
            return isinstance(error, GenerationMoved)  # the next transaction adopts a peer's generation
        return True

    def _try(self, work: str, call: Callable[[], None]) -> None:
        if self._checkpointer.is_waiting(work):
            return
        try:
            call()
        except Fenced:
            raise
        except EvertideError as error:
            self._runner.observer.on_failure(FailureEvent("maintenance", "", error.error_code))
            self._checkpointer.note_failure(work, error)

    def _merge(self) -> None:
        machine = self._runner.machine
        try:
            while not self._stopping.is_set() and machine.maintain(self._stopping.is_set):
                pass
        except Damaged as error:
            if machine.has_part(error):  # else the state was replaced meanwhile
                machine.damage.append(error)
                raise
        self._checkpointer.note_success(_MERGING)

    def _verify(self) -> None:
        self._scrub.run(self._stopping.is_set)
        self._checkpointer.note_success(_SCRUBBING)

    def _collect_if_due(self) -> None:
        runtime, settings = self._runner.runtime, self._runner.settings
        if runtime.monotonic_s() - self._garbage_at_s < settings.garbage_interval_s:
            return
        # Only between two transactions, as a lookup may read released parts; wait for a busy pipeline.
        if self._turn.acquire(timeout=_TURN_WAIT_S):
            try:
                self._checkpointer.collect_garbage()
                self._garbage_at_s = runtime.monotonic_s()
            finally:
                self._turn.release()
