"""What a source is to a pipeline: it says what is new, and can say it again until that is acknowledged.

1. `offer(position, limit)` looks what lies after a position, and names it, without moving anything: fragments, and the
   position after them. None if there is nothing. It does not wait.
2. `read(fragment)` yields the rows of a fragment: the same ones each time, for as long as the fragment is not
   acknowledged. `SourceChanged` if they are no longer there, or others.
3. `acknowledge(position)`: everything up to there is bound and durable; it may be called again, and not at all.
4. What a source cannot do is told by its errors: `SourceFailed` stalls this source, and no other. `SourceAway` is the
   one that ends by itself: it connects again, longer each time, and goes on where it stood.
5. How it fares beside that, it may say by being `Candid`: how far behind it is, and what is wrong or soon will be.

Positions and fragments are texts that only the source understands (`evertide.journal.records`). A row that does not
fit its table is a `Fault`, which goes to the table's dead letters; it does not stop the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import pyarrow as pa

from evertide.errors import SourceAway, SourceFailed
from evertide.journal.records import Fragment, Number, Staged
from evertide.problem import Problem

__all__ = [
    "DELETE",
    "OP",
    "SAME",
    "TRUNCATE",
    "UPSERT",
    "Candid",
    "Fault",
    "Lag",
    "Limit",
    "Marking",
    "Numbering",
    "Offer",
    "Rows",
    "Source",
    "Staging",
    "TableDeclaration",
    "Waiting",
    "problem_of",
]

OP = "__op"
"""The column beside a table's own that says what a row does, as int8."""

UPSERT = 0
"""The row is there; in a table with a key, instead of the one with its key."""

DELETE = 1
"""The row is there no more. In a table with a key, only the key's columns count; the others may be NULL."""

TRUNCATE = 2
"""From here on the table is empty: what it held goes, and so does what came before it. No column counts."""

SAME = "__same"
"""A column that rows may have beside `__op`, as text: for an upsert whose source does not repeat every value, the JSON
list of the columns that are as they were under its key; `{"moved": [...]}` if they were under the key that the row just
before it deletes. Those columns are NULL in the row. Only in a table with a key."""


@dataclass(frozen=True, slots=True)
class TableDeclaration:
    """A table as its connector sees it."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    connector: str
    options: Mapping[str, str]
    where: str
    """Script and line: for messages."""
    defaults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limit:
    """How much one transaction should take at most; a single unit (a file, an upstream transaction) may be more."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Offer:
    after: str
    fragments: tuple[Fragment, ...]
    rows: int
    """About how many, or 0 if nobody knows before reading."""
    xids: tuple[int, ...] | None = None
    """What the upstream transactions in it are called there, if they have numbers (`Numbering`)."""
    producers: Mapping[str, Number] | None = None
    """The last numbers of those who pushed it, by name."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A row that does not fit. `key` has one row with the columns of the table's key, if that much could be read: then
    the key has no row until a good one comes (U6). It is Arrow, as JSON and Python lack some values of some types."""

    table: str
    place: str
    """File, topic and partition, request."""
    line: int
    """Line, offset, number of the row; from 1 on."""
    reason: str
    raw: str
    """As it came, shortened if it is long."""
    key: pa.Table | None = None
    after: int = 0
    """How many rows of the same batch of this table come before it: the last change of a key wins."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of one table: its columns, all nullable, and `__op`; in the order in which they count."""

    table: str
    rows: pa.Table
    faults: Sequence[Fault] = ()


class Staging(Protocol):
    """For a source whose rows are there only once: they are made durable before they are offered. Any thread may."""

    def stage(self, table: str, rows: pa.Table) -> Staged: ...

    def load(self, fragment: Staged) -> pa.Table: ...

    def drop(self, fragments: Sequence[Staged]) -> None:
        """Give up what was not bound."""
        ...


@runtime_checkable
class Waiting(Protocol):
    """A source that may have seen something which it cannot offer yet: it is not idle then."""

    @property
    def is_waiting(self) -> bool: ...


@runtime_checkable
class Marking(Protocol):
    """A source to which others may write without end: whoever waits for all of it would wait for ever."""

    def mark(self) -> None:
        """From now on it is `Waiting` until all is bound that was upstream at this moment, whatever comes later."""
        ...


@runtime_checkable
class Numbering(Protocol):
    """A source whose upstream transactions have numbers, by which those who wrote them wait for them."""

    @property
    def has_xids(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Lag:
    """How much there is that is not bound yet. None: not known; all of it while there is no connection."""

    bytes: int | None = None
    rows: int | None = None
    files: int | None = None
    seconds: float | None = None
    """Since when the oldest of it waits; 0 if there is nothing."""


@runtime_checkable
class Candid(Protocol):
    """A source that says how it fares. Any thread may ask, at any time; the answer costs little, and does not wait."""

    @property
    def lag(self) -> Lag: ...

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What keeps it from going on first, then warnings. No secret."""
        ...


def problem_of(error: SourceFailed, since_s: float, wait_s: float | None = None) -> Problem:
    """A source that cannot be read, for now."""
    state = "reconnecting" if isinstance(error, SourceAway) else "stalled"
    return Problem(state, error.error_code, error.message, error.remedy, since_s, wait_s)


class Source(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def tables(self) -> tuple[str, ...]: ...

    @property
    def start(self) -> str:
        """The position before everything."""
        ...

    def offer(self, position: str, limit: Limit) -> Offer | None: ...

    def read(self, fragment: Fragment) -> Iterator[Rows]: ...

    def acknowledge(self, position: str) -> None: ...

    def close(self) -> None: ...
