"""Where a PostgreSQL source stands: a JSON text in the journal, and all that it needs to go on.

    start      nothing was asked of the server yet
    making     the slot is about to be made: whatever slot has that name is ours, and may be made anew
    snapshot   some of the first content was taken; if it is interrupted, slot and snapshot are made anew
    stream     everything that was committed before `lsn` was taken

`columns` are the columns that were taken, with their types: if the server says something else later, rows were changed
in a way that no stream tells.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from evertide.errors import InvalidInput
from evertide.sources.postgres.messages import lsn_text, parse_lsn

__all__ = ["START", "Position"]


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    at: Literal["start", "making", "snapshot", "stream"]
    lsn: str = "0/0"
    done: int = 0
    """Fragments of snapshots that were taken, also of those that were interrupted."""
    columns: dict[str, dict[str, str]] = {}
    partitions: dict[str, str] = {}
    """Of tables that are partitioned upstream (`evertide.sources.postgres.partitions`): their files."""
    attached: dict[str, str] = {}
    """Of these, the transactions that attached them."""

    @property
    def number(self) -> int:
        return parse_lsn(self.lsn)

    @property
    def confirmed(self) -> int:
        """What the server may forget; 0: nothing."""
        return self.number if self.at == "stream" else 0

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, text: str, source: str) -> Position:
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise InvalidInput(where=f"source {source!r}", why=f"{text!r} is no position of it: {error}") from error

    def streamed(self, lsn: int, columns: dict[str, dict[str, str]] | None = None) -> Position:
        known = self.columns if columns is None else columns
        return Position("stream", lsn_text(lsn), 0, known, self.partitions, self.attached)


START = Position("start")
