"""`ShapeRecord`: a shape as stored: its definition, its handle, and the time of its snapshot.

Location: Meta key `shape/<definition>/<number>`, version 1, one record, removed when the shape ends; and `shapes`,
version 1, one record per ended shape, by which other processes learn of it. Written by processes that serve shapes.

1. Nothing else of a shape is stored. Its snapshot is the collection at `time`, its log the changes since: both are read
   from the collection's shard and are the same in every process and at every reading.
2. So the shard must stay readable from `time` on. One hold, named `shapes`, is at the time of the oldest shape of the
   shard. The record of a new shape and the hold are always written in one commit: a process that lists the shapes and
   then moves the hold finds out by compare-and-set that another shape was added.
3. For the same reason a definition has one shape at a time, however many processes look for it.
4. A handle is the definition's id and a unique number: it is never used again.
5. A hold never expires: shapes whose log is too long are ended, and the hold moves on (`follower`).
"""

from __future__ import annotations

import logging
import re

import msgspec

from evertide.errors import TimeCompacted
from evertide.shapes.log.numbers import TransactionNumbers, VisibleNumbers
from evertide.shapes.log.shape_definition import ShapeDefinition
from evertide.shard.hold import make_hold_write, read_holds
from evertide.shard.shard import Shard, Shards
from evertide.shard.state import ShardState
from evertide.store.meta import Record, Write, seal, unseal
from evertide.store.paths import SHAPES, shape_key, shape_prefix
from evertide.store.retry import commit_until_known, retry_read, truncate_sometimes

logger = logging.getLogger(__name__)

HOLD = "shapes"
_RANDOM_RANGE = 10**9
"""A clock may be set back, so a handle's number has a random part beside the time."""
_ENDS_MAX = 1024
"""End records kept. A process that missed more lists all shapes instead."""
_HANDLE = re.compile(r"([0-9a-f]{32})-([1-9][0-9]{0,39})")


class ShapeRecord(msgspec.Struct, frozen=True):
    handle: str
    definition: str
    """`ShapeDefinition.canonical`."""
    collection: str
    shard: str
    time: int
    """Its snapshot contains all transactions up to this one."""
    rows: int
    """Changes in the shard at that time."""
    chunk_bytes: int
    """The approximate chunk size of its snapshot, fixed so that every process cuts the same chunks."""
    made_at_s: float
    change: str
    """A unique id, which identifies the commit if its outcome is unknown."""
    visible: VisibleNumbers | msgspec.UnsetType = msgspec.UNSET
    """The numbers that its snapshot states. Unset by older versions, whose snapshots do not state them."""
    pushed: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """The pushed numbers that its snapshot lists; likewise."""


class EndRecord(msgspec.Struct, frozen=True):
    handle: str
    why: str
    change: str


class ShapeRecords:
    def __init__(self, shards: Shards, numbers: TransactionNumbers, chunk_bytes: int) -> None:
        self._numbers = numbers
        self._chunk_bytes = chunk_bytes
        self._meta = shards.meta
        self._runtime = shards.runtime
        self._settings = shards.settings

    def all(self) -> list[ShapeRecord]:
        return self._read(shape_prefix())

    def find_by_definition(self, definition: ShapeDefinition) -> ShapeRecord | None:
        records = self._read(shape_prefix(definition.id))
        return records[-1] if records else None

    def find(self, handle: str) -> ShapeRecord | None:
        key = _key(handle)
        if key is None:
            return None
        record = retry_read(lambda: self._meta.head(key), self._runtime, self._settings)
        return self._record(key, record) if record is not None else None

    def create(self, definition: ShapeDefinition, shard: Shard) -> ShapeRecord:
        """The shape of a definition: the existing one, or a new one that begins now."""
        while True:
            holds = read_holds(shard.log)
            existing = self.find_by_definition(definition)
            if existing is not None and existing.shard == shard.name:
                return existing
            if existing is not None:
                self.end(existing.handle, "the collection has a new shard")
                continue
            state = shard.log.read().state
            record = self._new_record(definition, state)
            held = holds.holds.get(HOLD, record.time)
            try:
                hold = make_hold_write(shard.log, holds, HOLD, min(held, record.time))
            except TimeCompacted:  # `since` advanced after the state was read
                continue
            key = _key(record.handle)
            assert key is not None  # noqa: S101 - the handle was created above
            if self._commit([Write(key, 0, seal(record)), hold]):
                return record

    def end(self, handle: str, why: str) -> bool:
        """False if it had ended already."""
        key = _key(handle)
        while key is not None:
            number = self.last_end()
            ended = EndRecord(handle, why, self._runtime.new_id())
            if self._commit([Write(SHAPES, number, seal(ended)), Write(key, 1, None)]):
                truncate_sometimes(self._meta, SHAPES, max(0, number - _ENDS_MAX))
                return True
            if self.find(handle) is None:
                return False
        return False

    def last_end(self) -> int:
        """The number of the last record of a shape that ended."""
        head = retry_read(lambda: self._meta.head(SHAPES), self._runtime, self._settings)
        return head.seqno if head is not None else 0

    def read_ended(self, after: int) -> tuple[int, list[str] | None]:
        """The number of the last end record, and the handles that ended after `after`; None if records are gone."""
        records = retry_read(lambda: self._meta.scan(SHAPES, after), self._runtime, self._settings)
        if not records:
            return after, []
        path = self._meta.path(SHAPES)
        handles = [unseal(record.data, EndRecord, path).handle for record in records]
        return records[-1].seqno, None if records[0].seqno != after + 1 else handles

    def move_hold(self, shard: Shard) -> None:
        """Move the hold to the oldest shape of the shard; release it if there is none."""
        while True:
            holds = read_holds(shard.log)
            times = [record.time for record in self.all() if record.shard == shard.name]
            wanted = min(times, default=None)
            held = holds.holds.get(HOLD)
            if held == wanted or (held is not None and wanted is not None and wanted < held):
                return  # never backwards: a record's time was held before it was written
            if self._commit([make_hold_write(shard.log, holds, HOLD, wanted)]):
                return

    def _commit(self, writes: list[Write]) -> bool:
        """False if a concurrent commit won."""
        return commit_until_known(self._meta, writes, (), self._runtime, self._settings) is None

    def _new_record(self, definition: ShapeDefinition, state: ShardState) -> ShapeRecord:
        made_at_s = self._runtime.wall_s()
        number = int(made_at_s * 1_000_000) * _RANDOM_RANGE + int(self._runtime.new_id(), 16) % _RANDOM_RANGE
        return ShapeRecord(
            handle=f"{definition.id}-{number}",
            definition=definition.canonical,
            collection=definition.subject.name,
            shard=definition.subject.shard,
            time=state.upper - 1,
            rows=sum(batch.rows for batch in state.batches),
            chunk_bytes=self._chunk_bytes,
            made_at_s=made_at_s,
            change=self._runtime.new_id(),
            visible=self._numbers.find_visible(state.upper - 1),
            pushed=self._numbers.list_push_numbers(state.upper - 1) or msgspec.UNSET,
        )

    def _read(self, prefix: str) -> list[ShapeRecord]:
        heads = retry_read(lambda: self._meta.heads(prefix), self._runtime, self._settings)
        return [self._record(key, record) for key, record in heads.items()]

    def _record(self, key: str, record: Record) -> ShapeRecord:
        return unseal(record.data, ShapeRecord, self._meta.path(key))


def estimate_log_rows(record: ShapeRecord, state: ShardState) -> int:
    """Roughly how many changes the storage keeps for a shape: those since its snapshot."""
    since = [part for part in state.parts if part.time_max > record.time]
    rows = sum(part.rows for part in since)
    has_merged = any(part.time_min <= record.time for part in since)
    return max(0, rows - record.rows) if has_merged else rows


def _key(handle: str) -> str | None:
    """None if the text is not a handle."""
    match = _HANDLE.fullmatch(handle)
    return shape_key(match[1], int(match[2])) if match is not None else None
