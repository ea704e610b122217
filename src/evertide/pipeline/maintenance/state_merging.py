"""Beside the transactions: merging state, and deleting what neither a checkpoint nor this process needs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from evertide.errors import EvertideError, Fenced, GenerationMoved
from evertide.observer import Fault
from evertide.pipeline.maintenance.checkpoints import COLLECTION, Checkpointing
from evertide.pipeline.transaction.runner import Runner
from evertide.threads.ticker import Ticker

__all__ = ["Upkeep"]

_INTERVAL_S = 0.2
_PATIENCE_S = 2.0
_MERGING = "merging of state"


class Upkeep(Ticker):
    """What fails is named in `Checkpointing.failing`, and tried again after a wait; the transactions go on."""

    def __init__(self, runner: Runner, checkpointing: Checkpointing, turn: threading.RLock) -> None:
        super().__init__("evertide-upkeep", _INTERVAL_S)
        self._runner = runner
        self._checkpointing = checkpointing
        self._turn = turn
        self._collected_at_s = runner.runtime.monotonic_s()

    def tick(self) -> bool:
        try:
            self._tried(_MERGING, self._merge)
            self._tried(COLLECTION, self._collect_if_due)
        except Fenced as error:  # the heartbeat and the next commit say so
            return isinstance(error, GenerationMoved)  # a peer's: the transactions take it over
        return True

    def _tried(self, work: str, call: Callable[[], None]) -> None:
        failing = self._checkpointing.failing
        if failing.is_waiting(work):
            return
        try:
            call()
        except Fenced:
            raise
        except EvertideError as error:
            self._runner.observer.on_fault(Fault("upkeep", "", error.error_code))
            failing.add(work, error)

    def _merge(self) -> None:
        while not self._stopping.is_set() and self._runner.machine.maintain(self._stopping.is_set):
            pass
        self._checkpointing.failing.remove(_MERGING)

    def _collect_if_due(self) -> None:
        runtime, settings = self._runner.runtime, self._runner.settings
        if runtime.monotonic_s() - self._collected_at_s < settings.collection_interval_s:
            return
        # Between two transactions only, as a look-up may read what is released; a busy pipeline is waited for.
        if self._turn.acquire(timeout=_PATIENCE_S):
            try:
                self._checkpointing.collect()
                self._collected_at_s = runtime.monotonic_s()
            finally:
                self._turn.release()
