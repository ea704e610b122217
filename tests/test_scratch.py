"""Scratch files: they are separate, removed at the end, and their errors are conditions to wait for."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pytest

from evertide.errors import ScratchUnavailable
from evertide.scratch import scratch_file, using_scratch


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_two_concurrent_scratch_files_are_separate_and_both_are_removed(directory: Path) -> None:
    with scratch_file() as one, scratch_file() as other:
        one.write_bytes(b"1")
        assert one != other
        assert other.read_bytes() == b""
        assert {*directory.iterdir()} == {one, other}
        assert one.stat().st_mode & 0o077 == 0
    assert not [*directory.iterdir()]


def test_a_file_is_removed_when_its_block_fails(directory: Path) -> None:
    with pytest.raises(KeyError), scratch_file():
        raise KeyError
    assert not [*directory.iterdir()]


def test_x12_a_file_that_cannot_be_removed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def unlink(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "unlink", unlink)
    with scratch_file() as path:
        path.write_bytes(b"1")
    assert path.exists()


def test_x12_an_error_without_room_names_path_and_reason(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ScratchUnavailable, match="No space left") as full, using_scratch():
        Path("/dev/full").write_bytes(b"1")
    assert full.value.path == str(directory)
    monkeypatch.setattr(tempfile, "tempdir", str(directory / "gone"))
    with pytest.raises(ScratchUnavailable, match="gone"), scratch_file():
        pass
