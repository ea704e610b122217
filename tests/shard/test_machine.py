"""A state machine against the model: several processes on one storage that fails, in one thread, so that it shrinks.

1. Three *actors*, each with a writer, shards, caches, leases and readers of its own, as processes have them, share one
   storage in memory and two shards.
2. A step is one *deed* of one actor. The machine also draws how storage fails meanwhile (each fault of `Faults`, and
   commits and puts that arrive late, after their answer was lost), and one deed of another actor, or the actor's death,
   to come right before some storage call of it: that is all that threads or processes could do to each other.
3. What became durable, and in which order, is read from the log itself, and moves the model. What a deed was told must
   agree with it: "done" is in the log, "did not happen" never gets there, fenced is only who was unregistered.
4. After every step the shards are read afresh: content at every readable time, since, upper, every blob that is named;
   and every part under a lease that still stands is there (I6).
5. At the end everybody leaves, and what remains is what states and newest roll-ups name, and few diffs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from evertide.errors import (
    BlobDamaged,
    BlobMissing,
    Conflict,
    EvertideError,
    Fenced,
    LeaseLost,
    OutcomeUnknown,
    TimeCompacted,
    Unavailable,
    Unexpected,
    UpperMismatch,
)
from evertide.rows import changes as changes_module
from evertide.settings import Settings
from evertide.shard import compaction
from evertide.shard.append import Append, append_together, store_parts
from evertide.shard.compaction import choose, compact
from evertide.shard.frontier import Frontier
from evertide.shard.heartbeat import Heartbeat
from evertide.shard.hold import read_holds
from evertide.shard.lease import Lease, LeaseRecord
from evertide.shard.log import ShardLog, Version
from evertide.shard.parts.part import Part, decode_part
from evertide.shard.read import Lister, Listing, Snapshot, Window, fetch
from evertide.shard.shard import Shard, Shards
from evertide.shard.state import Appended, Finalized, Forgotten, LogEntry, SinceAdvanced
from evertide.store import Fault, Faults, FaultyBlob, FaultyMeta, Guard, MemoryBlob, MemoryMeta, Record, Stale, Write
from evertide.store.paths import GENERATION, beat_key, lease_key, lease_prefix, shard_key, writer_key
from evertide.store.sealed import unseal
from evertide.store.writers import Writer, read_registrations
from evertide.testing import ManualRuntime, RandomStream
from evertide.types import Time
from tests.shard.kit import BLOBS, HookMeta, PassingBlob, PassingMeta, make_shards, make_writer, rows_at
from tests.shard.model import SCHEMA, Change, Model, Row, scripted, summed, to_changes, to_rows, to_table

T = TypeVar("T")
Deed: TypeAlias = Callable[["Actor", int, int], None]

SHARDS = ("a", "b")
ACTORS = 3
TTL_S = 60.0

NOT_HAPPENED = (Unavailable, Conflict, Fenced)
"""Errors that promise that nothing was written. `OutcomeUnknown` promises nothing."""


class Died(BaseException):
    """The process is gone: nothing of it runs on, and nothing may catch it."""


class Late:
    """Writes whose answer is lost while they are still under way: they arrive some storage calls later."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Callable[[], object]]] = []
        self._calls = 0

    def put_off(self, calls: int, write: Callable[[], object]) -> None:
        self._waiting.append((self._calls + calls, write))

    def tick(self) -> None:
        self._calls += 1
        self._arrive([write for due, write in self._waiting if due <= self._calls])

    def arrive_all(self) -> None:
        self._arrive([write for _, write in self._waiting])

    def _arrive(self, writes: list[Callable[[], object]]) -> None:
        self._waiting = [(due, write) for due, write in self._waiting if write not in writes]
        for write in writes:
            write()


class Line:
    """An actor's line to storage: decides how each call ends, and what comes before it."""

    def __init__(self, late: Late) -> None:
        self.faults = Faults(self._choose, self._choose_read)
        self.late = late
        self.is_dead = False
        self.injected = 0
        self.late_calls = 0
        self.deletes = 0
        self._rate = 0.0
        self._chance = RandomStream(0)
        self._before: tuple[int, Callable[[], None]] | None = None

    def begin(self, rate: float, seed: int, before: tuple[int, Callable[[], None]] | None) -> None:
        self._rate, self._chance, self._before, self.injected = rate, RandomStream(seed), before, 0

    def end(self) -> None:
        self._rate, self._before = 0.0, None

    def _choose(self, operation: str, _key: str) -> Fault:
        self._call()
        self.late_calls = 0
        self.deletes += operation == "delete"
        if self._chance.random() >= self._rate:
            return Fault.DONE
        self.injected += 1
        fault = (Fault.DONE_LOST, Fault.LOST, Fault.REFUSED, None)[self._chance.below(4)]
        if fault is None and operation in ("commit", "put"):
            self.late_calls = 1 + self._chance.below((12, 120)[self._chance.below(2)])
            return Fault.DONE
        return fault or Fault.DONE_LOST

    def _choose_read(self, _operation: str, _key: str) -> Fault:
        self._call()
        if self._chance.random() >= self._rate:
            return Fault.DONE
        self.injected += 1
        return Fault.REFUSED

    def _call(self) -> None:
        if self.is_dead:
            raise Died
        if self._before is not None:
            calls, deed = self._before
            self._before = (calls - 1, deed) if calls > 1 else None
            if calls == 1:
                deed()
        if self.is_dead:
            raise Died
        self.late.tick()


class LateMeta(PassingMeta):
    def __init__(self, inner: MemoryMeta, line: Line, before_truncate: Callable[[], None]) -> None:
        super().__init__(inner)
        self._line = line
        self._before_truncate = before_truncate

    def truncate(self, key: str, below: int) -> None:
        self._before_truncate()
        self.inner.truncate(key, below)

    def commit(self, writes: Any, guards: Any = ()) -> Stale | None:
        if self._line.late_calls:
            kept_writes, kept_guards = tuple[Write, ...](writes), tuple[Guard, ...](guards)
            self._line.late.put_off(self._line.late_calls, lambda: self.inner.commit(kept_writes, kept_guards))
            raise OutcomeUnknown(path=self.path(writes[0].key), why="injected: still under way")
        return self.inner.commit(writes, guards)


class LateBlob(PassingBlob):
    def __init__(self, inner: MemoryBlob, line: Line) -> None:
        super().__init__(inner)
        self._line = line

    def put(self, key: str, data: bytes) -> None:
        if self._line.late_calls:
            self._line.late.put_off(self._line.late_calls, lambda: self._arrived(key, data))
            raise OutcomeUnknown(path=self.path(key), why="injected: still under way")
        self.inner.put(key, data)

    def _arrived(self, key: str, data: bytes) -> None:
        with suppress(Conflict):  # the machine's own `damage` is there meanwhile: it is repaired in the end
            self.inner.put(key, data)


@dataclass
class Opened:
    """A snapshot that its reader holds open."""

    shard: str
    snapshot: Snapshot
    lease: Lease
    safe_until_s: float
    """Before this nobody may end its lease."""
    exposed: bool = False
    """It was later than that, so somebody may have."""


@dataclass
class Listener:
    """A reader of changes, fed step by step: the shard source without its threads."""

    shard: str
    lease: Lease
    lister: Lister
    frontier: Frontier
    start: int
    """The first time whose changes it tells. With a snapshot, everything up to it is told as it."""
    is_snapshot: bool
    tasks: list[tuple[Part, Listing]] = field(default_factory=list)
    heard: list[Change] = field(default_factory=list)


@dataclass
class Stored:
    """Parts that were put and wait to be linked, as between executors and driver; their number is claimed meanwhile."""

    shard: str
    lower: int
    changes: list[Change]
    parts: tuple[Part, ...]
    claim: ExitStack


@dataclass
class Actor:
    line: Line
    shards: Shards
    writer: Writer
    heart: Heartbeat
    handles: dict[str, Shard]
    opened: list[Opened] = field(default_factory=list)
    listeners: list[Listener] = field(default_factory=list)
    stored: Stored | None = None
    fenced_deeds: int = 0
    """How many it tried although it was fenced."""
    safe_until_s: float = 0.0
    """Before this nobody may unregister its writer."""
    exposed: bool = False


@dataclass
class Attempt:
    """Changes that a writer tries to append; the tokens of its commits lie in [first, last]."""

    writer: str
    changes: dict[str, list[Change]]
    first: int
    last: int | None = None
    found: dict[str, tuple[int, int]] = field(default_factory=dict)
    """What the log has of it: per shard the times [lower, upper)."""


@dataclass(frozen=True)
class Cross:
    """What comes right before the n-th storage call of a deed: some deeds of another actor, as a rule on its shard."""

    calls: int
    slot: int
    deeds: tuple[str, ...]
    y: int
    elsewhere: bool = False


@dataclass(frozen=True)
class Step:
    """One deed of one actor. `x` and `y` choose what exactly."""

    slot: int
    deed: str
    x: int
    y: int
    rate: float = 0.0
    """How many of the storage calls fail, as `seed` decides."""
    seed: int = 0
    cross: Cross | None = None


NUMBERS = st.integers(min_value=0, max_value=7)
SLOTS = st.integers(min_value=0, max_value=ACTORS - 1)
RATES = st.sampled_from([0.0, 0.0, 0.05, 0.2, 0.5])
SEEDS = st.integers(min_value=0, max_value=10_000)
CROSSING = [
    *[("die",), ("collect",), ("link",), ("link", "beat"), ("compact", "collect"), ("open_snapshot", "compact")] * 2,
    *[(deed,) for deed in ("append", "append_together", "append_missing", "compact", "roll_up", "advance_since")],
    *[(deed,) for deed in ("hold", "release", "beat", "open_snapshot", "read_snapshot", "listen", "generation")],
    *[("take_over",), ("append", "take_over"), ("append", "roll_up", "collect"), ("newcomer", "append")],
    ("advance_since", "compact", "collect"),
]
DEEDS = [
    *["append"] * 5,
    *["append_together"] * 2,
    *["append_missing"] * 2,
    *["compact"] * 5,
    *["advance_since"] * 3,
    *["collect"] * 5,
    *["open_snapshot", "read_snapshot"] * 4,
    *["listen"] * 2,
    *["hear"] * 6,
    *["pass_time", "beat", "roll_up"] * 2,
    *["store", "link"] * 3,
    *("hold", "release", "leave", "take_over", "store_and_die", "generation", "compact_badly", "damage", "finalize"),
]
CROSSES = st.builds(
    Cross,
    calls=st.one_of(st.integers(min_value=1, max_value=8), st.integers(min_value=1, max_value=20)),
    slot=SLOTS,
    deeds=st.sampled_from(CROSSING),
    y=NUMBERS,
    elsewhere=st.sampled_from([False, False, True]),
)
STEPS = st.builds(
    Step,
    slot=SLOTS,
    deed=st.sampled_from(DEEDS),
    x=NUMBERS,
    y=NUMBERS,
    rate=RATES,
    seed=SEEDS,
    cross=st.one_of(st.none(), CROSSES),
)


class ShardMachine(RuleBasedStateMachine):
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
            fetchers=1,  # one thread at a time, or the order of faults would be chance
            lease_ttl_s=TTL_S,
            writer_ttl_s=TTL_S,
            retry_wait_s=0.25,
            retry_wait_max_s=1.0,
            retry_limit_s=1.5,
        )
        self.runtime = ManualRuntime()
        self.blob, self.meta, self.late = MemoryBlob(), MemoryMeta(self.runtime), Late()
        self.models = {name: Model() for name in SHARDS}
        self.holds: dict[tuple[str, str], int] = {}
        self.attempts: list[Attempt] = []
        self.refused: set[tuple[str, str]] = set()
        self.entries: dict[str, list[LogEntry]] = {name: [] for name in SHARDS}
        self.decoded: dict[str, list[Change]] = {}
        self.rows_made = 0
        self.failed = self.crossed = False
        self.actors = [None] * ACTORS
        first = self._new_actor()
        for name in SHARDS:
            first.handles[name] = first.shards.create(name, SCHEMA, first.writer)
        self.actors = [first, self._new_actor(), self._new_actor()]
        self.deeds = {name.removeprefix("do_"): getattr(self, name) for name in dir(self) if name.startswith("do_")}
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
    def _watched(self) -> Iterator[None]:
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
        before = (cross.calls, lambda: self._crossed(step, cross)) if cross else None
        actor.line.begin(step.rate, step.seed, before)
        try:
            self.deeds[step.deed](actor, step.x, step.y)
        except Died:
            self._bury(actor)
        finally:
            actor.line.end()

    def _crossed(self, step: Step, cross: Cross) -> None:
        self.crossed = True
        actor = self.actors[step.slot]
        if cross.deeds == ("die",):
            assert actor is not None
            actor.line.is_dead = True
        elif cross.slot != step.slot:
            for deed in cross.deeds:
                if deed == "newcomer":
                    self._leave(cross.slot)
                    self.actors[cross.slot] = self._new_actor()
                else:
                    self._perform(Step(cross.slot, deed, step.x ^ cross.elsewhere, cross.y))
                self._sync()

    def _leave(self, slot: int) -> None:
        actor = self.actors[slot]
        if actor is not None:
            self._bury(actor)

    def _bury(self, actor: Actor) -> None:
        """Forget whatever it had in memory. What it was about to commit may or may not be there."""
        actor.line.is_dead = True
        for attempt in self.attempts:
            if attempt.writer == actor.writer.id and attempt.last is None:
                attempt.last = actor.writer._tokens
        self.actors[self.actors.index(actor)] = None

    def _told(
        self, actor: Actor, call: Callable[[], T], *allowed: type[EvertideError]
    ) -> tuple[T | None, EvertideError | None]:
        """What a deed was told. Errors that nothing explains fail the machine."""
        try:
            return call(), None
        except EvertideError as caught:
            error = caught
        if isinstance(error, Fenced):
            assert self._is_fenced(actor.writer), f"told so, and it is not: {error}"
        elif isinstance(error, Unavailable | OutcomeUnknown):
            assert actor.line.injected, f"storage was fine: {error}"
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
        """A deed whose last commit is all it does: if that did not happen, it is not in the log, and never will be."""
        before = actor.writer._tokens
        result, error = self._told(actor, call, *allowed)
        last = actor.writer._tokens
        if isinstance(error, NOT_HAPPENED) and last > before:
            self._refuse(actor.writer.id, last, last)
        return result, error

    def _refuse(self, writer: str, first: int, last: int) -> None:
        self.refused |= {(writer, str(token)) for token in range(first, last + 1)}
        self._sync()
        for entries in self.entries.values():
            for entry in entries:
                assert (entry.writer, entry.token) not in self.refused, f"told that it did not happen: {entry}"

    # The log moves the model

    def _sync(self) -> None:
        for name in SHARDS:
            entries = self.entries[name]
            for record in self.meta.scan(shard_key(name), after=len(entries)):
                assert record.seqno == len(entries) + 1
                entry = unseal(record.data, LogEntry, name)
                assert (entry.writer, entry.token) not in self.refused, f"told that it did not happen: {entry}"
                entries.append(entry)
                self._apply(name, entry)
        for attempt in self.attempts:
            assert set(attempt.found) in (set(), set(attempt.changes)), f"not all at once (I4): {attempt}"

    def _apply(self, name: str, entry: LogEntry) -> None:
        model, diff = self.models[name], entry.diff
        if isinstance(diff, Appended):
            attempt = self._attempt(name, entry)
            model.append(attempt.changes[name], diff.lower, diff.upper)
            attempt.found[name] = (diff.lower, diff.upper)
        elif isinstance(diff, SinceAdvanced):
            assert model.since <= diff.since < model.upper
            held = {hold: time for (shard, hold), time in self.holds.items() if shard == name}
            assert all(diff.since <= time for time in held.values()), f"since {diff.since} overtook holds {held}"
            model.since = diff.since
        elif isinstance(diff, Finalized):
            model.finalized = True
        elif isinstance(diff, Forgotten):
            alive = [writer for writer in diff.writers if self.meta.head(writer_key(writer)) is not None]
            assert not alive, f"the tokens of {alive} are forgotten, and they may still ask for them"

    def _attempt(self, name: str, entry: LogEntry) -> Attempt:
        found = [
            attempt
            for attempt in self.attempts
            if attempt.writer == entry.writer
            and attempt.first <= int(entry.token)
            and (attempt.last is None or int(entry.token) <= attempt.last)
            and name in attempt.changes
        ]
        assert len(found) == 1, f"nobody appends {entry}"
        return found[0]

    # Deeds: x and y choose what exactly

    def do_pass_time(self, actor: Actor, x: int, y: int) -> None:
        for one in self.actors:
            everything: list[Actor | Opened] = [one, *one.opened] if one else []
            for exposed in everything:
                exposed.exposed |= x == 7  # it may be later for a moment, and then earlier again
        self.runtime.advance_s((1.0, 5.0, 5.0, 20.0, 20.0, 30.0, 30.0, TTL_S + 1)[x])
        self.runtime.jump_wall_s(-100.0 if x == y else 0.0)

    def _rows(self, name: str, lower: int, upper: int, x: int, y: int) -> list[Change]:
        """A few rows in and out, few enough that they meet again."""
        here = sorted(self.models[name].content(lower - 1))
        made: list[Change] = [
            ((number % 4, f"{x}"), lower + number % (upper - lower), 1 + x % 2) for number in range(y)
        ]
        gone: list[Change] = [(row, upper - 1, -1) for row in here[x : x + y]]
        return made + gone

    def _append(
        self, actor: Actor, changes: dict[str, list[Change]], call: Callable[[], object]
    ) -> EvertideError | None:
        attempt = Attempt(actor.writer.id, changes, actor.writer._tokens + 1)
        self.attempts.append(attempt)
        uppers = {name: {self.models[name].upper} for name in changes}
        _, error = self._told(actor, call, Conflict)
        attempt.last = actor.writer._tokens
        self._sync()
        for name in changes:
            uppers[name].add(self.models[name].upper)
        if error is None:
            assert set(attempt.found) == set(changes) or not any(changes.values()), f"acknowledged and lost: {attempt}"
        if isinstance(error, NOT_HAPPENED):
            self._refuse(attempt.writer, attempt.first, attempt.last)
        if isinstance(error, UpperMismatch):
            assert any(len(seen) > 1 or error.expected not in seen for seen in uppers.values()), error
        elif isinstance(error, Conflict):
            assert any(self.models[name].finalized for name in changes), error
        return error

    def do_append(self, actor: Actor, x: int, y: int) -> None:
        name = SHARDS[x % 2]
        lower = max(0, self.models[name].upper + (0 if y < 6 else 13 - 2 * y))
        upper = lower + (1, 1, 3)[x % 3]
        changes = self._rows(name, lower, upper, x, y)
        shard, table = actor.handles[name], to_table(changes)
        self._append(actor, {name: changes}, lambda: shard.compare_and_append(table, lower, upper, actor.writer))

    def do_append_together(self, actor: Actor, x: int, y: int) -> None:
        appends, changes = [], {}
        for name in SHARDS:
            lower = self.models[name].upper
            changes[name] = self._rows(name, lower, lower + 1, x, y)
            appends.append((actor.handles[name], to_table(changes[name]), lower, lower + 1))
        self._append(actor, changes, lambda: actor.shards.append_together(appends, actor.writer))

    def do_store(self, actor: Actor, x: int, y: int) -> None:
        """The first half of an append; somebody else may append, compact or collect before the second."""
        if actor.stored is not None:
            return
        name = SHARDS[x % 2]
        lower = self.models[name].upper
        changes = self._rows(name, lower, lower + 1, x, y)
        claim = ExitStack()
        seq = claim.enter_context(actor.writer.claim())
        parts, error = self._told(actor, lambda: self._store(actor, name, changes, seq))
        if parts is not None:
            actor.stored = Stored(name, lower, changes, parts, claim)
        elif isinstance(error, Unavailable):
            claim.close()

    def _store(self, actor: Actor, name: str, changes: list[Change], seq: int) -> tuple[Part, ...]:
        return store_parts(
            to_table(changes),
            shard=name,
            blob=actor.shards.blob,
            writer=actor.writer.id,
            seq=seq,
            runtime=self.runtime,
            settings=self.settings,
        )

    def do_link(self, actor: Actor, x: int, y: int) -> None:
        """The second half."""
        stored, actor.stored = actor.stored, None
        if stored is None:
            return
        log, lower = actor.handles[stored.shard].log, stored.lower
        append = Append(log, stored.parts, lower, lower + 1)
        error = self._append(actor, {stored.shard: stored.changes}, lambda: append_together([append], actor.writer))
        if not isinstance(error, OutcomeUnknown):
            stored.claim.close()

    def do_append_missing(self, actor: Actor, x: int, y: int) -> None:
        name = SHARDS[x % 2]
        reached = self.models[name].upper
        lower, upper = max(0, reached - y % 3), reached + 1 + x % 3
        changes = [change for time in range(lower, upper) for change in scripted(time)]
        shard, table = actor.handles[name], to_table(changes)
        attempt = Attempt(actor.writer.id, {name: changes}, actor.writer._tokens + 1)
        self.attempts.append(attempt)
        outcome, error = self._told(actor, lambda: shard.append(table, lower, upper, actor.writer), Conflict)
        attempt.last = actor.writer._tokens
        self._sync()
        if outcome is not None:
            assert self.models[name].upper >= upper
            assert attempt.found.get(name, (upper, upper)) == (outcome.lower, outcome.upper)
        elif isinstance(error, NOT_HAPPENED):
            self._refuse(attempt.writer, attempt.first, attempt.last)
            assert not isinstance(error, Conflict) or self.models[name].finalized, error

    def do_compact(self, actor: Actor, x: int, y: int) -> None:
        shard = actor.handles[SHARDS[x % 2]]
        if y % 2:
            self._committing(actor, lambda: compact(shard.log, actor.writer))
        else:
            self._told(actor, lambda: shard.compact(actor.writer))

    def do_compact_badly(self, actor: Actor, x: int, y: int) -> None:
        """A compaction that loses a change must refuse its own work: the digest tells."""

        def losing(table: pa.Table, where: str = "changes") -> pa.Table:
            summed_up = consolidate(table, where)
            lost.append(summed_up.num_rows)
            return summed_up.slice(1)

        shard = actor.handles[SHARDS[x % 2]]
        consolidate, lost = changes_module.consolidate, list[int]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compaction, "consolidate", losing)
            done, error = self._committing(actor, lambda: compact(shard.log, actor.writer), Unexpected)
        assert done is None or not any(lost), "a compaction lost a change and was committed"
        assert not isinstance(error, Unexpected) or any(lost), error

    def do_roll_up(self, actor: Actor, x: int, y: int) -> None:
        self._told(actor, lambda: actor.handles[SHARDS[x % 2]].log.roll_up(actor.writer))

    def do_advance_since(self, actor: Actor, x: int, y: int) -> None:
        name = SHARDS[x % 2]
        wanted = self.models[name].since + y
        leased = self._leased(name)
        reached, error = self._told(actor, lambda: actor.handles[name].advance_since(wanted, actor.writer), Conflict)
        self._sync()
        if reached is not None:
            assert self.models[name].since >= reached
            kept = [time for lease, time in leased.items() if self.meta.head(lease) is not None]
            assert all(reached <= time for time in kept), f"since {reached} overtook leases at {kept}"
        assert not isinstance(error, Conflict) or self.models[name].finalized, error

    def _leased(self, name: str) -> dict[str, int]:
        """The times that leases keep readable, by lease."""
        found = self.meta.heads(lease_prefix(name))
        records = {key: unseal(record.data, LeaseRecord, key) for key, record in found.items()}
        since = self.models[name].since
        return {key: record.time for key, record in records.items() if record.time >= since}

    def do_hold(self, actor: Actor, x: int, y: int) -> None:
        name, hold = SHARDS[x % 2], f"hold {y % 2}"
        time = max(0, self.models[name].since + y - 1)
        self.holds.pop((name, hold), None)
        _, error = self._told(actor, lambda: actor.handles[name].hold(hold, time), TimeCompacted)
        self._sync()
        if error is None:
            assert self.models[name].since <= time
            self.holds[name, hold] = time
        assert not isinstance(error, TimeCompacted) or time < self.models[name].since, error

    def do_release(self, actor: Actor, x: int, y: int) -> None:
        name, hold = SHARDS[x % 2], f"hold {y % 2}"
        self.holds.pop((name, hold), None)
        _, error = self._told(actor, lambda: actor.handles[name].release(hold))
        assert error is not None or hold not in read_holds(self._fresh(name)).holds

    def do_collect(self, actor: Actor, x: int, y: int) -> None:
        fenced = self.meta.head(writer_key(actor.writer.id)) is None
        before = actor.line.deletes
        _, error = self._told(actor, lambda: actor.handles[SHARDS[x % 2]].collect_garbage(actor.writer))
        if fenced:
            assert isinstance(error, Fenced if actor.line.injected == 0 else EvertideError)
            assert actor.line.deletes == before, "a fenced writer deletes"

    def do_beat(self, actor: Actor, x: int, y: int) -> None:
        actor.heart.beat()
        error = actor.heart.error
        assert not isinstance(error, Fenced) or self._is_fenced(actor.writer), f"told so, and it is not: {error}"
        if error is None:
            actor.safe_until_s = self.runtime.wall_s() + TTL_S
            actor.exposed = self._is_fenced(actor.writer)  # a peer may have ended it behind its own heartbeat
        if error is None or isinstance(error, Fenced):
            for opened in actor.opened:
                opened.safe_until_s = self.runtime.wall_s() + TTL_S
                opened.exposed = not self._stands(opened.lease)

    def do_open_snapshot(self, actor: Actor, x: int, y: int) -> None:
        name = SHARDS[x % 2]
        model = self.models[name]
        if model.upper == 0:
            return
        as_of = max(0, model.since - 1) if y == 7 else model.since + y % (model.upper - model.since)
        safe_until_s = self.runtime.wall_s() + TTL_S
        snapshot, error = self._told(actor, lambda: actor.handles[name].snapshot(as_of, timeout_s=1.0), Conflict)
        if snapshot is not None:
            actor.opened.append(Opened(name, snapshot, snapshot._lease, safe_until_s))
        self._sync()
        if isinstance(error, TimeCompacted):
            assert as_of < model.since
        elif isinstance(error, Conflict):
            assert model.finalized

    def do_read_snapshot(self, actor: Actor, x: int, y: int) -> None:
        if not actor.opened:
            return
        opened = actor.opened[x % len(actor.opened)]
        table, error = self._told(actor, opened.snapshot.to_arrow, LeaseLost)
        if isinstance(error, LeaseLost):
            assert not self._stands(opened.lease), error
            actor.opened.remove(opened)
        elif table is not None:
            assert to_rows(table) == self.models[opened.shard].content(opened.snapshot.as_of)
        if table is not None and y % 2:
            actor.opened.remove(opened)
            self._told(actor, opened.snapshot.close)

    def do_listen(self, actor: Actor, x: int, y: int) -> None:
        name = SHARDS[x % 2]
        as_of = self.models[name].since - 2 + y
        is_snapshot = x % 3 == 0 and as_of >= 0
        start = as_of if is_snapshot else max(0, as_of + 1)
        self._listen(actor, name, start, is_snapshot=is_snapshot, at=len(actor.listeners))

    def _listen(self, actor: Actor, name: str, start: int, *, is_snapshot: bool, at: int) -> None:
        """As `ShardSource` begins: lease first, then list."""
        log = actor.handles[name].log
        lease, _ = self._told(
            actor, lambda: actor.shards.leases.take(log, Time(start if is_snapshot else max(start - 1, 0)))
        )
        if lease is not None:
            window = Window(0, start + 1, start) if is_snapshot else Window(start, start)
            listener = Listener(name, lease, Lister(log, window), Frontier(Time(start)), start, is_snapshot)
            actor.listeners[at : at + 1] = [listener]

    def do_hear(self, actor: Actor, x: int, y: int) -> None:
        """One listing, or the arrival of one part, in any order; or all that there is."""
        if not actor.listeners:
            return
        at = x % len(actor.listeners)
        listener = actor.listeners[at]
        if y % 3 == 0 or not listener.tasks:
            self._list(actor, listener)
        for _ in range(len(listener.tasks) if y > 4 else 0 if y % 3 == 0 else 1):
            if listener.tasks and listener in actor.listeners:
                self._fetch(actor, at, listener, y)
        frontier, model = listener.frontier.value, self.models[listener.shard]
        below = [change for change in listener.heard if change[1] < frontier]
        if listener.start > 0 or listener.is_snapshot:
            assert summed(((row, time), diff) for row, time, diff in below) == self._expected(listener)
        elif frontier > model.since:  # from the beginning on, times below since are told as since
            assert summed((row, diff) for row, _, diff in below) == model.content(frontier - 1)

    def _list(self, actor: Actor, listener: Listener) -> None:
        listed, error = self._told(actor, lambda: listener.lister.poll(0.0), Conflict)
        self._sync()
        model = self.models[listener.shard]
        if listed is not None:
            listener.tasks += [(part, listed) for part in listed.parts]
            times = [listed.window.time_of(part) for part in listed.parts]
            if listener.frontier.add_listing(times, Time(listed.window.upper), listed.seqno):
                listener.lease.advance(listener.frontier.seqno, Time(listener.frontier.value - 1))
        elif isinstance(error, TimeCompacted):
            lower = listener.start if listener.is_snapshot else listener.start - 1
            assert min(lower, listener.frontier.value - 1) < model.since, error
            actor.listeners.remove(listener)
        elif isinstance(error, Conflict):
            assert model.finalized, error
            actor.listeners.remove(listener)

    def _fetch(self, actor: Actor, at: int, listener: Listener, y: int) -> None:
        part, listed = listener.tasks[y % len(listener.tasks)]
        log = actor.handles[listener.shard].log
        table, error = self._told(actor, lambda: fetch(log, part, listed), BlobMissing)
        if error is None:
            listener.tasks.remove((part, listed))
            listener.heard += to_changes(table)
            if listener.frontier.add_delivery(Time(listed.window.time_of(part)), listed.seqno):
                listener.lease.advance(listener.frontier.seqno, Time(listener.frontier.value - 1))
        elif isinstance(error, BlobMissing):
            assert not self._stands(listener.lease), f"a part under a lease is gone (I6): {error}"
            with pytest.raises((LeaseLost, Unavailable)):
                listener.lease.check(listener.frontier.value)
            start = listener.frontier.value
            is_snapshot = listener.is_snapshot and start <= listener.start
            self._listen(actor, listener.shard, start, is_snapshot=is_snapshot, at=at)

    def _expected(self, listener: Listener) -> dict[tuple[Row, int], int]:
        model, frontier = self.models[listener.shard], listener.frontier.value
        if not listener.is_snapshot:
            return dict(model.between(listener.start, frontier))
        if frontier <= listener.start:
            return {}
        content = {(row, listener.start): count for row, count in model.content(listener.start).items()}
        return content | dict(model.between(listener.start + 1, frontier))

    def do_leave(self, actor: Actor, x: int, y: int) -> None:
        """A reader ends in order."""
        if actor.listeners and x % 2:
            listener = actor.listeners.pop(y % len(actor.listeners))
            self._told(actor, listener.lease.release)
        elif actor.opened:
            self._told(actor, actor.opened.pop(y % len(actor.opened)).snapshot.close)

    def do_store_and_die(self, actor: Actor, x: int, y: int) -> None:
        """Blobs that nothing names."""
        name = SHARDS[x % 2]
        upper = self.models[name].upper
        changes = self._rows(name, upper, upper + 1, x, y)
        with actor.writer.claim() as seq:
            self._told(actor, lambda: self._store(actor, name, changes, seq))
            raise Died

    def do_take_over(self, actor: Actor, x: int, y: int) -> None:
        """Everybody else was away for too long: their writers and leases are ended, and what they left is tidied up."""
        self.do_pass_time(actor, 7, 0)
        log = actor.handles[SHARDS[x % 2]].log
        self._told(actor, actor.writer.beat)
        self._told(actor, lambda: log.roll_up(actor.writer))
        self.do_collect(actor, x, y)

    def do_generation(self, actor: Actor, x: int, y: int) -> None:
        if x == 7:
            self._told(actor, lambda: actor.writer.change_generation(SHARDS))
        else:
            self._told(actor, actor.writer.adopt_generation)

    def do_finalize(self, actor: Actor, x: int, y: int) -> None:
        if x == y == 7:
            self._committing(actor, lambda: actor.handles[SHARDS[1]].finalize(actor.writer))

    def do_damage(self, actor: Actor, x: int, y: int) -> None:
        """A flipped bit is found, and named, before its rows are used; then the disk is repaired."""
        name = SHARDS[x % 2]
        keys = sorted({part.key for part in self._fresh(name).read().state.parts if part.key})
        if not keys or self.models[name].upper == 0:
            return
        key = keys[y % len(keys)]
        good = self.blob._blobs[key]
        at = len(good) * (1 + x) // 9
        self.blob._blobs[key] = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        try:
            as_of = self.models[name].upper - 1
            _, error = self._told(
                actor, lambda: self._read(actor.handles[name], as_of), BlobDamaged, TimeCompacted, BlobMissing
            )
            assert error is not None or key not in self.blob._blobs, "damage was read as content"
            self._told(actor, lambda: compact(actor.handles[name].log, actor.writer), BlobDamaged)
        finally:
            if key in self.blob._blobs:
                self.blob._blobs[key] = good

    @staticmethod
    def _read(shard: Shard, as_of: int) -> pa.Table:
        with shard.snapshot(as_of, timeout_s=1.0) as snapshot:
            return snapshot.to_arrow()

    @rule(step=STEPS)
    def act(self, step: Step) -> None:
        """Rules of their own would not do: Hypothesis leaves most of them out of each run, and little would happen."""
        with self._watched():
            self.crossed = False
            self._replace(step)
            self._perform(step)
            self._sync()

    def _replace(self, step: Step) -> None:
        """A new process takes the place of one that died, or that tried long enough after it was fenced."""
        actor = self.actors[step.slot]
        if actor is not None and self._is_fenced(actor.writer):
            actor.fenced_deeds += 1
            if actor.fenced_deeds > 3:
                self._bury(actor)
        if self.actors[step.slot] is None:
            try:
                self.actors[step.slot] = self._new_actor(step.rate, step.seed)
            except (Unavailable, OutcomeUnknown):
                assert step.rate > 0

    # What must hold after every step

    def _fresh(self, name: str) -> ShardLog:
        return ShardLog(name, self.blob, self.meta, self.runtime, self.settings)

    def _stands(self, lease: Lease) -> bool:
        return self.meta.head(lease_key(lease.log.shard, lease.id)) is not None

    @invariant()
    def shards_are_as_the_model_says(self) -> None:
        with self._watched():
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
        held = [change for part in state.parts for change in self._decoded(log, part)]
        if not model.finalized:
            assert summed((row, diff) for row, time, diff in held if time <= model.since) == model.content(model.since)
            later = summed(((row, time), diff) for row, time, diff in held if time > model.since)
            assert later == model.between(model.since + 1, model.upper)
        return version

    def _decoded(self, log: ShardLog, part: Part) -> list[Change]:
        if part.key:
            assert part.key in self.blob._blobs, f"a state names a blob that is gone: {part.key}"
        if part.checksum not in self.decoded:
            content = self.blob.get(part.key) if part.key else part.inline
            self.decoded[part.checksum] = to_changes(decode_part(part, content, SCHEMA, part.key))
        return self.decoded[part.checksum]

    @invariant()
    def leased_parts_are_there(self) -> None:
        with self._watched():
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
                        assert not missing, f"parts under a lease are gone (I6): {missing}"

    # The end

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
        )  # the clock may have been set back; nobody beats: all but the janitor are ended
        self.runtime.jump_wall_s(1000)
        janitor = self._new_actor()
        for name in SHARDS:
            self._tidy(janitor, name)
        named = {part.key for name in SHARDS for part in self._fresh(name).read().state.parts if part.key}
        rollups = [self._fresh(name).newest_rollup() for name in SHARDS]
        named |= {rollup[1].key for rollup in rollups if rollup is not None}
        assert {entry.key for entry in self.blob.list("")} == named

    def _tidy(self, janitor: Actor, name: str) -> None:
        shard, model = janitor.handles[name], self.models[name]
        for hold in list(shard.holds):
            shard.release(hold)
            self.holds.pop((name, hold), None)
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
        assert kept <= 2 * self.settings.rollup_every_diffs + 2, f"{kept} diffs are kept"
        if model.upper and not model.finalized:
            assert to_rows(self._read(shard, model.upper - 1)) == model.content(model.upper - 1)


def run_machine(examples: int, steps: int, *, derandomize: bool = False) -> None:
    run_state_machine_as_test(
        ShardMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=derandomize,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


def test_shards_do_what_the_model_does(caplog: pytest.LogCaptureFixture) -> None:
    """The same runs each time, so that a failure can be had again; `EVERTIDE_MACHINE_EXAMPLES` makes it longer.

    `make soak` goes where chance leads.
    """
    caplog.set_level("CRITICAL", "evertide")  # a storage that fails all the time is a lot to say
    run_machine(int(os.environ.get("EVERTIDE_MACHINE_EXAMPLES", "40")), 40, derandomize=True)


NARROW: dict[str, list[tuple[str, ...]]] = {
    "append": [("collect",), ("append", "take_over")],
    "append_together": [("append",)],
    "link": [("collect",), ("take_over",)],
    "compact": [("collect",), ("compact", "collect")],
    "roll_up": [("append", "roll_up", "collect")],
    "advance_since": [("hold",), ("advance_since",)],
    "hold": [("advance_since",)],
    "collect": [("open_snapshot", "compact"), ("link", "beat"), ("newcomer", "append")],
    "take_over": [("beat",)],
    "open_snapshot": [("compact", "collect"), ("advance_since", "compact", "collect")],
}


@pytest.mark.parametrize("deed", NARROW)
def test_crossings(deed: str) -> None:
    """A deed, and right before each of its storage calls, one after the other, what is most likely to upset it.

    The moments in which the order of two looks decides are too narrow to be met by chance. `make soak` takes all pairs.
    """
    for deeds in NARROW[deed]:
        cross_everywhere(deed, deeds)


def cross_everywhere(deed: str, deeds: tuple[str, ...]) -> int:
    calls = 1
    while crossing(deed, Cross(calls, 1, deeds, y=2)):
        calls += 1
    return calls - 1


def crossing(deed: str, cross: Cross) -> bool:
    """Whether the deed had that many calls. Actor 0 does it, 1 crosses it, 2 looks and tidies up after them."""
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
    if deed not in (
        "open_snapshot",
        "collect",
    ):  # there, a lease that stands already would hide one that comes too late
        before += [(2, "open_snapshot", 2), (0, "open_snapshot", 2)]
    after = [(slot, "read_snapshot", 2) for slot in range(ACTORS)]
    after += [(2, "beat", 2), (2, "advance_since", 7), (2, "collect", 2), (2, "read_snapshot", 2)]
    try:
        for slot, name, y in before:
            machine.act(Step(slot, name, x=2, y=y))
        machine.act(Step(0, deed, x=2, y=2, cross=cross))
        reached = machine.crossed
        for slot, name, y in after:
            machine.act(Step(slot, name, x=2, y=y))
            machine.shards_are_as_the_model_says()
            machine.leased_parts_are_there()
        machine.teardown()
    except BaseException as error:
        error.add_note(f"again: crossing({deed!r}, {cross})")
        raise
    return reached


# What reading the code suggested before the machine found it: each a few steps of it, as a test of its own.


@dataclass
class Two:
    """Two processes on one storage; commits of the first to shards can be hooked."""

    runtime: ManualRuntime = field(default_factory=ManualRuntime)
    blob: MemoryBlob = field(default_factory=MemoryBlob)
    meta: MemoryMeta = field(default_factory=MemoryMeta)

    def __post_init__(self) -> None:
        self.hook = HookMeta(self.meta)
        self.first = make_shards(self.blob, self.hook, runtime=self.runtime, settings=BLOBS)
        self.second = make_shards(self.blob, self.meta, runtime=self.runtime, settings=BLOBS)
        self.writers = (make_writer(self.first), make_writer(self.second))
        self.shards = (self.first.create("a", SCHEMA, self.writers[0]), self.second.open("a"))

    def append(self, number: int, time: int) -> None:
        changes = to_table([((time, "x"), time, 1)])
        self.shards[number].compare_and_append(changes, time, time + 1, self.writers[number])


def lose_answer() -> None:
    raise OutcomeUnknown(path="memory", why="the answer is lost")


@pytest.mark.parametrize("is_ended", [True, False])
def test_an_append_that_happened_is_not_withdrawn(is_ended: bool) -> None:
    """Its answer is lost; before it looks, its diff is rolled up and truncated, and its token is forgotten or replaced.

    The token goes with the writer that was ended, or with another commit of the same writer, from another thread.
    """
    two = Two()

    def others_go_on() -> None:
        if is_ended:
            two.runtime.jump_wall_s(61.0)  # a clock that was set wrong must not cost data (I16)
        else:
            thread = make_shards(two.blob, two.meta, runtime=two.runtime, settings=BLOBS).open("a")
            thread.compare_and_append(to_table([((1, "x"), 1, 1)]), 1, 2, two.writers[0])
        two.append(1, 1 if is_ended else 2)
        two.shards[1].log.roll_up(two.writers[1])
        two.shards[1].collect_garbage(two.writers[1])
        lose_answer()

    two.hook.after_commit(others_go_on)
    with suppress(EvertideError):
        two.append(0, 0)
    assert rows_at(two.shards[1], 0) == {(0, "x"): 1}


def test_a_heartbeat_of_unknown_outcome_does_not_fence() -> None:
    """Storage went away while a writer beat, and the beat had happened: the writer is still registered."""
    runtime = ManualRuntime()
    meta = MemoryMeta(runtime)
    away = [Fault.DONE_LOST] + [Fault.REFUSED] * 10_000
    writer = Writer.register(meta, runtime=runtime, settings=BLOBS)
    writer._meta = FaultyMeta(meta, Faults.scripted(writes=away))
    with pytest.raises(OutcomeUnknown):
        writer.beat()
    writer._meta = meta
    writer.beat()
    assert writer.id in read_registrations(meta)
    writer.unregister()
    assert writer.id not in read_registrations(meta)


def test_a_lease_beat_of_unknown_outcome_does_not_end_the_lease() -> None:
    two = Two()
    two.append(0, 0)
    with two.shards[0].snapshot(0) as snapshot:
        leases = two.first.leases
        away = [Fault.DONE_LOST] + [Fault.REFUSED] * 10_000
        leases._meta = FaultyMeta(two.meta, Faults.scripted(writes=away))
        with pytest.raises(OutcomeUnknown):
            leases.beat()
        leases._meta = two.meta
        for _ in range(4):
            two.runtime.advance_s(30.0)
            leases.beat()
            two.writers[1].beat()
            two.shards[1].collect_garbage(two.writers[1])
        snapshot._lease.check(0)


def test_a_listener_below_since_is_told_so() -> None:
    """Compaction moved old rows up to since, into its window: they would look like changes of that time."""
    two = Two()
    for time in range(8):
        two.append(0, time)
    two.shards[0].advance_since(6, two.writers[0])
    log = two.shards[0].log
    batches = log.read().state.batches
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "choose", lambda *_: batches[:2])
        assert compact(log, two.writers[0]) is not None
    with pytest.raises(TimeCompacted):
        Lister(log, Window(3, 3)).poll(0.0)


class KeepingMeta(PassingMeta):
    """Commits to keys with a prefix stay under way: their answer is lost, and they arrive when the test says so."""

    def __init__(self, inner: MemoryMeta, prefix: str, times: int) -> None:
        super().__init__(inner)
        self.kept: list[tuple[Any, Any]] = []
        self._prefix = prefix
        self._times = times

    def commit(self, writes: Any, guards: Any = ()) -> Stale | None:
        if not writes[0].key.startswith(self._prefix) or len(self.kept) == self._times:
            return self.inner.commit(writes, guards)
        self.kept.append((writes, guards))
        raise OutcomeUnknown(path="memory", why="still under way")


def test_an_ended_writer_stays_ended() -> None:
    """The first try of its registration, still under way, arrives when a second try registered it and it was ended."""
    two = Two()
    slow = KeepingMeta(two.meta, writer_key(""), 1)
    shards = make_shards(two.blob, slow, runtime=two.runtime, settings=BLOBS)
    writer = make_writer(shards)
    two.runtime.advance_s(61.0)
    assert writer.id in two.shards[1].collect_garbage(two.writers[1]).writers_ended
    two.meta.commit(*slow.kept[0])
    with pytest.raises(Fenced):
        shards.open("a").compare_and_append(to_table([((0, "x"), 0, 1)]), 0, 1, writer)


def test_a_lease_that_was_ended_while_it_was_taken() -> None:
    """Its answer is lost, and it is ended before its reader looks: no reason to say that its id was taken."""
    two = Two()
    two.append(0, 0)

    class EndingMeta(PassingMeta):
        def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
            if key.startswith(lease_prefix("a")):
                two.runtime.jump_wall_s(61.0)
                two.shards[1].collect_garbage(two.writers[1])
            return super().scan(key, after, limit)

    meta = FaultyMeta(EndingMeta(two.meta), Faults.scripted(writes=[Fault.DONE_LOST]))
    shard = make_shards(two.blob, meta, runtime=two.runtime, settings=BLOBS).open("a")
    with shard.snapshot(0) as snapshot:
        assert to_rows(snapshot.to_arrow()) == {(0, "x"): 1}


def test_what_may_still_arrive_is_not_collected() -> None:
    """A commit of unknown outcome arrives after others collected: what it names must be there."""
    two = Two()
    two.append(1, 0)
    slow = KeepingMeta(two.meta, shard_key(""), 10_000)
    shard = Shards(two.blob, slow, runtime=two.runtime, settings=BLOBS).open("a")
    with pytest.raises(OutcomeUnknown):
        shard.compare_and_append(to_table([((1, "x"), 1, 1)]), 1, 2, two.writers[0])
    two.writers[0].beat()
    two.shards[1].collect_garbage(two.writers[1])
    assert two.meta.commit(*slow.kept[0]) is None
    assert rows_at(two.shards[1], 1) == {(0, "x"): 1, (1, "x"): 1}


def test_while_in_doubt_nobody_says_that_it_did_not_happen() -> None:
    """The append happened, its answer is lost, and storage goes away before anybody can look."""
    two = Two()
    away = [Fault.REFUSED] * 10_000
    meta = FaultyMeta(two.meta, Faults.scripted(writes=[Fault.DONE_LOST, *away], reads=[Fault.DONE] * 2 + away))
    shard = Shards(two.blob, meta, runtime=two.runtime, settings=BLOBS).open("a")
    with pytest.raises(OutcomeUnknown):
        shard.compare_and_append(to_table([((0, "x"), 0, 1)]), 0, 1, two.writers[0])
    assert rows_at(two.shards[1], 0) == {(0, "x"): 1}


class BeatenMeta(PassingMeta):
    """Does something once, right after a collector looked at the heartbeats."""

    def __init__(self, inner: MemoryMeta, deed: Callable[[], None]) -> None:
        super().__init__(inner)
        self._deeds = [deed]

    def heads(self, prefix: str) -> dict[str, Record]:
        found = self.inner.heads(prefix)
        if prefix == beat_key("") and self._deeds:
            self._deeds.pop()()
        return found


def test_a_writer_that_registers_during_a_collection_is_not_forgotten() -> None:
    """It registers, appends, and its answer is lost, all after the collector looked who is registered.

    If that collector forgets its token, and its diff is truncated before it looks, it would withdraw what it wrote.
    """
    two = Two()
    two.append(1, 0)
    hook, committed, go_on = HookMeta(two.meta), threading.Event(), threading.Event()

    def pause() -> None:
        committed.set()
        assert go_on.wait(60.0)
        lose_answer()

    def newcomer() -> None:
        shards = make_shards(two.blob, hook, runtime=two.runtime, settings=BLOBS)
        writer, shard = make_writer(shards), shards.open("a")
        hook.after_commit(pause)
        with suppress(EvertideError):
            shard.compare_and_append(to_table([((1, "x"), 1, 1)]), 1, 2, writer)

    def arrive() -> None:
        thread.start()
        assert committed.wait(60.0)

    thread = threading.Thread(target=newcomer)
    collecting = make_shards(two.blob, BeatenMeta(two.meta, arrive), runtime=two.runtime, settings=BLOBS)
    collecting.open("a").collect_garbage(two.writers[1])
    two.append(1, 2)
    two.shards[1].log.roll_up(two.writers[1])
    two.shards[1].collect_garbage(two.writers[1])
    go_on.set()
    thread.join()
    assert rows_at(two.shards[1], 2) == {(0, "x"): 1, (1, "x"): 1, (2, "x"): 1}
