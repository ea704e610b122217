"""`open_spark`: the Spark session of one command, without Spark's output at its start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evertide.plan.catalyst.session import Session

__all__ = ["open_spark"]


@contextmanager
def open_spark(master: str | None) -> Iterator[Session]:
    """The active session, or a new one that is stopped at the end."""
    from evertide.plan.catalyst.session import open_session  # noqa: PLC0415 - pyspark is slow to import

    session = open_session(None, master, is_quiet=True)
    try:
        yield session
    finally:
        session.close()
