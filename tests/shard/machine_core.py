"""The core of the state machine: performs the steps of actors, and applies the log to the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from evertide.errors import (
    EvertideError,
    Fenced,
    OutcomeUnknown,
    TimeCompacted,
    Unavailable,
)
from evertide.settings import Settings
from evertide.shard.heartbeat import Heartbeat
from evertide.shard.hold import HoldRecord
from evertide.shard.lease import Lease
from evertide.shard.shard import Shards
from evertide.shard.shard_log import ShardLog
from evertide.shard.state import Appended, Finalized, Forgotten, LogEntry, SinceAdvanced
from evertide.store import MemoryBlob, MemoryMeta
from evertide.store.meta import unseal
from evertide.store.paths import GENERATION, hold_key, lease_key, shard_key, writer_key
from evertide.store.writers import Writer
from tests.kit.faulty import FaultyBlob, FaultyMeta
from tests.kit.runtime import ManualRuntime
from tests.shard.machine_actors import (
    ACTORS,
    NOT_HAPPENED,
    SHARDS,
    TTL_S,
    Actor,
    Attempt,
    Cross,
    Died,
    HoldChange,
    Late,
    LateBlob,
    LateMeta,
    Line,
    Step,
    T,
)
from tests.shard.model import SCHEMA, Change, Model


class MachineCore(RuleBasedStateMachine):
    """Performs steps, and applies the log to the model."""

    actors: list[Actor | None]

    @initialize(
        inline_bytes_max=st.sampled_from([1, 1, 700, 16_384]),
        rollup_every_diffs=st.sampled_from([4, 2, 1]),
        compaction_fan_in=st.sampled_from([2, 3]),
        compaction_rows_max=st.sampled_from([1000, 2]),
        part_rows_max=st.sampled_from([1000, 2]),
        appends=st.integers(min_value=0, max_value=8),
    )
    def begin(self, appends: int, **sizes: int) -> None:
        self.settings = Settings(
            **sizes,
            fetchers=1,  # one thread only, or the order of faults would be random
            lease_ttl_s=TTL_S,
            writer_ttl_s=TTL_S,
            retry_wait_s=0.25,
            retry_wait_max_s=1.0,
            retry_limit_s=1.5,
        )
        self.runtime = ManualRuntime()
        self.blob, self.meta, self.late = MemoryBlob(), MemoryMeta(self.runtime), Late()
        self.models = {name: Model() for name in SHARDS}
        self.hold_records: dict[str, list[HoldRecord]] = {name: [] for name in SHARDS}
        self.hold_changes: list[HoldChange] = []
        self.attempts: list[Attempt] = []
        self.refused: set[tuple[str, str]] = set()
        self.entries: dict[str, list[LogEntry]] = {name: [] for name in SHARDS}
        self.decoded: dict[str, list[Change]] = {}
        self.rows_made = 0
        self.failed = self.crossed = self.is_crossing = False
        self.actors = [None] * ACTORS
        first = self._new_actor()
        for name in SHARDS:
            first.handles[name] = first.shards.create(name, SCHEMA, first.writer)
        self.actors = [first, self._new_actor(), self._new_actor()]
        self.actions = {name.removeprefix("do_"): getattr(self, name) for name in dir(self) if name.startswith("do_")}
        for number in range(appends):
            self._perform(Step(number % ACTORS, "append", number % 4, number % 3 + 1))

    def _new_actor(self, rate: float = 0.0, seed: int = 0) -> Actor:
        line = Line(self.late)
        blob = FaultyBlob(LateBlob(self.blob, line), line.faults)
        meta = FaultyMeta(LateMeta(self.meta, line, self._sync), line.faults)
        line.begin(rate, seed, None)
        try:
            writer = Writer.register(meta, runtime=self.runtime, settings=self.settings)
            shards = Shards(blob, meta, runtime=self.runtime, settings=self.settings)
            handles = {name: shards.open(name) for name in SHARDS} if self.meta.head(shard_key(SHARDS[0])) else {}
        finally:
            line.end()
        heart = Heartbeat(self.settings, shards.leases, writer)
        return Actor(line, shards, writer, heart, handles, exposed=True)

    # Steps

    @contextmanager
    def _record_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.failed = True
            raise

    def _perform(self, step: Step) -> None:
        actor, cross = self.actors[step.slot], step.cross
        if actor is None:
            return
        self._sync()
        before = (cross.calls, lambda: self._cross(step, cross)) if cross else None
        actor.line.begin(step.rate, step.seed, before)
        try:
            self.actions[step.action](actor, step.x, step.y)
        except Died:
            self._forget_actor(actor)
        finally:
            actor.line.end()

    def _cross(self, step: Step, cross: Cross) -> None:
        self.crossed = True
        actor = self.actors[step.slot]
        if cross.actions == ("die",):
            assert actor is not None
            actor.line.is_dead = True
        elif cross.slot != step.slot:
            self.is_crossing = True
            try:
                self._take_crossing_actions(step, cross)
            finally:
                self.is_crossing = False

    def _take_crossing_actions(self, step: Step, cross: Cross) -> None:
        for action in cross.actions:
            if action == "newcomer":
                self._leave(cross.slot)
                self.actors[cross.slot] = self._new_actor()
            else:
                self._perform(Step(cross.slot, action, step.x ^ cross.elsewhere, cross.y))
            self._sync()

    def _leave(self, slot: int) -> None:
        actor = self.actors[slot]
        if actor is not None:
            self._forget_actor(actor)

    def _forget_actor(self, actor: Actor) -> None:
        """Drop all that the actor had in memory. The commit that it was about to make may or may not have happened."""
        actor.line.is_dead = True
        for attempt in self.attempts:
            if attempt.writer == actor.writer.id and attempt.last is None:
                attempt.last = actor.writer._tokens
        self.actors[self.actors.index(actor)] = None

    def _outcome(
        self, actor: Actor, call: Callable[[], T], *allowed: type[EvertideError]
    ) -> tuple[T | None, EvertideError | None]:
        """The outcome that an action got. An error that neither a fault nor a fence explains fails the test."""
        try:
            return call(), None
        except EvertideError as caught:
            error = caught
        if isinstance(error, Fenced):
            assert self._is_fenced(actor.writer), f"the writer is not fenced: {error}"
        elif isinstance(error, Unavailable | OutcomeUnknown):
            assert actor.line.injected, f"no fault was injected: {error}"
        elif not isinstance(error, allowed):
            raise error
        return None, error

    def _is_fenced(self, writer: Writer) -> bool:
        generation = self.meta.head(GENERATION)
        return self.meta.head(writer_key(writer.id)) is None or writer._generation != (
            generation.seqno if generation else 0
        )

    def _committing(
        self, actor: Actor, call: Callable[[], T], *allowed: type[EvertideError]
    ) -> tuple[T | None, EvertideError | None]:
        """Run an action that ends with its only commit. If it reports that the commit did not happen, the log never has
        it.
        """
        before = actor.writer._tokens
        result, error = self._outcome(actor, call, *allowed)
        last = actor.writer._tokens
        if isinstance(error, NOT_HAPPENED) and last > before:
            self._refuse(actor.writer.id, last, last)
        return result, error

    def _refuse(self, writer: str, first: int, last: int) -> None:
        self.refused |= {(writer, str(token)) for token in range(first, last + 1)}
        self._sync()
        for entries in self.entries.values():
            for entry in entries:
                assert (entry.writer, entry.token) not in self.refused, (
                    f"reported as not happened, but in the log: {entry}"
                )

    def _change_hold(
        self, actor: Actor, name: str, hold: str, time: int | None, call: Callable[[], None]
    ) -> EvertideError | None:
        """Run an action that sets a hold to a time, or releases it (None). Other actors may change the same hold
        meanwhile, so only the records tell which change came last.
        """
        self._sync()
        records = self.hold_records[name]
        change = HoldChange(name, hold, time, len(records) + 1)
        self.hold_changes.append(change)
        try:
            _, error = self._outcome(actor, call, TimeCompacted)
        finally:
            self._sync()
            change.last = len(records) + 1  # a commit still under way expects the newest record, or an older one
        if error is None:
            assert any(record.holds.get(hold) == time for record in records[change.first - 2 :]), (
                f"acknowledged, but in no record: {change}"
            )
        if not isinstance(error, OutcomeUnknown):
            change.last = len(records)
        if isinstance(error, (*NOT_HAPPENED, TimeCompacted)):
            self.hold_changes.remove(change)
            for number in range(change.first, len(records) + 1):
                self._explain_holds(name, number)
        return error

    # Apply the log to the model

    def _sync(self) -> None:
        for name in SHARDS:
            entries = self.entries[name]
            for record in self.meta.scan(shard_key(name), after=len(entries)):
                assert record.seqno == len(entries) + 1
                entry = unseal(record.data, LogEntry, name)
                assert (entry.writer, entry.token) not in self.refused, (
                    f"reported as not happened, but in the log: {entry}"
                )
                entries.append(entry)
                self._apply(name, entry)
            self._sync_holds(name)
        for attempt in self.attempts:
            assert set(attempt.found) in (set(), set(attempt.changes)), (
                f"the shards did not change in one commit (I4): {attempt}"
            )

    def _apply(self, name: str, entry: LogEntry) -> None:
        model, diff = self.models[name], entry.diff
        if isinstance(diff, Appended):
            attempt = self._attempt(name, entry)
            model.append(attempt.changes[name], diff.lower, diff.upper)
            attempt.found[name] = (diff.lower, diff.upper)
        elif isinstance(diff, SinceAdvanced):
            assert model.since <= diff.since < model.upper
            model.since = diff.since
        elif isinstance(diff, Finalized):
            model.finalized = True
        elif isinstance(diff, Forgotten):
            alive = [writer for writer in diff.writers if self.meta.head(writer_key(writer)) is not None]
            assert not alive, f"the tokens of the live writers {alive} were forgotten; they may still look them up"

    def _sync_holds(self, name: str) -> None:
        """Since and holds change in one record, so its order is the order in which they changed."""
        records = self.hold_records[name]
        for found in self.meta.scan(hold_key(name), after=len(records)):
            assert found.seqno == len(records) + 1
            record = unseal(found.data, HoldRecord, name)
            passed = {hold: time for hold, time in record.holds.items() if time < record.since}
            assert not passed, f"since {record.since} passed the holds {passed}"
            records.append(record)
            self._explain_holds(name, len(records))
        assert not records or records[-1].since == self.models[name].since, "since moved in the log or the record only"

    def _explain_holds(self, name: str, number: int) -> None:
        """Every hold that differs from the previous record was set or released by an actor: none gets lost."""
        before = self.hold_records[name][number - 2].holds if number > 1 else {}
        after = self.hold_records[name][number - 1].holds
        for hold in before.keys() | after.keys():
            time = after.get(hold)
            assert before.get(hold) == time or any(
                change.explains(name, number, hold, time) for change in self.hold_changes
            ), f"no actor changed {hold!r} of shard {name!r} from {before.get(hold)} to {time}, in record {number}"

    def _attempt(self, name: str, entry: LogEntry) -> Attempt:
        found = [
            attempt
            for attempt in self.attempts
            if attempt.writer == entry.writer
            and attempt.first <= int(entry.token)
            and (attempt.last is None or int(entry.token) <= attempt.last)
            and name in attempt.changes
        ]
        assert len(found) == 1, f"no attempt explains {entry}"
        return found[0]

    def _fresh(self, name: str) -> ShardLog:
        return ShardLog(name, self.blob, self.meta, self.runtime, self.settings)

    def _stands(self, lease: Lease) -> bool:
        return self.meta.head(lease_key(lease.log.shard, lease.id)) is not None
