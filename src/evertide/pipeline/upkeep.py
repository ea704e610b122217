"""Beside the transactions: merging state, and deleting what neither a checkpoint nor this process needs."""

from __future__ import annotations

import logging
import threading

from evertide.errors import EvertideError, Fenced, GenerationMoved
from evertide.observer import Fault
from evertide.pipeline.checkpointing import Checkpointing
from evertide.pipeline.runner import Runner
from evertide.shard.ticker import Ticker

__all__ = ["Upkeep"]

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.2
_PATIENCE_S = 2.0


class Upkeep(Ticker):
    """What fails is kept in `error`, and tried again; the transactions go on."""

    def __init__(self, runner: Runner, checkpointing: Checkpointing, turn: threading.RLock) -> None:
        super().__init__("evertide-upkeep", _INTERVAL_S)
        self.error: EvertideError | None = None
        self._runner = runner
        self._checkpointing = checkpointing
        self._turn = turn
        self._collected_at_s = runner.runtime.monotonic_s()

    def tick(self) -> bool:
        try:
            while not self._stopping.is_set() and self._runner.machine.maintain(self._stopping.is_set):
                pass
            self._collect_if_due()
        except Fenced as error:
            self.error = error
            return isinstance(error, GenerationMoved)  # a peer's: the transactions take it over
        except EvertideError as error:
            logger.warning("upkeep: %s", error)
            self._runner.observer.failed(Fault("upkeep", "", error.error_code))
            self.error = error
        else:
            self.error = None
        return True

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
