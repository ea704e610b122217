"""Hydrates views: computes their state and content from the tables' shards.

Used for new and changed views, for the retry of failed views, and for views whose state is in no checkpoint.

1. The tables' content is one transaction for the operators; its result is the views' content at that time.
2. Content larger than one portion is computed in portions, small tables first. The results add up to the content.
3. A view may fail over a portion although it does not fail over all rows. Then it is computed once more over all rows
   at once, if these are at most `_WHOLE_PORTIONS` portions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from functools import reduce
from itertools import islice
from typing import Protocol, TypeAlias

import msgspec
import pyarrow as pa

from evertide.errors import Damaged, Diverged, InvalidInput, StateInconsistent, ViewFailed
from evertide.errors.running_errors import name_views
from evertide.flow.wide.outlets import StoredContent
from evertide.pipeline.definition import AwayReason, ViewRecord, find_tables_under, to_stored_key
from evertide.pipeline.engine import Cohort, DeclaredTable, Engine, StateStore, WideCohort
from evertide.pipeline.state.machine import Machine
from evertide.pipeline.state.members import Members, open_snapshot
from evertide.pipeline.state.table_deltas import Tables, measure_content
from evertide.pipeline.state.wide_hydration import WideTarget, compute_wide
from evertide.rows.changes import TIME
from evertide.rows.digest import ZERO, add_digests

logger = logging.getLogger(__name__)

_WHOLE_PORTIONS = 8

Reapply: TypeAlias = Callable[[Tables], None]
"""Applies what the machine has taken of the transaction under way, and no shard has."""


class ContentReceiver(Protocol):
    """Receives the content of views: deltas, portion by portion, that add up to it; or all of it, as parts."""

    def take(self, found: Mapping[str, pa.Table]) -> None: ...

    def prepare_wide(self, views: Collection[str]) -> WideTarget:
        """Where executors store the content."""
        ...

    def take_wide(self, found: Mapping[str, StoredContent]) -> None: ...

    def drop(self) -> None:
        """Discard all content received so far; the hydration may start over."""
        ...


class ContentDigests:
    def __init__(self) -> None:
        self.all: dict[str, str] = {}

    def take(self, found: Mapping[str, pa.Table]) -> None:
        for name, delta in found.items():
            self.all[name] = add_digests(self.all.get(name, ZERO), measure_content(delta).digest)

    def prepare_wide(self, views: Collection[str]) -> WideTarget:  # noqa: ARG002 - only digests are needed
        return WideTarget({}, 0)

    def take_wide(self, found: Mapping[str, StoredContent]) -> None:
        self.all.update({name: content.digest for name, content in found.items()})

    def drop(self) -> None:
        self.all.clear()


def hydrate_cohort(
    machine: Machine, members: Members, views: Collection[str], time: int, receiver: ContentReceiver
) -> Cohort:
    """Hydrate views as of all transactions below `time`. `ViewFailed` if one cannot be computed."""
    engine, store = machine.engine, machine.store
    if time == 0:
        return engine.cohort(views, store, None)
    tables = sorted({table for view in views for table in find_tables_under(engine.views, view)})
    check_computable(engine, views)
    rows = sum(members.count_table_rows(name) for name in tables)
    if rows >= members.shards.settings.wide_rows_min:
        wide = _compute_wide(engine.cohort(views, store, None), store, members, tables, time, receiver)
        if wide is not None:
            return wide
    portions = _ContentPortions(members, tables, time)
    try:
        with closing(iter(portions)) as read:
            return _compute_cohort(engine.cohort(views, store, None), store, read, receiver)
    except ViewFailed as error:
        if not portions.is_several:
            raise
        if portions.has_more_than(_WHOLE_PORTIONS):
            most = members.shards.settings
            why = f"{error.why}. This happened in a portion of {most.portion_rows_max} rows or"
            why = f"{why} {most.portion_bytes_max} bytes; if the view does not fail over all rows,"
            why = f"{why} raise portion_rows_max and portion_bytes_max, and provide the memory for it"
            raise ViewFailed(views=error.views, time=error.time, why=why) from error
    whole = {name: members.read_table(name, time) for name in tables}
    return _compute_cohort(engine.cohort(views, store, None), store, [(whole, True)], receiver)


def _compute_wide(  # noqa: PLR0917
    cohort: Cohort, store: StateStore, members: Members, tables: Sequence[str], time: int, receiver: ContentReceiver
) -> Cohort | None:
    """The cohort, computed by executors; None if they cannot compute it."""
    if not isinstance(cohort, WideCohort):
        return None
    try:
        found = compute_wide(cohort, store, members, tables, time, receiver.prepare_wide([*cohort.views]))
        if found is not None:
            receiver.take_wide(found)
            return cohort
    except BaseException:
        store.abandon(cohort)
        receiver.drop()
        raise
    receiver.drop()
    return None


def _compute_cohort(
    cohort: Cohort, store: StateStore, portions: Iterable[tuple[dict[str, pa.Table], bool]], receiver: ContentReceiver
) -> Cohort:
    try:
        for deltas, is_last in portions:
            receiver.take(cohort.step(deltas))
            while not is_last and cohort.maintain():
                pass
    except BaseException:
        store.abandon(cohort)
        receiver.drop()
        raise
    return cohort


class _ContentPortions:
    """The content of the tables in portions, at least one, each with whether it is the last.

    Every generator is closed where it is left, which releases its lease: an error that keeps the frame of a generator
    would leave that to the garbage collector of Python, which ignores errors.
    """

    def __init__(self, members: Members, tables: Iterable[str], time: int) -> None:
        self._members = members
        self._time = time
        stored = {name: members.count_table_rows(name) for name in tables}
        self._tables = sorted(stored, key=stored.__getitem__)
        self.is_several = False

    def __iter__(self) -> Generator[tuple[dict[str, pa.Table], bool], None, None]:
        ahead: dict[str, pa.Table] | None = None
        with closing(self._gather()) as gathered:
            for portion in gathered:
                if ahead is not None:
                    self.is_several = True
                    yield ahead, False
                ahead = portion
        yield ahead or {}, True

    def has_more_than(self, count: int) -> bool:
        """Reads up to `count` portions and one more: how large rows are in memory is only known then."""
        with closing(self._gather()) as gathered:
            return next(islice(gathered, count, None), None) is not None

    def _gather(self) -> Generator[dict[str, pa.Table], None, None]:
        settings = self._members.shards.settings
        found: dict[str, pa.Table] = {}
        for name in self._tables:
            with closing(self._members.read_table_portions(name, self._time)) as read:
                for portion in read:
                    portions = [*found.values(), portion]
                    is_over = sum(one.num_rows for one in portions) > settings.portion_rows_max
                    is_over = is_over or sum(one.nbytes for one in portions) > settings.portion_bytes_max
                    if found and (name in found or is_over):
                        yield found
                        found = {}
                    found[name] = portion
        if found:
            yield found


def hydrate_tables(declared: Mapping[str, DeclaredTable], store: StateStore, members: Members, time: int) -> Tables:
    tables = Tables(declared, store)
    if time:
        for name, table in declared.items():
            for portion in members.read_table_portions(name, time) if table.key else ():
                tables.apply({name: portion}, None)
        with open_snapshot(members.shard(members.definition.errors), time - 1) as dead_letters:
            tables.apply({}, dead_letters.to_arrow())
    return tables


def rehydrate_tables(machine: Machine, members: Members, reapply: Reapply = lambda _: None) -> bool:
    """Read the machine's table state again from the shards. False if a table is not kept."""
    declared = {name: table for name, table in machine.engine.tables.items() if machine.tables.has(name)}
    if not all(table.is_kept for table in declared.values()):
        return False
    tables = hydrate_tables(declared, machine.store, members, machine.time)
    reapply(tables)
    machine.replace_tables(tables)
    return True


def repair_tables(machine: Machine, members: Members, error: Damaged | StateInconsistent, reapply: Reapply) -> bool:
    """Replace table state that cannot be read, or is inconsistent. False if other state is, or a table is not kept."""
    if isinstance(error, Damaged):
        if not machine.has_damaged_table(error):
            return False
        machine.damage.append(error)
    if not rehydrate_tables(machine, members, reapply):
        return False
    logger.error("read the state of all tables with a key again from storage: %s", error.message)
    return True


def find_differing_views(
    members: Members, digests: Mapping[str, str], views: Collection[str], time: int
) -> dict[str, Diverged]:
    """By name, the hydrated views whose digests differ from their shards' content (I8)."""
    differ = {}
    for name in views:
        with open_snapshot(members.open_collection(name), time - 1) as stored:
            parts = (measure_content(rows.drop_columns([TIME])).digest for rows in stored.scan())
            expected = reduce(add_digests, parts, ZERO)
        found = digests.get(name, ZERO)
        if found != expected:
            recorded, computed = (f"rows with digest {digest}" for digest in (expected, found))
            differ[name] = Diverged(where=f"view {name!r}", time=time - 1, expected=recorded, found=computed)
    return differ


def make_view_record(engine: Engine, name: str, shard: str, away: AwayReason | None = None) -> ViewRecord:
    view = engine.views[name]
    return ViewRecord(
        view.schema.serialize().to_pybytes(),
        view.fingerprint,
        view.reads,
        shard,
        away,
        to_stored_key(view),
        view.query_digest or msgspec.UNSET,
    )


def check_computable(engine: Engine, views: Collection[str]) -> None:
    """Refuse views over tables that are not kept."""
    tables = {table for view in views for table in find_tables_under(engine.views, view)}
    unkept = sorted(name for name in tables if not engine.tables[name].is_kept)
    if unkept:
        why = f"earlier rows of {', '.join(unkept)} cannot be read, as these tables are not kept"
        raise InvalidInput(where=name_views(sorted(views)), why=f"{why}; add views over them only to a new storage")
