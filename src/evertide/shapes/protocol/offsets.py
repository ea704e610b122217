"""Offsets: positions in the snapshot or the log of a shape.

    -1              before everything
    0_0, 0_1, ...   after the first, the second, ... chunk of the snapshot
    0_inf           after the snapshot, before the log
    0_S             the same for a later snapshot: S is (its time + 1) * 2^20 + the chunk's number
    T_N             after operation N of transaction T
    T_inf           after transaction T

1. T is the transaction's time plus 1, so that the log of every shape comes after its snapshot.
2. N counts the transaction's changes to the collection, in steps of 2, whichever of them are in the shape: the same
   change has the same offset in every shape, and no state is needed to send it again.
3. A client that begins when a shape's log has grown larger than the shape gets a later snapshot and the log after it.
   Only the offset, which clients treat as opaque, distinguishes it from the first snapshot.
4. A client may request an offset without an entry: it gets the entries after it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

INF = 1 << 64
_WORD = 1 << 64
_PATTERN = re.compile(r"([0-9]{1,20})_([0-9]{1,20}|inf)")

_SNAPSHOT_BITS = 20


class SnapshotChunk(NamedTuple):
    time: int | None
    """The snapshot's time; None for the one that the shape began with."""
    number: int

    @property
    def offset(self) -> Offset:
        """The offset after the chunk."""
        above = 0 if self.time is None else self.time + 1
        return Offset(0, above << _SNAPSHOT_BITS | self.number)

    @property
    def log(self) -> Offset:
        """The offset at which the log continues after the snapshot."""
        return BEFORE_LOG if self.time is None else Offset(self.time + 1, INF)


class Offset(msgspec.Struct, frozen=True, order=True, gc=False):
    transaction: int
    operation: int

    @property
    def time(self) -> int:
        """The first time that an entry after this offset can have."""
        return self.transaction - 1

    @property
    def next_chunk(self) -> SnapshotChunk | None:
        """The next chunk of the snapshot; None if the log follows."""
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
    """None if the text is not an offset. `now` is not one: it is handled by `requests`."""
    if text == "-1":
        return BEFORE_ALL
    match = _PATTERN.fullmatch(text)
    if match is None:
        return None
    transaction, operation = int(match[1]), INF if match[2] == "inf" else int(match[2])
    return Offset(transaction, operation) if transaction < _WORD and operation <= INF else None
