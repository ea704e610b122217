"""Detect changes of upstream partitions that the replication stream does not contain.

A publication with `publish_via_partition_root` sends changes of partitions as changes of the table. It does not send a
TRUNCATE of one partition, or that a partition was attached, detached or dropped. So the source compares the catalog
with its previous state: each partition's id, its file number, which a TRUNCATE changes, and the attaching transaction.

1. A partition that is missing was detached or dropped, and the table still has its rows: the source stalls.
2. A partition with another file was truncated, or rewritten with the same rows (VACUUM FULL, CLUSTER, ALTER TABLE). The
   catalog does not distinguish these, so the source has a permanent warning. A TRUNCATE of the whole table is in the
   stream: the warning ends when the source has read it, and the source compares with the new files from then on. A
   partition may be truncated alone before the source reads its new file. The catalog has the transaction that changed
   the partition last: if that is not the TRUNCATE of the table, or the one that attached a new partition, the source
   warns. A TRUNCATE inside a subtransaction has another number than its transaction, so a newer number that all of
   several partitions have is accepted too.
3. A new or re-attached partition may have older rows, which the server does not send, nor changes made while it was
   detached. Rows have the transaction that wrote them, so the source checks: a warning, as long as there are such rows.
   If all partitions were attached again, the catalog was rewritten (pg_upgrade).
4. With the option partitions 'keep' nothing is compared: rows of such partitions stay, as in an archive.

The state is in the position of the source, per table, as base64 of compressed pairs of id and file, and of id and
transaction, so that it is also compared after a restart.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_UNKNOWN_FILE = 0
"""Recorded instead of a file that may have replaced another one: each comparison finds a difference."""


@dataclass(frozen=True, slots=True)
class TablePartition:
    oid: int
    file: int
    name: str
    attached: int = 0
    """The transaction that attached this partition, or a partition above it, most recently."""
    changed: int = 0
    """The transaction that changed the partition's row in pg_class last, as TRUNCATE and ATTACH do."""


@dataclass(frozen=True, slots=True)
class PartitionComparison:
    """The result of a comparison."""

    known: dict[int, int]
    """The file of each partition, for the next comparison."""
    gone: tuple[int, ...] = ()
    rewritten: tuple[str, ...] = ()
    """Names of partitions that may have been truncated."""


def find_newly_attached(
    before: Mapping[int, int], attached: Mapping[int, int] | None, now: Sequence[TablePartition]
) -> list[TablePartition]:
    """Partitions that may have rows that the server did not send. `attached` is None if it was not recorded."""
    known = {} if attached is None else attached
    again = [one for one in now if one.oid in known and known[one.oid] != one.attached]
    if len(again) == len(known) > 1:
        again = []
    return [*again, *(one for one in now if one.oid not in before)]


def compare_partitions(
    before: Mapping[int, int], now: Sequence[TablePartition], truncated: int | None = None
) -> PartitionComparison:
    """Compare files. `truncated` is the transaction that truncated the whole table, if `before` is empty for that."""
    files = {one.oid: one.file for one in now}
    gone = tuple(oid for oid in before if oid not in files)
    other = {oid: file for oid, file in before.items() if oid in files and files[oid] != file}
    new = [one for one in now if one.oid not in before]
    other |= dict.fromkeys((one.oid for one in _find_changed(new, truncated)), _UNKNOWN_FILE)
    names = tuple(one.name for one in now if one.oid in other)
    return PartitionComparison({**files, **other}, gone, names)


def _find_changed(new: Sequence[TablePartition], truncated: int | None) -> list[TablePartition]:
    """Partitions whose first file, which the stream's rows belong to, may not be the present one."""
    old = [one for one in new if truncated is not None and not _is_newer(one.attached, truncated)]
    writers = {one.changed for one in old}
    is_subtransaction = truncated is not None and len(old) > 1 == len(writers) and _is_newer(min(writers), truncated)
    return [
        *(one for one in old if one.changed != truncated and not is_subtransaction),
        *(one for one in new if one not in old and one.file != one.oid and _is_newer(one.changed, one.attached)),
    ]


def _is_newer(xid: int, other: int) -> bool:
    """Compare transaction numbers as PostgreSQL does: they wrap around after 32 bits."""
    return 0 < (xid - other) % 2**32 < 2**31


def pack(files: Mapping[int, int]) -> str:
    pairs = np.array(sorted(files.items()), "<u4").reshape(-1, 2)
    return base64.b64encode(zlib.compress(pairs.T.tobytes(), 9)).decode()


def unpack(text: str) -> dict[int, int]:
    oids, files = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u4").reshape(2, -1).tolist()
    return dict(zip(oids, files, strict=True))
