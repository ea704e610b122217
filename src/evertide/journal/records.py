"""What the journal holds: which input each transaction is made of, and what came of it.

Where it lies: Meta key `journal`, one `Bound` per transaction; Meta key `committed`, one `Committed` per transaction,
written in the commit that appends to the shards. Version 1 of each. The newest record of either is never truncated, so
that a pipeline always knows where it is and where each of its sources stands.

Positions and places are JSON texts that only their source understands; two positions are the same if the texts are.

`xids` are the numbers that the transactions of a database have there: whoever wrote one of them may wait for it. A
record without the field is of a time, or of a pipeline, that knows none.
"""

from __future__ import annotations

import msgspec

from evertide.types import Generation, Time

__all__ = ["Bound", "Committed", "Content", "Fragment", "Input", "Number", "Place", "Staged"]


class Staged(msgspec.Struct, frozen=True, tag="staged"):
    """Rows that their source cannot read again, stored as a blob before they are bound."""

    table: str
    key: str
    rows: int
    bytes: int
    checksum: str


class Place(msgspec.Struct, frozen=True, tag="place"):
    """Rows that their source can read again: where they are, in its own words (an offset range, a file)."""

    where: str


Fragment = Staged | Place


class Number(msgspec.Struct, frozen=True, array_like=True):
    """The last number of a producer in a transaction."""

    number: int
    time: Time
    """The transaction that bound it: this one, or an earlier one whose numbers this one takes over."""
    before: tuple[int, int] | None = None
    """Number and time that were known of the producer before, if any were."""


class Input(msgspec.Struct, frozen=True):
    """What one source gives to a transaction: nothing, if both positions are the same."""

    before: str
    after: str
    fragments: tuple[Fragment, ...] = ()
    xids: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of the upstream transactions that it is made of, in order of their commits."""
    producers: dict[str, Number] | msgspec.UnsetType = msgspec.UNSET
    """Of those who numbered what they pushed, by name (`evertide.journal.producers`)."""


class Bound(msgspec.Struct, frozen=True):
    """The complete input of a transaction. Every source of the generation is in it, with where it stands after."""

    time: Time
    generation: Generation
    inputs: dict[str, Input]
    writer: str
    token: str
    """Tells our own bind, whose outcome was unknown, from a peer's."""
    bound_at_s: float


class Content(msgspec.Struct, frozen=True):
    """How many changes, and their digest (`evertide.rows.digest`)."""

    rows: int
    digest: str


class Committed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a transaction came to: per source the rows it gave, per shard the changes it got."""

    time: Time
    sources: dict[str, Content]
    shards: dict[str, Content]
    writer: str
    portions: int = 1
    """In how many it was computed. Changes of several may take back each other: then only the digests tell."""
    xids: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of all its sources. Set, if only to none, in a pipeline that has a source which knows any."""
