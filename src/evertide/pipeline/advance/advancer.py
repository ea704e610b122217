"""`Advancer`: makes the next transaction, or replays the one that a peer committed.

1. A replica first replays what peers have committed (`evertide.pipeline.replicas.peer_follower`).
2. A bound transaction is completed by the leader, or by the replica that bound it, whose client waits for it.
3. The leader reads all sources; other replicas read only what was pushed to them. Replicas race to bind; the loser
   offers its unbound input again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from evertide.errors import EvertideError, TimeCompacted
from evertide.journal.records import Bound, Input
from evertide.pipeline.input.input_reader import InputReader
from evertide.pipeline.input.pushes import PUSH
from evertide.pipeline.process_context import ProcessContext
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.recovery.opening import open_follower, take_lead
from evertide.pipeline.replicas.leader_tasks import LeaderTasks
from evertide.pipeline.replicas.leadership import Leadership
from evertide.pipeline.replicas.peer_follower import PeerFollower
from evertide.pipeline.transaction.phases import Phase
from evertide.pipeline.transaction.runner import Runner
from evertide.sources.contract import Rows

logger = logging.getLogger(__name__)


def _is_of(bound: Bound, inputs: Mapping[str, Input]) -> bool:
    """Whether a record has exactly this input, apart from the producers, which the journal adds."""
    found = {name: (given.after, given.fragments) for name, given in bound.inputs.items()}
    return found == {name: (given.after, given.fragments) for name, given in inputs.items()}


class Advancer:
    """Makes or replays one transaction at a time."""

    def __init__(
        self,
        context: ProcessContext,
        runner: Runner,
        input_reader: InputReader,
        leader_tasks: LeaderTasks,
        leadership: Leadership,
        *,
        role: ProcessRole,
    ) -> None:
        self._context = context
        self._runner = runner
        self._input_reader = input_reader
        self._leader_tasks = leader_tasks
        self._leadership = leadership
        self._follower = PeerFollower(runner, lambda: leadership.is_leader)
        self._asked = () if role is ProcessRole.READ_ONLY else (PUSH,)
        """The sources that this process reads while it does not lead."""
        self._checked_s = context.runtime.monotonic_s()

    def step(self) -> int | None:
        """Make or replay transactions; return the number of the last one, or None if there was none."""
        try:
            return self._step()
        except EvertideError as error:
            self._runner.phases.fail(self._runner.time, error)
            raise

    def complete_and_keep_up(self) -> None:
        """Complete the transaction under way, and replay what peers have committed."""
        while (outcome := self._runner.outcome) is not None:  # in the middle of it, the state cannot be saved
            self._follower.race(lambda bound=outcome.bound: self._runner.complete(bound))  # type: ignore[misc]
        self._keep_up()

    def _step(self) -> int | None:
        self._lead()
        self._follower.race(self._runner.commit)  # an earlier outcome that waits for its commit
        if self._keep_up():
            return self._runner.time - 1
        leads, journal = self._leader_tasks.is_active, self._context.journal
        if leads and self._runner.outcome is None:
            self._leader_tasks.backfills.start_due()
        pending = self._runner.time
        if pending < journal.upper:  # bound, but not computed yet
            bound = journal.read(pending)
            return self._complete(bound, None) if leads or bound.writer == self._context.writer.id else None
        self._runner.phases.enter(Phase.READ, pending)
        inputs, read = self._input_reader.read(self._runner.definition, None if leads else self._asked)
        if all(given.before == given.after for given in inputs.values()):
            self._runner.phases.enter_wait(self._runner.time)
            return None
        records: list[Bound] = []
        self._follower.race(lambda: records.append(self._runner.bind(inputs)))
        if not records or records[0].writer != self._context.writer.id or not _is_of(records[0], inputs):
            self._runner.phases.enter_wait(self._runner.time)
            return None  # a peer or an earlier bind of unknown outcome was first: unbound input is offered again
        self._input_reader.acknowledge(records[0], is_staged=True)
        return self._complete(records[0], read)

    def _keep_up(self) -> bool:
        """Replay what peers have committed. True if there was something."""
        try:
            return self._follower.keep_up() > 0
        except TimeCompacted as error:
            if (
                self._leader_tasks.is_active or self._runner.machine.time > error.since
            ):  # to replay t, t - 1 must be readable
                raise
            logger.warning("storage no longer has the next transactions; restarting from the newest checkpoint")
            fresh = open_follower(self._context, "a peer", is_read_only=not self._asked)
            self._runner.take_state(fresh)
            self._follower.restart()
            return True

    def _complete(self, bound: Bound, read: dict[str, list[Rows]] | None) -> int:
        while self._runner.time <= bound.time:
            if not self._keep_up():
                self._follower.race(lambda: self._runner.complete(bound, read))
        if self._leader_tasks.is_active:
            self._input_reader.acknowledge(bound, is_staged=False)
            self._leader_tasks.backfills.start_due()
        return bound.time

    def _lead(self) -> None:
        """Try every `lead_interval_s` to take the lead; on success, start the leader's work.

        Not while a transaction is under way, as taking the lead may change the members.
        """
        now_s = self._context.runtime.monotonic_s()
        if self._leader_tasks.is_active or now_s - self._checked_s < self._context.settings.lead_interval_s:
            return
        if self._runner.outcome is not None:
            return
        self._checked_s = now_s
        if self._leadership.try_acquire():
            logger.warning("this process leads from now on")
            while self._follower.keep_up():
                pass
            take_lead(self._runner, self._context.progress)
            self._follower.restart()
            self._leader_tasks.begin(has_another_led=True)
            self._leader_tasks.try_checkpoint(self.complete_and_keep_up)
