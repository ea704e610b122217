"""Makes checkpoints of a pipeline, and deletes what they make unnecessary.

The order; each step is durable before the next (I11, I12):

1. Claim the checkpoint's number: from now on nothing that the draft names is deleted.
2. Read the states of the shards, then save the arrangements of tables and views; only parts that are not stored yet are
   written. Meanwhile a peer may commit, and maintenance may compact.
3. Publish the checkpoint, and remove the oldest from the catalog, in one commit.
4. With C the time of the oldest checkpoint: let the shards' since advance to C - 1, and truncate the journal below it.
5. Delete unused files, while transactions continue (`collect_garbage`).

A draft is out of date if, before step 2, a peer committed and a compaction merged times below the checkpoint with later
ones, or if a peer changed the generation. Then `checkpoint` replays what the peer committed and makes another draft, at
most `_DRAFTS_MAX` in all. A failed checkpoint stops nothing: `problem` is in the status until a checkpoint succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set

import msgspec

from evertide.checkpoint.garbage import CheckpointGarbage
from evertide.checkpoint.publication import Draft
from evertide.checkpoint.records import CatalogEntry, StateFile
from evertide.errors import Conflict, Damaged, EvertideError, GenerationMoved, OutcomeUnknown, Unavailable
from evertide.observer import CheckpointEvent, FailureEvent
from evertide.pipeline.definition import Definition
from evertide.pipeline.engine import WideSteps
from evertide.pipeline.input.pushes import PUSH, complete_position
from evertide.pipeline.input.source_positions import read_positions
from evertide.pipeline.transaction.runner import Runner
from evertide.problem import ComponentState, Problem
from evertide.scratch import using_system
from evertide.shard.shard import Shard
from evertide.shard.state import ShardState
from evertide.store.paths import PIPELINE, Name
from evertide.store.retry import retry_read
from evertide.threads.failures import Failures
from evertide.types import Time

logger = logging.getLogger(__name__)

GARBAGE_COLLECTION = "garbage collection of state and checkpoints"
_TRUNCATION = "truncation of the journal and of the history of tables and views"

_FORGET_EVERY_S = 3600.0
HOLD = "checkpoint"
"""The hold that keeps the shards readable from the oldest checkpoint on."""

_DRAFTS_MAX = 5


class Checkpointer:
    """Makes the checkpoints of one process, and deletes what they replace."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._failures = Failures(runner.runtime, runner.settings.maintenance_interval_s)
        """The current failures of garbage collection, truncation and the merging of state."""
        self._released: set[str] = set()
        self._forgot_s: float | None = None
        self.last: CatalogEntry | None = None
        self._problem: Problem | None = None
        """Why the last try failed; None if it succeeded."""
        self._generation = 0
        self.refresh()

    def refresh(self) -> None:
        """Find the newest intact checkpoint, which a peer may have made."""
        found = self._runner.checkpoints.newest()
        self.last, self._generation = (found[0], found[1].generation) if found is not None else (None, 0)

    def problems(self) -> list[Problem]:
        """Why the last checkpoint failed, which checkpoints are damaged, and which maintenance of state fails."""
        found = [] if self._problem is None else [self._problem]
        return [*found, *self._runner.checkpoints.damage.problems(), *self._failures.problems()]

    def is_waiting(self, work: str) -> bool:
        """Whether work of maintenance failed, and its retry is not due yet."""
        return self._failures.is_waiting(work)

    def note_failure(self, work: str, error: EvertideError) -> None:
        self._failures.add(work, error)

    def note_success(self, work: str) -> None:
        self._failures.remove(work)

    @property
    def damaged(self) -> frozenset[int]:
        """The numbers of checkpoints with a damaged file, which must be replaced."""
        return self._runner.checkpoints.damage.list_catalogued()

    def is_due(self) -> bool:
        """Whether anything changed since the last checkpoint, or a checkpoint is damaged."""
        last, runner = self.last, self._runner
        is_newer = last is None or last.time != runner.time or self._generation != runner.definition.generation
        return is_newer or bool(self.damaged)

    def checkpoint(self, catch_up: Callable[[], object]) -> CatalogEntry:
        """Make a checkpoint between two transactions (J5). `catch_up` replays what peers have committed."""
        for _ in range(_DRAFTS_MAX - 1):
            try:
                return self._try()
            except (Conflict, GenerationMoved) as error:
                logger.info("a peer committed while the checkpoint was drafted; drafting it again: %s", error)
                catch_up()
        return self._try()

    def _try(self) -> CatalogEntry:
        runner = self._runner
        try:
            with using_system("the checkpoint"):
                entry = self._make()
        except EvertideError as error:
            runner.observer.on_failure(FailureEvent("checkpoint", "", error.error_code))
            since_s = self._problem.since_s if self._problem is not None else runner.runtime.wall_s()
            why = f"could not make a checkpoint; transactions continue, a restart replays more of them: {error.message}"
            self._problem = Problem.from_error(ComponentState.WARNING, error, since_s, why)
            if not isinstance(error, Unavailable | OutcomeUnknown):
                runner.writer.check_registered()  # a fenced process reports the fence, not its consequence
            raise
        self._problem = None
        return entry

    def _make(self) -> CatalogEntry:
        runner = self._runner
        began_s = runner.runtime.monotonic_s()
        drafts: list[Draft] = []

        def draft() -> Draft:
            drafts.append(self._draft(runner.definition))
            return drafts[0]

        self.last = runner.checkpoints.publish(runner.time, draft, runner.writer, runner.settings.checkpoints_kept)
        [state] = drafts
        self._generation = state.generation
        took_s, size = runner.runtime.monotonic_s() - began_s, sum(part.bytes for part in state.parts)
        logger.info(
            "made checkpoint %d at time %d: %d files, in %.1f s", self.last.number, state.time, len(state.parts), took_s
        )
        event = CheckpointEvent(self.last.number, state.time, len(state.parts), size, began_s, took_s)
        runner.observer.on_checkpoint(event)
        try:
            self.release_history()
        except (Unavailable, OutcomeUnknown, Conflict, GenerationMoved) as error:  # the next checkpoint retries
            logger.warning("could not delete what checkpoint %d made superfluous: %s", self.last.number, error)
        except Damaged as error:  # the checkpoint itself is made
            self.note_failure(_TRUNCATION, error)
        else:
            self.note_success(_TRUNCATION)
        return self.last

    def release_history(self) -> None:
        runner = self._runner
        oldest = min((entry.time for entry in runner.checkpoints.entries()), default=0)
        for shard in runner.members.open_all().values():
            if oldest > 1 and shard.since < oldest - 1:
                shard.hold(HOLD, oldest - 1)
                shard.advance_since(oldest - 1, runner.writer)
        # The record before the checkpoint stays: it has the sources' positions, which a further checkpoint needs.
        runner.journal.truncate(min(max(oldest - 1, 0), runner.journal.committed_upper), runner.writer)
        self._forget_producers()

    def _forget_producers(self) -> None:
        now_s, kept_s = self._runner.runtime.monotonic_s(), self._runner.settings.producers_kept_days * 86_400
        if self._forgot_s is None or now_s - self._forgot_s >= min(_FORGET_EVERY_S, kept_s):
            self._forgot_s = now_s
            count = self._runner.journal.producers.forget(self._runner.writer)
            if count:
                logger.info("forgot %d producers that pushed nothing for producers_kept_days", count)

    def collect_garbage(self) -> CheckpointGarbage:
        """Delete what neither a checkpoint nor this process needs. A refusal is in `problems` until a run succeeds."""
        runner = self._runner
        runner.journal.drop_unbound(runner.writer)
        self._released.update(runner.machine.drain_released())
        garbage = runner.checkpoints.collect_garbage(self._live, runner.writer)
        self._released.difference_update(garbage.parts)
        if garbage.refused is not None:
            self.note_failure(GARBAGE_COLLECTION, garbage.refused)
        else:
            self.note_success(GARBAGE_COLLECTION)
        return garbage

    def _live(self) -> _LiveParts:
        runner = self._runner
        used = {part.key for part in runner.machine.parts()}
        return _LiveParts(runner.writer.id, used, frozenset(self._released), runner.machine.store.wide_steps)

    def _draft(self, definition: Definition) -> Draft:
        runner = self._runner
        shards = {name: view.shard for name, view in definition.live_views().items()}
        tables = {name: table.shard for name, table in definition.tables.items() if table.is_declared}
        states = {name: _cut_state(shard, runner.time) for name, shard in runner.members.open_all().items()}
        state, saved = runner.machine.save(shards, tables)
        parts = tuple({part.key: StateFile(part.key, part.bytes, part.checksum) for part in saved}.values())
        record = retry_read(lambda: runner.meta.head(PIPELINE), runner.runtime, runner.settings)
        positions = read_positions(runner.journal, definition, runner.sources, runner.time)
        return Draft(
            time=Time(runner.time),
            fingerprint=definition.fingerprint,
            generation=definition.generation,
            positions={
                **positions,
                PUSH: complete_position(positions[PUSH], runner.journal.read_producers_before(runner.time)),
            },
            state=state,
            parts=parts,
            shards=states,
            members=definition.list_members(),
            pipeline=record.data if record else b"",
        )


def _cut_state(shard: Shard, upper: int) -> ShardState:
    """The state of a shard without times from `upper` on, which a peer may have committed meanwhile."""
    state = shard.log.read().state
    if state.upper == upper:
        return state
    batches = tuple(batch for batch in state.batches if batch.lower < upper)
    if state.finalized or any(batch.upper > upper for batch in batches) or state.since >= max(upper, 1):
        why = f"a compaction merged times below {upper} with later ones, up to {state.upper}"
        raise Conflict(where=shard.log.path, why=why)
    return msgspec.structs.replace(state, upper=upper, batches=batches)


class _LiveParts:
    """The parts in use: those that this process wrote and has not released, and others that it uses."""

    def __init__(self, writer: str, used: Set[str], released: Set[str], wide_steps: WideSteps) -> None:
        self._writer = writer
        self._used = used
        self._released = released
        self._wide_steps = wide_steps

    def __contains__(self, key: object) -> bool:
        name = Name.parse(str(key))
        if name is not None and name.writer == self._writer:
            return key not in self._released and not self._wide_steps.is_garbage(str(key))
        return key in self._used
