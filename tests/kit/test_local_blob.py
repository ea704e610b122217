"""`LocalBlob`, unchanged, on the simulated disk: its contract under power cuts, full disks and faults."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from evertide.errors import BlobMissing, EvertideError, OutcomeUnknown, StorageForbidden, StorageFull, Unavailable
from evertide.store.blobs.local import LocalBlob
from evertide.store.meta import Write
from tests.kit.cuts import SURVIVORS, every_cut
from tests.kit.disk import PowerCut, SimulatedDisk, Survivors
from tests.kit.runtime import ManualRuntime

BLOBS = {
    "parts/orders/w1-00000001.parquet": b"a" * 100,
    "parts/orders/w1-00000002.parquet": b"b" * 33,
    "rollups/orders/w1-00000003.json": b"",
    "FORMAT": b"1",
}
GONE = "parts/orders/w1-00000002.parquet"
Acknowledge = Callable[[tuple[str, str]], None]


def build() -> SimulatedDisk:
    return SimulatedDisk(ManualRuntime(seed=1))


def blob_on(disk: SimulatedDisk) -> LocalBlob:
    return LocalBlob(disk.root / "storage", disk.files)


def put_and_delete(disk: SimulatedDisk, acknowledge: Acknowledge) -> None:
    blob = blob_on(disk)
    blob.make_root()
    for key, data in BLOBS.items():
        blob.put(key, data)
        acknowledge(("put", key))
    assert {entry.key: entry.bytes for entry in blob.list("")} == {key: len(data) for key, data in BLOBS.items()}
    acknowledge(("deleting", GONE))
    assert blob.delete(GONE)
    acknowledge(("deleted", GONE))
    assert blob.get("FORMAT") == b"1"


def read_all(blob: LocalBlob) -> set[str]:
    """The readable keys, each complete, and as listed."""
    found = set()
    for key, data in BLOBS.items():
        try:
            assert blob.get(key) == data, f"{key} is torn"
        except BlobMissing:
            continue
        found.add(key)
    assert [(entry.key, entry.bytes) for entry in blob.list("")] == [(key, len(BLOBS[key])) for key in sorted(found)]
    return found


def check_complete_or_absent(disk: SimulatedDisk, acknowledged: list[tuple[str, str]]) -> None:
    blob = blob_on(disk)
    blob.make_root()
    found = read_all(blob)
    for key in BLOBS:
        if ("put", key) in acknowledged and ("deleting", key) not in acknowledged:
            assert key in found, f"{key} was acknowledged but is lost"
        if ("deleted", key) in acknowledged:
            assert key not in found, f"{key} was deleted but exists"


def check_continues(disk: SimulatedDisk, acknowledged: list[tuple[str, str]]) -> None:
    """After the cut the storage works: leftovers can be removed, and every put is durable."""
    check_complete_or_absent(disk, acknowledged)
    blob = blob_on(disk)
    before = read_all(blob)
    for key in [*blob.list_unfinished("")]:
        blob.delete(key)
    assert [*blob.list_unfinished("")] == []
    assert read_all(blob) == before
    for key, data in BLOBS.items():
        blob.put(key, data)
    disk.reboot("none")
    assert read_all(blob_on(disk)) == set(BLOBS)


def test_every_blob_is_complete_or_absent_at_every_cut() -> None:
    survivors: list[Survivors] = [*SURVIVORS, *range(4, 20)]
    assert every_cut(build, put_and_delete, check_continues, survivors=survivors) > 1000


@pytest.mark.parametrize("first", range(3, 45, 6))
def test_a_second_cut_while_the_puts_are_repeated(first: int) -> None:
    """The put of unknown outcome is repeated, and the power is cut again."""

    def cut_before() -> SimulatedDisk:
        disk = build()
        disk.cut_at(first, after=True)
        with pytest.raises(PowerCut):
            put_and_delete(disk, lambda _: None)
        disk.reboot(first)
        return disk

    def repeat(disk: SimulatedDisk, acknowledge: Acknowledge) -> None:
        blob = blob_on(disk)
        blob.make_root()
        for key, data in BLOBS.items():
            blob.put(key, data)
            acknowledge(("put", key))

    every_cut(cut_before, repeat, check_complete_or_absent, survivors=["none", "names", 1, 2])


def test_a_record_never_names_a_missing_blob() -> None:
    def workload(disk: SimulatedDisk, acknowledge: Acknowledge) -> None:
        blob, meta = blob_on(disk), disk.meta
        blob.make_root()
        for number, (key, data) in enumerate(BLOBS.items()):
            blob.put(key, data)
            assert meta.commit([Write("shard/orders", number, key.encode())]) is None
            acknowledge(("put", key))

    def check(disk: SimulatedDisk, acknowledged: list[tuple[str, str]]) -> None:
        named = [record.data.decode() for record in disk.meta.scan("shard/orders")]
        assert {key for _, key in acknowledged} <= set(named)
        if named:
            assert set(named) <= read_all(blob_on(disk))

    every_cut(build, workload, check)


# The full disk


def fresh() -> tuple[SimulatedDisk, LocalBlob]:
    disk = build()
    blob = blob_on(disk)
    blob.make_root()
    blob.put("parts/orders/w1-00000001.parquet", b"a" * 100)
    return disk, blob


@pytest.mark.parametrize("capacity_bytes", [100, 101, 150, 199])
def test_a_full_disk_is_an_error_and_loses_nothing(capacity_bytes: int) -> None:
    disk, blob = fresh()
    disk.capacity_bytes = capacity_bytes
    with pytest.raises(StorageFull):
        blob.put("parts/orders/w1-00000002.parquet", b"b" * 100)
    assert disk.used_bytes == 100, "the part that did fit was deleted again"
    with pytest.raises(StorageFull):
        disk.meta.commit([Write("shard/orders", 0, b"x" * 100)])
    disk.capacity_bytes = 400
    blob.put("parts/orders/w1-00000002.parquet", b"b" * 100)
    assert disk.meta.commit([Write("shard/orders", 0, b"x" * 100)]) is None
    disk.reboot("none")
    assert [entry.bytes for entry in blob_on(disk).list("")] == [100, 100]


def test_a_full_disk_at_every_cut() -> None:
    def small() -> SimulatedDisk:
        return SimulatedDisk(ManualRuntime(seed=1), capacity_bytes=120)

    def workload(disk: SimulatedDisk, acknowledge: Acknowledge) -> None:
        blob = blob_on(disk)
        blob.make_root()
        for key, data in BLOBS.items():
            try:
                blob.put(key, data)
            except StorageFull:
                disk.capacity_bytes = 10_000
                blob.put(key, data)
            acknowledge(("put", key))

    def check(disk: SimulatedDisk, acknowledged: list[tuple[str, str]]) -> None:
        disk.capacity_bytes = None
        check_continues(disk, acknowledged)

    every_cut(small, workload, check)


# Faults


@pytest.mark.parametrize(
    ("op", "number", "error"),
    [
        ("make_directory", errno.EACCES, StorageForbidden),
        ("write_new", errno.EROFS, StorageForbidden),
        ("write_new", errno.ENOSPC, StorageFull),
        ("sync", errno.EIO, Unavailable),
        ("rename", errno.EIO, OutcomeUnknown),
        ("sync_directory *orders", errno.EIO, OutcomeUnknown),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_a_put_that_failed_is_repeated_and_durable(
    op: str, number: int, error: type[EvertideError], after: bool
) -> None:
    disk = build()
    blob = blob_on(disk)
    blob.make_root()
    disk.fail_next(op, OSError(number, "injected"), after=after)
    with pytest.raises(error):
        blob.put("parts/orders/w1-00000001.parquet", b"a" * 100)
    blob.put("parts/orders/w1-00000001.parquet", b"a" * 100)
    disk.reboot("none")
    assert blob_on(disk).get("parts/orders/w1-00000001.parquet") == b"a" * 100


@pytest.mark.parametrize("op", ["read", "list_directory", "exists"])
def test_a_failed_read_is_unavailable_and_not_missing(op: str) -> None:
    disk, blob = fresh()
    disk.fail_next(op, OSError(errno.EIO, "injected"))
    if op == "exists":
        disk.fail_next("read", FileNotFoundError(errno.ENOENT, "gone"))
    with pytest.raises(Unavailable):
        [*blob.list("")] if op == "list_directory" else blob.get("parts/orders/w1-00000001.parquet")
    assert [entry.bytes for entry in blob.list("")] == [100]
