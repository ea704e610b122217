"""Real disks that are full, read-only or forbidden: the errors have kinds, no data is lost, and work continues when
there is room.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evertide.errors import BlobMissing, OutcomeUnknown, StorageForbidden, StorageFull
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store import LocalBlob, Record, SqliteMeta, Write, open_storage
from evertide.types import SequenceNumber

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root")

DISK_BYTES = 2 * 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with room for two megabytes. It is unmounted even if a failed test left files open."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the permission to mount")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)


@contextmanager
def as_nobody() -> Iterator[None]:
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)


def fill(disk: Path, left_bytes: int) -> Path:
    ballast = disk / "ballast"
    ballast.write_bytes(b"\1" * (shutil.disk_usage(disk).free - left_bytes))
    return ballast


@needs_root
def test_blobs_on_a_full_disk(disk: Path) -> None:
    blob = LocalBlob(disk)
    blob.put("parts/a", b"a" * 1000)
    ballast = fill(disk, left_bytes=100_000)
    for key in ("parts/b", "parts/b", "new/b"):
        with pytest.raises(StorageFull) as caught:
            blob.put(key, b"b" * 500_000)
        assert caught.value.path == blob.path(key)
        with pytest.raises(BlobMissing):
            blob.get(key)
    assert list(blob.list_unfinished("")) == []
    assert blob.get("parts/a") == b"a" * 1000
    blob.put("parts/small", b"there is room for this")
    ballast.unlink()
    blob.put("parts/b", b"b" * 500_000)
    assert blob.get("parts/b") == b"b" * 500_000


@needs_root
def test_meta_on_a_full_disk(disk: Path, runtime: SystemRuntime, settings: Settings) -> None:
    """Commits until the disk is full: each is durable or refused, and the refused one succeeds when there is room."""
    meta = SqliteMeta(disk / "meta.db", runtime, settings)
    assert meta.commit([Write("k", 0, b"0")]) is None
    ballast = fill(disk, left_bytes=200_000)
    number, full = 1, None
    while full is None:
        try:
            assert meta.commit([Write("k", number, b"%d" % number * 2000), Write("copy", number - 1, b"")]) is None
            number += 1
        except StorageFull as error:
            full = error
    assert full.path == str(disk / "meta.db")
    assert 1 < number < 1000
    with pytest.raises(StorageFull):
        meta.commit([Write("k", number, b"x" * 300_000), Write("copy", number - 1, b"")])
    assert {key: head.seqno for key, head in meta.heads("").items()} == {"k": number, "copy": number - 1}
    ballast.unlink()
    assert meta.commit([Write("k", number, b"x" * 300_000), Write("copy", number - 1, b"")]) is None
    meta.close()
    again = SqliteMeta(disk / "meta.db", runtime, settings)
    assert [found.seqno for found in again.scan("k")] == list(range(1, number + 2))
    assert len(again.scan("copy")) == number
    again.close()


@needs_root
def test_a_storage_cannot_be_created_on_a_full_disk(disk: Path, runtime: SystemRuntime, settings: Settings) -> None:
    """Wherever the room ends, the creation is completed when there is some."""
    for left_bytes in (0, 4096, 8192, 12288, 40960):
        ballast = fill(disk, left_bytes)
        with pytest.raises(StorageFull):
            open_storage(disk / f"{left_bytes}", runtime=runtime, settings=settings)
        ballast.unlink()
        storage = open_storage(disk / f"{left_bytes}", runtime=runtime, settings=settings)
        assert storage.blob.get("FORMAT") == b"1\n"
        storage.close()
        shutil.rmtree(disk / f"{left_bytes}")


@needs_root
def test_a_disk_that_becomes_read_only_is_an_error(disk: Path, runtime: SystemRuntime, settings: Settings) -> None:
    blob = LocalBlob(disk)
    blob.put("parts/a", b"1")
    meta = SqliteMeta(disk / "meta.db", runtime, settings)
    assert meta.commit([Write("k", 0, b"1")]) is None
    meta.close()
    with read_only(disk):
        for key in ("parts/b", "new/b"):
            with pytest.raises(StorageForbidden):
                blob.put(key, b"1")
        with pytest.raises(StorageForbidden):
            blob.delete("parts/a")
        assert blob.get("parts/a") == b"1"
        with pytest.raises(StorageForbidden) as caught:
            SqliteMeta(disk / "meta.db", runtime, settings)
        assert caught.value.path == str(disk / "meta.db")
    blob.put("parts/b", b"1")
    meta = SqliteMeta(disk / "meta.db", runtime, settings)
    assert meta.head("k") == Record(SequenceNumber(1), b"1")
    meta.close()


@needs_root
def test_files_of_another_user_are_forbidden(runtime: SystemRuntime, settings: Settings) -> None:
    """As user `nobody`, in directories that every user may read (pytest's own are readable for root only)."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        open_storage(root / "storage", runtime=runtime, settings=settings).close()
        (root / "storage").chmod(0o755)
        LocalBlob(root / "storage").put("parts/a", b"1")
        (root / "closed").mkdir(mode=0o700)
        with as_nobody():
            for location in (root / "storage", root / "closed", root / "closed" / "below", root / "new"):
                with pytest.raises(StorageForbidden) as caught:
                    open_storage(location, runtime=runtime, settings=settings)
                assert str(location) in caught.value.path
            blob = LocalBlob(root / "storage")
            assert blob.get("parts/a") == b"1"
            with pytest.raises(StorageForbidden):
                blob.put("parts/b", b"1")
            with pytest.raises(StorageForbidden):
                blob.delete("parts/a")
            with pytest.raises((StorageForbidden, OutcomeUnknown)):
                list(LocalBlob(root / "closed").list(""))
