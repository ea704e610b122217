"""Partitions of a table upstream: what happens to one by itself is not in the stream.

A publication with `publish_via_partition_root` sends changes of partitions as changes of the table. It sends neither a
TRUNCATE of one partition, nor that one was detached or dropped. So the catalog is compared with what it was: each
partition has an id, and the number of its file, which a TRUNCATE changes.

1. A partition that is gone took its rows along: the source stalls.
2. A partition with another file was truncated, or rewritten with the same rows (VACUUM FULL, CLUSTER, ALTER TABLE). The
   catalog does not tell which: a warning, which stays. If all partitions have other files, the table was truncated as a
   whole, which the stream tells, or rewritten.
3. With the option partitions 'keep' nothing is compared: rows of such partitions stay, as in an archive.

Where it lies: in the position of the source, per table, as base64 of compressed pairs of id and file, so that it is
compared after a restart as well.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Partition", "Partitions", "compared", "packed", "unpacked"]


@dataclass(frozen=True, slots=True)
class Partition:
    oid: int
    file: int
    name: str


@dataclass(frozen=True, slots=True)
class Partitions:
    """What a comparison came to."""

    known: dict[int, int]
    """To be compared with the next time: the file of each partition."""
    gone: tuple[int, ...] = ()
    rewritten: tuple[str, ...] = ()
    """The names of those that may have been truncated."""


def compared(before: Mapping[int, int], now: Sequence[Partition]) -> Partitions:
    files = {one.oid: one.file for one in now}
    gone = tuple(oid for oid in before if oid not in files)
    other = {oid: file for oid, file in before.items() if oid in files and files[oid] != file}
    if len(other) == len(before) > 1:
        other = {}
    names = tuple(one.name for one in now if one.oid in other)
    return Partitions({**files, **other}, gone, names)


def packed(files: Mapping[int, int]) -> str:
    pairs = np.array(sorted(files.items()), "<u4").reshape(-1, 2)
    return base64.b64encode(zlib.compress(pairs.T.tobytes(), 9)).decode()


def unpacked(text: str) -> dict[int, int]:
    oids, files = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u4").reshape(2, -1).tolist()
    return dict(zip(oids, files, strict=True))
