"""The flush tracker: up to which transaction everything is durable with every consumer.

Pure: no threads, no storage, no clock. A position is a transaction and how many of its fragments:
(7, 2) lies behind two fragments of transaction 7. The rule, in numbered steps:

1. A consumer is *registered* before anything is delivered to it.
2. A *fed* consumer is owed what was announced as `delivered` to it and lies above its report. One that is owed nothing
   holds nobody back, however long ago it wrote last.
3. A *reader* reads everything by itself: it is owed all transactions that ended above its report.
4. A report says "all that I was given up to here is durable". Only the highest counts, compared by order and never by
   equality: it may be lost, repeated, late, or here before what it tells of. So it may also be read again at any time.
5. The position is the last transaction that ended, or the one before the first that somebody is owed.
6. A consumer that is removed is owed nothing. One that is registered late, below the position, lowers it: it takes its
   hold on a shard first, as what was let go does not come back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from evertide.errors import InvalidInput

__all__ = ["FlushTracker", "Position"]

Position: TypeAlias = tuple[int, int]
"""A transaction, and how many of its fragments."""

_WHOLE = 1 << 62
"""More fragments than any transaction has."""


@dataclass(slots=True)
class _Consumer:
    is_reader: bool
    report: Position
    owed: deque[Position] = field(default_factory=deque)
    """Of a fed one: positions above the report, ascending."""


class FlushTracker:
    def __init__(self) -> None:
        self.ended = -1
        """The last transaction of which nothing more comes."""
        self._consumers: dict[str, _Consumer] = {}
        self._owed: dict[str, _Consumer] = {}
        """Fed ones that are owed something: usually few, of however many."""
        self._readers: dict[str, _Consumer] = {}

    def register(self, consumer: str, durable: int, *, is_reader: bool = False) -> None:
        """`durable`: it has all transactions up to this one already."""
        if consumer in self._consumers:
            raise InvalidInput(where=f"consumer {consumer!r}", why="it is registered already")
        made = _Consumer(is_reader, (durable, _WHOLE))
        self._consumers[consumer] = made
        if is_reader:
            self._readers[consumer] = made

    def remove(self, consumer: str) -> None:
        """Unknown is fine: it is gone either way."""
        for among in (self._consumers, self._owed, self._readers):
            among.pop(consumer, None)

    def delivered(self, consumer: str, position: Position) -> None:
        """What lies up to here was given to a fed consumer. Announced before it can report it, or after."""
        known = self._consumers.get(consumer)
        if known is None:
            raise InvalidInput(where=f"consumer {consumer!r}", why="it was not registered before delivery")
        if position > known.report and (not known.owed or position > known.owed[-1]):
            known.owed.append(position)
            self._owed[consumer] = known

    def ends(self, time: int) -> None:
        """Nothing more of this transaction, or of an earlier one, is delivered to anybody."""
        self.ended = max(self.ended, time)

    def reports(self, consumer: str, durable: Position | int) -> None:
        """A number stands for whole transactions. One that is not registered (any more) is not heard."""
        known = self._consumers.get(consumer)
        if known is None:
            return
        known.report = max(known.report, (durable, _WHOLE) if isinstance(durable, int) else durable)
        while known.owed and known.owed[0] <= known.report:
            known.owed.popleft()
        if not known.owed:
            self._owed.pop(consumer, None)

    @property
    def position(self) -> int:
        """Up to this transaction, everything is durable with everybody."""
        firsts = [consumer.owed[0][0] for consumer in self._owed.values()]
        firsts += [_first_missing(reader) for reader in self._readers.values()]
        return min([self.ended, *(first - 1 for first in firsts)])


def _first_missing(reader: _Consumer) -> int:
    """A transaction of which it has some fragments is missing still."""
    time, fragments = reader.report
    return time + 1 if fragments == _WHOLE else time
