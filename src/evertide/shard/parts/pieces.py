"""The content of a shard in pieces, for whoever cannot hold all of it at once.

1. Each piece is a multiset of its own, without negative counts, and the pieces add up to the content. So whoever takes
   them one after the other never sees a row taken away that was not there, nor one that is not there in the end.
2. If no change takes anything away, they are told as they lie: the same row may be in several pieces.
3. Otherwise rows are dealt out by their hash (`evertide.rows.slices`): all changes of a row meet in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from evertide.rows.changes import TIME, net
from evertide.rows.slices import SLICES_MAX, Slices, slice_count
from evertide.shard.read import Snapshot

__all__ = ["pieces"]


def pieces(snapshot: Snapshot, rows_max: int, bytes_max: int) -> Iterator[pa.Table]:
    """Rows with `__diff`, about so many at a time; none if there is no content."""
    rows, size = sum(part.rows for part in snapshot.parts), sum(part.bytes for part in snapshot.parts)
    if rows <= rows_max and size <= bytes_max:
        found = iter([snapshot.to_arrow()])
    elif any(part.retractions for part in snapshot.parts):
        found = _dealt(snapshot, slice_count(min(SLICES_MAX, max(rows / rows_max, size / bytes_max))))
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
    scanned = _scanned(snapshot)
    first = next(scanned)
    with Slices(first.schema, count) as slices:
        slices.add(first)
        for changes in scanned:
            slices.add(changes)
        for index in range(count):
            yield _netted([slices.take(index)])


def _scanned(snapshot: Snapshot) -> Iterator[pa.Table]:
    return (table.drop_columns([TIME]) for table in snapshot.scan())


def _netted(tables: Sequence[pa.Table]) -> pa.Table:
    return net(pa.concat_tables(tables), "collection", is_sorted=False)
