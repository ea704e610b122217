"""The interface between a source and the pipeline.

1. `offer(position, limit)` returns the fragments after a position, and the position after them; None if there is no new
   input. It changes nothing and does not wait.
2. `read(fragment)` yields the rows of a fragment: the same rows each time, until the fragment is acknowledged.
   `SourceChanged` if the source no longer has them, or has other rows.
3. `acknowledge(position)`: all input up to the position is bound and durable. The call may be repeated or omitted.
4. `SourceFailed` stalls this source and no other. After `SourceAway` the source reconnects, with growing waits, and
   continues where it stopped.
5. A source that implements `Monitored` reports its lag and its problems.
6. A row that does not fit its table is a `Fault`. It becomes a dead letter of the table, and does not stop the source.

Positions and fragments are texts that only the source interprets (`evertide.journal.records`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

import msgspec
import pyarrow as pa

from evertide.errors import InvalidInput, SourceAway, SourceFailed, Unexpected
from evertide.journal.records import Fragment, Place, ProducerNumber, Staged
from evertide.options import Options
from evertide.problem import ComponentState, Problem
from evertide.secrets import Secrets

T = TypeVar("T")

OP = "__op"
"""The column, in addition to the table's own, that has the operation of a row, as int8."""

UPSERT = 0
"""Add the row; in a table with a key, replace the row with the same key."""

DELETE = 1
"""Remove the row. In a table with a key, only the key's columns are used; the others may be NULL."""

TRUNCATE = 2
"""Empty the table, including the rows before this one in the same input. The row's columns are ignored."""

SAME = "__same"
"""An optional text column for an upsert, in a table with a key, whose source omits unchanged values: the JSON list
of the columns that keep the values stored under the row's key; `{"moved": [...]}` if they keep the values stored under
the key that the previous row deletes. Those columns are NULL in the row."""


@dataclass(frozen=True, slots=True)
class TableDeclaration:
    """A table as its connector receives it."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    connector: str
    options: Mapping[str, str]
    where: str
    """Script and line, for messages."""
    defaults: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """Script, line and table, for messages."""
        return f"{self.where}, table {self.name!r}"

    def read_options(self, secrets: Secrets | None = None) -> Options:
        """With `secrets`, values may refer to them."""
        return Options(self.options, connector=self.connector, where=self.place, secrets=secrets)


@dataclass(frozen=True, slots=True)
class Limit:
    """The most input that a transaction should take; a single unit (a file, an upstream transaction) may exceed it."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Offer:
    after: str
    fragments: tuple[Fragment, ...]
    rows: int
    """An estimate; 0 if the number is unknown before reading."""
    xids: tuple[int, ...] | None = None
    """The xids of the upstream transactions in the offer, if the source has xids (`HasXids`)."""
    producers: Mapping[str, ProducerNumber] | None = None
    """The last number of each producer that pushed rows of the offer."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A row that does not fit its table.

    `key` is one row with the columns of the table's key, if they could be read: the key then has no row until a valid
    one arrives (U6). It is an Arrow table, as JSON and Python cannot represent some values of some types."""

    table: str
    place: str
    """File, topic and partition, or request."""
    line: int
    """Line, offset or row number, counted from 1."""
    reason: str
    raw: str
    """The original text, shortened if it is long."""
    key: pa.Table | None = None
    after: int = 0
    """The number of valid rows before it in its batch: the last change of a key wins."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table in the order in which they apply: the table's columns, all nullable, and `__op`."""

    table: str
    rows: pa.Table
    faults: Sequence[Fault] = ()


class StagingStore(Protocol):
    """Stores the rows of a source that cannot repeat them, before they are offered. Callable from any thread."""

    def stage(self, table: str, rows: pa.Table) -> Staged: ...

    def load(self, fragment: Staged) -> pa.Table: ...

    def drop(self, fragments: Sequence[Staged]) -> None:
        """Delete fragments that were not bound."""
        ...


@runtime_checkable
class MayWait(Protocol):
    """A source that may have received input which it cannot offer yet; it is not idle then."""

    @property
    def is_waiting(self) -> bool: ...


@runtime_checkable
class HasGoal(Protocol):
    """A source whose upstream may never stop writing, so that waiting for all of its input might never end."""

    def set_goal(self) -> None:
        """`is_waiting` is true from now on, until all input is bound that was upstream at the time of this call."""
        ...


@runtime_checkable
class HasXids(Protocol):
    """A source whose upstream transactions have xids, by which clients wait for them."""

    @property
    def has_xids(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Lag:
    """How much input is not bound yet. None means unknown; everything is unknown while there is no connection."""

    bytes: int | None = None
    rows: int | None = None
    files: int | None = None
    seconds: float | None = None
    """How long the oldest unbound input has been waiting; 0 if there is none."""


@runtime_checkable
class Monitored(Protocol):
    """A source that reports its status. Callable from any thread at any time; cheap, and never blocks."""

    @property
    def lag(self) -> Lag: ...

    @property
    def problems(self) -> tuple[Problem, ...]:
        """First what stops the source, then warnings. Contains no secrets."""
        ...


def decode_place(fragment: Fragment, kind: type[T], source: str) -> T:
    """What a fragment that is not staged says about its place, in the format of its source."""
    if not isinstance(fragment, Place):
        raise Unexpected(where=f"source {source!r}", why="the source received a staged fragment")
    try:
        return msgspec.json.decode(fragment.where, type=kind)
    except msgspec.MsgspecError as error:
        why = f"{fragment.where!r} is not a position or fragment of this source: {error}"
        raise Unexpected(where=f"source {source!r}", why=why) from error


def merge_options(tables: Sequence[TableDeclaration], own: str) -> dict[str, str]:
    """The options of all tables of a source. Only the option `own` may differ between two tables."""
    merged: dict[str, str] = {}
    for declaration in tables:
        for option, value in declaration.options.items():
            if option.lower() != own and merged.setdefault(option.lower(), value) != value:
                # the error does not show the values, as one may be a password
                why = f"the option {option!r} differs from that of another table of the same source"
                raise InvalidInput(where=declaration.place, why=f"{why}; use the same value, or another source")
    return merged


def to_problem(error: SourceFailed, since_s: float, wait_s: float | None = None) -> Problem:
    """The problem that a source's status has while the error lasts."""
    state = ComponentState.RECONNECTING if isinstance(error, SourceAway) else ComponentState.STALLED
    return Problem.from_error(state, error, since_s, wait_s=wait_s)


class Source(Protocol):
    """A connector's input to a pipeline; the header has the rules."""

    @property
    def name(self) -> str: ...

    @property
    def tables(self) -> tuple[str, ...]: ...

    @property
    def start(self) -> str:
        """The position before all input."""
        ...

    def offer(self, position: str, limit: Limit) -> Offer | None: ...

    def read(self, fragment: Fragment) -> Iterator[Rows]: ...

    def acknowledge(self, position: str) -> None: ...

    def close(self) -> None: ...
