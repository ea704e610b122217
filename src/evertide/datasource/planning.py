"""Plan a read: choose a time, take a lease, and split the parts into tasks.

1. When a DataFrame is loaded, `choose_read_point` chooses the time and takes a lease on it. So all queries over one
   DataFrame, and both sides of a self-join, read the same time. Two DataFrames do so if they have the same `as_of`. A
   view that failed is read with a warning, which Spark shows on the driver's standard error; one whose query changed is
   refused until it is computed (`evertide.pipeline.reading.collections`).
2. At the first query, `plan_tasks` renews that lease, or takes another if it has expired, and only then reads the state
   (I6). If the time is below since by then, it raises `TimeCompacted`, with the smallest readable time.
3. Spark does not report when a DataFrame is no longer needed, and ends the process that planned. So the lease is not
   released. Tasks renew it, and it expires `lease_s` after the last task. If all parts are inside the state, the tasks
   contain them, and the lease is released at once.
4. Parts never change. A task whose lease was lost reads its parts if they still exist; otherwise it raises `LeaseLost`
   and never returns fewer rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from evertide.datasource.condition import Condition, may_hold, parse_conditions
from evertide.datasource.request import WHERE, Request, resolve_names
from evertide.errors import InvalidInput
from evertide.pipeline.reading.reader import StorageReader
from evertide.pipeline.reading.stale import StaleViewWarning, make_warning_text
from evertide.rows.changes import DIFF, TIME, make_changes_schema
from evertide.shard.lease import end_lease, renew_lease
from evertide.shard.parts.split import Group, split, split_by_time
from evertide.shard.read import TimeWindow, list_parts
from evertide.shard.shard import Shard
from evertide.types import Time


@dataclass(frozen=True, slots=True)
class ReadPoint:
    """What one DataFrame reads: the collection's shard when it was loaded, and the time."""

    name: str
    shard: str
    schema: bytes
    time: Time
    lease: str = ""
    """Empty before the first transaction, when there is nothing to protect."""

    @property
    def arrow(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))


@dataclass(frozen=True, slots=True)
class ReadTask:
    """What one executor reads; self-contained, as it is sent there."""

    read_point: ReadPoint
    window: TimeWindow
    columns: tuple[str, ...]
    conditions: tuple[Condition, ...]
    renewed_at_s: float
    """When the lease was last renewed, so that tasks need not renew it at once."""
    group: Group


def select_columns(request: Request, read_point: ReadPoint) -> pa.Schema:
    """The columns of the DataFrame."""
    schema = make_changes_schema(read_point.arrow)
    known = [name for name in schema.names if name not in (TIME, DIFF)]
    names = resolve_names(request.columns, known)
    return pa.schema(
        [schema.field(name) for name in (*names, *([] if request.changes_after is None else [TIME, DIFF]))]
    )


def choose_read_point(request: Request) -> ReadPoint:
    with StorageReader.open(request.storage, request.meta, settings=request.settings) as reader:
        view = reader.collections.view(request.collection)
        view = view if request.as_of is None else view.as_of(request.as_of)
        for text in map(make_warning_text, view.find_stale()):
            warnings.warn_explicit(text, StaleViewWarning, WHERE, 1)  # no line of Spark's worker is of interest
        shard, time = view.locate()
        after = request.changes_after
        if after is not None and after > time:
            why = f"{after} is later than the last time, which is {time}"
            raise InvalidInput(where=f"collection {view.name!r}, option 'changes_after'", why=why)
        read_point = ReadPoint(view.name, shard.name, shard.schema.serialize().to_pybytes(), Time(time))
        select_columns(request, read_point)
        parse_conditions(request.where, shard.schema)
        with _hold_lease(reader, shard, read_point, _make_window(request, read_point.time)) as lease:
            return replace(read_point, lease=lease)


def plan_tasks(request: Request, read_point: ReadPoint) -> list[ReadTask]:
    columns = tuple(name for name in select_columns(request, read_point).names if name not in (TIME, DIFF))
    conditions = parse_conditions(request.where, read_point.arrow)
    window = _make_window(request, read_point.time)
    with StorageReader.open(request.storage, request.meta, settings=request.settings) as reader:
        shard = reader.shards.open(read_point.shard)
        now_s = reader.runtime.wall_s()
        with _hold_lease(reader, shard, read_point, window) as lease:
            read_point = replace(read_point, lease=lease)
            groups = _make_groups(shard, request, window, conditions)
            if lease and not any(part.key for group in groups for part in group.parts):
                end_lease(shard.log, lease)
            return [ReadTask(read_point, window, columns, conditions, now_s, group) for group in groups]


def _make_window(request: Request, time: Time) -> TimeWindow:
    if request.changes_after is None:
        return TimeWindow(0, time + 1, time)
    return TimeWindow(request.changes_after + 1, time + 1)


@contextmanager
def _hold_lease(reader: StorageReader, shard: Shard, read_point: ReadPoint, window: TimeWindow) -> Iterator[str]:
    """Take the lease for the read, and check it against since. If the block fails, release it."""
    if window.upper <= window.lower:
        yield ""
        return
    lease = read_point.lease
    if not lease or not renew_lease(shard.log, lease):
        first = read_point.time if window.as_of is not None else Time(max(0, window.lower - 1))
        lease = reader.shards.leases.take(shard.log, first).id
    try:
        list_parts(shard.log, shard.log.read(), window)  # raises if the time is below since
        yield lease
    except BaseException:
        end_lease(shard.log, lease)
        raise


def _make_groups(shard: Shard, request: Request, window: TimeWindow, conditions: tuple[Condition, ...]) -> list[Group]:
    if window.upper <= window.lower:
        return [Group((), only_adds=True)]
    listed = list_parts(shard.log, shard.log.read(), window)
    parts = [part for part in listed.parts if may_hold(part, listed.schema, conditions)]
    if window.as_of is None:
        return split_by_time(parts, window, request.partition_bytes)
    return split(parts, listed.schema, request.partition_bytes)
