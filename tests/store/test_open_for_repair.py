"""`open_for_repair` and `open_storage` on a failing disk: no file is set aside because of it, and no raw `OSError` is
raised.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evertide.errors import Unavailable
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store import SystemFiles, Write, open_storage
from evertide.store.memory import MemoryMeta
from evertide.store.open import Storage, open_for_repair
from tests.store.sqlite_faults import inject_faults

SETTINGS = Settings(retry_wait_s=0.001, retry_wait_max_s=0.002, retry_limit_s=0.05)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = open_storage(tmp_path / "storage", runtime=SystemRuntime(), settings=SETTINGS)
    assert made.meta.commit([Write("k", 0, b"1")]) is None
    made.close()
    return tmp_path / "storage"


def repair(root: Path, *, change: bool = True) -> Storage:
    return open_for_repair(root, runtime=SystemRuntime(), settings=SETTINGS, change=change)


def fail_on(part: str, call: Callable[..., Any], number: int = errno.EIO) -> Callable[..., Any]:
    def fail(path: Path, *args: Any, **options: Any) -> Any:
        if path.name.startswith(part):
            raise OSError(number, os.strerror(number), str(path))
        return call(path, *args, **options)

    return fail


@pytest.mark.parametrize("change", [False, True])
def test_a_disk_that_cannot_be_read_is_not_a_damaged_database(
    root: Path, monkeypatch: pytest.MonkeyPatch, change: bool
) -> None:
    """SQLite reports both as malformed. Fails if that is taken for damage: `meta.db` was set aside, or treated as
    empty.
    """
    with inject_faults(monkeypatch) as faults, monkeypatch.context() as patched:
        patched.setattr(Path, "open", fail_on("meta.db", Path.open))
        faults.plan(0, sqlite3.SQLITE_CORRUPT, 1_000_000, False, False)
        with pytest.raises(Unavailable):
            repair(root, change=change)
    assert not (root / "lost+found").exists()
    opened = repair(root, change=change)
    assert opened.meta.head("k") is not None
    opened.close()


def test_read_errors_that_end_before_the_last_check_set_nothing_aside(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with inject_faults(monkeypatch) as faults, monkeypatch.context() as patched:

        def lift(path: Path, *args: Any, **options: Any) -> Any:
            if path.name == "meta.db":
                faults.lift()
            return opening(path, *args, **options)

        opening = Path.open
        patched.setattr(Path, "open", lift)
        faults.plan(0, sqlite3.SQLITE_CORRUPT, 1_000_000, False, False)
        opened = repair(root)
        assert opened.meta.head("k") is not None
        opened.close()
    assert not (root / "lost+found").exists()


def test_the_database_is_moved_durably_before_its_write_ahead_log(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power cut could leave the database without the log, which opens as an older state."""
    done: list[str] = []
    rename, sync = SystemFiles.rename, SystemFiles.sync_directory

    def renamed(files: SystemFiles, source: Path, target: Path) -> None:
        done.append(f"move {source.name}")
        rename(files, source, target)

    def synced(files: SystemFiles, path: Path) -> None:
        done.append(f"sync {path.name}")
        sync(files, path)

    (root / "meta.db").write_bytes(os.urandom(8192))
    (root / "meta.db-wal").write_bytes(b"log")
    monkeypatch.setattr(SystemFiles, "rename", renamed)
    monkeypatch.setattr(SystemFiles, "sync_directory", synced)
    repair(root).close()
    syncs = ["sync lost+found", "sync storage"]
    moved = done[done.index("move meta.db") :]
    assert moved[:3] == ["move meta.db", *syncs]
    left = [each for each in moved[3:] if each.startswith("move")]
    assert set(left) <= {"move meta.db-wal", "move meta.db-shm"}
    assert not (root / "meta.db-wal").exists()


def test_a_write_ahead_log_without_its_database_is_set_aside(root: Path) -> None:
    """As an interrupted repair leaves it."""
    (root / "meta.db").unlink()
    (root / "meta.db-wal").write_bytes(b"log")
    opened = repair(root)
    assert opened.meta.heads("") == {}
    opened.close()
    [kept] = (root / "lost+found").iterdir()
    assert kept.name.startswith("meta.db-wal.")
    assert kept.read_bytes() == b"log"
    assert isinstance(repair(root.parent / "none", change=False).meta, MemoryMeta)


@pytest.mark.parametrize("part", ["meta.db", "storage"])
def test_a_file_without_readable_status_is_unavailable(part: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a raw `OSError` is raised."""
    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", fail_on(part, Path.stat))
        with pytest.raises(Unavailable):
            open_storage(root, runtime=SystemRuntime(), settings=SETTINGS)
        with pytest.raises(Unavailable):
            repair(root)
    open_storage(root, runtime=SystemRuntime(), settings=SETTINGS).close()
