"""Parts on the blob: missing or damaged ones, failing storage, which bytes are fetched, and which are cached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evertide.errors import BlobDamaged, BlobMissing, EvertideError, OutcomeUnknown, Unavailable, Unexpected
from evertide.flow.state.arrangement import Arrangement
from evertide.flow.state.row_groups import RowGroupCache
from evertide.flow.state.spine import ArrangementSettings
from evertide.flow.state.state_part import PartEntry
from evertide.rows.changes import DIFF
from evertide.store import Blob, MemoryBlob
from tests.flow.arranging import World, content, delta, keys
from tests.kit.compacting import compact
from tests.kit.faulty import Fault, Faults, FaultyBlob
from tests.shard.kit import PassingBlob

GOLDEN = Path(__file__).parents[1] / "golden"
ROWS = [(i, f"name {i % 4}", i / 2) for i in range(30)]


class WatchedBlob(PassingBlob):
    """Counts the fetched bytes, and damages them if the test says so."""

    def __init__(self, inner: Blob) -> None:
        super().__init__(inner)
        self.fetched: list[tuple[str, int, int]] = []
        self.damage: Callable[[str, bytes], bytes] = lambda _, data: data

    def get(self, key: str) -> bytes:
        return self.damage(key, self.inner.get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.fetched.append((key, offset, length))
        return self.get(key)[offset : offset + length]


def save_arrangement(blob: Blob) -> tuple[World, Arrangement]:
    world = World(blob)
    subject = world.arrangement()
    subject.apply(delta(ROWS))
    compact(subject)
    assert len(subject.parts()) > 2
    return world, subject


def test_a_missing_part_is_named() -> None:
    world, subject = save_arrangement(MemoryBlob())
    manifest = subject.save()
    for part in subject.parts():
        data = world.blob.get(part.key)
        world.blob.delete(part.key)
        with pytest.raises(BlobMissing) as caught:
            world.restore(manifest).scan()
        assert caught.value.path == world.blob.path(part.key)
        world.blob.put(part.key, data)
    assert world.restore(manifest).rows == 30


def flip_byte(at: int, data: bytes) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def damages(part: PartEntry, other: bytes) -> dict[str, Callable[[bytes], bytes]]:
    """By kind, the damaged bytes: every byte belongs to something that is verified."""
    footer = part.bytes - part.footer_bytes
    flips = {
        f"byte {at}": at for at in (4, footer // 2, footer - 1, footer, footer + 9, part.bytes - 6, part.bytes - 1)
    }
    found: dict[str, Callable[[bytes], bytes]] = {name: partial(flip_byte, at) for name, at in flips.items()}
    found |= {"cut": lambda data: data[:-1], "longer": lambda data: data + b"x", "empty": lambda _: b""}
    return found | {"shifted": lambda data: b"x" + data, "exchanged": lambda _: other}


def test_a_damaged_part_is_named_before_any_of_it_is_used() -> None:
    """Fails without the check of the length, or of the checksums of the footer or of row groups: the damage goes
    unnoticed, or is reported as something else.
    """
    blob = WatchedBlob(MemoryBlob())
    world, subject = save_arrangement(blob)
    manifest = subject.save()
    victim, other = subject.parts()[:2]
    for name, damage in damages(victim, blob.inner.get(other.key)).items():
        blob.damage = lambda key, data, damage=damage: damage(data) if key == victim.key else data  # type: ignore[misc]
        with pytest.raises(BlobDamaged) as caught:
            world.restore(manifest).lookup(keys(*range(30)))
        assert caught.value.path == blob.path(victim.key), name
        if name in ("cut", "longer", "empty"):
            assert caught.value.why == "the length in bytes differs"
    blob.damage = lambda _, data: data
    assert content(world.restore(manifest).scan()) == content(subject.scan())


def test_damage_after_the_restore_is_detected() -> None:
    """Everything was right when it was restored, and the file is open."""
    blob = WatchedBlob(MemoryBlob())
    world, subject = save_arrangement(blob)
    subject = world.restore(subject.save())
    victim = subject.parts()[0]
    blob.damage = lambda key, data: data[:5] + b"???" + data[8:] if key == victim.key else data
    reads: list[Callable[[], Any]] = [lambda: subject.lookup(keys(0)), subject.scan]
    for read in reads:
        with pytest.raises(BlobDamaged) as caught:
            read()
        assert caught.value.path == blob.path(victim.key)
    subject.apply(delta([(99, "x", 0.0)]))
    with pytest.raises(BlobDamaged):
        compact(subject)
    blob.damage = lambda _, data: data
    assert subject.lookup(keys(0, 99)).num_rows == 2


def test_parts_of_other_columns_are_refused() -> None:
    world, subject = save_arrangement(MemoryBlob())
    other = world.arrangement(subject.schema.remove(2), ("id",), parts=subject.parts())
    with pytest.raises(BlobDamaged, match="columns"):
        other.scan()


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST, Fault.DONE_LOST])
@pytest.mark.parametrize("step", ["maintain", "compact", "save"])
def test_a_failed_write_changes_nothing(fault: Fault, step: str) -> None:
    inner, faults, subject = _with_faults()
    steps: dict[str, Callable[[], Any]] = {
        "maintain": subject.maintain,
        "compact": partial(compact, subject),
        "save": subject.save,
    }
    before, parts = subject.scan(), subject.parts()
    faults.append(fault)
    with pytest.raises(Unavailable if fault is Fault.REFUSED else OutcomeUnknown):
        steps[step]()
    assert content(subject.scan()) == content(before)
    assert subject.parts() == parts
    orphans = {entry.key for entry in inner.list("")} - {part.key for part in parts}
    assert orphans <= set(subject.released), "the owner must delete whatever may have been put"
    steps[step]()
    assert len(content(subject.scan())) == 25


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST, Fault.DONE_LOST])
def test_a_delta_is_added_once_although_memory_cannot_be_written_out(fault: Fault) -> None:
    """Unavailable storage must not block a transaction: the rows stay in memory for now."""
    inner, faults, subject = _with_faults()
    parts = subject.parts()
    faults.append(fault)
    subject.apply(delta(ROWS[25:]))
    assert faults == [], "nothing was written"
    assert len(content(subject.scan())) == 30
    orphans = {entry.key for entry in inner.list("")} - {part.key for part in [*parts, *subject.parts()]}
    assert orphans <= set(subject.released), "the owner must delete whatever may have been put"
    subject.maintain()
    assert len(content(subject.scan())) == 30


def _with_faults() -> tuple[MemoryBlob, list[Fault], Any]:
    """An arrangement of 25 rows, and the faults of the next writes."""
    faults: list[Fault] = []
    inner = MemoryBlob()
    blob = FaultyBlob(inner, Faults(lambda *_: faults.pop() if faults else Fault.DONE, lambda *_: Fault.DONE))
    subject = World(blob).arrangement(
        settings=ArrangementSettings(memory_rows_max=4, inline_rows_max=4, part_rows_max=4)
    )
    for start in range(0, 25, 5):
        subject.apply(delta(ROWS[start : start + 5]))
    return inner, faults, subject


def test_a_failed_read_is_retried() -> None:
    reads = [Fault.REFUSED, Fault.DONE, Fault.REFUSED]
    inner = MemoryBlob()
    _, subject = save_arrangement(inner)
    again = World(FaultyBlob(inner, Faults.scripted(reads=reads))).arrangement(parts=subject.parts())
    errors: list[type[EvertideError]] = []
    while not errors or errors[-1] is Unavailable:
        try:
            assert content(again.lookup(keys(1, 2)), ["id"]) == {(1,): 1, (2,): 1}
            errors.append(EvertideError)
        except Unavailable:
            errors.append(Unavailable)
    assert errors == [Unavailable, Unavailable, EvertideError]


def test_apply_writes_memory_out_if_no_maintenance_runs() -> None:
    world = World()
    subject = world.arrangement(settings=ArrangementSettings(memory_rows_max=10))
    for i in range(60):
        subject.apply(delta([(i, "n", 0.0)]))
    assert sum(part.rows for part in subject.parts()) == 43
    wide = world.arrangement(settings=ArrangementSettings(memory_bytes_max=1000))
    for i in range(8):
        wide.apply(delta([(i, "n" * 1000, 0.0)]))
    assert wide.parts()
    assert wide.maintain()
    assert not wide._spine.runs.memory


def test_only_row_groups_that_may_have_a_key_are_fetched_and_only_once() -> None:
    blob = WatchedBlob(MemoryBlob())
    world, subject = save_arrangement(blob)
    subject = world.restore(subject.save())
    assert blob.fetched == [], "a restore reads no part"
    assert subject.lookup(keys(1000, -1)).num_rows == 0
    assert blob.fetched == [], "no part can have these keys"
    assert subject.lookup(keys(4)).num_rows == 1
    assert len(blob.fetched) == 2, "the footer of one part, and one of its row groups"
    assert len({key for key, _, _ in blob.fetched}) == 1
    assert subject.lookup(keys(3, 4, 5)).num_rows == 3
    assert len(blob.fetched) == 2, "they are in the same row group, which is cached"


def test_a_key_may_fill_many_row_groups() -> None:
    subject = World().arrangement()
    subject.apply(delta([(i // 10, f"{i}", 0.0) for i in range(40)]))
    compact(subject)
    for number in range(4):
        found = subject.lookup(keys(number, number, 77))
        assert content(found, ["name"]) == Counter({(f"{i}",): 1 for i in range(number * 10, number * 10 + 10)})
    assert subject.lookup(keys(0, 3)).num_rows == 20


@pytest.mark.parametrize("cache_bytes", [0, 2000, 5000, 40_000])
def test_the_cache_keeps_its_budget(cache_bytes: int) -> None:
    world = World(cache_bytes=cache_bytes)
    subjects = [world.arrangement(settings=ArrangementSettings(row_group_rows=10, part_rows_max=40)) for _ in range(2)]
    for subject in subjects:
        subject.apply(delta([(i, "n" * (i % 7), 0.0) for i in range(400)]))
        compact(subject)
    for step in range(200):
        assert subjects[step % 2].lookup(keys(step, (step * 7) % 400)).num_rows in (1, 2)
        assert world.cache.bytes <= cache_bytes
    assert (len(world.cache) > 0) == (cache_bytes > 0)


def test_the_cache_evicts_the_least_recently_used() -> None:
    cache = RowGroupCache(100)
    for number in range(3):
        cache.put("p", number, f"value {number}", 30)
    assert cache.get("p", 0) == "value 0"
    cache.put("p", 3, "value 3", 30)
    assert [cache.get("p", number) for number in range(4)] == ["value 0", None, "value 2", "value 3"]
    cache.put("p", 3, "other", 40)
    assert (cache.get("p", 3), cache.bytes) == ("other", 100)
    cache.put("p", 3, "too large", 101)
    assert (cache.get("p", 3), cache.bytes) == (None, 60)
    cache.put("q", -1, "file", 10)
    cache.drop("p", 4)
    assert (cache.bytes, len(cache), cache.get("q", -1)) == (10, 1, "file")
    with pytest.raises(Unexpected):
        RowGroupCache(-1)


def test_a_not_null_field_of_a_null_struct_is_null() -> None:
    """Spark stores NULL there. If the file's column were NOT NULL as the type says, nothing could be written."""
    inner = [pa.field("a", pa.int32()), pa.field("b", pa.string(), nullable=False)]
    kind = pa.struct(inner)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", kind)])
    loose = pa.array([None, {"a": 1, "b": "x"}], pa.struct([field.with_nullable(True) for field in inner]))
    known = pa.Array.from_buffers(
        kind, 2, [loose.buffers()[0]], children=[pa.array([None, 1], pa.int32()), pa.array([None, "x"])]
    )
    rows = pa.Table.from_arrays([pa.array([1, 2]), known], schema=schema)
    blob = MemoryBlob()
    names = iter(range(100))
    parts: dict[str, Any] = {
        "blob": blob,
        "cache": RowGroupCache(1 << 20),
        "new_name": lambda: f"0123456789abcdef-{next(names):08d}.parquet",
        "settings": ArrangementSettings(memory_rows_max=1, inline_rows_max=1),
    }
    subject = Arrangement("structs", schema, ("id",), **parts)
    subject.apply(rows.append_column(pa.field(DIFF, pa.int64(), nullable=False), pa.array([1, 1])))
    again = Arrangement.restore(subject.save(), **parts)
    assert again.scan().to_pylist() == [
        {"id": 1, "s": None, DIFF: 1},
        {"id": 2, "s": {"a": 1, "b": "x"}, DIFF: 1},
    ]
    assert [entry.key for entry in blob.list("state/")]


def test_parts_and_entries_of_version_1_are_read() -> None:
    """Their index is in the entry."""
    entry = msgspec.msgpack.decode((GOLDEN / "state-part-v1.bin").read_bytes(), type=PartEntry)
    assert (entry.row_groups, entry.least, entry.greatest) == (3, 0, 6)
    world = World()
    world.blob.put(entry.key, (GOLDEN / "state-part-v1.parquet").read_bytes())
    subject = world.arrangement(parts=(entry,))
    assert content(subject.scan()) == content(delta(ROWS[:7]))
    assert content(subject.lookup(keys(2, 5, 6)), ["id"]) == Counter({(2,): 1, (5,): 1, (6,): 1})
    again = world.restore(subject.save())
    assert content(again.lookup(keys(*range(7)))) == content(delta(ROWS[:7]))


def test_the_index_of_a_part_is_in_the_part() -> None:
    """So that a manifest does not grow with the rows of its parts."""
    world = World()
    subject = world.arrangement(settings=ArrangementSettings(row_group_rows=3))
    subject.apply(delta(ROWS))
    compact(subject)
    [entry] = subject.parts()
    assert entry.row_groups == 10
    assert len(msgspec.msgpack.encode(entry)) < 300
    footer = pq.read_metadata(pa.BufferReader(world.blob.get(entry.key)))
    index = entry.read_index(footer)
    groups = [footer.row_group(number) for number in range(10)]
    assert index.offsets.tolist() == [group.column(0).data_page_offset for group in groups]
    sizes = [sum(group.column(i).total_compressed_size for i in range(group.num_columns)) for group in groups]
    assert index.lengths.tolist() == sizes
    assert (index.least.tolist(), index.greatest.tolist()) == ([*range(0, 30, 3)], [*range(2, 30, 3)])


def test_a_part_whose_index_is_not_that_of_its_entry_is_damaged() -> None:
    world, subject = save_arrangement(MemoryBlob())
    wrong = [msgspec.structs.replace(entry, row_groups=entry.row_groups + 1) for entry in subject.parts()]
    with pytest.raises(BlobDamaged, match="row groups in its index"):
        world.arrangement(parts=tuple(wrong)).scan()
