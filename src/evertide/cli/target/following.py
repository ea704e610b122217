"""Follows a collection of a storage: its changes, complete up to a time, and what happens to its view meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import ShardEnded, Unavailable
from evertide.pipeline.reading.collections import View
from evertide.pipeline.reading.stale import StaleNews, make_warning_text
from evertide.rows.changes import TIME, consolidate, make_empty_changes
from evertide.shard.shard import Shard
from evertide.shard.source import Delivered, Frozen, Progressed, Restarted, ShardSource

_CHECK_S = 1.0


class FollowedCheck:
    """Called while a view is followed: reports when it fails, and raises an error if its content was replaced."""

    def __init__(self, view: View, shard: Shard, on_stale: Callable[[str], None]) -> None:
        self._view = view
        self._on_stale = on_stale
        self._shard = shard
        self._news = StaleNews()

    def __call__(self) -> None:
        with suppress(Unavailable):  # the source waits for the storage, too
            shard, _ = self._view.locate()  # raises an error if the query changed
            if shard.name != self._shard.name:
                raise ShardEnded(
                    where=f"view {self._view.name!r}",
                    why="it was computed again; its changes do not continue the old rows",
                )
            for sentence in self._news.find_news(self._view.find_stale()):
                self._on_stale(make_warning_text(sentence))


def read_complete_changes(
    source: ShardSource, schema: pa.Schema, check: Callable[[], None]
) -> Iterator[tuple[int, pa.Table]]:
    """Yield the frontier whenever it advances, and the new changes below it, ordered by time.

    Call `check` every `_CHECK_S` while nothing changes. Raise its errors, and that of a source that is frozen.
    """
    waiting: list[pa.Table] = []
    while True:
        event = source.poll(_CHECK_S)
        match event:
            case None:
                check()
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
