"""Damaged parts, directories and disks: the error names object and remedy, and the process changes nothing (I12)."""

from __future__ import annotations

import errno
from collections.abc import Callable
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
from evertide.store import LocalBlob, Write, open_storage
from evertide.store.paths import hold_key
from tests.kit.disk import SimulatedDisk
from tests.kit.runtime import ManualRuntime
from tests.shard.damage_kit import NAME, TIMES, Place, by_name, check_error_names, flip_byte, make_noise
from tests.shard.hosts import SETTINGS, Host, Memory, changes, content_of

# Parts


def cut_part(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def randomize_part(path: Path) -> None:
    path.write_bytes(make_noise(path.stat().st_size))


def flip_part(path: Path) -> None:
    path.write_bytes(flip_byte(path.read_bytes(), 100))


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
    """Fails without `_check_bytes`: then only Arrow could notice the damage."""
    path = place.part(2)
    damage(path)
    before = place.read_durable_state()
    host = place.process()
    shard = host.open()
    assert content_of(shard, 1) == {0: 1, 1: 1}, "a read that does not need the part succeeds"
    acts: list[Callable[[], object]] = [lambda: content_of(shard, 2), lambda: shard.compact(host.writer)]
    for act in acts:
        with pytest.raises(kind) as found:
            act()
        check_error_names(found.value, path)
        assert kind is BlobMissing or found.value.why in ("the length in bytes differs", "the checksum differs"), (
            "detected before any row is used"
        )
    assert place.read_durable_state() == before
    host.append(shard, {77: 1})
    assert shard.upper == TIMES + 1, "appends still succeed"


def with_part(host: Host, shard: Shard, change: Callable[[Part, bytes], tuple[Part, bytes]]) -> str:
    """Append a part that does not match its description, or that is not a part at all."""
    memory = Memory()
    stored = {"shard": NAME, "blob": memory.blob, "runtime": host.runtime, "settings": host.settings}
    with host.writer.claim() as seq:
        [part] = store_parts(changes({500: 1}, TIMES), writer=host.writer.id, seq=seq, **stored)  # type: ignore[arg-type]
        part, data = change(part, memory.blob.get(part.key))
        host.blob.put(part.key, data)
        shard.compare_and_append([part], TIMES, TIMES + 1, host.writer)
    return host.blob.path(part.key)


def with_checksum_of(part: Part, data: bytes) -> tuple[Part, bytes]:
    """The part with the size and checksum of `data`."""
    return msgspec.structs.replace(part, bytes=len(data), checksum=xxhash.xxh3_128_hexdigest(data)), data


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda part, data: (msgspec.structs.replace(part, digest="0" * 31 + "1"), data), id="digest"),
        pytest.param(lambda part, data: (msgspec.structs.replace(part, digest="0" * 32), data), id="no digest"),
    ],
)
def test_compaction_detects_rows_that_differ_from_the_record(
    place: Place, wrong: Callable[[Part, bytes], tuple[Part, bytes]]
) -> None:
    """Bytes and checksum of the part are right. Fails without the comparison of digests in `_merged`.

    The merge is withdrawn: nothing is committed, and no blob remains.
    """
    path = with_part(place.host, place.shard, wrong)
    before = place.read_durable_state()
    with pytest.raises(BlobDamaged, match="digest of its rows") as found:
        place.shard.compact(place.host.writer)
    check_error_names(found.value, path)
    assert place.read_durable_state() == before


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda part, data: with_checksum_of(part, b"PAR1" + make_noise(200) + b"PAR1"), id="noise"),
        pytest.param(
            lambda part, data: with_checksum_of(part, data[:200] + make_noise(len(data) - 208) + data[-8:]), id="footer"
        ),
        pytest.param(lambda part, data: with_checksum_of(part, b"PAR1"), id="nothing"),
        pytest.param(lambda part, data: with_checksum_of(part, make_noise(300)), id="no parquet"),
        pytest.param(
            lambda part, data: with_checksum_of(part, b"\xff\xff\xff\xff\x10\x00\x00\x00" + make_noise(64)), id="stream"
        ),
        pytest.param(lambda part, data: (msgspec.structs.replace(part, rows=2), data), id="rows"),
    ],
)
def test_a_part_that_cannot_be_read_though_its_checksum_is_right(
    place: Place, wrong: Callable[[Part, bytes], tuple[Part, bytes]]
) -> None:
    """A writer with defective memory can leave such a part. The error is never a bare Arrow error, which may be an
    OSError.
    """
    path = with_part(place.host, place.shard, wrong)
    for act in (lambda: content_of(place.shard, TIMES), lambda: place.shard.compact(place.host.writer)):
        with pytest.raises(BlobDamaged) as found:
            act()
        check_error_names(found.value, path)


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
    check_error_names(missing.value, place.part(0))
    with pytest.raises(Unavailable) as refused:
        host.append(shard, {1: 1})
    check_error_names(refused.value, parts)
    assert shard.upper == TIMES
    parts.unlink()
    kept.rename(parts)
    assert len(content_of(shard, TIMES - 1)) == TIMES


def test_a_file_in_place_of_the_storage(tmp_path: Path) -> None:
    (tmp_path / "storage").write_bytes(b"")
    with pytest.raises(InvalidInput) as refused:
        open_storage(tmp_path / "storage", runtime=ManualRuntime(), settings=SETTINGS)
    check_error_names(refused.value, tmp_path / "storage")


def test_a_file_that_is_no_database(place: Place) -> None:
    place.close()
    for name in ("meta.db-wal", "meta.db-shm"):
        (place.root / name).unlink(missing_ok=True)
    (place.root / "meta.db").write_bytes(make_noise(8192))
    with pytest.raises(RecordDamaged) as found:
        open_storage(place.root, runtime=place.runtime, settings=SETTINGS)
    check_error_names(found.value, place.root / "meta.db")
    assert (place.root / "meta.db").read_bytes() == make_noise(8192)


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
        check_error_names(found.value, "memory:hold/a")
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
def test_a_refusing_disk_is_an_error_with_kind_and_path(number: int, kind: type[EvertideError]) -> None:
    """A read-only, full, forbidding or failing disk: the error of each read and write names kind and path, and all
    operations succeed once the disk recovers.
    """
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
            check_error_names(found.value, "/disk/")
            place.disk.heal()
    assert place.host.blobs() == before
    assert place.shard.upper == TIMES
    place.host.append(place.shard, {9: 1})
    assert place.shard.compact(place.host.writer)
    place.shard.collect_garbage(place.host.writer)
    assert len(content_of(place.shard, TIMES)) == TIMES + 1
