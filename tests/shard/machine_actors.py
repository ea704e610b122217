"""The actors of the state machine (`tests.shard.machine`), their steps, and a storage whose writes may take effect
late.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from hypothesis import strategies as st

from evertide.errors import (
    Conflict,
    Fenced,
    OutcomeUnknown,
    Unavailable,
)
from evertide.shard.frontier import Frontier
from evertide.shard.heartbeat import Heartbeat
from evertide.shard.lease import Lease
from evertide.shard.parts.part import Part
from evertide.shard.read import Lister, PartListing, Snapshot
from evertide.shard.shard import Shard, Shards
from evertide.store import Guard, MemoryBlob, MemoryMeta, Stale, Write
from evertide.store.writers import Writer
from tests.kit.faulty import Fault, Faults
from tests.kit.runtime import RandomStream
from tests.shard.kit import PassingBlob, PassingMeta
from tests.shard.model import Change

T = TypeVar("T")
Deed: TypeAlias = Callable[["Actor", int, int], None]

SHARDS = ("a", "b")
ACTORS = 3
TTL_S = 60.0

NOT_HAPPENED = (Unavailable, Conflict, Fenced)
"""Errors that promise that nothing was written. `OutcomeUnknown` promises nothing."""


class Died(BaseException):
    """The process is dead: none of its code continues, and nothing may catch this."""


class Late:
    """Writes that are still in flight although their answer was lost: they take effect some storage calls later."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Callable[[], object]]] = []
        self._calls = 0

    def delay(self, calls: int, write: Callable[[], object]) -> None:
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
    """An actor's connection to storage: decides how each call ends, and what happens before it."""

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
            calls, action = self._before
            self._before = (calls - 1, action) if calls > 1 else None
            if calls == 1:
                action()
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
            self._line.late.delay(self._line.late_calls, lambda: self.inner.commit(kept_writes, kept_guards))
            raise OutcomeUnknown(path=self.path(writes[0].key), why="injected: still under way")
        return self.inner.commit(writes, guards)


class LateBlob(PassingBlob):
    def __init__(self, inner: MemoryBlob, line: Line) -> None:
        super().__init__(inner)
        self._line = line

    def put(self, key: str, data: bytes) -> None:
        if self._line.late_calls:
            self._line.late.delay(self._line.late_calls, lambda: self._put_late(key, data))
            raise OutcomeUnknown(path=self.path(key), why="injected: still under way")
        self.inner.put(key, data)

    def _put_late(self, key: str, data: bytes) -> None:
        with suppress(Conflict):  # the action `damage` may be in progress: it repairs the blob at its end
            self.inner.put(key, data)


@dataclass
class Opened:
    """A snapshot that a reader has open."""

    shard: str
    snapshot: Snapshot
    lease: Lease
    safe_until_s: float
    """No process may end its lease before this time."""
    exposed: bool = False
    """That time has passed, so a process may have ended the lease."""


@dataclass
class Listener:
    """A reader of changes, driven step by step: the shard source without its threads."""

    shard: str
    lease: Lease
    lister: Lister
    frontier: Frontier
    start: int
    """The first time whose changes the reader receives. With a snapshot, earlier changes have this time."""
    is_snapshot: bool
    tasks: list[tuple[Part, PartListing]] = field(default_factory=list)
    received: list[Change] = field(default_factory=list)


@dataclass
class Stored:
    """Parts that were put but not linked yet, as between executors and driver. Their number is claimed meanwhile."""

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
    """How many actions it tried although it was fenced."""
    safe_until_s: float = 0.0
    """No process may unregister its writer before this time."""
    exposed: bool = False


@dataclass
class Attempt:
    """Changes that a writer tries to append. The tokens of its commits are in [first, last]."""

    writer: str
    changes: dict[str, list[Change]]
    first: int
    last: int | None = None
    found: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The part of it that is in the log: per shard the times [lower, upper)."""


@dataclass
class HoldChange:
    """A hold that an actor sets to a time, or releases (None). Only a record of [first, last] can be its commit."""

    shard: str
    hold: str
    time: int | None
    first: int
    last: int | None = None

    def explains(self, shard: str, number: int, hold: str, time: int | None) -> bool:
        is_in_range = self.first <= number and (self.last is None or number <= self.last)
        return is_in_range and (self.shard, self.hold, self.time) == (shard, hold, time)


@dataclass(frozen=True)
class Cross:
    """What happens right before the n-th storage call of an action: actions of another actor, usually on its shard."""

    calls: int
    slot: int
    actions: tuple[str, ...]
    y: int
    elsewhere: bool = False


@dataclass(frozen=True)
class Step:
    """One action of one actor. `x` and `y` select its details."""

    slot: int
    action: str
    x: int
    y: int
    rate: float = 0.0
    """The share of storage calls that fail, as `seed` decides."""
    seed: int = 0
    cross: Cross | None = None


NUMBERS = st.integers(min_value=0, max_value=7)
SLOTS = st.integers(min_value=0, max_value=ACTORS - 1)
RATES = st.sampled_from([0.0, 0.0, 0.05, 0.2, 0.5])
SEEDS = st.integers(min_value=0, max_value=10_000)
CROSSING = [
    *[("die",), ("collect",), ("link",), ("link", "beat"), ("compact", "collect"), ("open_snapshot", "compact")] * 2,
    *[(action,) for action in ("append", "append_together", "compact", "roll_up", "advance_since")],
    *[(action,) for action in ("hold", "release", "beat", "open_snapshot", "read_snapshot", "listen", "generation")],
    *[("take_over",), ("append", "take_over"), ("append", "roll_up", "collect"), ("newcomer", "append")],
    ("advance_since", "compact", "collect"),
]
DEEDS = [
    *["append"] * 5,
    *["append_together"] * 2,
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
    actions=st.sampled_from(CROSSING),
    y=NUMBERS,
    elsewhere=st.sampled_from([False, False, True]),
)
STEPS = st.builds(
    Step,
    slot=SLOTS,
    action=st.sampled_from(DEEDS),
    x=NUMBERS,
    y=NUMBERS,
    rate=RATES,
    seed=SEEDS,
    cross=st.one_of(st.none(), CROSSES),
)
