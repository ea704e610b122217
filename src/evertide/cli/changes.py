"""`complete_changes`: yields the changes of a collection, in order, as soon as all changes of a time are known."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from evertide.rows.changes import TIME, consolidate, make_empty_changes
from evertide.shard.source import Delivered, Frozen, Progressed, Restarted, ShardSource

__all__ = ["complete_changes"]


def complete_changes(source: ShardSource, schema: pa.Schema) -> Iterator[tuple[int, pa.Table]]:
    """Whenever the frontier advances: the frontier, and the new changes below it, by time.

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
                together = pa.concat_tables([make_empty_changes(schema), *waiting])
                is_over = pc.less(together.column(TIME), frontier)
                rest = together.filter(pc.invert(is_over))
                waiting = [rest] if rest.num_rows else []
                yield frontier, consolidate(together.filter(is_over)).sort_by(TIME)
