"""Damage of every kind: said by name, with a remedy; whoever finds it changes nothing and deletes nothing (I12)."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import xxhash

from evertide.errors import (
    BlobDamaged,
    BlobMissing,
    Damaged,
    EvertideError,
    InvalidInput,
    RecordDamaged,
    StorageForbidden,
    StorageFull,
    Unavailable,
)
from evertide.shard.append import store_parts
from evertide.shard.parts.part import Part
from evertide.shard.shard import Shard
from evertide.store import LocalBlob, Storage, Write, open_storage
from evertide.store.paths import beat_key, hold_key, lease_key, writer_key
from evertide.testing import ManualRuntime, RandomStream, SimulatedDisk
from evertide.types import Time
from tests.shard.test_log import SETTINGS, HookedBlob, HookedMeta, Host, Memory, changes, content_of

TIMES = 6
ROLLED_UP = 4
NAME = "a"


class Place:
    """A storage on a real directory: times 0 to 5, rolled up in between, so that state is both roll-up and diffs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runtime = ManualRuntime()
        self.storages: list[Storage] = []
        self.host = self.process()
        self.shard = self.host.create()
        for time in range(TIMES):
            if time == ROLLED_UP:
                assert self.shard.log.roll_up(self.host.writer)
            self.host.append(self.shard, {time: 1})
        self.host.writer.beat()

    def process(self) -> Host:
        storage = open_storage(self.root, runtime=self.runtime, settings=SETTINGS)
        self.storages.append(storage)
        return Host(storage.blob, storage.meta, self.runtime)

    def close(self) -> None:
        for storage in self.storages:
            storage.close()

    def part(self, time: int) -> Path:
        [part] = self.shard.log.known().state.batches[time].parts
        return self.root / part.key

    def rollup(self) -> Path:
        [path] = (self.root / "rollups" / NAME).iterdir()
        return path

    def sql(self, statement: str, *values: object) -> None:
        connection = sqlite3.connect(self.root / "meta.db", isolation_level=None)
        try:
            connection.execute(statement, values)
        finally:
            connection.close()

    def kept(self) -> tuple[dict[str, bytes], list[tuple[str, int, bytes]]]:
        """Everything that may not change: blobs, and what Meta says about the shard."""
        files = [path for path in self.root.rglob("*") if path.is_file() and not path.name.startswith("meta.db")]
        connection = sqlite3.connect(self.root / "meta.db")
        try:
            records = connection.execute(
                "SELECT key, seqno, data FROM log WHERE key NOT LIKE 'beat/%' AND key NOT LIKE 'writer/%' ORDER BY 1, 2"
            ).fetchall()
        finally:
            connection.close()
        return {str(path): path.read_bytes() for path in files}, records


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def said_well(error: EvertideError, path: str | Path) -> None:
    assert str(path) in str(error), f"{error} does not name {path}"
    assert str(error).endswith(error.remedy)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def noise(length: int) -> bytes:
    chance = RandomStream(5)
    return b"".join(chance.bits().to_bytes(8, "big") for _ in range(length // 8 + 1))[:length]


# Records


def damage_diff(place: Place) -> str:
    place.sql("UPDATE log SET data = ? WHERE key = 'shard/a' AND seqno = 6", flipped(stored(place, "shard/a", 6), 30))
    return "meta.db:shard/a #6"


def cut_diff(place: Place) -> str:
    place.sql("UPDATE log SET data = ? WHERE key = 'shard/a' AND seqno = 7", b"\x01\x02")
    return "meta.db:shard/a #7"


def other_diff(place: Place) -> str:
    """A good record, but of another time: its checksum is right, and it does not fit."""
    place.sql("UPDATE log SET data = ? WHERE key = 'shard/a' AND seqno = 6", stored(place, "shard/a", 7))
    return "meta.db:shard/a #6"


def lose_diffs(place: Place) -> str:
    place.sql("DELETE FROM log WHERE key = 'shard/a' AND seqno <= 6")
    return "meta.db:shard/a"


def lose_all_diffs(place: Place) -> str:
    place.sql("DELETE FROM log WHERE key = 'shard/a'")
    return "meta.db:shard/a"


def damage_address(place: Place) -> str:
    place.sql("UPDATE log SET data = ? WHERE key = 'rollup/a'", flipped(stored(place, "rollup/a", 1), 12))
    return "meta.db:rollup/a"


def cut_rollup(place: Place) -> str:
    place.rollup().write_bytes(place.rollup().read_bytes()[:-7])
    return str(place.rollup())


def randomize_rollup(place: Place) -> str:
    place.rollup().write_bytes(noise(place.rollup().stat().st_size))
    return str(place.rollup())


def lose_rollup(place: Place) -> str:
    path = place.rollup()
    path.unlink()
    return str(path)


def stored(place: Place, key: str, seqno: int) -> bytes:
    [found] = [record for record in place.storages[0].meta.scan(key) if record.seqno == seqno]
    return found.data


STATE_DAMAGE: list[tuple[Callable[[Place], str], type[Damaged]]] = [
    (damage_diff, RecordDamaged),
    (cut_diff, RecordDamaged),
    (other_diff, RecordDamaged),
    (lose_diffs, RecordDamaged),
    (lose_all_diffs, RecordDamaged),
    (damage_address, RecordDamaged),
    (cut_rollup, BlobDamaged),
    (randomize_rollup, BlobDamaged),
    (lose_rollup, BlobMissing),
]


def by_name(value: object) -> str:
    return str(getattr(value, "__name__", value))


@pytest.mark.parametrize(("damage", "kind"), STATE_DAMAGE, ids=by_name)
def test_a_process_that_opens_a_damaged_shard_says_so(
    place: Place, damage: Callable[[Place], str], kind: type[Damaged]
) -> None:
    """F2. Also creating it again is refused: missing state is damage, never a new shard."""
    where = damage(place)
    before = place.kept()
    host = place.process()
    shard = host.shards._shard(NAME)
    acts: list[Callable[[], object]] = [
        host.open,
        host.create,
        lambda: shard.upper,
        lambda: content_of(shard, TIMES - 1),
        lambda: shard.compare_and_append(changes({7: 1}, TIMES), TIMES, TIMES + 1, host.writer),
        lambda: shard.compact(host.writer),
        lambda: shard.collect_garbage(host.writer),
        lambda: shard.log.roll_up(host.writer),
        lambda: shard.finalize(host.writer),
        shard.inspect,
    ]
    for act in acts:
        with pytest.raises(kind) as found:
            act()
        said_well(found.value, where)
    assert place.kept() == before


SEEN_BY_ALL = [damage_diff, cut_diff, lose_all_diffs, damage_address, cut_rollup, randomize_rollup, lose_rollup]


@pytest.mark.parametrize(("damage", "kind"), [pair for pair in STATE_DAMAGE if pair[0] in SEEN_BY_ALL], ids=by_name)
def test_a_collector_that_knows_the_state_still_deletes_nothing(
    place: Place, damage: Callable[[Place], str], kind: type[Damaged]
) -> None:
    """I12. It knows the state by heart, and nobody else can read it any more.

    It would truncate the diffs that the damaged roll-up can no longer stand for, and delete the roll-up before it.
    """
    assert place.shard.compact(place.host.writer)
    place.host.writer.beat()
    where = damage(place)
    before = place.kept()
    with pytest.raises(kind) as found:
        place.shard.collect_garbage(place.host.writer)
    said_well(found.value, where)
    assert place.kept() == before


@pytest.mark.parametrize("damage", [damage_diff, cut_rollup, randomize_rollup, lose_rollup], ids=by_name)
def test_who_knows_the_state_goes_on_after_a_collection_that_failed(
    place: Place, damage: Callable[[Place], str]
) -> None:
    """I12: collection says so and deletes nothing, and the pipeline runs on: a look must not make it forget."""
    damage(place)
    with pytest.raises(Damaged):
        place.shard.collect_garbage(place.host.writer)
    place.host.append(place.shard, {77: 1})
    assert place.shard.upper == TIMES + 1
    assert content_of(place.shard, TIMES) == {**dict.fromkeys(range(TIMES), 1), 77: 1}


# Parts


def cut_part(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def randomize_part(path: Path) -> None:
    path.write_bytes(noise(path.stat().st_size))


def flip_part(path: Path) -> None:
    path.write_bytes(flipped(path.read_bytes(), 100))


def empty_part(path: Path) -> None:
    path.write_bytes(b"")


def lose_part(path: Path) -> None:
    path.unlink()


def replace_part_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


PART_DAMAGE: list[tuple[Callable[[Path], None], type[Damaged]]] = [
    (cut_part, BlobDamaged),
    (randomize_part, BlobDamaged),
    (flip_part, BlobDamaged),
    (empty_part, BlobDamaged),
    (lose_part, BlobMissing),
    (replace_part_by_directory, BlobMissing),
]


@pytest.mark.parametrize(("damage", "kind"), PART_DAMAGE, ids=by_name)
def test_a_damaged_part_is_named_and_not_used(
    place: Place, damage: Callable[[Path], None], kind: type[Damaged]
) -> None:
    """Seen to fail without `_check_bytes`: then it is for Arrow to notice."""
    path = place.part(2)
    damage(path)
    before = place.kept()
    host = place.process()
    shard = host.open()
    assert content_of(shard, 1) == {0: 1, 1: 1}, "what does not need it is read"
    acts: list[Callable[[], object]] = [lambda: content_of(shard, 2), lambda: shard.compact(host.writer)]
    for act in acts:
        with pytest.raises(kind) as found:
            act()
        said_well(found.value, path)
        assert kind is BlobMissing or found.value.why in ("the length in bytes differs", "the checksum differs"), (
            "before any of it is used"
        )
    assert place.kept() == before
    host.append(shard, {77: 1})
    assert shard.upper == TIMES + 1, "appends go on"


def with_part(host: Host, shard: Shard, change: Callable[[Part, bytes], tuple[Part, bytes]]) -> str:
    """Append a part that is not what its description says, or not a part at all."""
    memory = Memory()
    stored = {"shard": NAME, "blob": memory.blob, "runtime": host.runtime, "settings": host.settings}
    with host.writer.claim() as seq:
        [part] = store_parts(changes({500: 1}, TIMES), writer=host.writer.id, seq=seq, **stored)  # type: ignore[arg-type]
        part, data = change(part, memory.blob.get(part.key))
        host.blob.put(part.key, data)
        shard.compare_and_append([part], TIMES, TIMES + 1, host.writer)
    return host.blob.path(part.key)


def sealed(part: Part, data: bytes) -> tuple[Part, bytes]:
    """Bytes and checksum are those of the data."""
    return msgspec.structs.replace(part, bytes=len(data), checksum=xxhash.xxh3_128_hexdigest(data)), data


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda part, data: (msgspec.structs.replace(part, digest="0" * 31 + "1"), data), id="digest"),
        pytest.param(lambda part, data: (msgspec.structs.replace(part, digest="0" * 32), data), id="no digest"),
    ],
)
def test_rows_that_are_not_those_recorded_are_found_by_compaction(
    place: Place, wrong: Callable[[Part, bytes], tuple[Part, bytes]]
) -> None:
    """Its bytes and checksum are right. Seen to fail without the comparison of digests in `_merged`.

    The merge is withdrawn: nothing is committed, and no blob is left.
    """
    path = with_part(place.host, place.shard, wrong)
    before = place.kept()
    with pytest.raises(BlobDamaged, match="digest of its rows") as found:
        place.shard.compact(place.host.writer)
    said_well(found.value, path)
    assert place.kept() == before


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda part, data: sealed(part, b"PAR1" + noise(200) + b"PAR1"), id="noise"),
        pytest.param(lambda part, data: sealed(part, data[:200] + noise(len(data) - 208) + data[-8:]), id="footer"),
        pytest.param(lambda part, data: sealed(part, b"PAR1"), id="nothing"),
        pytest.param(lambda part, data: sealed(part, noise(300)), id="no parquet"),
        pytest.param(lambda part, data: sealed(part, b"\xff\xff\xff\xff\x10\x00\x00\x00" + noise(64)), id="stream"),
        pytest.param(lambda part, data: (msgspec.structs.replace(part, rows=2), data), id="rows"),
    ],
)
def test_a_part_that_cannot_be_read_though_its_checksum_is_right(
    place: Place, wrong: Callable[[Part, bytes], tuple[Part, bytes]]
) -> None:
    """As a writer with broken memory leaves it: never a bare error of Arrow's, which may even be an OSError."""
    path = with_part(place.host, place.shard, wrong)
    for act in (lambda: content_of(place.shard, TIMES), lambda: place.shard.compact(place.host.writer)):
        with pytest.raises(BlobDamaged) as found:
            act()
        said_well(found.value, path)


# Whole directories and files


def test_a_file_in_place_of_the_parts(place: Place) -> None:
    parts = place.root / "parts" / NAME
    kept = place.root / "moved away"
    parts.rename(kept)
    parts.write_bytes(b"not a directory")
    host = place.process()
    shard = host.open()
    with pytest.raises(BlobMissing) as missing:
        content_of(shard, 0)
    said_well(missing.value, place.part(0))
    with pytest.raises(Unavailable) as refused:
        host.append(shard, {1: 1})
    said_well(refused.value, parts)
    assert shard.upper == TIMES
    parts.unlink()
    kept.rename(parts)
    assert len(content_of(shard, TIMES - 1)) == TIMES


def test_a_file_in_place_of_the_storage(tmp_path: Path) -> None:
    (tmp_path / "storage").write_bytes(b"")
    with pytest.raises(InvalidInput) as refused:
        open_storage(tmp_path / "storage", runtime=ManualRuntime(), settings=SETTINGS)
    said_well(refused.value, tmp_path / "storage")


def test_a_database_that_is_none(place: Place) -> None:
    place.close()
    for name in ("meta.db-wal", "meta.db-shm"):
        (place.root / name).unlink(missing_ok=True)
    (place.root / "meta.db").write_bytes(noise(8192))
    with pytest.raises(RecordDamaged) as found:
        open_storage(place.root, runtime=place.runtime, settings=SETTINGS)
    said_well(found.value, place.root / "meta.db")
    assert (place.root / "meta.db").read_bytes() == noise(8192)


def test_damaged_holds_stop_since_and_nothing_else() -> None:
    memory = Memory()
    host = memory.host()
    shard = host.create()
    host.append(shard, {1: 1})
    memory.meta.commit([Write(hold_key(NAME), 1, b"\x01???")])
    acts: list[Callable[[], object]] = [
        lambda: shard.hold("sink", 0),
        lambda: shard.release("sink"),
        lambda: shard.advance_since(0, host.writer),
        lambda: shard.holds,
    ]
    for act in acts:
        with pytest.raises(RecordDamaged) as found:
            act()
        said_well(found.value, "memory:hold/a")
    host.append(shard, {2: 1})
    assert content_of(shard, 1) == {1: 1, 2: 1}


# A disk that refuses


REFUSALS = [
    (errno.EACCES, StorageForbidden),
    (errno.EPERM, StorageForbidden),
    (errno.EROFS, StorageForbidden),
    (errno.ENOSPC, StorageFull),
    (errno.EDQUOT, StorageFull),
    (errno.EIO, Unavailable),
]


class Refusing:
    def __init__(self) -> None:
        self.disk = SimulatedDisk(ManualRuntime())
        blob = LocalBlob(self.disk.root, self.disk.files)
        self.host = Host(blob, self.disk.meta, self.disk.runtime, replace(SETTINGS, retry_limit_s=1.0))
        self.shard = self.host.create()
        for time in range(TIMES):
            self.host.append(self.shard, {time: 1})

    def refuse(self, operations: str, number: int) -> None:
        for operation in operations.split():
            self.disk.fail_next(operation, OSError(number, "refused"), times=100)


@pytest.mark.parametrize(("number", "kind"), REFUSALS, ids=lambda value: errno.errorcode.get(value, ""))
def test_a_disk_that_refuses_is_told_by_kind_and_path(number: int, kind: type[EvertideError]) -> None:
    """A read-only, full, forbidding or failing disk: reads and writes, each named, and all is well once it heals."""
    place = Refusing()
    before = place.host.blobs()
    reads: list[Callable[[], object]] = [lambda: content_of(place.shard, TIMES - 1)]
    lists: list[Callable[[], object]] = [lambda: place.shard.collect_garbage(place.host.writer)]
    writes: list[Callable[[], object]] = [
        lambda: place.host.append(place.shard, {9: 1}),
        lambda: place.shard.compact(place.host.writer),
        lambda: place.shard.log.roll_up(place.host.writer),
    ]
    for operations, acts in (("read", reads), ("list_directory", lists), ("write_new", writes), ("sync", writes)):
        for act in acts:
            place.refuse(operations, number)
            with pytest.raises(kind) as found:
                act()
            assert type(found.value) is kind
            said_well(found.value, "/disk/")
            place.disk.heal()
    assert place.host.blobs() == before
    assert place.shard.upper == TIMES
    place.host.append(place.shard, {9: 1})
    assert place.shard.compact(place.host.writer)
    place.shard.collect_garbage(place.host.writer)
    assert len(content_of(place.shard, TIMES)) == TIMES + 1


# Collection with unreadable evidence


def collected_until(at: int, error: EvertideError | None) -> tuple[list[str], Memory, Host, set[str]]:
    """A collection with much to delete, whose operation of this number fails."""
    memory = Memory()
    dead = memory.host()
    shard = dead.create()
    for time in range(TIMES):
        dead.append(shard, {time: 1})
    assert shard.log.roll_up(dead.writer)
    assert shard.compact(dead.writer)
    assert shard.log.roll_up(dead.writer)
    memory.blob.put(f"parts/a/{dead.writer.id}-00000099-p0.parquet", b"an orphan")
    dead.shards.leases.take(shard.log, Time(0))
    memory.runtime.advance_s(61.0)
    said: list[str] = []

    def before(operation: str, key: str) -> None:
        said.append(operation)
        if error is not None and len(said) == at:
            raise error

    host = memory.host()
    same = host.open()
    same.log.blob, same.log.meta = HookedBlob(memory.blob, before), HookedMeta(memory.meta, before)
    host.writer._meta = same.log.meta
    there = host.blobs()
    if error is None:
        same.collect_garbage(host.writer)
    else:
        with pytest.raises(type(error)):
            same.collect_garbage(host.writer)
    return said, memory, host, there


def test_whatever_evidence_is_unreadable_nothing_is_deleted() -> None:
    """I12, one run per operation of a collection. Seen to fail with the orphans deleted before the leases were read."""
    said, _, _, before = collected_until(0, None)
    first = said.index("delete") + 1
    assert said.count("delete") > TIMES
    assert {"list", "unfinished", "heads", "head", "scan", "commit"} <= set(said[: first - 1])
    for at in range(1, len(said) + 1):
        error = StorageForbidden(path="there", why="refused")
        done, memory, host, there = collected_until(at, error)
        if at < first:
            assert host.blobs() == there == before, f"operation {at}: {done}"
            assert memory.meta.scan("shard/a")[0].seqno == 1
        shard = host.open()
        assert len(content_of(shard, TIMES - 1)) == TIMES
        host.writer._meta = memory.meta
        shard.collect_garbage(host.writer)
        memory.runtime.advance_s(host.settings.writer_ttl_s / 2)  # until then a lost heartbeat speaks for the others
        shard.collect_garbage(host.writer)
        assert len(host.blobs("parts")) == 1
        assert len(content_of(host.open(), TIMES - 1)) == TIMES


@pytest.mark.parametrize("key", ["writer", "beat", "lease"])
def test_a_damaged_record_of_a_writer_or_reader_stops_collection(key: str) -> None:
    memory = Memory()
    host, other = memory.host(), memory.host()
    shard = host.create()
    for time in range(TIMES):
        host.append(shard, {time: 1})
    assert shard.compact(host.writer)
    name = {"writer": writer_key(other.writer.id), "beat": beat_key(other.writer.id), "lease": lease_key(NAME, "00")}
    found = memory.meta.head(name[key])
    memory.meta.commit([Write(name[key], found.seqno if found else 0, b"\x01 not what it was")])
    before = host.blobs()
    with pytest.raises(RecordDamaged) as damaged:
        shard.collect_garbage(host.writer)
    said_well(damaged.value, f"memory:{name[key]}")
    assert host.blobs() == before
    host.append(shard, {77: 1})
    assert len(content_of(shard, TIMES)) == TIMES + 1, "and the pipeline runs on"
