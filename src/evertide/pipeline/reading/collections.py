"""Reads a pipeline's collections from storage, in the process that runs the pipeline or in another.

1. Several collections are read at one time: the given one, or the last that all of them have.
2. A view whose query changed is not read at the last time until it is recomputed, because its stored content is that of
   the old query: `NotAllowedNow`. A reader that names a time gets the content of that time.
3. A view that failed, or is recomputed for another reason, is read as of its last transaction. `find_stale` says so.
4. A read takes the shard and the time of a view from one definition (`View.locate`): a view that is recomputed
   meanwhile has another shard, and the old one never reaches a later time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from evertide.errors import EvertideError, InvalidInput, NotAllowedNow
from evertide.notebook import is_notebook
from evertide.pipeline.definition import Definition, ViewRecord, is_redefined
from evertide.pipeline.names import ERRORS
from evertide.pipeline.reading.content import CollectionContent
from evertide.pipeline.reading.readable_rows import SHOWN, ReadableRows
from evertide.pipeline.reading.stale import describe_stale, warn_of_stale
from evertide.pipeline.reading.watching import Watch
from evertide.pipeline.state.members import Members
from evertide.problem import ComponentState
from evertide.rows.changes import DIFF, TIME, expand
from evertide.rows.char_types import list_compared_types
from evertide.shard.shard import Shard
from evertide.suggestions import list_names
from evertide.tables import render_html_lines

if TYPE_CHECKING:
    from evertide.plan.catalyst.session import DataFrame


ToFrame = Callable[[pa.Table], Any]


class View(ReadableRows):
    """A table or view, now or as of a time."""

    def __init__(self, collections: Collections, name: str, time: int | None = None, *, is_quiet: bool = False) -> None:
        """`is_quiet` suppresses warnings, for a caller that shows `find_stale` itself."""
        self.name = name
        self._collections = collections
        self._time = time
        self._is_quiet = is_quiet

    def as_of(self, time: int) -> View:
        return View(self._collections, self.name, time)

    @property
    def time(self) -> int:
        return self._collections.resolve_time(self.name, self._time)

    @property
    def schema(self) -> pa.Schema:
        return self._open().schema

    def locate(self) -> tuple[Shard, int]:
        """The shard that has the content, and the time at which it is read."""
        return self._collections.locate(self.name, self._time)

    def to_arrow(self) -> pa.Table:
        self._warn_of_stale()
        shard, time = self.locate()
        with shard.snapshot(time) as snapshot:
            return expand(snapshot.to_arrow(), self.name)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        self._warn_of_stale()
        shard, time = self.locate()
        for rows in CollectionContent(shard, self.name, time, tuple(shard.schema.names)).tables():
            yield from rows.to_batches()

    def to_spark(self) -> DataFrame:
        return self._collections.make_frame(self.to_arrow())

    def changes(self, since: int = -1) -> pa.Table:
        """The changes after `since`: rows with `__time` and `__diff`, in order of time."""
        self._warn_of_stale()
        shard, time = self.locate()
        upper = time + 1
        if since + 1 >= upper:
            return pa.schema([*shard.schema, (TIME, pa.int64()), (DIFF, pa.int64())]).empty_table()
        return shard.changes(since + 1, upper).sort_by(TIME)

    def watch(self, n: int = SHOWN) -> Watch:
        """Show the first `n` rows in this cell of a notebook, and again after each transaction, until `stop`.

        It only reads: `Pipeline.start` or another process makes the transactions.
        """
        if not is_notebook():
            raise NotAllowedNow(where="watch", why="it needs a notebook; use `show`, or `evertide subscribe`")
        if self._time is not None:
            raise InvalidInput(where="watch", why="the rows as of a time never change; use `show`")
        view = View(self._collections, self.name, is_quiet=True)
        return self._collections.start_watch(
            Watch(
                self.name,
                lambda above, wait_s: view._open().wait_for_upper(above, wait_s),
                view.find_stale,
                lambda notes: render_html_lines([*notes, *view.list_parts(n)]),
            )
        )

    def describe(self) -> str:
        kind = "View" if self.name in self._collections.definition.views else "Table"
        return f"{kind} {self.name} at time {self.time}"

    def __repr__(self) -> str:
        """Never fails and reads no rows, because debuggers and notebooks call it at any moment."""
        try:
            return f"<{self.describe()}: {', '.join(self.schema.names)}>"
        except EvertideError as error:
            return f"<View {self.name}: {error.message}>"

    def _open(self) -> Shard:
        return self._collections.members().open_collection(self.name)

    def find_stale(self) -> list[str]:
        """A sentence if the content stands at an earlier transaction than the other collections."""
        return self._collections.find_stale([self.name]) if self._time is None else []

    def _warn_of_stale(self) -> None:
        if self._time is None and not self._is_quiet:
            self._collections.warn_of_stale([self.name])


class Collections:
    """The tables and views of a pipeline, to be read at any retained time."""

    def __init__(self, members: Callable[[], Members], to_frame: ToFrame | None = None) -> None:
        """`members` returns the members of the definition in force."""
        self.members = members
        self._to_frame = to_frame
        self._watches: list[Watch] = []

    @property
    def definition(self) -> Definition:
        return self.members().definition

    def names(self) -> list[str]:
        """Declared tables that are kept, views, and `evertide_errors`."""
        definition = self.definition
        tables = [name for name, table in definition.tables.items() if table.is_declared and table.shard]
        return [*tables, *definition.views, ERRORS]

    def start_watch(self, watch: Watch) -> Watch:
        """Let `close` end the watch."""
        self._watches.append(watch)
        return watch

    def close(self) -> None:
        for watch in self._watches:
            watch.stop()

    def view(self, name: str) -> View:
        known = {one.lower(): one for one in self.names()}
        if name.lower() not in known:
            self.members().open_collection(name)  # raises with the reason
        return View(self, known.get(name.lower(), name))

    def explain_unknown(self, name: str) -> str:
        """Why a query cannot read this name; empty if it is declared."""
        known = self.names()
        declared = {each.lower() for each in (*known, *self.definition.tables)}
        if name.lower() in declared:
            return ""
        if why := self.members().explain_plain(name):
            return f"{name!r} cannot be read: {why}"
        return f"no table or view {name!r}{list_names(name, sorted(known), 'there are')}"

    def list_compared_types(self, name: str) -> dict[str, str]:
        """By column, the type by which Spark pads comparisons of a CHAR column. The shard does not have it."""
        definition = self.definition
        record = definition.tables.get(name) or definition.views.get(name)
        return {} if record is None else list_compared_types(record.read_schema())

    def find_time(self) -> int:
        """The last committed transaction; -1 if there is none."""
        return self.members().shard(self.definition.errors).upper - 1

    def resolve_time(self, name: str, asked: int | None) -> int:
        return self._resolve_time(self.members(), name, asked)

    def locate(self, name: str, asked: int | None) -> tuple[Shard, int]:
        """The shard with the content of a collection, and the time at which it is read."""
        members = self.members()
        shard, time = members.open_collection(name), self._resolve_time(members, name, asked)
        last = shard.upper - 1
        if asked is not None and asked > last:
            raise _make_future_error(name, asked, last)
        return shard, min(time, last)

    def _resolve_time(self, members: Members, name: str, asked: int | None) -> int:
        record = members.definition.views.get(name)
        if asked is None and record is not None and is_redefined(record):
            raise NotAllowedNow(where=f"view {name!r}", why=_explain_redefined(members, name, record))
        last = self.find_time()
        if record is not None and record.away is not None:
            last = min(last, members.open_collection(name).upper - 1)
        if asked is None:
            return last
        if asked > last:
            raise _make_future_error(name, asked, last)
        return asked

    def find_stale(self, names: Iterable[str]) -> list[str]:
        """A sentence for each view whose content stands at an earlier transaction than the other collections."""
        members = self.members()
        views = members.definition.views
        away = [name for name in names if name in views and views[name].away is not None and views[name].shard]
        described = (describe_stale(name, views[name], members.open_collection(name).upper - 1) for name in away)
        return [sentence for sentence in described if sentence]

    def warn_of_stale(self, names: Iterable[str]) -> None:
        warn_of_stale(self.find_stale(names))

    def make_frame(self, rows: pa.Table) -> Any:
        if self._to_frame is None:
            raise InvalidInput(where="to_spark", why="a reader has no Spark session for DataFrames; use to_arrow")
        return self._to_frame(rows)

    def find_common_time(self, names: Iterable[str]) -> int:
        """The last time that all of these collections have."""
        return min([self.view(name).time for name in names] or [self.find_time()])

    def read_tables_at(self, names: Iterable[str], time: int | None) -> tuple[int, dict[str, pa.Table]]:
        """The time that was read, by default the last common one, and the rows by name."""
        chosen = [self.view(name) for name in names]
        if time is None:
            self.warn_of_stale(view.name for view in chosen)
        if time is not None and time > self.find_time():
            why = f"this time is not committed yet; the last time is {self.find_time()}"
            raise InvalidInput(where=f"time {time}", why=why)
        at = self.find_common_time(view.name for view in chosen) if time is None else time
        return at, {view.name: view.as_of(self.resolve_time(view.name, at)).to_arrow() for view in chosen}


def _explain_redefined(members: Members, name: str, record: ViewRecord) -> str:
    state = record.away.state if record.away is not None else ""
    why = f"its query changed, and the view is {state}"
    if record.away is not None and state != ComponentState.HYDRATING:
        why += f": {record.away.why}"
    if not record.shard:
        return why
    last = members.open_collection(name).upper - 1
    return f"{why}; wait until it is computed, or read the rows of the old query as of time {last}"


def _make_future_error(name: str, asked: int, last: int) -> InvalidInput:
    return InvalidInput(where=f"collection {name!r}", why=f"time {asked} is not committed yet; the last time is {last}")
