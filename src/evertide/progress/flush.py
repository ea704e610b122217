"""The flush tracker: up to which transaction everything is durable with every consumer.

Pure: no threads, no storage, and the clock is passed in. A position is a transaction and how many of its fragments:
(7, 2) lies behind two fragments of transaction 7. The rule, in numbered steps:

1. A consumer is *registered* before anything is delivered to it, with an owner, for whoever asks who is late.
2. A *fed* consumer is owed what was announced as `delivered` to it and lies above its report. One that is owed nothing
   holds nobody back, however long ago it wrote last.
3. A *reader* reads everything by itself: it is owed all transactions that ended above its report.
4. A report says "all that I was given up to here is durable". Only the highest counts, compared by order and never by
   equality: it may be lost, repeated, late, or here before what it tells of. So it may also be read again at any time.
5. The position is the last transaction that ended, or the one before the first that somebody is owed.
6. A consumer that is removed is owed nothing. One that is registered late, below the position, lowers it: it takes its
   hold on a shard first, as what was let go does not come back.

Each consumer that is owed something has a deadline: patience, counted from when it began to be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from evertide.errors import InvalidInput

__all__ = ["FlushTracker", "Incomplete", "Position"]

Position: TypeAlias = tuple[int, int]
"""A transaction, and how many of its fragments."""

_WHOLE = 1 << 62
"""More fragments than any transaction has."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Somebody that others wait for."""

    consumer: str
    owner: str
    time: int
    """The first transaction that it has not durably."""
    since_s: float
    deadline_s: float

    def is_overdue(self, now_s: float) -> bool:
        return now_s >= self.deadline_s


@dataclass(slots=True)
class _Consumer:
    owner: str
    is_reader: bool
    report: Position
    owed: deque[tuple[Position, float]] = field(default_factory=deque)
    """Of a fed one: positions above the report, and since when; ascending."""
    late_since_s: float | None = None
    """Of a reader."""


class FlushTracker:
    def __init__(self, now_s: Callable[[], float], patience_s: float) -> None:
        self.ended = -1
        """The last transaction of which nothing more comes."""
        self._now_s = now_s
        self._patience_s = patience_s
        self._consumers: dict[str, _Consumer] = {}
        self._owed: dict[str, _Consumer] = {}
        """Fed ones that are owed something: usually few, of however many."""
        self._readers: dict[str, _Consumer] = {}

    def register(self, consumer: str, owner: str, durable: int, *, is_reader: bool = False) -> None:
        """`durable`: it has all transactions up to this one already."""
        if consumer in self._consumers:
            raise InvalidInput(where=f"consumer {consumer!r}", why="it is registered already")
        made = _Consumer(owner, is_reader, (durable, _WHOLE))
        self._consumers[consumer] = made
        if is_reader:
            self._readers[consumer] = made
            self._look(made)

    def remove(self, consumer: str) -> None:
        """Unknown is fine: it is gone either way."""
        for among in (self._consumers, self._owed, self._readers):
            among.pop(consumer, None)

    def delivered(self, consumer: str, position: Position) -> None:
        """What lies up to here was given to a fed consumer. Announced before it can report it, or after."""
        known = self._consumers.get(consumer)
        if known is None:
            raise InvalidInput(where=f"consumer {consumer!r}", why="it was not registered before delivery")
        if position > known.report and (not known.owed or position > known.owed[-1][0]):
            known.owed.append((position, self._now_s()))
            self._owed[consumer] = known

    def ends(self, time: int) -> None:
        """Nothing more of this transaction, or of an earlier one, is delivered to anybody."""
        self.ended = max(self.ended, time)
        for reader in self._readers.values():
            self._look(reader)

    def reports(self, consumer: str, durable: Position | int) -> None:
        """A number stands for whole transactions. One that is not registered (any more) is not heard."""
        known = self._consumers.get(consumer)
        if known is None:
            return
        known.report = max(known.report, (durable, _WHOLE) if isinstance(durable, int) else durable)
        while known.owed and known.owed[0][0] <= known.report:
            known.owed.popleft()
        if not known.owed:
            self._owed.pop(consumer, None)
        if known.is_reader:
            known.late_since_s = None  # it moves: its patience begins anew
            self._look(known)

    @property
    def position(self) -> int:
        """Up to this transaction, everything is durable with everybody."""
        firsts = [consumer.owed[0][0][0] for consumer in self._owed.values()]
        firsts += [_first_missing(reader) for reader in self._readers.values()]
        return min([self.ended, *(first - 1 for first in firsts)])

    def incomplete(self) -> list[Incomplete]:
        """Who is owed something, the furthest behind first."""
        found = [self._told(name, one, *one.owed[0]) for name, one in self._owed.items()]
        for name, reader in self._readers.items():
            if reader.late_since_s is not None:
                found.append(self._told(name, reader, (_first_missing(reader), 0), reader.late_since_s))
        return sorted(found, key=lambda one: (one.time, one.consumer))

    def _told(self, name: str, consumer: _Consumer, position: Position, since_s: float) -> Incomplete:
        return Incomplete(name, consumer.owner, position[0], since_s, since_s + self._patience_s)

    def _look(self, reader: _Consumer) -> None:
        if _first_missing(reader) > self.ended:
            reader.late_since_s = None
        elif reader.late_since_s is None:
            reader.late_since_s = self._now_s()


def _first_missing(reader: _Consumer) -> int:
    """A transaction of which it has some fragments is missing still."""
    time, fragments = reader.report
    return time + 1 if fragments == _WHOLE else time
