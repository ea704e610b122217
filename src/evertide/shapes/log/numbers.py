"""The transaction numbers that clients see (`txids`), and which of them a snapshot contains.

1. A client that writes to the upstream database can read its transaction's number there and wait for it here: so that
   number is sent with the resulting changes. One transaction here may contain many upstream transactions.
2. In a pipeline without an upstream database, a transaction's number is its time plus 1. With an upstream database, a
   transaction of pushed rows has such a number too, above the 32 bits of the database's numbers. Transactions of other
   sources, which no client waits for, have none.
3. A snapshot states the numbers that it contains as PostgreSQL does: all below `xmax`, except those listed as open.
   Numbers are assigned in order but committed out of order: missing numbers among the last `_WINDOW` are listed as
   open. Some of them may never arrive, which does no harm: no client learns too early that a transaction is here.
   Numbers above 32 bits cannot be expressed this way: those of recent pushes are listed one by one.
4. Clients compare numbers modulo 2^32 with those of a subset that they requested, and drop changes that the subset
   contains. A pushed change must never be dropped because of its number, so it has two numbers that differ by half of
   2^32: one of them is always later than the subset. A change that the subset already contains is then sent again,
   with the same content.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from evertide.journal.xids import LISTED_PUSHES_MAX, Xids, make_own_number

_WINDOW = 64
_PUSH_NUMBERS_APART = (1 << 52) + (1 << 31)
"""Numbers must fit the 53 bits that JSON clients have for integers."""
_XIDS_MAX = 1_000
_XIDS = 1 << 32
_FIRST_XID = 3
"""PostgreSQL assigns no lower numbers to transactions."""


class VisibleNumbers(msgspec.Struct, frozen=True):
    """The numbers that a snapshot contains."""

    xmin: int
    xmax: int
    xip_list: tuple[int, ...] = ()

    @property
    def json_fields(self) -> dict[str, object]:
        return {"xmin": str(self.xmin), "xmax": str(self.xmax), "xip_list": [str(xid) for xid in self.xip_list]}


class TransactionNumbers:
    def __init__(self, xids: Xids) -> None:
        self._xids = xids

    def txids(self, time: int) -> Sequence[int]:
        xids = self._xids.find(time)
        if xids is None:
            return (make_own_number(time, has_upstream=False),)
        if not self._xids.is_pushed(time):
            return xids
        own = make_own_number(time, has_upstream=True)
        return (*xids, own) if xids else (own, own + _PUSH_NUMBERS_APART)

    def list_push_numbers(self, time: int) -> tuple[int, ...]:
        """The numbers of the last pushes in a snapshot at a time, which `visible` cannot express."""
        return tuple(make_own_number(at, has_upstream=True) for at in self._xids.list_pushed(time, LISTED_PUSHES_MAX))

    def find_visible(self, time: int) -> VisibleNumbers:
        xids = self._xids.list_latest(time, _XIDS_MAX)
        return VisibleNumbers(time + 2, time + 2) if xids is None else _find_visible(xids)


def _find_visible(xids: Iterable[int]) -> VisibleNumbers:
    seen = {*xids}
    if not seen:
        return VisibleNumbers(0, 0)
    base = next(iter(seen))
    last = max(seen, key=lambda xid: (xid - base + _XIDS // 2) % _XIDS)  # they wrap around
    missing = tuple(xid for xid in range(max(_FIRST_XID, last - _WINDOW), last) if xid not in seen)
    return VisibleNumbers(missing[0] if missing else last + 1, last + 1, missing)
