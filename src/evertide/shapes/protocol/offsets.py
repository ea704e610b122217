"""Offsets: where in the log of a shape something stands.

    -1              before everything
    0_0, 0_1, ...   behind the first, the second, ... chunk of the snapshot
    0_inf           behind the snapshot, before the log
    0_S             the same of a later snapshot: S is its time plus 1, times 2^20, plus the chunk's number
    T_N             behind operation N of the transaction that clients know as T
    T_inf           behind transaction T

1. T is the time of a transaction, plus 1: so the log of every shape lies behind its snapshot.
2. N counts what the transaction changes in the collection, in steps of 2, whatever part of it the shape gets: so the
   same change stands at the same place in every shape, and nothing has to be remembered to say it again.
3. A client that begins when the log of a shape has grown larger than the shape itself gets a later snapshot, and the
   log behind it: both are told apart from the first snapshot by the offset alone, which clients take as it is.
4. Clients may ask for places where nothing stands: they get what lies behind.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

__all__ = ["BEFORE_ALL", "BEFORE_LOG", "INF", "Offset", "SnapshotChunk", "parse_offset"]

INF = 1 << 64
_WORD = 1 << 64
_FORM = re.compile(r"([0-9]{1,20})_([0-9]{1,20}|inf)")

_SNAPSHOT_BITS = 20


class SnapshotChunk(NamedTuple):
    """A chunk of a snapshot of a shape."""

    time: int | None
    """Of the snapshot; None for the one that the shape began with."""
    number: int

    @property
    def offset(self) -> Offset:
        """The place behind it."""
        above = 0 if self.time is None else self.time + 1
        return Offset(0, above << _SNAPSHOT_BITS | self.number)

    @property
    def log(self) -> Offset:
        """The place where the log goes on behind the snapshot."""
        return BEFORE_LOG if self.time is None else Offset(self.time + 1, INF)


class Offset(msgspec.Struct, frozen=True, order=True, gc=False):
    transaction: int
    operation: int

    @property
    def time(self) -> int:
        """The first time at which something can stand behind it."""
        return self.transaction - 1

    @property
    def is_virtual(self) -> bool:
        """In the snapshot, or before it."""
        return self.transaction <= 0

    @property
    def next_chunk(self) -> SnapshotChunk | None:
        """The chunk of a snapshot that follows; None if the log does."""
        if self.transaction < 0:
            return SnapshotChunk(None, 0)
        if self.transaction > 0 or self.operation >= INF:
            return None
        above, number = divmod(self.operation, 1 << _SNAPSHOT_BITS)
        return SnapshotChunk(above - 1 if above else None, number + 1)

    def __str__(self) -> str:
        if self.transaction < 0:
            return "-1"
        return f"{self.transaction}_{'inf' if self.operation == INF else self.operation}"


BEFORE_ALL = Offset(-1, 0)
BEFORE_LOG = Offset(0, INF)


def parse_offset(text: str) -> Offset | None:
    """None if it is none; `now` is not a place, but a question."""
    if text == "-1":
        return BEFORE_ALL
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    transaction, operation = int(match[1]), INF if match[2] == "inf" else int(match[2])
    return Offset(transaction, operation) if transaction < _WORD and operation <= INF else None
