"""`Slices` and files that cannot be made."""

from __future__ import annotations

import errno
import tempfile
from typing import IO, Any

import pyarrow as pa
import pytest

from evertide.errors import ScratchUnavailable
from evertide.rows.slices import Slices


def test_x12_files_of_slices_are_closed_if_one_of_them_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process retries when there is room, so each try must give its files back. Seen to fail: they stayed open."""
    made: list[IO[bytes]] = []
    make = tempfile.TemporaryFile

    def make_three(*given: Any, **named: Any) -> IO[bytes]:
        if len(made) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        made.append(make(*given, **named))
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", make_three)
    with pytest.raises(ScratchUnavailable, match="No space left"):
        Slices(pa.schema([("k", pa.int64())]), 4)
    assert [file.closed for file in made] == [True, True, True]
