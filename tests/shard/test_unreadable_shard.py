"""F1 and F2: parts, or the shard's state itself, cannot be read. The reader freezes, reports the error, and its
frontier stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from evertide.errors import (
    BlobDamaged,
    BlobMissing,
    EvertideError,
    RecordDamaged,
    TimeCompacted,
    Unexpected,
    UnsupportedFormat,
)
from evertide.shard.shard import Shard, Shards
from evertide.shard.source import Delivered, Event, Frozen, Progressed
from evertide.store import Blob, MemoryBlob, MemoryMeta, Record
from evertide.store.writers import Writer
from tests.shard.kit import (
    BLOBS,
    SCHEMA,
    GateBlob,
    PassingBlob,
    StillMeta,
    changes,
    events_until_still,
    make_shards,
    make_writer,
    rows_at,
    totals,
)

pytestmark = pytest.mark.usefixtures("shorten_stop_checks")


def world(times: int = 3, blob: Blob | None = None) -> tuple[Shards, Shard, Writer, StillMeta, list[str]]:
    """A shard with one part per time, seen through a Meta that knows when the lister sleeps, and the parts' keys."""
    meta = StillMeta(MemoryMeta())
    shards = make_shards(blob, meta, settings=BLOBS)
    writer = make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    append(shard, writer, 0, times)
    return shards, shard, writer, meta, [part.key for part in shard.log.read().state.parts]


def append(shard: Shard, writer: Writer, lower: int, upper: int) -> None:
    for time in range(lower, upper):
        shard.compare_and_append(changes([(time, "row")], time), time, time + 1, writer)


def delivered_rows(events: Sequence[Event]) -> list[int]:
    return sorted(event.time for event in events if isinstance(event, Delivered))


def frontier_of(events: Sequence[Event]) -> int:
    return max((event.frontier for event in events if isinstance(event, Progressed)), default=0)


def frozen_events(events: Sequence[Event]) -> list[Frozen]:
    return [event for event in events if isinstance(event, Frozen)]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_f1_a_deleted_part_freezes_the_reader_at_its_time(lost: int) -> None:
    """Guards I5: a part that failed stays outstanding. The parts of other times are delivered, and the frontier stays.

    Fails if a failed part counts as delivered: the frontier moves.
    """
    shards, shard, writer, meta, keys = world()
    shards.blob.delete(keys[lost])
    with shard.listen(-1) as source:
        events = events_until_still(source, meta)
        assert delivered_rows(events) == [time for time in range(3) if time != lost]
        assert (source.frontier, frontier_of(events)) == (lost, lost)
        (said,) = frozen_events(events)
        assert isinstance(said.error, BlobMissing)
        assert keys[lost] in said.error.path
        assert source.error is said.error

        append(shard, writer, 3, 6)
        later = events_until_still(source, meta)
        assert delivered_rows(later) == [3, 4, 5]
        assert [event for event in later if not isinstance(event, Delivered)] == []
        assert source.frontier == lost


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_f1_a_snapshot_names_the_missing_part(lost: int) -> None:
    shards, shard, _, _, keys = world()
    shards.blob.delete(keys[lost])
    with pytest.raises(BlobMissing) as caught:
        rows_at(shard, 2)
    assert keys[lost] in caught.value.path


@pytest.mark.parametrize("lost", [0, 1])
def test_f1_subscribing_never_passes_the_snapshot_without_all_its_parts(lost: int) -> None:
    """The content at a time is complete or absent: the frontier stays at `as_of`."""
    shards, shard, _, meta, keys = world()
    shards.blob.delete(keys[lost])
    with shard.subscribe(1) as source:
        events = events_until_still(source, meta)
        assert (source.frontier, frontier_of(events)) == (1, 0)
        assert len(frozen_events(events)) == 1


@pytest.mark.parametrize("damage", ["cut", "other bytes", "empty", "exchanged"])
def test_f1_a_damaged_part_freezes_like_a_missing_one(damage: str) -> None:
    """Its own error, with the path, before any of its rows are used.

    Fails without the checks of length and checksum: the rows of another part, put in its place, are delivered as
    content.
    """

    class Damaging(PassingBlob):
        victim = other = ""

        def get(self, key: str) -> bytes:
            data = super().get(key)
            if key != self.victim:
                return data
            broken = {"cut": data[:-1], "other bytes": data[:20] + b"\xff" + data[21:], "empty": b""}
            return super().get(self.other) if damage == "exchanged" else broken[damage]

    blob = Damaging(MemoryBlob())
    _, shard, _, meta, keys = world(blob=blob)
    blob.victim, blob.other = keys[1], keys[2]
    with shard.listen(-1) as source:
        events = events_until_still(source, meta)
        assert (delivered_rows(events), source.frontier) == ([0, 2], 1)
        (said,) = frozen_events(events)
        assert isinstance(said.error, BlobDamaged)
        assert keys[1] in said.error.path


def test_f1_any_error_of_a_fetch_freezes_the_reader() -> None:
    """Otherwise the thread would end, and the reader wait for ever."""

    class Faulty(PassingBlob):
        def get(self, key: str) -> bytes:
            raise KeyError(key)

    _, shard, _, _, _ = world(blob=Faulty(MemoryBlob()))
    with shard.listen(-1) as source:
        said = next(event for event in source if isinstance(event, Frozen))
        assert isinstance(said.error, Unexpected)
        assert "KeyError" in said.error.why
        assert (source.frontier, source.error) == (0, said.error)


def test_f1_several_missing_parts_freeze_at_the_first() -> None:
    shards, shard, _, meta, keys = world(5)
    for lost in (3, 1):
        shards.blob.delete(keys[lost])
    with shard.listen(-1) as source:
        events = events_until_still(source, meta)
        assert (delivered_rows(events), source.frontier) == ([0, 2, 4], 1)
        assert any(isinstance(event.error, BlobMissing) for event in frozen_events(events))


def test_f1_frozen_names_a_time_that_is_really_never_passed() -> None:
    """`Frozen.frontier` is a promise: no later `Progressed` may pass it, even if the failure is noticed while earlier
    times are still in flight.
    """
    gate = GateBlob(MemoryBlob())
    shards, shard, _, meta, keys = world(blob=gate)
    shards.blob.delete(keys[1])
    with shard.listen(-1) as source, gate:
        gate.wait_until_asked(keys)
        gate.open(keys[1])
        said = source.poll(10.0)
        assert isinstance(said, Frozen)
        gate.open_all()
        events = events_until_still(source, meta)
        assert (delivered_rows(events), source.frontier) == ([0, 2], 1)
        assert said.frontier >= frontier_of(events)


class CorruptMeta(StillMeta):
    """From some record of the shard on, every byte string that is read is damaged in one way."""

    def __init__(self, how: str) -> None:
        super().__init__(MemoryMeta())
        self.how = how
        self.above: int | None = None

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        return [self._damage(key, record) for record in super().scan(key, after, limit)]

    def head(self, key: str) -> Record | None:
        record = super().head(key)
        return self._damage(key, record) if record else None

    def _damage(self, key: str, record: Record) -> Record:
        if self.above is None or not key.startswith("shard/") or record.seqno <= self.above:
            return record
        data = record.data
        broken = {"cut": data[:-3], "flipped": data[:-1] + bytes([data[-1] ^ 1]), "empty": b"", "newer": b"\x07" + data}
        return Record(record.seqno, broken[self.how])


ERRORS: dict[str, type[EvertideError]] = {
    "cut": RecordDamaged,
    "flipped": RecordDamaged,
    "empty": RecordDamaged,
    "newer": UnsupportedFormat,
}


@pytest.mark.parametrize("how", ERRORS)
def test_f2_an_unreadable_state_freezes_with_its_own_error(how: str) -> None:
    """Guards I5 for the listing: what was listed before is delivered, then the frontier stays, and the error names the
    shard's state and the record.

    Fails without the checksum in `unseal` ("flipped" is taken for a missing part), and without the freeze in the lister
    (the reader reports nothing).
    """
    meta = CorruptMeta(how)
    blob = MemoryBlob()
    writing = make_shards(blob, meta.inner, settings=BLOBS)
    writer = make_writer(writing)
    shard = writing.create("t", SCHEMA, writer)
    append(shard, writer, 0, 2)
    meta.above = shard.log.read().seqno
    with make_shards(blob, meta, settings=BLOBS).open("t").listen(-1) as source:
        events = events_until_still(source, meta)
        assert (delivered_rows(events), source.frontier) == ([0, 1], 2)
        append(shard, writer, 2, 4)
        source._threads[0].join(10.0)
        events = events_until_still(source, meta)
        (said,) = events
        assert isinstance(said, Frozen)
        assert (said.frontier, source.frontier) == (2, 2)
        assert type(said.error) is ERRORS[how]
        assert "shard/t #4" in str(said.error)
        assert source.error is said.error


def test_f2_a_state_that_is_unreadable_from_the_start_is_an_error() -> None:
    meta = CorruptMeta("flipped")
    writing = make_shards(meta=meta.inner, settings=BLOBS)
    writer = make_writer(writing)
    append(writing.create("t", SCHEMA, writer), writer, 0, 2)
    shard = make_shards(writing.blob, meta, settings=BLOBS)._shard("t")
    meta.above = 0
    with shard.subscribe(1) as source:
        source._threads[0].join(10.0)
        (said,) = events_until_still(source, meta)
        assert isinstance(said, Frozen)
        assert isinstance(said.error, RecordDamaged)
        assert source.frontier == 1


def test_f2_a_missing_rollup_is_named() -> None:
    """The roll-up blob is missing: the error names it, not a missing part, and nothing is listed."""
    shards, shard, writer, meta, keys = world()
    rollup = shard.log.roll_up(writer)
    assert rollup is not None
    append(shard, writer, 3, 4)
    assert shard.collect_garbage(writer).diffs > 0
    shards.blob.delete(rollup.key)
    fresh = make_shards(shards.blob, meta, settings=BLOBS)._shard("t")
    with fresh.listen(-1) as source:
        source._threads[0].join(10.0)
        (said,) = events_until_still(source, meta)
        assert isinstance(said, Frozen)
        assert isinstance(said.error, BlobMissing)
        assert rollup.key in said.error.path
        assert not any(key in said.error.path for key in keys)


def test_f2_a_time_below_since_is_time_compacted() -> None:
    _, shard, writer, meta, _ = world(9)
    shard.advance_since(5, writer)
    assert shard.compact(writer)
    with shard.listen(3) as source:
        source._threads[0].join(10.0)
        (said,) = events_until_still(source, meta)
        assert isinstance(said, Frozen)
        assert isinstance(said.error, TimeCompacted)
        assert (said.error.as_of, said.error.since) == (3, 5)
    tables: list[pa.Table] = []
    with shard.subscribe(5) as source:
        tables += [event.changes for event in events_until_still(source, meta) if isinstance(event, Delivered)]
    assert totals(*tables) == rows_at(shard, 8)
