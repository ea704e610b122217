"""`Replay`: what to do with each transaction after a restart, or after a peer was faster. A state machine without IO.

Words: `time` is the first time that our state does not hold (at a start: the checkpoint's), `committed` the first that
is not in the shards, `bound` the first that is not bound. Always time <= committed <= bound, or it is damage.

Transactions that follow each other may be replayed as one, a *stretch* (`Stretch`): far fewer steps, and digests add
up, so that their sum tells whether all came to what is recorded.

    state       when                        what the pipeline does with `time`
    REPLAY      time < committed            takes the table deltas from the shards (of a table that is not kept: reads
                                            its source again), runs them through the operators, compares; no append
    COMPLETE    committed = time < bound    reads the bound input, computes, appends
    RUN         time = committed = bound    binds
    DIVERGED    a comparison failed         nothing any more: state is discarded, nothing is committed (I8)
    FAILED      anything else failed        nothing any more, until somebody starts anew

    transition             from                leads to
    seen(committed, bound) REPLAY, COMPLETE,   the state that follows from the three times: what is bound or committed
                           RUN                 meanwhile, by us or by a peer; both only advance
    replayed(found, rec.)  REPLAY              after what was found, and the state that follows; or DIVERGED, with the
                                               error raised
    completed(time)        COMPLETE            time + 1, as its commit happened, and the state that follows
    fail(error)            any but the last    FAILED, or DIVERGED if that is what the error says
                           two

A call that the state does not allow raises: in the last two states the error that led there, else `InvalidInput`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from evertide.errors import Damaged, Diverged, EvertideError, InvalidInput
from evertide.journal.records import Bound, Committed, Content
from evertide.rows.digest import add

__all__ = ["Found", "Progress", "Replay", "State", "Stretch", "check", "differing"]


class State(enum.Enum):
    REPLAY = "replay"
    COMPLETE = "complete"
    RUN = "run"
    DIVERGED = "diverged"
    FAILED = "failed"


_ENDED = (State.DIVERGED, State.FAILED)
_STRETCH_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Stretch:
    """Transactions that follow each other, as they were bound and as they are recorded."""

    bound: tuple[Bound, ...]
    records: tuple[Committed, ...]

    @classmethod
    def of(cls, transactions: Iterable[tuple[Bound, Committed]], rows_max: int) -> Stretch:
        """The first, and those behind it that can be taken with it, until they have so many rows."""
        found: list[tuple[Bound, Committed]] = []
        rows = 0
        for bound, recorded in transactions:
            if found and not _go_together(found[0], (bound, recorded)):
                break
            found.append((bound, recorded))
            rows += sum(content.rows for content in recorded.shards.values())
            if rows >= rows_max or len(found) == _STRETCH_MAX:
                break
        return cls(tuple(bound for bound, _ in found), tuple(recorded for _, recorded in found))

    @property
    def time(self) -> int:
        return self.bound[0].time

    @property
    def upper(self) -> int:
        return self.time + len(self.bound)

    @property
    def recorded(self) -> Committed:
        """What all of them came to, as if it was one that was computed in as many portions."""
        if len(self.records) == 1:
            return self.records[0]
        return msgspec.structs.replace(
            self.records[0],
            sources=_added([record.sources for record in self.records]),
            shards=_added([record.shards for record in self.records]),
            portions=len(self.records),
        )


def _go_together(first: tuple[Bound, Committed], other: tuple[Bound, Committed]) -> bool:
    """Both are of the same generation, sources and shards, and neither was made in portions."""
    (bound, recorded), (later, told) = first, other
    return (
        bound.generation == later.generation
        and bound.inputs.keys() == later.inputs.keys()
        and recorded.shards.keys() == told.shards.keys()
        and recorded.portions == told.portions == 1
    )


def _added(several: Sequence[Mapping[str, Content]]) -> dict[str, Content]:
    found = dict(several[0])
    for contents in several[1:]:
        for name, content in contents.items():
            before = found[name]
            found[name] = Content(before.rows + content.rows, add(before.digest, content.digest))
    return found


@dataclass(frozen=True, slots=True)
class Found:
    """What a replay of one transaction, or of `count` from it on, came to, by source and by shard.

    All of the transaction's generation are named. None stands for one that was not looked at: the source of a kept
    table, as the shard has its rows.
    """

    time: int
    sources: Mapping[str, Content | None] = field(default_factory=dict)
    shards: Mapping[str, Content | None] = field(default_factory=dict)
    count: int = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """Transactions done since the start, of those that were to do."""

    done: int
    total: int


def check(found: Found, recorded: Committed) -> None:
    """Raise `Diverged` where the contents differ, `InvalidInput` where one names what the other does not (J4)."""
    if found.time != recorded.time:
        why = f"it was compared with the record of transaction {recorded.time}"
        raise InvalidInput(where=f"transaction {found.time}", why=why)
    _check_names("source", found.sources, recorded.sources, recorded.time)
    _check_names("shard", found.shards, recorded.shards, recorded.time)
    for error in _differing("source", found.sources, recorded.sources, recorded.time).values():
        raise error
    for error in differing(found, recorded).values():
        raise error


def differing(found: Found, recorded: Committed) -> dict[str, Diverged]:
    """The shards that came to something else than what is recorded, by name."""
    if recorded.portions > 1:  # how many rows took back each other depends on where the portions ended
        recorded = _by_digest(found, recorded)
    return _differing("shard", found.shards, recorded.shards, recorded.time)


class Replay:
    """Not shared between threads: the transaction loop has it. `path` is where the journal lies, for errors."""

    def __init__(self, *, restored: int, committed: int, bound: int, path: str) -> None:
        self._path = path
        self._restored = restored
        self._time = restored
        self._committed = committed
        self._bound = bound
        self._error: EvertideError | None = None
        self._check_times()

    @property
    def state(self) -> State:
        if self._error is not None:
            return State.DIVERGED if isinstance(self._error, Diverged) else State.FAILED
        if self._time < self._committed:
            return State.REPLAY
        return State.COMPLETE if self._time < self._bound else State.RUN

    @property
    def time(self) -> int:
        """The transaction that is next."""
        return self._time

    @property
    def committed(self) -> int:
        return self._committed

    @property
    def bound(self) -> int:
        return self._bound

    @property
    def error(self) -> EvertideError | None:
        """Why it ended."""
        return self._error

    @property
    def progress(self) -> Progress:
        return Progress(self._time - self._restored, self._bound - self._restored)

    def seen(self, *, committed: int, bound: int) -> State:
        """How far shards and journal are now. Older news than we have is fine: they only advance."""
        self._demand(State.REPLAY, State.COMPLETE, State.RUN)
        self._committed = max(self._committed, committed)
        self._bound = max(self._bound, bound)
        self._check_times()
        return self.state

    def replayed(self, found: Found, recorded: Committed) -> State:
        self._demand(State.REPLAY, time=found.time)
        try:
            check(found, recorded)
        except EvertideError as error:
            self._error = error
            raise
        self._time += found.count
        return self.state

    def completed(self, time: int) -> State:
        self._demand(State.COMPLETE, time=time)
        self._time += 1
        self._committed = self._time
        return self.state

    def fail(self, error: EvertideError) -> State:
        self._demand(State.REPLAY, State.COMPLETE, State.RUN)
        self._error = error
        return self.state

    def _demand(self, *states: State, time: int | None = None) -> None:
        if self._error is not None:
            raise self._error
        state = self.state
        if state not in states:
            expected = " or ".join(allowed.value for allowed in states)
            raise InvalidInput(where=f"transaction {self._time}", why=f"it is to {state.value}, not to {expected}")
        if time is not None and time != self._time:
            raise InvalidInput(where=f"transaction {time}", why=f"transaction {self._time} is next")

    def _check_times(self) -> None:
        why = _impossible(self._time, self._committed, self._bound)
        if why:
            self._error = Damaged(path=self._path, why=why)
            raise self._error


def _impossible(restored: int, committed: int, bound: int) -> str | None:
    if restored < 0:
        return f"the state restored ends before time {restored}: times are 0 and up"
    if committed > bound:
        return f"transactions {bound} to {committed - 1} are in the shards, and were never bound (I7)"
    if restored > committed:
        return f"the state restored holds transactions {committed} to {restored - 1}, which the shards do not have"
    return None


def _check_names(kind: str, found: Mapping[str, Content | None], recorded: Mapping[str, Content], time: int) -> None:
    for name in sorted(recorded.keys() - found.keys()):
        why = f"the record of transaction {time} names it, and the pipeline lacks it"
        raise InvalidInput(where=f"{kind} {name!r}", why=why)
    for name in sorted(found.keys() - recorded.keys()):
        why = f"the pipeline has it, and the record of transaction {time} does not name it"
        raise InvalidInput(where=f"{kind} {name!r}", why=why)


def _differing(
    kind: str, found: Mapping[str, Content | None], recorded: Mapping[str, Content], time: int
) -> dict[str, Diverged]:
    differ = {}
    for name in sorted(recorded):
        content, expected = found.get(name), recorded[name]
        if content is not None and content != expected:
            where = f"{kind} {name!r}"
            differ[name] = Diverged(where=where, time=time, expected=_told(expected), found=_told(content))
    return differ


def _by_digest(found: Found, recorded: Committed) -> Committed:
    rows = {name: content.rows for name, content in found.shards.items() if content is not None}
    shards = {name: Content(rows.get(name, known.rows), known.digest) for name, known in recorded.shards.items()}
    return msgspec.structs.replace(recorded, shards=shards)


def _told(content: Content) -> str:
    return f"{content.rows} rows, digest {content.digest}"
