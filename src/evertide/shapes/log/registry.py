"""`Shapes`: the shapes of a storage, as one process serves them.

1. A definition has one shape, shared by all clients and processes (`record`). A process takes up a shape at the first
   request for it, and follows it while requests come.
2. A handle that does not exist, or belongs to another definition, has ended for good.
3. A shape ends when its collection gets another shard, when its log is too long, when there are too many shapes, or
   when a client ends it. Clients that wait for it are woken and answered.
4. One background thread (`follower`) runs after every commit.
5. A waiting client gets the answer "no change" only while that thread makes progress. If the thread cannot read a
   collection, or has not run for too long, waiting clients get an error to retry on (`check_followed`), and `problems`
   lists it.

Methods that end in `_known` only read memory and may be called in the event loop; others may wait for storage.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from evertide.errors import Conflict, Damaged, EvertideError, InvalidInput, Unavailable
from evertide.journal.xids import Xids
from evertide.pipeline.definition import is_redefined_view
from evertide.pipeline.reading.collections import Collections
from evertide.pipeline.reading.stale import describe_stale
from evertide.problem import ComponentState, Problem
from evertide.shapes.log.contents import Contents
from evertide.shapes.log.feed import Feed, FeedFailure
from evertide.shapes.log.live_shape import LaterSnapshot, LiveShape, LogSpan, cut_entries
from evertide.shapes.log.numbers import TransactionNumbers
from evertide.shapes.log.record import ShapeRecord, ShapeRecords, estimate_log_rows
from evertide.shapes.log.row_messages import write_snapshot_end
from evertide.shapes.log.shape_definition import ShapeDefinition, Subject, check_defined, define_shape, resolve_subject
from evertide.shapes.log.snapshot import Chunks, Snapshots, write_snapshot
from evertide.shapes.options import ShapeOptions
from evertide.shapes.protocol.offsets import Offset, SnapshotChunk
from evertide.shapes.protocol.requests import ShapeRequest, refuse_not_ready
from evertide.shard.shard import Shard
from evertide.store.paths import COMMITTED

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FRESH_CHANGES = 1_000
"""A new client gets a log of up to this many changes rather than a later snapshot."""
_DEFINITIONS = 4096
_DEFINITIONS_CHARS = 4_000_000
"""Characters of cached requests; a parsed clause takes several times the memory of its text."""


class NotFollowed(Exception):
    """A signal to `evertide.shapes.http.exchange`: this process stopped to follow the shape, so its tail is stale."""


class Shapes:
    """Creates, follows and ends the shapes that clients of this process subscribe to."""

    def __init__(self, collections: Collections, options: ShapeOptions | None = None) -> None:
        self.options = options or ShapeOptions()
        self.members = collections.members()
        """Of the pipeline's definition at the last `refresh_collections`."""
        shards = self.members.shards
        self.runtime = shards.runtime
        self.settings = shards.settings
        self.meta = shards.meta
        self.numbers = TransactionNumbers(Xids(shards.meta, shards.runtime, shards.settings))
        self.records = ShapeRecords(shards, self.numbers, self.options.chunk_bytes)
        self.snapshots = Snapshots(self.options)
        self.contents = Contents(self.options.share_bytes)
        self._collections = collections
        self._lock = threading.RLock()
        self._ends_lock = threading.Lock()
        self._ends = self.records.last_end()
        self._feeds: dict[str, Feed] = {}
        self._live: dict[str, LiveShape] = {}
        """By handle."""
        self._by_definition: dict[str, LiveShape] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_ending = False
        self.is_followed = False
        """Whether a thread follows the collections."""
        self.appended = 0
        """Entries appended to logs since the process started."""
        self._definitions: dict[tuple[Any, ...], ShapeDefinition] = {}
        self._definitions_chars = 0

    # In the event loop

    def serve_in(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def definition_known(self, shape_request: ShapeRequest) -> ShapeDefinition | None:
        """The cached definition of an equal request, if any."""
        return self._definitions.get(_definition_key(shape_request))

    def live_known(self, definition: ShapeDefinition) -> LiveShape | None:
        shape = self._by_definition.get(definition.id)
        if shape is not None:
            shape.note_use(self.runtime.monotonic_s())
        return shape

    def span_known(self, shape: LiveShape, after: Offset) -> LogSpan | None:
        """The entries after an offset, if they are in memory."""
        feed = self._feeds.get(shape.record.shard)
        if feed is None or not self.is_live(shape):
            return None
        upper = feed.upper  # before the entries: see `Feed`
        tail = shape.tail
        if not shape.has_all_after(after, tail):
            return None
        return cut_entries(tail.entries, after, upper, self.options.chunk_bytes)

    def upper_known(self, shape: LiveShape) -> int:
        feed = self._feeds.get(shape.record.shard)
        return feed.upper if feed is not None else 0

    def find_stale(self, shape: LiveShape) -> str:
        """A sentence if the shape's view stands at an earlier transaction than the other collections."""
        name = shape.record.collection
        view = self.members.definition.views.get(name)
        return "" if view is None else describe_stale(name, view, self.upper_known(shape) - 1)

    def check_followed(self, shape: LiveShape) -> None:
        """Raises the reason if it is unknown whether the shape has changed, or its rows are those of another query."""
        check_defined(self.members.definition, shape.record.collection)
        feed = self._feeds.get(shape.record.shard)
        if feed is not None and feed.failure is not None:
            raise copy.copy(feed.failure.error)
        if feed is not None and (stale_for_s := self._stale_for_s(feed)) > self.options.stale_s:
            raise Unavailable(path=self.meta.path(COMMITTED), why=_stale_reason(feed, stale_for_s))

    def is_live(self, shape: LiveShape) -> bool:
        """Whether the shape is still followed; otherwise its tail is stale."""
        return self._live.get(shape.handle) is shape

    # With storage

    def refresh_collections(self) -> None:
        members = self._collections.members()
        if members.definition.change != self.members.definition.change:
            self.members = members
            self._definitions, self._definitions_chars = {}, 0
            self._end_replaced()
            self.wake(shape for shape in self.live() if is_redefined_view(members.definition, shape.record.collection))

    def find_definition(self, shape_request: ShapeRequest) -> ShapeDefinition:
        definition = self.definition_known(shape_request)
        if definition is None:
            self.refresh_collections()
            subject = resolve_subject(self.members, shape_request.table, shape_request.restriction)
            definition = define_shape(subject, shape_request)
            self._cache_definition(shape_request, definition)
        return definition

    def forget_ended(self) -> None:
        """Learn which shapes other processes have ended."""
        with self._ends_lock:
            self._ends, handles = self.records.read_ended(self._ends)
        if handles is None:  # too many ended since: list the ones that exist
            existing = {record.handle for record in self.records.all()}
            handles = [shape.handle for shape in self.live() if shape.handle not in existing]
        self.forget(handles)

    def find_or_create(self, definition: ShapeDefinition) -> LiveShape:
        """The shape of a definition, created if there is none."""
        self.refresh_collections()
        self.forget_ended()  # a new client must not get a handle that was reported as ended
        if definition.subject.shard not in self.shards():
            definition = self.find_definition(definition.request)
        known = self.live_known(definition)
        if known is not None:
            return known
        shard = self.shard(definition.subject)
        if shard.upper == 0:
            raise refuse_not_ready(f"{definition.subject.name!r} has no content yet: no transaction was committed")
        return self._start_following(self.records.create(definition, shard), definition, shard)

    def find_by_handle(self, definition: ShapeDefinition, handle: str) -> LiveShape | None:
        """None if the shape has ended, or has another definition."""
        known = self._live.get(handle)
        if known is None and handle.startswith(f"{definition.id}-"):
            self.refresh_collections()
            record = self.records.find(handle)
            if record is not None and record.shard == definition.subject.shard and record.shard in self.shards():
                known = self._start_following(record, definition, self.shard(definition.subject))
        if known is None or known.definition.id != definition.id:
            return None
        known.note_use(self.runtime.monotonic_s())
        return known

    def catch_up(self, shape: LiveShape) -> None:
        """Follow the shape's collection up to the last commit."""
        self.forget_ended()
        feed = self._feeds.get(shape.record.shard)
        if feed is not None:
            self.wake(self._follow(feed))

    def read_span(self, shape: LiveShape, after: Offset) -> LogSpan:
        span = self.span_known(shape, after)
        return span or self._read_feed(shape, lambda feed: feed.derive(shape, after, self.options.chunk_bytes))

    def find_last_offset(self, shape: LiveShape) -> Offset:
        return self._read_feed(shape, lambda feed: feed.find_last_offset(shape))

    def choose_first_chunk(self, shape: LiveShape) -> SnapshotChunk:
        """The first chunk for a new client: of the snapshot that the shape began with, or of a later one.

        A small collection that changes often soon has a log many times as large as its content, and a new client needs
        only the content. So it begins with a later snapshot once the log since the last one is more than
        `_FRESH_CHANGES` and twice the content. Clients that already follow the shape continue.
        """
        feed = self._feeds.get(shape.record.shard)
        if feed is None or shape.definition.is_changes_only:
            return SnapshotChunk(None, 0)
        state, later = feed.shard.log.read_cached().state, shape.later_snapshot
        content = sum(part.count for part in state.parts)
        changes = estimate_log_rows(shape.record, state) if later is None else feed.followed - later.followed
        if changes > max(_FRESH_CHANGES, 2 * content) and feed.upper - 1 > shape.record.time:
            followed = feed.followed  # read before the time: changes in between count twice
            later = shape.replace_snapshot(LaterSnapshot(feed.upper - 1, followed))
        return SnapshotChunk(None if later is None else later.time, 0)

    def get_chunks(self, shape: LiveShape, time: int | None = None) -> Chunks:
        """The chunks of the snapshot at a time; None for the one that the shape began with."""
        record, definition = shape.record, shape.definition
        at = record.time if time is None else time

        def messages() -> Iterator[bytes]:
            if not definition.is_changes_only:
                content = self.contents.read_rows(self.shard(definition.subject), definition, at)
                yield from write_snapshot(shape.writer, content, has_key=bool(definition.subject.key))
            visible = record.visible if time is None else self.numbers.find_visible(at)
            pushed = record.pushed if time is None else self.numbers.list_push_numbers(at)
            if not isinstance(visible, msgspec.UnsetType):
                yield write_snapshot_end(visible, () if isinstance(pushed, msgspec.UnsetType) else pushed)

        return self.snapshots.get(record.handle, messages, record.chunk_bytes, at)

    def follow(self) -> None:
        """Read what was committed since, for all shapes that this process follows."""
        for feed in [*self._feeds.values()]:
            try:
                self.wake(self._follow(feed))
            except EvertideError as error:  # other feeds continue; clients of this one get the error
                logger.debug("the feed of collection %r is stalled: %s", feed.subject.name, error)

    def wake_stale(self) -> None:
        """Wake the clients of feeds that were not followed for too long: they get an error."""
        for feed in [*self._feeds.values()]:
            if self._stale_for_s(feed) > self.options.stale_s:
                self.wake([*feed.shapes.values()])

    def problems(self) -> list[Problem]:
        """The collections whose feed has stopped: live clients get an error instead of changes."""
        problems = []
        for feed in [*self._feeds.values()]:
            failure, stale_for_s = feed.failure, self._stale_for_s(feed)
            if failure is not None:
                error = failure.error
                state = ComponentState.FROZEN if isinstance(error, Damaged) else ComponentState.STALLED
                stopped = f"live shapes of {feed.subject.name!r} get no changes after transaction {feed.upper - 1}"
                why = f"{stopped}: {error.message}"
                problems.append(Problem(state, error.error_code, why, error.remedy, failure.since_s))
            elif stale_for_s > self.options.stale_s:
                since_s, why = self.runtime.wall_s() - stale_for_s, _stale_reason(feed, stale_for_s)
                code, remedy = Unavailable.error_code, Unavailable.remedy
                problems.append(Problem(ComponentState.STALLED, code, why, remedy, since_s))
        return problems

    def end(self, handle: str, why: str) -> bool:
        """End a shape for all clients and processes. False if it had already ended."""
        was_there = self.records.end(handle, why)
        if was_there:
            logger.info("ended shape %s: %s", handle, why)
        self.forget([handle])
        return was_there

    def forget(self, handles: Iterable[str]) -> None:
        """Drop shapes that ended, in this process or another."""
        for handle in handles:
            shape = self._drop(handle)
            if shape is not None:
                shape.end()
                self.wake([shape])
            self.snapshots.forget(handle)

    def release_idle(self) -> None:
        now_s = self.runtime.monotonic_s()
        for shape in [*self._live.values()]:
            if not shape.waiters and now_s - shape.used_s > self.options.idle_s:
                self._drop(shape.handle)
        for feed in [*self._feeds.values()]:
            feed.clear_cache()
        self.contents.clear()
        self._shrink()

    def shards(self) -> set[str]:
        definition = self.members.definition
        tables = {table.shard for table in definition.tables.values()}
        return (tables | {view.shard for view in definition.views.values()} | {definition.errors}) - {""}

    def live(self) -> list[LiveShape]:
        return [*self._live.values()]

    def drain(self) -> None:
        """Answer all waiting clients and end all streams; new requests do not wait."""
        self.is_ending = True
        self.wake(self.live())

    def begin_following(self) -> None:
        """Note that a thread follows the feeds from now on."""
        self.is_followed = True

    def stop(self) -> None:
        self.is_followed = False
        self.drain()
        self.snapshots.stop()

    def wake(self, shapes: Iterable[LiveShape]) -> None:
        """Wake the clients that wait for these shapes. Safe from any thread."""
        woken = [*shapes]
        loop = self._loop
        if woken and loop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(_wake, woken)
            except RuntimeError:  # closed concurrently: no client waits any more
                logger.debug("notified no client: the event loop is closed")

    # Internals

    def _cache_definition(self, shape_request: ShapeRequest, definition: ShapeDefinition) -> None:
        size = _request_chars(shape_request)
        if len(self._definitions) >= _DEFINITIONS or self._definitions_chars + size > _DEFINITIONS_CHARS:
            self._definitions, self._definitions_chars = {}, 0
        self._definitions[_definition_key(shape_request)] = definition
        self._definitions_chars += size

    def _follow(self, feed: Feed) -> list[LiveShape]:
        before = feed.appended
        try:
            changed = feed.follow()
        except (Conflict, InvalidInput) as error:
            self._end_all(feed, error)
            return []
        except EvertideError as error:
            self._mark_failed(feed, error)
            raise
        else:
            self._mark_recovered(feed)
            return changed
        finally:
            self.appended += feed.appended - before
            if feed.is_inconsistent:  # drop its shapes; they are read again on request
                for handle in [*feed.shapes]:
                    self._drop(handle)

    def _mark_failed(self, feed: Feed, error: EvertideError) -> None:
        if feed.failure is None:
            logger.error("the feed of collection %r is stalled: %s", feed.subject.name, error)
        since_s = self.runtime.wall_s() if feed.failure is None else feed.failure.since_s
        feed.note_failure(FeedFailure(error, since_s))
        self.wake([*feed.shapes.values()])

    def _mark_recovered(self, feed: Feed) -> None:
        if feed.failure is not None:
            logger.warning("the feed of collection %r is running again", feed.subject.name)
        feed.note_followed(self.runtime.monotonic_s())

    def _stale_for_s(self, feed: Feed) -> float:
        """How long ago the feed was last followed; 0 if no thread follows feeds."""
        return self.runtime.monotonic_s() - feed.last_followed_s if self.is_followed else 0.0

    def _read_feed(self, shape: LiveShape, read: Callable[[Feed], T]) -> T:
        feed = self._feeds.get(shape.record.shard)
        if feed is None or not self.is_live(shape):
            raise NotFollowed
        try:
            return read(feed)
        except (Conflict, InvalidInput) as error:
            self._end_all(feed, error)
            raise

    def _end_all(self, feed: Feed, error: EvertideError) -> None:
        """End all shapes of a feed: its shard ended, or history that they need is gone."""
        logger.warning("ending the shapes of %r: %s", feed.subject.name, error)
        for handle in [*feed.shapes]:
            self.end(handle, error.message)

    def shard(self, subject: Subject) -> Shard:
        return self.members.shard(subject.shard)

    def _start_following(self, record: ShapeRecord, definition: ShapeDefinition, shard: Shard) -> LiveShape:
        """Start to follow a shape. Creating a feed may take long, so it happens outside the lock."""
        created: Feed | None = None
        while True:
            with self._lock:
                known = self._live.get(record.handle)
                if known is not None:
                    return known
                feed = self._feeds.get(shard.name) or created
                if feed is not None:
                    self._feeds[shard.name] = feed
                    shape = LiveShape(record, definition, 0, self.runtime.monotonic_s())
                    feed.add(shape)
                    self._live[record.handle] = self._by_definition[definition.id] = shape
                    return shape
            created = Feed(shard, definition.subject, self.numbers.txids, self.options.share_bytes // 2)
            created.note_followed(self.runtime.monotonic_s())

    def _drop(self, handle: str) -> LiveShape | None:
        with self._lock:
            shape = self._live.pop(handle, None)
            if shape is None:
                return None
            if self._by_definition.get(shape.definition.id) is shape:
                del self._by_definition[shape.definition.id]
            feed = self._feeds.get(shape.record.shard)
            if feed is not None:
                feed.remove(handle)
                if not feed.shapes:
                    del self._feeds[shape.record.shard]
            return shape

    def _end_replaced(self) -> None:
        """End the shapes of collections that have another shard now, or are gone."""
        shards = self.shards()
        for shape in self.live():
            if shape.record.shard not in shards:
                self.end(shape.handle, f"collection {shape.record.collection!r} has a new shard or was removed")

    def _shrink(self) -> None:
        """Drop logs from memory, the least recently used first, until they fit `share_bytes`."""
        shapes = sorted(self._live.values(), key=lambda shape: shape.used_s)
        total = sum(shape.bytes for shape in shapes)
        for shape in shapes:
            if total <= self.options.share_bytes:
                return
            feed = self._feeds.get(shape.record.shard)
            if feed is not None and shape.bytes:
                total -= shape.bytes
                feed.drop_tail(shape)


def _stale_reason(feed: Feed, stale_for_s: float) -> str:
    return f"collection {feed.subject.name!r}: this process has read no changes for {stale_for_s:.0f} s"


def _definition_key(shape_request: ShapeRequest) -> tuple[Any, ...]:
    """The fields of a request that determine its definition."""
    return (
        shape_request.table,
        shape_request.where,
        shape_request.params,
        shape_request.columns,
        shape_request.queryable,
        shape_request.is_full,
        shape_request.is_changes_only,
        shape_request.restriction,
    )


def _request_chars(shape_request: ShapeRequest) -> int:
    names = (*shape_request.table, *shape_request.columns, *shape_request.queryable)
    params = sum(len(name) + len(value) for name, value in shape_request.params)
    return len(shape_request.where) + params + sum(len(one.name) for one in names)


def _wake(shapes: list[LiveShape]) -> None:
    for shape in shapes:
        for waiter in shape.take_waiters():
            if not waiter.done():
                waiter.set_result(None)
