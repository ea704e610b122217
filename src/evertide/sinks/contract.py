"""The interface between a sink and the pipeline: a sink writes the transactions of one collection, each once.

1. A connector's prepare function (`evertide.sinks.registry`) reads the options of a declaration, and raises
   `InvalidInput` before the pipeline starts. It does not access the target.
2. `Prepared.probe` checks the target of a new sink without changing it: an unusable target raises `InvalidInput` or
   `SinkFailed` before the pipeline starts. A sink that has already written is not probed.
3. `Prepared.open(token)` connects, and fences processes that opened the same sink token before: they can no longer
   write, or their writes are skipped by number. A token belongs to one sink of one storage and is never reused. The
   target stores the transaction number under it, so that the target of another pipeline is not mistaken for this one.
4. `last()` is the newest transaction number that the target durably has. It is called once, after opening.
5. `write(time, changes)` writes one transaction atomically, and is durable on return. A large transaction is written in
   pieces (`Changes`); a sink holds one piece in memory if its target allows. Times increase strictly; the gaps are
   transactions that do not change the collection (I9). A time that the target already has is skipped, by its number
   alone (J7), so a crash between the write and the pipeline's record of it does not write twice.
6. A failure of the target is `SinkFailed`. It stalls this sink, which is opened again later, and nothing else (I10).
7. One thread at a time uses a sink. The first transaction is the whole content, as additions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from evertide.options import Options
from evertide.rows.utf8 import is_valid_utf8
from evertide.runtime import Runtime
from evertide.secrets import Secrets


class Changes:
    """The changes of one transaction, in pieces that fit into memory; most transactions have one piece.

    A piece has the collection's columns and `__diff` (int64, never 0), in an order that the content determines. Each
    row is in one piece, once; if the sink has a key, all rows of a key are in one piece. The pieces are the same in
    every iteration.
    """

    def __init__(self, pieces: Callable[[], Iterable[pa.Table]], *, is_addition: bool) -> None:
        """`is_addition`: it is known that no row is removed."""
        self.whole: pa.Table | None = None
        """All changes, if they are one piece."""
        self.is_addition = is_addition
        self._pieces = pieces
        self._rows: int | None = None

    @classmethod
    def of(cls, table: pa.Table) -> Changes:
        """Changes of one piece."""
        changes = cls(lambda: [table], is_addition=bool(pc.all(pc.greater(table["__diff"], 0)).as_py()))
        changes.whole = table
        return changes

    def __iter__(self) -> Iterator[pa.Table]:
        rows = 0
        for piece in self._pieces():
            if piece.num_rows:
                rows += piece.num_rows
                yield piece
        self._rows = rows

    @property
    def is_empty(self) -> bool:
        return next(iter(self), None) is None

    @property
    def rows(self) -> int:
        """The number of changes. The first call iterates over all pieces, if none did before."""
        if self._rows is None:
            for _ in self:
                pass
        return self._rows or 0


def explain_invalid_key(changes: pa.Table, key: Sequence[str]) -> str:
    """Why the target cannot have the keys: it needs UTF-8, and different keys could become equal when invalid bytes are
    replaced. Empty if it can."""
    for name in key:
        if not is_valid_utf8(changes[name]):
            return (
                f"key column {name!r} has a text that is not valid UTF-8, so different keys could become equal;"
                " convert the column with hex() or make_valid_utf8()"
            )
    return ""


@dataclass(frozen=True, slots=True)
class SinkDeclaration:
    """A sink as its connector receives it."""

    name: str
    """Unique in the pipeline: letters, digits and `_`."""
    collection: str
    schema: pa.Schema
    key: tuple[str, ...]
    """Columns that identify a row: the option `key`, or a table's primary key; empty if there is none."""
    connector: str
    options: Mapping[str, str]
    """The options in the script, without `connector` and `key`. Values may refer to secrets."""
    where: str
    """Script and line, for messages."""
    base: Path
    """The script's directory, which relative paths start from."""
    runtime: Runtime

    def read_options(self, secrets: Secrets) -> Options:
        """`secrets` learns the values to hide from messages (`secrets.hide`)."""
        where = f"{self.where}, sink {self.name!r} of {self.collection!r}"
        return Options(self.options, connector=self.connector, where=where, secrets=secrets)


class Sink(Protocol):
    """The target of one collection; the header has the rules."""

    @property
    def name(self) -> str: ...

    @property
    def keeps_number(self) -> bool:
        """Whether the target keeps the number for as long as it exists. A number below the recorded one then means that
        the target was replaced, which is an error. A topic, whose records expire, does not keep it."""
        ...

    def last(self) -> int | None:
        """The newest transaction that the target durably has; None if it has none."""
        ...

    def write(self, time: int, changes: Changes) -> None:
        """Write at least one row. With a key, an update is the old row with -1 and the new row with +1."""
        ...

    def close(self) -> None: ...


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sink whose options are valid, and which is not connected yet."""

    open: Callable[[str], Sink]
    """Takes the sink token. May be called again after `SinkFailed`."""
    probe: Callable[[], object] = _nothing
    request_rows: int = 0
    """The most rows of a request, if the target takes a transaction in several numbered requests, and keeps those that
    it got before a failure: then a larger transaction must be cut into the same pieces each time. 0 for others."""
