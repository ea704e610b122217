"""The records of the journal: the input of each transaction, and its outcome.

Stored as Meta key `journal`, one `Bound` per transaction, and Meta key `committed`, one `Committed` per transaction,
written in the commit that appends to the shards. Both have version 1. The newest record of each key is never truncated,
so a pipeline always knows its last transaction and the positions of its sources.

Positions and places are JSON texts that only their source interprets; two positions are equal if their texts are.

`xids` are the upstream database's transaction ids; a client that wrote one may wait for it. A record without the field
is from a pipeline or a version that has none.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from evertide.types import Generation, Time

Encoded: TypeAlias = bytes  # in `Staged`, `bytes` is a field


class Staged(msgspec.Struct, frozen=True, tag="staged", omit_defaults=True):
    """Rows that their source cannot read again: stored as a blob before they are bound, or in the record itself."""

    table: str
    key: str
    rows: int
    bytes: int
    checksum: str
    inline: Encoded = b""
    """The content, if it is in the record. Then there is no blob, and the key only identifies the rows."""

    @property
    def has_blob(self) -> bool:
        return not self.inline


class Place(msgspec.Struct, frozen=True, tag="place"):
    """Rows that their source can read again: where they are, in the source's own format (an offset range, a file)."""

    where: str


Fragment = Staged | Place


class ProducerNumber(msgspec.Struct, frozen=True, array_like=True):
    """The last sequence number of a producer in a transaction."""

    number: int
    time: Time
    """The transaction that bound the number: this one, or an earlier one whose numbers this one carries over."""
    before: tuple[int, int] | None = None
    """The previous number of the producer and its transaction, if any."""


class Input(msgspec.Struct, frozen=True):
    """The input of one source; none if both positions are equal."""

    before: str
    after: str
    fragments: tuple[Fragment, ...] = ()
    xids: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """The upstream transactions that the input consists of, in commit order."""
    producers: dict[str, ProducerNumber] | msgspec.UnsetType = msgspec.UNSET
    """By name, the producers that numbered their pushes (`evertide.journal.producers`)."""


class Bound(msgspec.Struct, frozen=True):
    """The complete input of a transaction. It names every source of the generation, with its position after."""

    time: Time
    generation: Generation
    inputs: dict[str, Input]
    writer: str
    token: str
    """Tells the writer's own bind, if its outcome was unknown, from a peer's."""
    bound_at_s: float


class Content(msgspec.Struct, frozen=True):
    """The number of changes and their digest (`evertide.rows.digest`)."""

    rows: int
    digest: str


class Committed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a transaction: the rows of each source, and the changes of each shard."""

    time: Time
    sources: dict[str, Content]
    shards: dict[str, Content]
    writer: str
    portions: int = 1
    """The number of portions that it was computed in. Changes of different portions may cancel out, so if there are
    several, only the digests are comparable.
    """
    xids: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """The upstream transactions of all sources. Set, perhaps to none, if the pipeline has a source with such ids."""
