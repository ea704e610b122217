"""`LocalBlob`: its file system operations, their order, and the error of each failure."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pytest

from evertide.errors import (
    BlobMissing,
    Conflict,
    EvertideError,
    OutcomeUnknown,
    StorageForbidden,
    StorageFull,
    Unavailable,
)
from evertide.store import DirectoryEntry, LocalBlob, SystemFiles
from evertide.store.paths import Name
from tests.kit.cuts import every_cut
from tests.kit.disk import SimulatedDisk
from tests.store.race import together

ROOT = Path("/storage")
Allowed: TypeAlias = tuple[str, set[bytes | None]]
"""A key, and the contents that it may have from now on; None if it may be absent."""
WRITES = {"write_new", "sync", "rename", "sync_directory", "unlink", "make_directory"}


class WatchedFiles(SystemFiles):
    """Real files. Records the operations that change them, and fails the chosen ones."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fail: dict[str, int] = {}

    def read(self, path: Path) -> bytes:
        self._record("read", path)
        return super().read(path)

    def write_new(self, path: Path, data: bytes) -> None:
        try:
            self._record("write_new", path)
        except OSError:
            super().write_new(path, data[: len(data) // 2])
            raise
        super().write_new(path, data)

    def sync(self, path: Path) -> None:
        self._record("sync", path)
        super().sync(path)

    def rename(self, source: Path, target: Path) -> None:
        self._record("rename", source, target)
        super().rename(source, target)

    def sync_directory(self, path: Path) -> None:
        self._record("sync_directory", path)
        super().sync_directory(path)

    def unlink(self, path: Path) -> None:
        self._record("unlink", path)
        super().unlink(path)

    def make_directory(self, path: Path) -> None:
        self._record("make_directory", path)
        super().make_directory(path)

    def list_directory(self, path: Path) -> list[DirectoryEntry]:
        self._record("list_directory", path)
        return super().list_directory(path)

    def _record(self, operation: str, *paths: Path) -> None:
        if operation in WRITES:
            self.calls.append(" ".join([operation, *(path.name for path in paths)]))
        if operation in self.fail:
            raise OSError(self.fail[operation], os.strerror(self.fail[operation]), str(paths[0]))


@pytest.fixture
def files() -> WatchedFiles:
    return WatchedFiles()


@pytest.fixture
def blob(tmp_path: Path, files: WatchedFiles) -> LocalBlob:
    root = tmp_path / "root"
    root.mkdir()
    return LocalBlob(root, files)


def test_a_put_is_synced_before_the_rename_and_the_directory_after_it(blob: LocalBlob, files: WatchedFiles) -> None:
    blob.put("parts/s/a", b"1")
    put = ["write_new a.tmp", "sync a.tmp", "rename a.tmp a", "sync_directory s"]
    directories = ["make_directory parts", "sync_directory root", "make_directory s", "sync_directory parts"]
    assert files.calls == [*directories, *put]
    files.calls.clear()
    blob.put("parts/s/b", b"1")
    assert files.calls == [call.replace("a.tmp", "b.tmp").replace(" a", " b") for call in put]


def test_a_directory_that_is_there_already_is_made_durable_once_per_process(
    blob: LocalBlob, files: WatchedFiles
) -> None:
    Path(blob.path("parts")).mkdir()
    blob.put("parts/a", b"1")
    assert files.calls[:2] == ["make_directory parts", "sync_directory root"]


def test_a_delete_is_durable_also_the_second_time(blob: LocalBlob, files: WatchedFiles) -> None:
    blob.put("parts/a", b"1")
    files.calls.clear()
    assert blob.delete("parts/a") is True
    assert blob.delete("parts/a") is False
    assert files.calls == ["unlink a", "unlink a.tmp", "sync_directory parts"] * 2


@pytest.mark.parametrize(
    ("operation", "number", "kind"),
    [
        ("write_new", errno.ENOSPC, StorageFull),
        ("write_new", errno.EDQUOT, StorageFull),
        ("write_new", errno.EROFS, StorageForbidden),
        ("write_new", errno.EACCES, StorageForbidden),
        ("write_new", errno.EPERM, StorageForbidden),
        ("write_new", errno.EIO, Unavailable),
        ("sync", errno.EIO, Unavailable),
        ("sync", errno.ENOSPC, StorageFull),
        ("make_directory", errno.ENOSPC, StorageFull),
        ("make_directory", errno.EACCES, StorageForbidden),
        ("rename", errno.EIO, OutcomeUnknown),
        ("sync_directory", errno.EIO, OutcomeUnknown),
        ("sync_directory", errno.ENOSPC, OutcomeUnknown),
    ],
)
def test_rule_7_failures_of_a_put(
    blob: LocalBlob, files: WatchedFiles, operation: str, number: int, kind: type[EvertideError]
) -> None:
    """Each error has its kind and leaves no file behind, and the repeated put succeeds."""
    directory = "new" if operation == "make_directory" else "parts"
    blob.put("parts/first", b"1")
    files.calls.clear()
    files.fail = {operation: number}
    with pytest.raises(kind) as caught:
        blob.put(f"{directory}/a", b"0123456789")
    assert type(caught.value) is kind
    assert caught.value.facts["path"] == blob.path(f"{directory}/a")
    assert files.calls.count("sync a.tmp") <= 1
    files.fail = {}
    assert list(blob.list_unfinished("")) == []
    if kind is not OutcomeUnknown:
        with pytest.raises(BlobMissing):
            blob.get(f"{directory}/a")
    blob.put(f"{directory}/a", b"0123456789")
    assert blob.get(f"{directory}/a") == b"0123456789"


def test_a_put_with_unknown_outcome_writes_the_bytes_again(blob: LocalBlob, files: WatchedFiles) -> None:
    """A second sync does not repair a failed sync of a directory: the name has to be written again."""
    blob.put("parts/first", b"1")
    files.fail = {"sync_directory": errno.EIO}
    with pytest.raises(OutcomeUnknown):
        blob.put("parts/a", b"1")
    files.fail = {}
    files.calls.clear()
    blob.put("parts/a", b"1")
    assert files.calls == ["write_new a.tmp", "sync a.tmp", "rename a.tmp a", "sync_directory parts"]


def test_x12_a_directory_whose_name_could_not_be_synced_is_made_again(blob: LocalBlob, files: WatchedFiles) -> None:
    """A second sync alone may not make the name durable: the directory is removed, and the next put creates it
    again.
    """
    files.fail = {"sync_directory": errno.EIO}
    with pytest.raises(Unavailable):
        blob.put("parts/a", b"1")
    files.fail = {}
    files.calls.clear()
    blob.put("parts/a", b"1")
    assert files.calls[:2] == ["make_directory parts", "sync_directory root"]
    assert blob.get("parts/a") == b"1"


def test_x12_a_directory_with_files_stays_usable_after_a_failed_sync(blob: LocalBlob, files: WatchedFiles) -> None:
    blob.put("parts/a", b"1")
    other = LocalBlob(Path(blob.path("")), files)
    files.fail = {"sync_directory": errno.EIO}
    with pytest.raises(Unavailable):
        other.put("parts/b", b"2")
    files.fail = {}
    other.put("parts/b", b"2")
    assert [other.get(key) for key in ("parts/a", "parts/b")] == [b"1", b"2"]


def test_x12_a_put_after_a_failed_sync_survives_a_power_cut() -> None:
    disk = SimulatedDisk()
    blob = LocalBlob(disk.root, disk.files)
    for failed in (f"sync_directory {disk.root}", f"sync_directory {disk.root}/parts"):
        disk.fail_next(failed, OSError(errno.EIO, "io"))
    for _ in range(3):
        with suppress(Unavailable):
            blob.put("parts/s/a", b"1")
    assert blob.get("parts/s/a") == b"1"
    disk.reboot("none")
    assert LocalBlob(disk.root, disk.files).get("parts/s/a") == b"1"


@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, OutcomeUnknown), (errno.EACCES, StorageForbidden)])
def test_rule_7_failures_of_a_delete(blob: LocalBlob, files: WatchedFiles, number: int, kind: type[Exception]) -> None:
    blob.put("parts/a", b"1")
    files.fail = {"unlink": number}
    with pytest.raises(kind):
        blob.delete("parts/a")
    files.fail = {"sync_directory": number}
    with pytest.raises(OutcomeUnknown):
        blob.delete("parts/a")


@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, Unavailable), (errno.EACCES, StorageForbidden)])
def test_rule_7_failures_of_reads(blob: LocalBlob, files: WatchedFiles, number: int, kind: type[Exception]) -> None:
    blob.put("parts/a", b"1")
    files.fail = {"read": number, "list_directory": number}
    with pytest.raises(kind):
        blob.get("parts/a")
    with pytest.raises(kind):
        list(blob.list("parts/"))
    with pytest.raises(kind):
        list(blob.list_unfinished(""))


def test_rule_6_leftovers_of_a_crash_are_listed_and_removed(blob: LocalBlob) -> None:
    blob.put("parts/s/w-00000001.parquet", b"1")
    left = ["parts/s/w-00000001.parquet.tmp", "parts/s/w-00000002.parquet.tmp", "parts/s/w-00000003.parquet.1.tmp"]
    for key in left:
        Path(blob.path(key)).write_bytes(b"half")
    assert [entry.key for entry in blob.list("")] == ["parts/s/w-00000001.parquet"]
    unfinished = list(blob.list_unfinished("parts/"))
    assert unfinished == ["parts/s/w-00000002.parquet", "parts/s/w-00000003.parquet.1"]
    names = [Name.parse(key) for key in unfinished]
    assert [name and (name.writer, name.seq) for name in names] == [("w", 2), ("w", 3)]
    for key in unfinished:
        assert blob.delete(key) is False
    assert list(blob.list_unfinished("")) == []
    assert blob.get("parts/s/w-00000001.parquet") == b"1"
    assert blob.delete("parts/s/w-00000001.parquet") is True
    assert list(Path(blob.path("parts/s")).iterdir()) == []


def test_a_temporary_file_of_another_process_is_left_alone(blob: LocalBlob, files: WatchedFiles) -> None:
    """Another process may be writing it: renaming or truncating it would damage that process's blob."""
    blob.put("parts/first", b"1")
    other = Path(blob.path("parts/a.tmp"))
    other.write_bytes(b"half of it")
    files.calls.clear()
    blob.put("parts/a", b"whole")
    assert files.calls[-3:] == ["sync a.1.tmp", "rename a.1.tmp a", "sync_directory parts"]
    assert other.read_bytes() == b"half of it"
    assert blob.get("parts/a") == b"whole"


def test_a_missing_root_is_not_created_and_not_mistaken_for_an_empty_one(tmp_path: Path) -> None:
    """It may be a disk that is not mounted."""
    blob = LocalBlob(tmp_path / "unmounted")
    for call in (lambda: blob.put("a", b""), lambda: blob.get("a"), lambda: list(blob.list("parts/"))):
        with pytest.raises(Unavailable, match="unmounted"):
            call()
    assert not (tmp_path / "unmounted").exists()
    blob.make_root()
    blob.make_root()
    blob.put("a", b"1")
    assert blob.get("a") == b"1"


def test_a_directory_that_was_removed_is_created_again(blob: LocalBlob) -> None:
    blob.put("parts/a", b"1")
    blob.delete("parts/a")
    Path(blob.path("parts")).rmdir()
    with pytest.raises(Unavailable):
        blob.put("parts/a", b"1")
    blob.put("parts/a", b"1")
    assert blob.get("parts/a") == b"1"


def test_two_objects_on_one_root_put_the_same_bytes(tmp_path: Path) -> None:
    """As two processes would: their locks are independent."""
    blobs = [LocalBlob(tmp_path) for _ in range(6)]
    for number in range(20):
        errors = together(len(blobs), lambda i, key=f"p/{number}": blobs[i].put(key, b"x" * 10_000))  # type: ignore[misc]
        assert errors == [None] * len(blobs)
    assert {entry.bytes for entry in blobs[0].list("")} == {10_000}
    assert list(blobs[0].list_unfinished("")) == []


def test_puts_of_different_keys_do_not_wait_for_each_other(tmp_path: Path) -> None:
    inside = threading.Barrier(2, timeout=20)

    class Meeting(SystemFiles):
        def sync(self, path: Path) -> None:
            inside.wait()

    blob = LocalBlob(tmp_path, Meeting())
    assert together(2, lambda number: blob.put(f"p/{number}", b"1")) == [None] * 2


def test_rule_1_power_cuts_at_every_operation() -> None:
    """An acknowledged blob is there and complete; another is complete or absent; every remaining file is listed as
    unfinished.
    """
    puts = [("FORMAT", b"1\n"), ("parts/s/a", b"first"), ("parts/s/b", b"second" * 100), ("parts/t/c", b"third")]

    def build() -> SimulatedDisk:
        disk = SimulatedDisk()
        LocalBlob(ROOT, disk.files).make_root()
        return disk

    def workload(disk: SimulatedDisk, acknowledge: Callable[[Allowed], None]) -> None:
        blob = LocalBlob(ROOT, disk.files)
        for key, data in puts:
            blob.put(key, data)
            acknowledge((key, {data}))
        blob.put(*puts[1])
        acknowledge(("parts/s/b", {puts[2][1], None}))
        blob.delete("parts/s/b")
        acknowledge(("parts/s/b", {None}))

    def check(disk: SimulatedDisk, acknowledged: list[Allowed]) -> None:
        blob = LocalBlob(ROOT, disk.files)
        found = {entry.key: blob.get(entry.key) for entry in blob.list("")}
        assert found.items() <= dict(puts).items()
        for key, allowed in dict(acknowledged).items():
            assert found.get(key) in allowed
        for key in list(blob.list_unfinished("")):
            assert key not in found
            blob.delete(key)
        assert list(blob.list_unfinished("")) == []
        for key, data in puts:
            blob.put(key, data)
            assert blob.get(key) == data

    every_cut(build, workload, check)


def test_conflicts_survive_a_power_cut() -> None:
    disk = SimulatedDisk()
    LocalBlob(ROOT, disk.files).make_root()
    LocalBlob(ROOT, disk.files).put("p/a", b"1")
    disk.cut()
    disk.reboot("none")
    with pytest.raises(Conflict):
        LocalBlob(ROOT, disk.files).put("p/a", b"2")
