"""`Advancing`: the next transaction, whoever makes it.

1. A replica first takes what peers have committed (`evertide.pipeline.replicas.follow`).
2. What is bound is completed by the one that leads; or by the one that bound it, which somebody waits for.
3. The one that leads asks all sources for input; the others only for what was pushed to them. They race to bind it: who
   loses offers again what is still unbound.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from evertide.errors import EvertideError, TimeCompacted
from evertide.journal.records import Bound, Input
from evertide.pipeline.input.offers import Intake
from evertide.pipeline.input.pushes import PUSH
from evertide.pipeline.recovery.opening import Hosts, open_follower, open_runner, take_lead
from evertide.pipeline.replicas.follow import Following
from evertide.pipeline.replicas.lead import Leading
from evertide.pipeline.replicas.leader_tasks import Duties
from evertide.pipeline.replicas.ownership import Role
from evertide.pipeline.transaction.phases import Phase
from evertide.pipeline.transaction.runner import Runner
from evertide.sources.contract import Rows

__all__ = ["Advancing", "opened"]

logger = logging.getLogger(__name__)


def opened(hosts: Hosts, leading: Leading, stopping: threading.Event, role: Role) -> Runner:
    """To lead, if nobody does; else to follow, once the one that leads has begun. May be asked again after an error."""
    hosts.writer.adopt_generation()
    while not leading.look():
        leader, is_read_only = leading.leader(), role is Role.READ_ONLY
        if hosts.journal.committed_upper and (leader is not None or is_read_only):
            who = f"process {leader.pid} on {leader.host}" if leader is not None else "nobody"
            logger.info("%s leads, and this process follows", who)
            return open_follower(hosts, who, is_read_only=is_read_only)
        stopping.wait(hosts.settings.poll_interval_s)
    logger.info("this process leads")
    return open_runner(hosts)


def _is_of(bound: Bound, inputs: Mapping[str, Input]) -> bool:
    """Whether a record holds just this input; what it says of producers beside it is the journal's."""
    found = {name: (given.after, given.fragments) for name, given in bound.inputs.items()}
    return found == {name: (given.after, given.fragments) for name, given in inputs.items()}


class Advancing:
    def __init__(
        self, hosts: Hosts, runner: Runner, intake: Intake, duties: Duties, leading: Leading, *, role: Role
    ) -> None:
        self._hosts = hosts
        self._runner = runner
        self._intake = intake
        self._duties = duties
        self._leading = leading
        self._following = Following(runner, lambda: leading.is_ours)
        self._asked = () if role is Role.READ_ONLY else (PUSH,)
        """The sources that a process asks which does not lead."""
        self._looked_s = hosts.runtime.monotonic_s()

    def step(self) -> int | None:
        """The number of the last transaction that was taken; None if there is nothing."""
        try:
            return self._stepped()
        except EvertideError as error:
            self._runner.course.fails(self._runner.time, error)
            raise

    def settle(self) -> None:
        """Bring what is computed to its end, and take what peers have committed."""
        while (outcome := self._runner.outcome) is not None:  # a part of it may be taken: no state to keep
            self._following.together(lambda bound=outcome.bound: self._runner.complete(bound))  # type: ignore[misc]
        self._kept_up()

    def _stepped(self) -> int | None:
        self._lead()
        self._following.together(self._runner.commit)  # what waits from before
        if self._kept_up():
            return self._runner.time - 1
        leads, journal = self._duties.is_begun, self._hosts.journal
        if leads and self._runner.outcome is None:
            self._duties.backfills.go_on()
        pending = self._runner.time
        if pending < journal.upper:  # bound, and its computation was not begun
            bound = journal.read(pending)
            return self._completed(bound, None) if leads or bound.writer == self._hosts.writer.id else None
        self._runner.course.does(Phase.READ, pending)
        inputs, read = self._intake.input(None if leads else self._asked)
        if all(given.before == given.after for given in inputs.values()):
            self._runner.course.waits(self._runner.time)
            return None
        made: list[Bound] = []
        self._following.together(lambda: made.append(self._runner.bind(inputs)))
        if not made or made[0].writer != self._hosts.writer.id or not _is_of(made[0], inputs):
            self._runner.course.waits(self._runner.time)
            return None  # a peer was first, or an earlier bind of ours in doubt: what is still unbound is offered again
        self._intake.acknowledge(made[0], is_staged=True)
        return self._completed(made[0], read)

    def _kept_up(self) -> bool:
        """Whether peers had made something that we had not."""
        try:
            return self._following.keep_up() > 0
        except TimeCompacted as error:
            if self._duties.is_begun or self._runner.machine.time > error.since:  # to take t, t - 1 must be readable
                raise
            logger.warning("this replica fell behind what is kept, and starts again from the newest checkpoint")
            fresh = open_follower(self._hosts, "a peer", is_read_only=not self._asked)
            self._runner.machine, self._runner.members, self._runner.stands = fresh.machine, fresh.members, fresh.stands
            self._runner.lost = fresh.lost
            self._following.restart()
            return True

    def _completed(self, bound: Bound, read: dict[str, list[Rows]] | None) -> int:
        while self._runner.time <= bound.time:
            if not self._kept_up():
                self._following.together(lambda: self._runner.complete(bound, read))
        if self._duties.is_begun:
            self._intake.acknowledge(bound, is_staged=False)
            self._duties.backfills.go_on()
        return bound.time

    def _lead(self) -> None:
        """Look now and then whether the lead is ours; if it has become so, take up what comes with it.

        Not while a transaction is under way: what comes with it may change the members.
        """
        now_s = self._hosts.runtime.monotonic_s()
        if self._duties.is_begun or now_s - self._looked_s < self._hosts.settings.lead_interval_s:
            return
        if self._runner.outcome is not None:
            return
        self._looked_s = now_s
        if self._leading.look():
            logger.warning("this process leads from now on")
            while self._following.keep_up():
                pass
            take_lead(self._runner, self._hosts.progress)
            self._following.restart()
            self._duties.begin(anew=True)
            self._duties.try_checkpoint(self.settle)
