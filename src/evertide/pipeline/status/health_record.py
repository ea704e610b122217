"""How a process that runs a pipeline fares, in its own words, for those who ask the storage.

Where it lies: Meta key `health`, version 1; only the newest record counts. It is written when the state changes, and
it is a courtesy: if it cannot be written the pipeline goes on, and nothing ever rests on it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import msgspec

from evertide.errors import EvertideError
from evertide.problem import Problem
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Guard, Meta, Write
from evertide.store.paths import HEALTH, writer_key
from evertide.store.retry import commit_until_known, retry_read, truncate_sometimes
from evertide.store.sealed import seal, unseal

__all__ = ["HealthRecord", "HealthReporter", "read_health", "tell"]

logger = logging.getLogger(__name__)


class HealthRecord(msgspec.Struct, frozen=True):
    writer: str
    state: str
    since_s: float
    change: str
    """A unique id: tells a commit whose outcome was unknown from another's."""
    error_code: str = ""
    why: str = ""
    remedy: str = ""


def tell(
    meta: Meta,
    key: str,
    record: msgspec.Struct,
    runtime: Runtime,
    settings: Settings,
    *,
    guards: Sequence[Guard] = (),
) -> None:
    """Make a record the newest of its key. It must be unique: it carries an id."""
    try:
        head = retry_read(lambda: meta.head(key), runtime, settings)
        number = head.seqno if head else 0
        if commit_until_known(meta, [Write(key, number, seal(record))], guards, runtime, settings) is None:
            truncate_sometimes(meta, key, number + 1)
    except EvertideError as error:
        logger.warning("the storage could not be told how the pipeline fares (%s): %s", key, error)


class HealthReporter:
    """Tells the storage how one process fares; only when it is news. Any thread may."""

    def __init__(self, meta: Meta, writer: str, runtime: Runtime, settings: Settings) -> None:
        self._meta = meta
        self._writer = writer
        self._runtime = runtime
        self._settings = settings
        self._told = ("", "")
        self._lock = threading.Lock()

    def __call__(self, now: Problem) -> None:
        with self._lock:
            is_news = (now.state, now.why) != self._told
            self._told = (now.state, now.why)
        if is_news:
            change = self._runtime.new_id()
            health = HealthRecord(self._writer, now.state, now.since_s, change, now.error_code, now.why, now.remedy)
            registered = (Guard(writer_key(self._writer), 1),)  # one that was fenced must not speak for who leads
            tell(self._meta, HEALTH, health, self._runtime, self._settings, guards=registered)


def read_health(meta: Meta) -> HealthRecord | None:
    record = meta.head(HEALTH)
    return unseal(record.data, HealthRecord, meta.path(HEALTH)) if record else None
