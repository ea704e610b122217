"""The numbers under which clients know transactions (`txids`), and what a snapshot says of them.

1. Whoever writes to the database upstream can ask for the number of his transaction there, and wait for it here: so
   that number is told with the changes that came of it. One transaction here may be many upstream.
2. In a pipeline that follows no such database a transaction has its own number here, its time plus 1. In one that does,
   a transaction of rows that were pushed has that number, too, but above the 32 bits of the database's. One of other
   sources, for which nobody waits, has none.
3. A snapshot says which numbers it holds in the words of PostgreSQL: all below `xmax`, but for those listed as open.
   Numbers are given out in order, and committed in another: of the last ones those that did not come are called open.
   That may be said of some that never will come, which does no harm: nobody is told that something is here too early.
   Numbers above 32 bits cannot be said in these words: those of the last pushes stand beside them, one by one.
4. Clients compare numbers modulo 2^32 with those of a subset that they asked for, and drop a change that it holds. A
   change that was pushed must never be dropped for its number, so it has two, half of 2^32 apart: one of them is
   always later than the subset. What a subset holds already comes again then, and says the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from evertide.journal.xids import Xids, own_number

__all__ = ["Numbers", "Visible"]

_WINDOW = 64
_APART = (1 << 52) + (1 << 31)
"""JSON has 53 bits for whole numbers."""
_PUSHES = 100
"""Of them, so many are told with a snapshot: those who wait for one have just pushed it."""
_ENOUGH = 1_000
_WORD = 1 << 32
_FIRST = 3
"""Lower numbers are no transactions of anybody."""


class Visible(msgspec.Struct, frozen=True):
    """What a snapshot holds."""

    xmin: int
    xmax: int
    xip_list: tuple[int, ...] = ()

    @property
    def json_fields(self) -> dict[str, object]:
        """As clients read it."""
        return {"xmin": str(self.xmin), "xmax": str(self.xmax), "xip_list": [str(xid) for xid in self.xip_list]}


class Numbers:
    def __init__(self, xids: Xids) -> None:
        self._xids = xids

    def txids(self, time: int) -> Sequence[int]:
        xids = self._xids.of(time)
        if xids is None:
            return (own_number(time, has_upstream=False),)
        if not self._xids.is_pushed(time):
            return xids
        own = own_number(time, has_upstream=True)
        return (*xids, own) if xids else (own, own + _APART)

    def pushed(self, time: int) -> tuple[int, ...]:
        """The numbers of the last pushes in a snapshot at a time that `visible` does not tell."""
        return tuple(own_number(at, has_upstream=True) for at in self._xids.pushed(time, _PUSHES))

    def visible(self, time: int) -> Visible:
        """In a snapshot at a time."""
        xids = self._xids.latest(time, _ENOUGH)
        return Visible(time + 2, time + 2) if xids is None else _visible(xids)


def _visible(xids: Iterable[int]) -> Visible:
    seen = {*xids}
    if not seen:
        return Visible(0, 0)
    some = next(iter(seen))
    last = max(seen, key=lambda xid: (xid - some + _WORD // 2) % _WORD)  # they go round
    missing = tuple(xid for xid in range(max(_FIRST, last - _WINDOW), last) if xid not in seen)
    return Visible(missing[0] if missing else last + 1, last + 1, missing)
