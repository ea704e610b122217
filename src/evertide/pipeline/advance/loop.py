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
from dataclasses import dataclass
from typing import Protocol

from evertide.errors import OutcomeUnknown, Unavailable
from evertide.pipeline.input.input_reader import InputReader
from evertide.pipeline.pause import Pause
from evertide.pipeline.replicas.leader_tasks import LeaderTasks
from evertide.pipeline.replicas.liveness import Liveness
from evertide.runtime import Runtime
from evertide.settings import Settings

logger = logging.getLogger(__name__)


class LoopTarget(Protocol):
    @property
    def time(self) -> int: ...

    @property
    def leads(self) -> bool: ...

    def advance(self) -> int | None: ...

    def try_checkpoint(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Loop:
    """Advances a pipeline until it is stopped."""

    pipeline: LoopTarget
    input_reader: InputReader
    leader_tasks: LeaderTasks
    pause: Pause
    liveness: Liveness
    stopping: threading.Event
    runtime: Runtime
    settings: Settings

    def run(
        self, transactions: int | None, on_transaction: Callable[[int, float], None] | None, *, until_idle: bool
    ) -> None:
        clock, count, last = self.runtime.monotonic_s, 0, self.pipeline.time
        idle_at: int | None = None
        replaced: Set[int] = frozenset()
        checkpoint_s = clock() + self.settings.checkpoint_interval_s
        if until_idle:
            self.input_reader.set_goals()
        while not self.stopping.is_set() and (transactions is None or count < transactions):
            self.liveness.note_round()
            damaged = self.leader_tasks.checkpointer.damaged
            if not damaged <= replaced:
                replaced = damaged  # try once now; if that fails, again at the next interval
                self.pipeline.try_checkpoint()
            began_s = clock()
            advanced = None if self.pause.is_on else self._advance_with_retry()
            for time in range(last + 1, self.pipeline.time + 1):  # pushes may have made some, too
                count, last = count + 1, time
                if on_transaction is not None:
                    on_transaction(time, clock() - began_s)
            if until_idle and idle_at is None and self._is_idle(advanced):
                idle_at = self.pipeline.time
            if idle_at is not None and self.leader_tasks.has_delivered(idle_at):
                break
            if advanced is None:
                self.stopping.wait(self.settings.transaction_interval_s)
            if clock() >= checkpoint_s:
                self.pipeline.try_checkpoint()
                checkpoint_s = clock() + self.settings.checkpoint_interval_s
        self.liveness.end_loop()

    def _is_idle(self, advanced: int | None) -> bool:
        """`advanced` is the result of the last step. After a transaction only the leader knows the sources' state."""
        is_asked = advanced is None or self.pipeline.leads
        return is_asked and not self.pause.is_on and self.input_reader.is_idle()

    def _advance_with_retry(self) -> int | None:
        try:
            advanced = self.pipeline.advance()
        except (Unavailable, OutcomeUnknown) as error:
            self.input_reader.note_stall("", error)
            self.stopping.wait(self.settings.retry_wait_max_s)
            return None
        self.input_reader.note_progress("")
        return advanced
