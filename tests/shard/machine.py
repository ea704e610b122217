"""A state machine test against a model: several processes on one failing storage, in one thread, so that Hypothesis can
shrink a failure.

1. Three *actors* share one storage in memory and two shards. Like processes, each has its own writer, shards, caches,
   leases and readers.
2. A step is one *action* of one actor. The machine also draws how storage fails meanwhile (each fault of `Faults`, and
   commits and puts that take effect late, after their answer was lost), and an action of another actor, or the actor's
   death, to happen right before one of the step's storage calls. Threads and processes cannot interfere with each other
   in any other way.
3. The machine reads from the log, and from the records of since and holds, what became durable, and in which order, and
   applies that to the model. The outcome that an action got must agree with them: a success is there, a failure "did
   not happen" never gets there, and only an unregistered writer is fenced.
4. After every step the machine reads the shards with a new process: the content at every readable time, since, upper,
   and every blob that a state names. Every part under a live lease exists (I6).
5. At the end all actors leave. Only what states and the newest roll-ups name remains, and few diffs.
"""

from __future__ import annotations

from functools import partial

from hypothesis import HealthCheck, settings
from hypothesis import seed as set_seed
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from evertide.errors import (
    OutcomeUnknown,
    Unavailable,
)
from evertide.shard.compaction import choose
from evertide.shard.hold import read_holds
from evertide.shard.parts.part import Part, decode_part
from evertide.shard.shard_log import ShardLog, Version
from evertide.store.paths import shard_key, writer_key
from tests.shard.machine_actions import MachineActions
from tests.shard.machine_actors import (
    ACTORS,
    SHARDS,
    STEPS,
    TTL_S,
    Actor,
    Cross,
    Step,
)
from tests.shard.model import SCHEMA, Change, sum_diffs, to_changes, to_rows


class ShardMachine(MachineActions):
    @rule(step=STEPS)
    def act(self, step: Step) -> None:
        """One rule for all actions: Hypothesis disables most rules in each run, so that with a rule per action little
        would happen.
        """
        with self._record_failure():
            self.crossed = False
            self._replace(step)
            self._perform(step)
            self._sync()

    def _replace(self, step: Step) -> None:
        """A new process replaces one that died, or that made enough attempts after it was fenced."""
        actor = self.actors[step.slot]
        if actor is not None and self._is_fenced(actor.writer):
            actor.fenced_deeds += 1
            if actor.fenced_deeds > 3:
                self._forget_actor(actor)
        if self.actors[step.slot] is None:
            try:
                self.actors[step.slot] = self._new_actor(step.rate, step.seed)
            except (Unavailable, OutcomeUnknown):
                assert step.rate > 0

    # Invariants after every step

    @invariant()
    def shards_agree_with_the_model(self) -> None:
        with self._record_failure():
            self._sync()
            for name in SHARDS:
                self._check_shard(name)

    def _check_shard(self, name: str) -> Version:
        model, log = self.models[name], self._fresh(name)
        version = log.read()
        state = version.state
        assert (state.since, state.upper, state.finalized) == (model.since, model.upper, model.finalized)
        assert read_holds(log).since == model.since
        assert version.seqno == len(self.entries[name])
        held = [change for part in state.parts for change in self._decode(log, part)]
        if not model.finalized:
            assert sum_diffs((row, diff) for row, time, diff in held if time <= model.since) == model.content(
                model.since
            )
            later = sum_diffs(((row, time), diff) for row, time, diff in held if time > model.since)
            assert later == model.between(model.since + 1, model.upper)
        return version

    def _decode(self, log: ShardLog, part: Part) -> list[Change]:
        if part.key:
            assert part.key in self.blob._blobs, f"a state names a blob that does not exist: {part.key}"
        if part.checksum not in self.decoded:
            content = self.blob.get(part.key) if part.key else part.inline
            self.decoded[part.checksum] = to_changes(decode_part(part, content, SCHEMA, part.key))
        return self.decoded[part.checksum]

    @invariant()
    def leased_parts_exist(self) -> None:
        with self._record_failure():
            for actor in self.actors:
                if actor is not None:
                    actor.exposed |= self.runtime.wall_s() > actor.safe_until_s
                    there = self.meta.head(writer_key(actor.writer.id)) is not None
                    assert actor.exposed or there, "a writer was unregistered while it was alive"
                for opened in actor.opened if actor else ():
                    opened.exposed |= self.runtime.wall_s() > opened.safe_until_s
                    assert opened.exposed or self._stands(opened.lease), "a lease was ended while its reader was alive"
                    if self._stands(opened.lease):
                        missing = [p.key for p in opened.snapshot.parts if p.key and p.key not in self.blob._blobs]
                        assert not missing, f"parts under a lease do not exist (I6): {missing}"

    # Teardown

    def teardown(self) -> None:
        if not self.failed and hasattr(self, "models"):
            self._quiesce()

    def _quiesce(self) -> None:
        for slot, actor in enumerate(self.actors):
            for _ in range(len(actor.opened) if actor else 0):
                self._perform(Step(slot, "read_snapshot", 0, 1))
            while actor is not None and (actor.opened or actor.listeners):
                self._perform(Step(slot, "leave", int(bool(actor.listeners)), 0))
        self.late.arrive_all()
        self._sync()
        self.runtime.advance_s(
            TTL_S + 101
        )  # the clock may have been set back; without heartbeats every writer but the janitor's is ended
        self.runtime.jump_wall_s(1000)
        janitor = self._new_actor()
        for name in SHARDS:
            self._collect_and_check(janitor, name)
        named = {part.key for name in SHARDS for part in self._fresh(name).read().state.parts if part.key}
        rollups = [self._fresh(name).read_newest_rollup() for name in SHARDS]
        named |= {rollup[1].key for rollup in rollups if rollup is not None}
        assert {entry.key for entry in self.blob.list("")} == named

    def _collect_and_check(self, janitor: Actor, name: str) -> None:
        shard, model = janitor.handles[name], self.models[name]
        for hold in list(shard.holds):
            self._change_hold(janitor, name, hold, None, partial(shard.release, hold))
        shard.compact(janitor.writer)
        shard.advance_since(model.upper - 1, janitor.writer)
        shard.compact(janitor.writer)
        shard.collect_garbage(janitor.writer)
        self._sync()
        shard.collect_garbage(janitor.writer)
        self._sync()
        version = self._check_shard(name)
        assert model.finalized or model.since == max(0, model.upper - 1)
        assert not choose(version.state, self.settings)
        assert set(version.state.tokens) <= {janitor.writer.id}
        kept = len(self.meta.scan(shard_key(name)))
        assert kept <= 2 * self.settings.rollup_every_diffs + 2, f"{kept} diffs remain"
        if model.upper and not model.finalized:
            assert to_rows(self._read(shard, model.upper - 1)) == model.content(model.upper - 1)


def run_machine(examples: int, steps: int, *, seed: int) -> None:
    """The seed decides the examples: the same seed repeats a failure."""

    @set_seed(seed)
    class SeededMachine(ShardMachine):
        """Hypothesis reads the seed from the class."""

    run_state_machine_as_test(
        SeededMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


def cross_everywhere(action: str, actions: tuple[str, ...]) -> int:
    calls = 1
    while run_crossing(action, Cross(calls, 1, actions, y=2)):
        calls += 1
    return calls - 1


def run_crossing(action: str, cross: Cross) -> bool:
    """Run the action with the crossing. True if the action made that many calls.

    Actor 0 performs the action, actor 1 crosses it, actor 2 checks and garbage-collects after them.
    """
    machine = ShardMachine()
    machine.begin(
        appends=7,
        inline_bytes_max=1,
        rollup_every_diffs=4,
        compaction_fan_in=2,
        compaction_rows_max=1000,
        part_rows_max=2,
    )
    before = [(2, "advance_since", 2), (1, "compact", 2), (1, "append", 2), (1, "append", 2), (0, "store", 2)]
    before += [(1, "store", 2)]
    if action not in (
        "open_snapshot",
        "collect",
    ):  # a lease that already exists would hide one that is taken too late
        before += [(2, "open_snapshot", 2), (0, "open_snapshot", 2)]
    if action == "release":  # of a hold that stands, so that it commits
        before += [(2, "hold", 4)]
    after = [(slot, "read_snapshot", 2) for slot in range(ACTORS)]
    after += [(2, "beat", 2), (2, "advance_since", 7), (2, "collect", 2), (2, "read_snapshot", 2)]
    try:
        for slot, name, y in before:
            machine.act(Step(slot, name, x=2, y=y))
        machine.act(Step(0, action, x=2, y=2, cross=cross))
        reached = machine.crossed
        for slot, name, y in after:
            machine.act(Step(slot, name, x=2, y=y))
            machine.shards_agree_with_the_model()
            machine.leased_parts_exist()
        machine.teardown()
    except BaseException as error:
        error.add_note(f"again: run_crossing({action!r}, {cross})")
        raise
    return reached
