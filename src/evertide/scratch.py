"""Scratch files: temporary files of one computation, for rows that leave memory or move between Python and the JVM.

1. Each file has a unique name, so concurrent computations never read each other's rows.
2. A file is removed when its block ends, also after an error. A failure to remove it is ignored.
3. Any other error of a scratch file means that the disk is full or the directory is broken. It is raised as
   `ScratchUnavailable`, and the computation is retried later.
4. Errors of the operating system elsewhere in a transaction are raised as `SystemRefused`, and retried as well.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from evertide.errors import ScratchUnavailable, SystemRefused


@contextmanager
def using_scratch() -> Iterator[None]:
    """Raise `ScratchUnavailable` for an error of the file system in the block."""
    try:
        yield
    except OSError as error:
        raise ScratchUnavailable(path=scratch_directory(), why=str(error)) from error


@contextmanager
def using_system(where: str) -> Iterator[None]:
    """Raise `SystemRefused` for an `OSError` in the block, except for a lost connection."""
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
    """The directory of scratch files, for error messages."""
    try:
        return tempfile.gettempdir()
    except OSError:  # no usual directory is writable
        return os.environ.get("TMPDIR", "TMPDIR")
