"""Reading a pipeline's collections, from inside or from another process: it needs nothing but the storage.

All reads of several collections are at one time: the last that all members have, or the one asked for. A view that
failed is read as it was before the transaction that it failed at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from evertide.errors import InvalidInput
from evertide.pipeline.definition import Definition, ViewRecord
from evertide.pipeline.names import ERRORS
from evertide.pipeline.transaction.members import Members
from evertide.rows.changes import DIFF, TIME, expand

__all__ = ["Collections", "View"]

ToFrame = Callable[[pa.Table], Any]


class View:
    """A table or view as of a time: `to_arrow`, `to_df`, `changes`."""

    def __init__(self, collections: Collections, name: str, time: int | None = None) -> None:
        self.name = name
        self._collections = collections
        self._time = time

    def as_of(self, time: int) -> View:
        return View(self._collections, self.name, time)

    @property
    def time(self) -> int:
        """The time that it is read at."""
        return self._collections.time_of(self.name, self._time)

    def to_arrow(self) -> pa.Table:
        """The rows, each as often as it is there, in an order that the content decides."""
        return expand(self.counted(), self.name)

    def counted(self) -> pa.Table:
        """Each distinct row once, with `__diff`, how often it is there."""
        with self._collections.members().collection(self.name).snapshot(self.time) as found:
            return found.to_arrow()

    def to_df(self) -> Any:
        """As a DataFrame of the pipeline's session."""
        return self._collections.frame(self.to_arrow())

    def to_pylist(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.to_arrow().to_pylist()
        return found

    def changes(self, since: int = -1) -> pa.Table:
        """What changed after a time: rows with `__time` and `__diff`, in order of time."""
        upper = self.time + 1
        shard = self._collections.members().collection(self.name)
        if since + 1 >= upper:
            return pa.schema([*shard.schema, (TIME, pa.int64()), (DIFF, pa.int64())]).empty_table()
        return shard.changes(since + 1, upper).sort_by(TIME)


class Collections:
    def __init__(self, members: Callable[[], Members], to_frame: ToFrame | None = None) -> None:
        """`members` gives those of the definition in force."""
        self.members = members
        self._to_frame = to_frame

    @property
    def definition(self) -> Definition:
        return self.members().definition

    def names(self) -> list[str]:
        """Tables, views, and the dead letters."""
        definition = self.definition
        tables = [name for name, table in definition.tables.items() if table.is_declared and table.shard]
        return [*tables, *definition.views, ERRORS]

    def view(self, name: str) -> View:
        known = {one.lower(): one for one in self.names()}
        if name.lower() not in known:
            self.members().collection(name)  # says why not
        return View(self, known.get(name.lower(), name))

    def time(self) -> int:
        """The last transaction that is in all collections; -1 if none is."""
        return self.members().shard(self.definition.errors).upper - 1

    def time_of(self, name: str, asked: int | None) -> int:
        record = self.definition.views.get(name)
        last = self.time()
        if isinstance(record, ViewRecord) and record.away is not None:
            last = min(last, self.members().collection(name).upper - 1)
        if asked is None:
            return last
        if asked > last:
            raise InvalidInput(
                where=f"collection {name!r}", why=f"time {asked} is not committed yet; the last time is {last}"
            )
        return asked

    def frame(self, rows: pa.Table) -> Any:
        if self._to_frame is None:
            raise InvalidInput(where="to_df", why="a reader has no Spark session for DataFrames; use to_arrow")
        return self._to_frame(rows)

    def common_time(self, names: Iterable[str]) -> int:
        """The last that all of these have."""
        return min([self.view(name).time for name in names] or [self.time()])

    def tables_at(self, names: Iterable[str], time: int | None) -> dict[str, pa.Table]:
        """Several collections at one time."""
        chosen = [self.view(name) for name in names]
        if time is not None and time > self.time():
            raise InvalidInput(
                where=f"time {time}", why=f"this time is not committed yet; the last time is {self.time()}"
            )
        at = self.common_time(view.name for view in chosen) if time is None else time
        return {view.name: view.as_of(self.time_of(view.name, at)).to_arrow() for view in chosen}
