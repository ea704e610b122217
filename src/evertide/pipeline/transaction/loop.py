"""`Loop`: makes transactions as sources offer input, and periodic checkpoints.

1. The loop ends when it is stopped, after `transactions` transactions, or, with `until_idle`, when the input is
   exhausted and delivered to all sinks.
2. A source that may receive input without end (`HasGoal`) is exhausted once the input is bound that was upstream when
   the loop began.
3. During a storage outage, or after a write of unknown outcome, the loop waits and retries: the next step reads the
   stored state, and continues from there (I14).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Set
from typing import Protocol

from evertide.errors import OutcomeUnknown, Unavailable
from evertide.pipeline.input.input_reader import InputReader
from evertide.pipeline.pause import Pause
from evertide.pipeline.replicas.leader_tasks import LeaderTasks
from evertide.pipeline.replicas.liveness import Liveness
from evertide.runtime import Runtime
from evertide.settings import Settings

__all__ = ["Loop", "LoopTarget"]

logger = logging.getLogger(__name__)


class LoopTarget(Protocol):
    @property
    def time(self) -> int: ...

    @property
    def leads(self) -> bool: ...

    def advance(self) -> int | None: ...

    def try_checkpoint(self) -> None: ...


class Loop:
    def __init__(  # noqa: PLR0917
        self,
        pipeline: LoopTarget,
        input_reader: InputReader,
        leader_tasks: LeaderTasks,
        pause: Pause,
        liveness: Liveness,
        stopping: threading.Event,
        runtime: Runtime,
        settings: Settings,
    ) -> None:
        self._pipeline = pipeline
        self._input_reader = input_reader
        self._leader_tasks = leader_tasks
        self._pause = pause
        self._liveness = liveness
        self._stopping = stopping
        self._clock = runtime.monotonic_s
        self._settings = settings

    def run(self, transactions: int | None, told: Callable[[int, float], None] | None, *, until_idle: bool) -> None:
        made, last = 0, self._pipeline.time
        idle_at: int | None = None
        replaced: Set[int] = frozenset()
        checkpoint_s = self._clock() + self._settings.checkpoint_interval_s
        if until_idle:
            self._input_reader.set_goals()
        while not self._stopping.is_set() and (transactions is None or made < transactions):
            self._liveness.note_round()
            damaged = self._leader_tasks.checkpointer.damaged
            if not damaged <= replaced:
                replaced = damaged  # try once now; if that fails, again at the next interval
                self._pipeline.try_checkpoint()
            began_s = self._clock()
            t = None if self._pause.is_on else self._advance_with_retry()
            for each in range(last + 1, self._pipeline.time + 1):  # pushes may have made some, too
                made, last = made + 1, each
                if told is not None:
                    told(each, self._clock() - began_s)
            if until_idle and idle_at is None and self._is_idle(t):
                idle_at = self._pipeline.time
            if idle_at is not None and self._leader_tasks.has_delivered(idle_at):
                break
            if t is None:
                self._stopping.wait(self._settings.transaction_interval_s)
            if self._clock() >= checkpoint_s:
                self._pipeline.try_checkpoint()
                checkpoint_s = self._clock() + self._settings.checkpoint_interval_s
        self._liveness.end_loop()

    def _is_idle(self, made: int | None) -> bool:
        """`made` is the result of the last step. After a transaction only the leader knows the sources' state."""
        is_asked = made is None or self._pipeline.leads
        return is_asked and not self._pause.is_on and self._input_reader.is_idle()

    def _advance_with_retry(self) -> int | None:
        try:
            made = self._pipeline.advance()
        except (Unavailable, OutcomeUnknown) as error:
            self._input_reader.note_stall("", error)
            self._stopping.wait(self._settings.retry_wait_max_s)
            return None
        self._input_reader.note_progress("")
        return made
