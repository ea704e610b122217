"""`open_spark`: the Spark session of one command, without Spark's output at its start."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from evertide.errors import InvalidInput
from evertide.scratch import using_scratch

if TYPE_CHECKING:
    from evertide.plan.catalyst.session import Session

__all__ = ["open_spark"]

_STDERR = 2
_LINES_MAX = 3


@contextmanager
def open_spark(master: str | None) -> Iterator[Session]:
    """The active session, or a new one that is stopped at the end."""
    from evertide.plan.catalyst.session import open_session  # noqa: PLC0415 - pyspark is slow to import

    with using_scratch():
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    with file as printed:
        try:
            with _redirect_stderr(printed.fileno()):
                session = open_session(None, master)
        except InvalidInput as error:
            printed.seek(0)
            lines = [line.strip() for line in printed.read().decode(errors="replace").splitlines() if line.strip()]
            raise InvalidInput(where=error.where, why=" / ".join([error.why, *lines[-_LINES_MAX:]])) from error
    try:
        yield session
    finally:
        session.close()


@contextmanager
def _redirect_stderr(to: int) -> Iterator[None]:
    """Redirect standard error, which the JVM inherits at its start and prints to."""
    original = os.dup(_STDERR)
    try:
        os.dup2(to, _STDERR)
        yield
    finally:
        os.dup2(original, _STDERR)
        os.close(original)
