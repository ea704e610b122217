"""`read_complete_changes`: reads the changes of a collection in order, each time as soon as it is complete."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from evertide.rows.changes import TIME, consolidate, make_empty_changes
from evertide.shard.source import Delivered, Frozen, Progressed, Restarted, ShardSource

__all__ = ["read_complete_changes"]


def read_complete_changes(source: ShardSource, schema: pa.Schema) -> Iterator[tuple[int, pa.Table]]:
    """Yield the frontier whenever it advances, and the new changes below it, ordered by time.

    Raises the error of a source that is frozen.
    """
    waiting: list[pa.Table] = []
    for event in source:
        match event:
            case Delivered(_, changes):
                waiting.append(changes)
            case Restarted(_):
                waiting = []  # the source repeats all changes above the frontier
            case Frozen(_, error):
                raise error
            case Progressed(frontier):
                known = pa.concat_tables([make_empty_changes(schema), *waiting])
                is_complete = pc.less(known.column(TIME), frontier)
                rest = known.filter(pc.invert(is_complete))
                waiting = [rest] if rest.num_rows else []
                yield frontier, consolidate(known.filter(is_complete)).sort_by(TIME)
