"""Scratch files: temporary files of one computation, by which rows leave memory or go between Python and the JVM.

1. Each file has a name that no other computation has, so computations in several threads never see each other's rows.
2. A file is removed when its block ends, however it ends. If the removal fails, the file stays behind, and that is all.
3. Any other error of such a file means that there is no room or that the directory is broken. It is raised as
   `ScratchUnavailable`: the computation is tried again later, and goes on by itself when there is room.
4. What the system refuses elsewhere in a transaction is raised as `SystemRefused`, and tried again in the same way.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from evertide.errors import ScratchUnavailable, SystemRefused

__all__ = ["scratch_directory", "scratch_file", "using_scratch", "using_system"]


@contextmanager
def using_scratch() -> Iterator[None]:
    """Raise `ScratchUnavailable` for an error of the file system in the block."""
    try:
        yield
    except OSError as error:
        raise ScratchUnavailable(path=scratch_directory(), why=str(error)) from error


@contextmanager
def using_system(where: str) -> Iterator[None]:
    """Raise `SystemRefused` for an error of the system in the block. A connection that is lost is none."""
    try:
        yield
    except ConnectionError:
        raise
    except OSError as error:
        raise SystemRefused(path=where, why=f"{type(error).__name__}: {error}") from error


@contextmanager
def scratch_file() -> Iterator[Path]:
    """A new, empty file that only this user may read. The block reads and writes it within `using_scratch`."""
    with using_scratch():
        opened, name = tempfile.mkstemp(prefix="evertide-")
    path = Path(name)
    try:
        with using_scratch():
            os.close(opened)
        yield path
    finally:
        with suppress(OSError):
            path.unlink()


def scratch_directory() -> str:
    """Where scratch files lie, to name it."""
    try:
        return tempfile.gettempdir()
    except OSError:  # no usual directory takes a file
        return os.environ.get("TMPDIR", "TMPDIR")
