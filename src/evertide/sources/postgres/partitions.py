"""Partitions of a table upstream: what happens to one by itself is not in the stream.

A publication with `publish_via_partition_root` sends changes of partitions as changes of the table. It sends neither a
TRUNCATE of one partition, nor that one was attached, detached or dropped. So the catalog is compared with what it was:
each partition has an id, the number of its file, which a TRUNCATE changes, and the transaction that attached it.

1. A partition that is gone took its rows along: the source stalls.
2. A partition with another file was truncated, or rewritten with the same rows (VACUUM FULL, CLUSTER, ALTER TABLE). The
   catalog does not tell which: a warning, which stays. A TRUNCATE of the whole table is in the stream: once it has
   come, the files that are there are the ones to compare with; until then it looks like the others.
3. A partition that is new, or was attached again, may have rows from before: nobody sends those, nor what was changed
   while it was detached. Rows know the transaction that wrote them, so they are looked at: a warning, which stays as
   long as there are such rows. If all partitions were attached again, the catalog was written anew (pg_upgrade).
4. With the option partitions 'keep' nothing is compared: rows of such partitions stay, as in an archive.

Where it lies: in the position of the source, per table, as base64 of compressed pairs of id and file, and of id and
transaction, so that it is compared after a restart as well.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Partition", "Partitions", "compared", "newly_attached", "packed", "unpacked"]


@dataclass(frozen=True, slots=True)
class Partition:
    oid: int
    file: int
    name: str
    attached: int = 0
    """The transaction by which it, or a partition that it is part of, became one of the table's."""


@dataclass(frozen=True, slots=True)
class Partitions:
    """What a comparison came to."""

    known: dict[int, int]
    """To be compared with the next time: the file of each partition."""
    gone: tuple[int, ...] = ()
    rewritten: tuple[str, ...] = ()
    """The names of those that may have been truncated."""


def newly_attached(
    before: Mapping[int, int], attached: Mapping[int, int] | None, now: Sequence[Partition]
) -> list[Partition]:
    """Those that may have rows which nobody sent. `attached` is None if that was not known before."""
    known = {} if attached is None else attached
    again = [one for one in now if one.oid in known and known[one.oid] != one.attached]
    if len(again) == len(known) > 1:
        again = []
    return [*again, *(one for one in now if one.oid not in before)]


def compared(before: Mapping[int, int], now: Sequence[Partition]) -> Partitions:
    files = {one.oid: one.file for one in now}
    gone = tuple(oid for oid in before if oid not in files)
    other = {oid: file for oid, file in before.items() if oid in files and files[oid] != file}
    names = tuple(one.name for one in now if one.oid in other)
    return Partitions({**files, **other}, gone, names)


def packed(files: Mapping[int, int]) -> str:
    pairs = np.array(sorted(files.items()), "<u4").reshape(-1, 2)
    return base64.b64encode(zlib.compress(pairs.T.tobytes(), 9)).decode()


def unpacked(text: str) -> dict[int, int]:
    oids, files = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u4").reshape(2, -1).tolist()
    return dict(zip(oids, files, strict=True))
