"""`Shapes`: the shapes of a storage, as one process serves them.

1. A definition has one shape, shared by all who ask for it, in whatever process (`record`). A shape is taken up
   when somebody asks for it, and followed for as long as somebody does.
2. A handle that is not there any more, or belongs to another definition, is over for good.
3. A shape ends when its collection gets another shard, when its log has grown too long, when there are too many, or
   when somebody says so. Whoever waits for it is woken, and told.
4. Beside the requests runs one thread (`follower`): it wakes with every commit.
5. Who waits for a change is told that there is none only while that thread gets on. If it cannot read a collection, or
   did not look for too long, those who wait get an error that they retry on (`check_followed`); `problems` names it.

Methods that end in `_known` look into memory only, and may be called in the event loop; others may wait for storage.
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
from evertide.pipeline.reading.collections import Collections
from evertide.problem import Problem
from evertide.shapes.log.contents import Contents
from evertide.shapes.log.definition import ShapeDefinition, Subject, define, subject_of
from evertide.shapes.log.feed import Feed, Standing
from evertide.shapes.log.live import Fresh, LiveShape, Span, cut_entries
from evertide.shapes.log.messages import snapshot_end
from evertide.shapes.log.numbers import Numbers
from evertide.shapes.log.record import ShapeRecord, ShapeRecords, log_rows
from evertide.shapes.log.snapshot import Chunks, Snapshots, snapshot_messages
from evertide.shapes.options import ShapeOptions
from evertide.shapes.protocol.offsets import Offset, SnapshotChunk
from evertide.shapes.protocol.refusals import not_ready
from evertide.shapes.protocol.requests import ShapeRequest
from evertide.shard.shard import Shard
from evertide.store.paths import COMMITTED

__all__ = ["Shapes"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FRESH_CHANGES = 1_000
"""So many changes of a log are told to a new client in any case: a snapshot is made for many of them."""
_DEFINITIONS = 4096
_DEFINITIONS_CHARS = 4_000_000
"""Of what is remembered of questions; what a clause means takes some times as much as its text."""


class Shapes:
    def __init__(self, collections: Collections, options: ShapeOptions | None = None) -> None:
        self.options = options or ShapeOptions()
        self.members = collections.members()
        """Of the definition that was in force when somebody last looked."""
        shards = self.members.shards
        self.runtime = shards.runtime
        self.settings = shards.settings
        self.meta = shards.meta
        self.numbers = Numbers(Xids(shards.meta, shards.runtime, shards.settings))
        self.records = ShapeRecords(shards, self.numbers, self.options.chunk_bytes)
        self.snapshots = Snapshots(self.options)
        self.contents = Contents(self.options.share_bytes)
        self._collections = collections
        self._lock = threading.RLock()
        self._learning = threading.Lock()
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
        """Entries that logs got since this process serves them."""
        self._defined: dict[tuple[Any, ...], ShapeDefinition] = {}
        self._defined_chars = 0

    # In the event loop

    def serve_in(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def definition_known(self, asked: ShapeRequest) -> ShapeDefinition | None:
        """What a request means, if somebody asked the same before."""
        return self._defined.get(_question(asked))

    def live_known(self, definition: ShapeDefinition) -> LiveShape | None:
        found = self._by_definition.get(definition.id)
        if found is not None:
            found.used_s = self.runtime.monotonic_s()
        return found

    def span_known(self, shape: LiveShape, after: Offset) -> Span | None:
        """What lies behind a place, if it is in memory."""
        feed = self._feeds.get(shape.record.shard)
        if feed is None or not self.is_live(shape):
            return None
        upper = feed.upper  # before the entries: see `Feed`
        tail = shape.tail
        return cut_entries(tail.entries, after, upper, self.options.chunk_bytes) if shape.has(after, tail) else None

    def upper_known(self, shape: LiveShape) -> int:
        feed = self._feeds.get(shape.record.shard)
        return feed.upper if feed is not None else 0

    def check_followed(self, shape: LiveShape) -> None:
        """Raises why it is not known whether the shape has changed, if it is not."""
        feed = self._feeds.get(shape.record.shard)
        if feed is not None and feed.standing is not None:
            raise copy.copy(feed.standing.error)
        if feed is not None and (late_s := self._late_s(feed)) > self.options.stale_s:
            raise Unavailable(path=self.meta.path(COMMITTED), why=_late(feed, late_s))

    def is_live(self, shape: LiveShape) -> bool:
        """Whether it is still followed: what it remembers is stale otherwise."""
        return self._live.get(shape.handle) is shape

    # By way of storage

    def look(self) -> None:
        """Which collections there are now."""
        found = self._collections.members()
        if found.definition.change != self.members.definition.change:
            self.members = found
            self._defined, self._defined_chars = {}, 0
            self._end_replaced()

    def definition(self, asked: ShapeRequest) -> ShapeDefinition:
        known = self.definition_known(asked)
        if known is None:
            self.look()
            known = define(subject_of(self.members, asked.table, asked.restriction), asked)
            self._remember(asked, known)
        return known

    def learn(self) -> None:
        """Which shapes other processes have ended."""
        with self._learning:
            self._ends, handles = self.records.ended(self._ends)
        if handles is None:  # away for long: look which are there
            there = {record.handle for record in self.records.all()}
            handles = [shape.handle for shape in self.live() if shape.handle not in there]
        self.forget(handles)

    def obtain(self, definition: ShapeDefinition) -> LiveShape:
        """The shape of a definition; a new one if there is none."""
        self.look()
        self.learn()  # whoever begins must not get a handle that was told to be over
        if definition.subject.shard not in self.shards():
            definition = self.definition(definition.asked)
        known = self.live_known(definition)
        if known is not None:
            return known
        shard = self.shard(definition.subject)
        if shard.upper == 0:
            raise not_ready(f"{definition.subject.name!r} has no content yet: no transaction was committed")
        return self._taken_up(self.records.create(definition, shard), definition, shard)

    def with_handle(self, definition: ShapeDefinition, handle: str) -> LiveShape | None:
        """None if that shape is over, or is not of this definition."""
        known = self._live.get(handle)
        if known is None and handle.startswith(f"{definition.id}-"):
            self.look()
            record = self.records.find(handle)
            if record is not None and record.shard == definition.subject.shard and record.shard in self.shards():
                known = self._taken_up(record, definition, self.shard(definition.subject))
        if known is None or known.definition.id != definition.id:
            return None
        known.used_s = self.runtime.monotonic_s()
        return known

    def catch_up(self, shape: LiveShape) -> None:
        """To what is there now."""
        self.learn()
        feed = self._feeds.get(shape.record.shard)
        if feed is not None:
            self.wake(self._followed(feed))

    def span(self, shape: LiveShape, after: Offset) -> Span:
        found = self.span_known(shape, after)
        return found or self._reading(shape, lambda feed: feed.derive(shape, after, self.options.chunk_bytes))

    def last(self, shape: LiveShape) -> Offset:
        return self._reading(shape, lambda feed: feed.last(shape))

    def begin(self, shape: LiveShape) -> SnapshotChunk:
        """The first chunk for a new client: of the snapshot that the shape began with, or of a later one.

        A small collection that changes all the time soon has a log that is many times as large as its content, and a
        new client needs only the content. So it begins with a later snapshot once the log behind the last one is the
        larger part. Those who follow the shape already go on.
        """
        feed = self._feeds.get(shape.record.shard)
        if feed is None or shape.definition.is_changes_only:
            return SnapshotChunk(None, 0)
        state, fresh = feed.shard.log.known().state, shape.fresh
        content = sum(part.count for part in state.parts)
        changes = log_rows(shape.record, state) if fresh is None else feed.followed - fresh.followed
        if changes > max(_FRESH_CHANGES, 2 * content) and feed.upper - 1 > shape.record.time:
            followed = feed.followed  # before the time: what comes in between counts once more
            fresh = shape.fresh = Fresh(feed.upper - 1, followed)
        return SnapshotChunk(None if fresh is None else fresh.time, 0)

    def chunks(self, shape: LiveShape, time: int | None = None) -> Chunks:
        """Of the snapshot at a time; None for the one that the shape began with."""
        record, definition = shape.record, shape.definition
        at = record.time if time is None else time

        def messages() -> Iterator[bytes]:
            if not definition.is_changes_only:
                content = self.contents.of(self.shard(definition.subject), definition, at)
                yield from snapshot_messages(shape.teller, content, has_key=bool(definition.subject.key))
            visible = record.visible if time is None else self.numbers.visible(at)
            pushed = record.pushed if time is None else self.numbers.pushed(at)
            if not isinstance(visible, msgspec.UnsetType):
                yield snapshot_end(visible, () if isinstance(pushed, msgspec.UnsetType) else pushed)

        return self.snapshots.of(record.handle, messages, record.chunk_bytes, at)

    def follow(self) -> None:
        """What was committed since, for all shapes that somebody asks for."""
        for feed in [*self._feeds.values()]:
            try:
                self.wake(self._followed(feed))
            except EvertideError as error:  # the others go on; who asks for this one is told
                logger.debug("the shapes of %r stand still: %s", feed.subject.name, error)

    def wake_late(self) -> None:
        """Those who wait for changes that nobody could look for: they are told so."""
        for feed in [*self._feeds.values()]:
            if self._late_s(feed) > self.options.stale_s:
                self.wake([*feed.shapes.values()])

    def problems(self) -> list[Problem]:
        """Collections whose shapes stand still: clients get an error instead of changes."""
        found = []
        for feed in [*self._feeds.values()]:
            standing, late_s = feed.standing, self._late_s(feed)
            if standing is not None:
                error = standing.error
                state = "frozen" if isinstance(error, Damaged) else "stalled"
                stands = f"the live shapes of {feed.subject.name!r} stand still behind transaction {feed.upper - 1}"
                why = f"{stands}: {error}"
                found.append(Problem(state, error.error_code, why, error.remedy, standing.since_s))
            elif late_s > self.options.stale_s:
                since_s = self.runtime.wall_s() - late_s
                found.append(
                    Problem("stalled", Unavailable.error_code, _late(feed, late_s), Unavailable.remedy, since_s)
                )
        return found

    def end(self, handle: str, why: str) -> bool:
        """For everybody. False if it was over already."""
        was_there = self.records.end(handle, why)
        if was_there:
            logger.info("shape %s ends: %s", handle, why)
        self.forget([handle])
        return was_there

    def forget(self, handles: Iterable[str]) -> None:
        """Shapes that ended, wherever that was."""
        for handle in handles:
            found = self._dropped(handle)
            if found is not None:
                found.is_ended = True
                self.wake([found])
            self.snapshots.forget(handle)

    def rest(self) -> None:
        """Let go of what nobody asks for."""
        now_s = self.runtime.monotonic_s()
        for shape in [*self._live.values()]:
            if not shape.waiters and now_s - shape.used_s > self.options.idle_s:
                self._dropped(shape.handle)
        for feed in [*self._feeds.values()]:
            feed.rest()
        self.contents.rest()
        self._shrink()

    def shards(self) -> set[str]:
        """Those that collections have now."""
        definition = self.members.definition
        tables = {table.shard for table in definition.tables.values()}
        return (tables | {view.shard for view in definition.views.values()} | {definition.errors}) - {""}

    def live(self) -> list[LiveShape]:
        return [*self._live.values()]

    def drain(self) -> None:
        """Nobody waits any more: those who do get their answer, and streams end."""
        self.is_ending = True
        self.wake(self.live())

    def stop(self) -> None:
        self.drain()
        self.snapshots.stop()

    def wake(self, shapes: Iterable[LiveShape]) -> None:
        """Those who wait for them; from any thread."""
        told = [*shapes]
        loop = self._loop
        if told and loop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(_wake, told)
            except RuntimeError:  # it was closed meanwhile: nobody waits any more
                logger.debug("the event loop is closed")

    # Inside

    def _remember(self, asked: ShapeRequest, meant: ShapeDefinition) -> None:
        size = _length(asked)
        if len(self._defined) >= _DEFINITIONS or self._defined_chars + size > _DEFINITIONS_CHARS:
            self._defined, self._defined_chars = {}, 0
        self._defined[_question(asked)] = meant
        self._defined_chars += size

    def _followed(self, feed: Feed) -> list[LiveShape]:
        before = feed.appended
        try:
            told = feed.follow()
        except (Conflict, InvalidInput) as error:
            self._end_all(feed, error)
            return []
        except EvertideError as error:
            self._freeze(feed, error)
            raise
        else:
            self._thaw(feed)
            return told
        finally:
            self.appended += feed.appended - before
            if feed.is_spoiled:  # what its shapes know is thrown away, and read again for whoever asks
                for handle in [*feed.shapes]:
                    self._dropped(handle)

    def _freeze(self, feed: Feed, error: EvertideError) -> None:
        if feed.standing is None:
            logger.error("the shapes of %r stand still: %s", feed.subject.name, error)
        since_s = self.runtime.wall_s() if feed.standing is None else feed.standing.since_s
        feed.standing = Standing(error, since_s)
        self.wake([*feed.shapes.values()])

    def _thaw(self, feed: Feed) -> None:
        if feed.standing is not None:
            logger.warning("the shapes of %r go on", feed.subject.name)
        feed.standing, feed.looked_s = None, self.runtime.monotonic_s()

    def _late_s(self, feed: Feed) -> float:
        """For how long nobody could look for changes; 0 if no thread is to."""
        return self.runtime.monotonic_s() - feed.looked_s if self.is_followed else 0.0

    def _reading(self, shape: LiveShape, read: Callable[[Feed], T]) -> T:
        feed = self._feeds.get(shape.record.shard)
        if feed is None or not self.is_live(shape):
            raise Conflict(where=f"shape {shape.handle}", why="it is not followed any more")
        try:
            return read(feed)
        except (Conflict, InvalidInput) as error:
            self._end_all(feed, error)
            raise

    def _end_all(self, feed: Feed, error: EvertideError) -> None:
        """The shard ended, or what shapes need of it is gone."""
        logger.warning("the shapes of %r end: %s", feed.subject.name, error)
        for handle in [*feed.shapes]:
            self.end(handle, str(error))

    def shard(self, subject: Subject) -> Shard:
        return self.members.shard(subject.shard)

    def _taken_up(self, record: ShapeRecord, definition: ShapeDefinition, shard: Shard) -> LiveShape:
        """From now on it is followed. A feed may take long to make, so nobody waits for that but those who need it."""
        made: Feed | None = None
        while True:
            with self._lock:
                known = self._live.get(record.handle)
                if known is not None:
                    return known
                feed = self._feeds.get(shard.name) or made
                if feed is not None:
                    self._feeds[shard.name] = feed
                    shape = LiveShape(record, definition, 0, self.runtime.monotonic_s())
                    feed.add(shape)
                    self._live[record.handle] = self._by_definition[definition.id] = shape
                    return shape
            made = Feed(shard, definition.subject, self.numbers.of, self.options.share_bytes // 2)
            made.looked_s = self.runtime.monotonic_s()

    def _dropped(self, handle: str) -> LiveShape | None:
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
        """Shapes of collections that have another shard now, or are gone."""
        shards = self.shards()
        for shape in self.live():
            if shape.record.shard not in shards:
                self.end(shape.handle, f"the content of {shape.record.collection!r} was made anew")

    def _shrink(self) -> None:
        """Of logs in memory, those that nobody asked for the longest go first."""
        shapes = sorted(self._live.values(), key=lambda shape: shape.used_s)
        total = sum(shape.bytes for shape in shapes)
        for shape in shapes:
            if total <= self.options.share_bytes:
                return
            feed = self._feeds.get(shape.record.shard)
            if feed is not None and shape.bytes:
                total -= shape.bytes
                feed.shorten(shape)


def _late(feed: Feed, late_s: float) -> str:
    return f"nobody could look for changes of {feed.subject.name!r} for {late_s:.0f} s"


def _question(asked: ShapeRequest) -> tuple[Any, ...]:
    """What decides the definition."""
    return (
        asked.table,
        asked.where,
        asked.params,
        asked.columns,
        asked.queryable,
        asked.is_full,
        asked.is_changes_only,
        asked.restriction,
    )


def _length(asked: ShapeRequest) -> int:
    names = (*asked.table, *asked.columns, *asked.queryable)
    params = sum(len(name) + len(value) for name, value in asked.params)
    return len(asked.where) + params + sum(len(one.name) for one in names)


def _wake(shapes: list[LiveShape]) -> None:
    for shape in shapes:
        waiters, shape.waiters = shape.waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
