"""Read a shard: windows of time, listings, fetches and snapshots.

A *window* is the range of times [lower, upper) to read. `as_of`, if given, replaces all times: a snapshot does not say
when a change happened. Listing selects the parts of the state that can have changes in the window. Fetching reads one
part, verifies it and cuts it to the window.

A window is exact only while since is below it. Compaction may have moved earlier changes up to since, where they would
be read twice, or cancelled them out, so that they would be missed. Such a read raises `TimeCompacted`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import TracebackType

import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import BlobMissing, EvertideError, NotAllowedNow, ShardEnded, TimeCompacted
from evertide.rows.changes import TIME, compute_content, make_changes_schema
from evertide.shard.lease import Lease, Leases
from evertide.shard.parts.part import Part, decode_part
from evertide.shard.shard_log import ShardLog, Version
from evertide.shard.state import ShardState
from evertide.store.retry import retry_read
from evertide.types import SequenceNumber, Time

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    lower: int
    upper: int
    as_of: int | None = None

    def time_of(self, part: Part) -> Time:
        """The first time in the window that this part can have changes for."""
        return Time(self.as_of if self.as_of is not None else max(part.time_min, self.lower))


@dataclass(frozen=True, slots=True)
class PartListing:
    """The parts of one window, from the state at diff `seqno`."""

    window: TimeWindow
    parts: tuple[Part, ...]
    schema: pa.Schema
    seqno: SequenceNumber


def list_parts(log: ShardLog, version: Version, window: TimeWindow) -> PartListing:
    state = version.state
    _check_readable(log, state, window)
    parts = tuple(part for part in state.parts if part.time_max >= window.lower and part.time_min < window.upper)
    return PartListing(window, parts, log.schema(), version.seqno)


def _check_readable(log: ShardLog, state: ShardState, window: TimeWindow) -> None:
    if state.finalized:
        raise ShardEnded(where=log.path, why=f"shard {log.shard!r} is finalized and has no content")
    as_of = window.lower - 1 if window.as_of is None else window.as_of
    if as_of < state.since and state.since > 0:
        raise TimeCompacted(where=log.path, why="earlier times were merged", as_of=as_of, since=state.since)


def fetch(log: ShardLog, part: Part, listing: PartListing, columns: Sequence[str] | None = None) -> pa.Table:
    """Read and verify one part's changes in the window, of `columns`, with times and diffs."""
    blob = log.blob
    if part.key:
        stored = retry_read(lambda: blob.get(part.key), log.runtime, log.settings)
        path = blob.path(part.key)
    else:
        stored, path = part.inline, log.path
    return cut_to_window(decode_part(part, stored, listing.schema, path, columns=columns), part, listing.window)


def cut_to_window(table: pa.Table, part: Part, window: TimeWindow) -> pa.Table:
    times = table[TIME]
    if part.time_min < window.lower:
        table = table.filter(pc.greater_equal(times, window.lower))
        times = table[TIME]
    if part.time_max >= window.upper:
        table = table.filter(pc.less(times, window.upper))
    if window.as_of is None:
        return table
    times = pa.repeat(pa.scalar(window.as_of, pa.int64()), table.num_rows)
    return table.set_column(table.schema.get_field_index(TIME), pa.field(TIME, pa.int64(), nullable=False), times)


def wait_for_upper(log: ShardLog, above: int, timeout_s: float | None) -> Version:
    """Return the state as soon as the upper is above a time or the shard is finalized, or when the timeout is over."""
    deadline_s = None if timeout_s is None else log.runtime.monotonic_s() + timeout_s
    while True:
        version = log.read()
        if version.state.upper > above or version.state.finalized:
            return version
        left_s = 60.0 if deadline_s is None else deadline_s - log.runtime.monotonic_s()
        if left_s <= 0:
            return version
        retry_read(partial(log.meta.wait, log.key, version.seqno, left_s), log.runtime, log.settings)


def _wait_until_complete(log: ShardLog, time: int, timeout_s: float | None) -> None:
    state = wait_for_upper(log, time, timeout_s).state
    if state.upper <= time and not state.finalized:
        why = f"time {time} was not committed within {timeout_s} s; the upper is {state.upper}"
        raise NotAllowedNow(where=f"shard {log.shard!r}", why=why)


class Snapshot:
    """The content of a shard at one time, under a lease: use it as a context manager."""

    def __init__(self, log: ShardLog, lease: Lease, listing: PartListing, columns: Sequence[str] | None) -> None:
        self._log = log
        self._lease = lease
        self._listing = listing
        self._columns = columns
        self.as_of = listing.window.upper - 1

    @property
    def parts(self) -> tuple[Part, ...]:
        return self._listing.parts

    def scan(self) -> Iterator[pa.Table]:
        """Yield the changes up to the time, part by part, not added up: a row that was removed again occurs twice."""
        workers = self._log.settings.fetchers
        with ThreadPoolExecutor(workers, thread_name_prefix="evertide-scan") as pool:
            ahead = []
            for part in self.parts:
                ahead.append(pool.submit(self.fetch, part))
                if len(ahead) > workers:
                    yield ahead.pop(0).result()
            for pending in ahead:
                yield pending.result()

    def fetch(self, part: Part, columns: Sequence[str] | None = None) -> pa.Table:
        try:
            return fetch(self._log, part, self._listing, columns or self._columns)
        except BlobMissing:
            self._lease.check(self.as_of)
            raise

    def to_arrow(self, choose: Callable[[pa.Table], pa.Table] | None = None) -> pa.Table:
        """Return each distinct row once, with its count as `__diff`.

        `choose` may drop rows, part by part, so that they need no memory.
        """
        schema = make_changes_schema(self._listing.schema)
        if self._columns is not None:
            schema = pa.schema([field for field in schema if field.name in {*self._columns, TIME, "__diff"}])
        tables = list(self.scan() if choose is None else map(choose, self.scan()))
        return compute_content(pa.concat_tables([schema.empty_table(), *tables]), self.as_of)

    def close(self) -> None:
        self._lease.release()

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except EvertideError as failure:  # the lease expires after its time to live
            if kind is None:
                raise
            logger.warning("could not release a lease, which expires by itself: %s", failure)


def take_snapshot(
    log: ShardLog,
    leases: Leases,
    as_of: int,
    *,
    columns: Sequence[str] | None = None,
    timeout_s: float | None = None,
) -> Snapshot:
    """Wait until `as_of` is complete, then list its content. Lease first, then the state, uncached (I6)."""
    _wait_until_complete(log, as_of, timeout_s)
    lease = leases.take(log, Time(as_of))
    try:
        return Snapshot(log, lease, list_parts(log, log.read(), TimeWindow(0, as_of + 1, as_of)), columns)
    except BaseException:
        lease.release()
        raise


def take_changes(log: ShardLog, leases: Leases, lower: int, upper: int, *, timeout_s: float | None = None) -> Snapshot:
    """Wait until all times below `upper` are complete, then list the changes of [lower, upper), with their times."""
    _wait_until_complete(log, upper - 1, timeout_s)
    lease = leases.take(log, Time(max(0, lower - 1)))
    try:
        return Snapshot(log, lease, list_parts(log, log.read(), TimeWindow(lower, upper)), None)
    except BaseException:
        lease.release()
        raise


def read_inline_changes(log: ShardLog, lower: int, upper: int) -> list[pa.Table] | None:
    """Return the changes of [lower, upper) if they are all inside the state; None otherwise.

    No blob is read, so no lease is needed. That saves two commits for each small read.
    """
    version = log.read()
    if version.state.upper < upper:
        return None
    listing = list_parts(log, version, TimeWindow(lower, upper))
    return None if any(part.key for part in listing.parts) else [fetch(log, part, listing) for part in listing.parts]


class Lister:
    """List window after window of a shard, from a time on: the first half of a shard source."""

    def __init__(self, log: ShardLog, start: TimeWindow) -> None:
        self._log = log
        self._next = start
        """`upper` matters only for a snapshot; a later window ends at the shard's upper."""
        self.seqno = 0
        """The diff of the last state read: a lease without outstanding parts may move there."""

    def poll(self, timeout_s: float) -> PartListing | None:
        """Return the next window with its parts; None if the upper did not move within the timeout."""
        version = self._log.read()
        if not self._has_reached(version.state):
            self._log.meta.wait(self._log.key, version.seqno, timeout_s)
            version = self._log.read()
        self.seqno = version.seqno
        if not self._has_reached(version.state):
            return None
        snapshot = self._next.as_of is not None
        window = self._next if snapshot else TimeWindow(self._next.lower, version.state.upper)
        listing = list_parts(self._log, version, window)
        self._next = TimeWindow(window.upper, window.upper)
        return listing

    def _has_reached(self, state: ShardState) -> bool:
        wanted = self._next.as_of if self._next.as_of is not None else self._next.lower
        return state.upper > wanted or state.finalized
