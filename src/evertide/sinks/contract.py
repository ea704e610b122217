"""What a sink is to a pipeline: it takes the transactions of one collection, each once, and says how far it is.

1. `Connector.prepare` (`evertide.sinks.registry`) reads the options of a declaration, and refuses what means nothing:
   `InvalidInput`, before the pipeline starts. It touches no target.
2. `Prepared.probe` looks at the target of a sink that is new, and changes nothing: a target that cannot be used is
   refused, `InvalidInput` or `SinkFailed`, before the pipeline starts. A sink that was there before is not asked.
3. `Prepared.open(token)` connects, and shuts out predecessors: whoever opened the same token before can write no more,
   or what it still writes is skipped by its number. The token is unique to one sink of one storage, for ever: the
   target keeps its number under it, so that a target of another pipeline is never taken for ours.
4. `last()` is the newest number that the target durably holds. It is asked once, after opening.
5. `write(time, changes)` writes one transaction, all or nothing, and is durable on return. A large one comes in pieces
   (`Changes`), and a sink holds one piece at a time as far as its target lets it. Times increase strictly; the
   gaps are transactions without changes for this collection (I9). A time that the target has is skipped, by its number
   alone (J7): a crash between writing and our own record of it is no second write.
6. Whatever the target does wrong is `SinkFailed`: it stalls this sink, which is opened again after a while, and nothing
   else; nothing upstream waits for it (I10).

One thread at a time uses a sink. The first transaction is the whole content, as additions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from evertide.options import Options
from evertide.runtime import Runtime
from evertide.secrets import Secrets

__all__ = ["Changes", "Prepared", "Sink", "SinkDeclaration"]


class Changes:
    """The changes of one transaction, in pieces that fit into memory; most transactions are one piece.

    A piece has the collection's columns and `__diff` (int64, never 0), in an order that the content decides. Each row
    is in one piece, once; where the sink has a key, all rows of a key are. Iterating again gives the same pieces.
    """

    def __init__(self, pieces: Callable[[], Iterable[pa.Table]], *, is_addition: bool) -> None:
        """`is_addition`: it is known beforehand that nothing is removed."""
        self.whole: pa.Table | None = None
        """All of them, if that is one piece."""
        self.is_addition = is_addition
        self._pieces = pieces
        self._rows: int | None = None

    @classmethod
    def of(cls, table: pa.Table) -> Changes:
        """One piece."""
        made = cls(lambda: [table], is_addition=bool(pc.all(pc.greater(table["__diff"], 0)).as_py()))
        made.whole = table
        return made

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
        """How many; if nobody has gone through all pieces yet, this does."""
        if self._rows is None:
            for _ in self:
                pass
        return self._rows or 0


@dataclass(frozen=True, slots=True)
class SinkDeclaration:
    """A sink as its connector sees it."""

    name: str
    """Unique in the pipeline: letters, digits and `_`."""
    collection: str
    schema: pa.Schema
    key: tuple[str, ...]
    """Columns that tell rows apart: those of the option `key`, or a table's own primary key; empty if there is none."""
    connector: str
    options: Mapping[str, str]
    """As the script has them, without `connector` and `key`. Values may name secrets: see `read_options`."""
    where: str
    """Script and line: for messages."""
    base: Path
    """The script's directory: relative paths are relative to it."""
    runtime: Runtime

    def read_options(self, secrets: Secrets) -> Options:
        """`secrets` then knows what must not be said, and hides it: `secrets.hide(str(error))`."""
        where = f"{self.where}, sink {self.name!r} of {self.collection!r}"
        return Options(self.options, connector=self.connector, where=where, secrets=secrets)


class Sink(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def remembers(self) -> bool:
        """Whether the target keeps the number for as long as it is there. Then less than what we recorded means that it
        was replaced, which is said and not passed over. A topic, whose records expire, does not."""
        ...

    def last(self) -> int | None:
        """The newest transaction that the target durably holds; None if it holds none."""
        ...

    def write(self, time: int, changes: Changes) -> None:
        """There is at least one row. If there is a key, an update is the old row with -1 and the new one with +1."""
        ...

    def close(self) -> None: ...


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sink whose options are right; nothing was connected yet."""

    open: Callable[[str], Sink]
    """Given the token. May be called again after `SinkFailed`."""
    probe: Callable[[], None] = _nothing
    numbers_requests: bool = False
    """Whether the target takes a transaction in several numbered requests, and keeps those that it got before a
    failure: then the transaction must be cut into the same pieces each time."""
