"""The content of a shard in pieces, for whoever cannot hold all of it at once.

1. Each piece is a multiset of its own, without negative counts, and the pieces add up to the content. So whoever takes
   them one after the other never sees a row taken away that was not there, nor one that is not there in the end.
2. If no change takes anything away, they are told as they lie: the same row may be in several pieces.
3. Otherwise rows are dealt out by their hash, so that all changes of a row meet in one piece. Until it is their turn
   they lie in files that have no name: they are gone with the process, however it ends.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from math import ceil
from typing import IO

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from evertide.shard.changes import DIFF, TIME, net
from evertide.shard.columns import Longs
from evertide.shard.digest import row_hashes
from evertide.shard.read import Snapshot

__all__ = ["pieces"]

_FILES_MAX = 512
"""Processes have some 1,000."""
_OPTIONS = ipc.IpcWriteOptions(compression="lz4")


def pieces(snapshot: Snapshot, rows_max: int, bytes_max: int) -> Iterator[pa.Table]:
    """Rows with `__diff`, about so many at a time; none if there is no content."""
    rows, size = sum(part.rows for part in snapshot.parts), sum(part.bytes for part in snapshot.parts)
    if rows <= rows_max and size <= bytes_max:
        found = iter([snapshot.to_arrow()])
    elif any(part.retractions for part in snapshot.parts):
        found = _dealt(snapshot, min(_FILES_MAX, max(ceil(rows / rows_max), ceil(size / bytes_max))))
    else:
        found = _as_they_lie(snapshot, rows_max, bytes_max)
    yield from (piece for piece in found if piece.num_rows)


def _as_they_lie(snapshot: Snapshot, rows_max: int, bytes_max: int) -> Iterator[pa.Table]:
    gathered: list[pa.Table] = []
    rows, size = 0, 0
    for stored in _scanned(snapshot):
        for start in range(0, stored.num_rows, rows_max):
            piece = stored.slice(start, rows_max)
            if gathered and (rows + piece.num_rows > rows_max or size + piece.nbytes > bytes_max):
                yield _netted(gathered)
                gathered, rows, size = [], 0, 0
            gathered.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
    if gathered:
        yield _netted(gathered)


def _dealt(snapshot: Snapshot, count: int) -> Iterator[pa.Table]:
    with ExitStack() as files:
        opened: list[IO[bytes]] = [files.enter_context(tempfile.TemporaryFile()) for _ in range(count)]
        writers: list[ipc.RecordBatchStreamWriter] = []
        for changes in _scanned(snapshot):
            writers = writers or [ipc.new_stream(file, changes.schema, options=_OPTIONS) for file in opened]
            for writer, dealt in zip(writers, _deal(changes, count), strict=True):
                writer.write_table(dealt)
        for writer, file in zip(writers, opened, strict=True):
            writer.close()
            file.seek(0)
            yield _netted([ipc.open_stream(file).read_all()])
            file.close()


def _deal(changes: pa.Table, count: int) -> Iterator[pa.Table]:
    """By the rows' hashes."""
    places: Longs = (row_hashes(changes.drop_columns([DIFF])).high % np.uint64(count)).astype(np.int64)
    ordered = changes.take(pa.array(np.argsort(places, kind="stable")))
    ends = np.cumsum(np.bincount(places, minlength=count))
    for start, end in zip([0, *ends.tolist()], ends.tolist(), strict=False):
        yield ordered.slice(start, end - start)


def _scanned(snapshot: Snapshot) -> Iterator[pa.Table]:
    return (table.drop_columns([TIME]) for table in snapshot.scan())


def _netted(tables: Sequence[pa.Table]) -> pa.Table:
    return net(pa.concat_tables(tables), "collection", is_sorted=False)
