"""The positions of a PostgreSQL source: a JSON text in the journal with all that is needed to continue.

    start      the server was not accessed yet
    making     the slot is about to be created: a slot of that name belongs to the source, and may be replaced
    snapshot   part of the initial content was read; after an interruption, slot and snapshot are created again
    stream     everything that was committed before `lsn` was read

`columns` are the columns that were read, with their types: if the server's differ later, rows were changed in a way
that the stream does not contain.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from evertide.errors import Unexpected
from evertide.sources.postgres.messages import format_lsn, parse_lsn


class ReadStage(StrEnum):
    """How far the source is: see the header."""

    START = "start"
    MAKING = "making"
    SNAPSHOT = "snapshot"
    STREAM = "stream"


class PostgresPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    at: ReadStage
    lsn: str = "0/0"
    done: int = 0
    """The number of snapshot fragments that were read, including those of interrupted snapshots."""
    columns: dict[str, dict[str, str]] = {}
    partitions: dict[str, str] = {}
    """The files of each partitioned table's partitions (`evertide.sources.postgres.partitions`)."""
    attached: dict[str, str] = {}
    """The transactions that attached these partitions."""
    truncated: dict[str, int] = {}
    """The transaction that truncated each table whose partitions were not read since."""

    @property
    def number(self) -> int:
        return parse_lsn(self.lsn)

    @property
    def confirmed(self) -> int:
        """The position up to which the server may discard its log; 0 if none."""
        return self.number if self.at is ReadStage.STREAM else 0

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, text: str, source: str) -> PostgresPosition:
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            why = f"{text!r} is not a position of a PostgreSQL source: {error}"
            raise Unexpected(where=f"source {source!r}", why=why) from error

    def advance_to(self, lsn: int, columns: dict[str, dict[str, str]] | None = None) -> PostgresPosition:
        known = self.columns if columns is None else columns
        return PostgresPosition(
            ReadStage.STREAM, format_lsn(lsn), 0, known, self.partitions, self.attached, self.truncated
        )


START = PostgresPosition(ReadStage.START)
