"""Read the content of a shard in slices, for consumers that cannot hold all of it.

1. Each slice is a multiset without negative counts, and the slices add up to the content. A consumer of one slice after
   the other never sees a retraction of a row that is absent, nor a row that is not in the content.
2. Without retractions, slices follow the parts: the same row may be in several slices.
3. With retractions, rows are distributed by hash (`evertide.rows.slices`): all changes of a row are in one slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from evertide.rows.changes import TIME, consolidate_delta
from evertide.rows.slices import SLICES_MAX, Slices, count_slices
from evertide.shard.read import Snapshot


def read_content_slices(snapshot: Snapshot, rows_max: int, bytes_max: int) -> Iterator[pa.Table]:
    """Yield rows with `__diff`, at most about `rows_max` at a time; none if there is no content."""
    rows, size = sum(part.rows for part in snapshot.parts), sum(part.bytes for part in snapshot.parts)
    if rows <= rows_max and size <= bytes_max:
        found = iter([snapshot.to_arrow()])
    elif any(part.retractions for part in snapshot.parts):
        found = _slice_by_hash(snapshot, count_slices(min(SLICES_MAX, max(rows / rows_max, size / bytes_max))))
    else:
        found = _slice_by_part(snapshot, rows_max, bytes_max)
    yield from (content_slice for content_slice in found if content_slice.num_rows)


def _slice_by_part(snapshot: Snapshot, rows_max: int, bytes_max: int) -> Iterator[pa.Table]:
    pending: list[pa.Table] = []
    rows, size = 0, 0
    for stored in _scan(snapshot):
        for start in range(0, stored.num_rows, rows_max):
            content_slice = stored.slice(start, rows_max)
            if pending and (rows + content_slice.num_rows > rows_max or size + content_slice.nbytes > bytes_max):
                yield _net(pending)
                pending, rows, size = [], 0, 0
            pending.append(content_slice)
            rows, size = rows + content_slice.num_rows, size + content_slice.nbytes
    if pending:
        yield _net(pending)


def _slice_by_hash(snapshot: Snapshot, count: int) -> Iterator[pa.Table]:
    scanned = _scan(snapshot)
    first = next(scanned)
    with Slices(first.schema, count) as slices:
        slices.add(first)
        for changes in scanned:
            slices.add(changes)
        for index in range(count):
            yield _net([slices.take(index)])


def _scan(snapshot: Snapshot) -> Iterator[pa.Table]:
    return (table.drop_columns([TIME]) for table in snapshot.scan())


def _net(tables: Sequence[pa.Table]) -> pa.Table:
    return consolidate_delta(pa.concat_tables(tables), "collection", is_sorted=False)
