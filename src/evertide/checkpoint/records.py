"""What Meta knows of checkpoints.

Where it lies, version 1 of each:

    checkpoints            `Catalog`: the published checkpoints, and which numbers are being written; the head counts
    restoring/<writer>     `Restoring`: the checkpoints that a writer reads, or whose parts its engine uses

The catalog is the one place that says which checkpoints there are. It is written by whoever publishes, under the
writer's guards, and is never removed; a hold is removed by its writer, or once that is not registered any more.

A *claim* says that a writer fills the directory of a number. It is made before the first file is put, and ends in the
commit that publishes the checkpoint. So no two writers fill one directory, and nobody deletes a directory, or a part of
a shard, that a live writer is about to name.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from evertide.checkpoint.manifest import number_of
from evertide.errors import CheckpointDamaged
from evertide.store.blob import Blob
from evertide.store.meta import Meta
from evertide.store.paths import CHECKPOINTS, checkpoint_prefix, restoring_key
from evertide.store.sealed import unseal
from evertide.types import SequenceNumber

__all__ = ["Catalog", "CatalogEntry", "Restoring", "directories", "read_catalog", "read_holds"]


class CatalogEntry(msgspec.Struct, frozen=True):
    """A published checkpoint."""

    number: int
    time: int
    key: str
    """Its manifest."""
    bytes: int
    digest: str
    """The xxh3-128 of the manifest, hexadecimal."""
    made_at_s: float


class Catalog(msgspec.Struct, frozen=True):
    entries: tuple[CatalogEntry, ...] = ()
    """The oldest first."""
    claims: dict[str, int] = {}
    """Per writer, the number that it is writing."""
    last: int = 0
    """The highest number ever claimed: none is used twice."""
    change: str = ""
    """A unique id: tells a commit whose outcome was unknown from a peer's."""


class Restoring(msgspec.Struct, frozen=True):
    writer: str
    entries: tuple[CatalogEntry, ...]
    is_read: bool
    """Whether they were read: then only the state parts are needed any more."""
    held_at_s: float
    change: str


def read_catalog(blob: Blob, meta: Meta) -> tuple[int, Catalog]:
    """Its record number, and what it says. That it is missing although checkpoints are there is damage (C4)."""
    path = meta.path(CHECKPOINTS)
    record = meta.head(CHECKPOINTS)
    if record is None:
        found = directories(entry.key for entry in blob.list(checkpoint_prefix()))
        record = meta.head(CHECKPOINTS) if found else None  # a peer may have published its first one meanwhile
        if record is None and found:
            there = ", ".join(blob.path(checkpoint_prefix(number)) for number in found)
            raise CheckpointDamaged(path=path, why=f"the catalog is missing, and checkpoints are there: {there}")
    if record is None:
        return 0, Catalog()
    return record.seqno, unseal(record.data, Catalog, path)


def read_holds(meta: Meta) -> dict[str, tuple[SequenceNumber, Restoring]]:
    """Per writer, the record number of its hold, and the hold."""
    found = {}
    for key, record in meta.heads(restoring_key("")).items():
        hold = unseal(record.data, Restoring, meta.path(key))
        found[hold.writer] = (record.seqno, hold)
    return found


def directories(keys: Iterable[str]) -> list[int]:
    """The numbers of the checkpoints that these blobs belong to."""
    return sorted({number for key in keys if (number := number_of(key)) is not None})
