"""The records of checkpoints in Meta.

Stored under these keys, version 1 of each:

    checkpoints            `Catalog`: the published checkpoints, and the numbers being written; the newest counts
    restoring/<writer>     `RestoreHold`: the checkpoints that a writer reads, or whose parts its engine uses

1. Only the catalog says which checkpoints exist. The publishing writer changes it, under its guards; no process removes
   it. A hold is removed by its writer, or when that writer is no longer registered.
2. A *claim* says that a writer fills the directory of a number. The writer makes it before it puts the first file; the
   commit that publishes the checkpoint ends it. So no two writers fill one directory, and garbage collection deletes no
   directory and no part of a shard that a live writer is about to name.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from evertide.checkpoint.manifest import parse_number
from evertide.errors import CheckpointDamaged
from evertide.store.blob import Blob
from evertide.store.meta import Meta
from evertide.store.paths import CHECKPOINTS, checkpoint_prefix, restoring_key
from evertide.store.sealed import unseal
from evertide.types import SequenceNumber, Time

__all__ = ["Catalog", "CatalogEntry", "RestoreHold", "list_numbers", "read_catalog", "read_holds"]


class CatalogEntry(msgspec.Struct, frozen=True):
    number: int
    time: Time
    key: str
    """The key of its manifest."""
    bytes: int
    digest: str
    """The xxh3-128 of the manifest, hexadecimal."""
    made_at_s: float


class Catalog(msgspec.Struct, frozen=True):
    entries: tuple[CatalogEntry, ...] = ()
    """Oldest first."""
    claims: dict[str, int] = {}
    """By writer, the number that it is writing."""
    last: int = 0
    """The highest number ever claimed, so that none is reused."""
    change: str = ""
    """A unique id: distinguishes a commit with unknown outcome from a peer's."""


class RestoreHold(msgspec.Struct, frozen=True):
    writer: str
    entries: tuple[CatalogEntry, ...]
    is_read: bool
    """Whether the restore has read the checkpoints, so that only the state parts are still needed."""
    held_at_s: float
    change: str


def read_catalog(blob: Blob, meta: Meta) -> tuple[SequenceNumber, Catalog]:
    """Return its record number and content. If it is missing although checkpoints exist, raise an error (C4)."""
    path = meta.path(CHECKPOINTS)
    record = meta.head(CHECKPOINTS)
    if record is None:
        found = list_numbers(entry.key for entry in blob.list(checkpoint_prefix()))
        record = meta.head(CHECKPOINTS) if found else None  # a peer may have published its first one meanwhile
        if record is None and found:
            there = ", ".join(blob.path(checkpoint_prefix(number)) for number in found)
            raise CheckpointDamaged(path=path, why=f"the catalog is missing, but these checkpoints exist: {there}")
    if record is None:
        return SequenceNumber(0), Catalog()
    return record.seqno, unseal(record.data, Catalog, path)


def read_holds(meta: Meta) -> dict[str, tuple[SequenceNumber, RestoreHold]]:
    found = {}
    for key, record in meta.heads(restoring_key("")).items():
        hold = unseal(record.data, RestoreHold, meta.path(key))
        found[hold.writer] = (record.seqno, hold)
    return found


def list_numbers(keys: Iterable[str]) -> list[int]:
    """The numbers of the checkpoints that these blobs belong to."""
    return sorted({number for key in keys if (number := parse_number(key)) is not None})
