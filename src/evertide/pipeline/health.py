"""How a process that runs a pipeline fares, in its own words, for those who ask the storage.

Where it lies: Meta key `health`, version 1; only the newest record counts. It is written when the state changes, and
it is a courtesy: if it cannot be written the pipeline goes on, and nothing ever rests on it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from evertide.errors import EvertideError
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Guard, Meta, Write
from evertide.store.paths import HEALTH, writer_key
from evertide.store.retry import commit_settled, reading, truncate_sometimes
from evertide.store.sealed import seal, unseal

if TYPE_CHECKING:
    from evertide.pipeline.status import Problem

__all__ = ["Health", "Telling", "read_health", "tell"]

logger = logging.getLogger(__name__)


class Health(msgspec.Struct, frozen=True):
    writer: str
    state: str
    since_s: float
    change: str
    """A unique id: tells a commit whose outcome was unknown from another's."""
    error_code: str = ""
    why: str = ""
    remedy: str = ""


def tell(meta: Meta, health: Health, runtime: Runtime, settings: Settings) -> None:
    try:
        head = reading(lambda: meta.head(HEALTH), runtime, settings)
        number = head.seqno if head else 0
        guards = [Guard(writer_key(health.writer), 1)]  # one that was fenced must not speak for the one that leads
        if commit_settled(meta, [Write(HEALTH, number, seal(health))], guards, runtime, settings) is not None:
            return
        truncate_sometimes(meta, HEALTH, number + 1)
    except EvertideError as error:
        logger.warning("the storage could not be told that the pipeline is %s: %s", health.state, error)


class Telling:
    """Tells the storage how one process fares; only when it is news."""

    def __init__(self, meta: Meta, writer: str, runtime: Runtime, settings: Settings) -> None:
        self._meta = meta
        self._writer = writer
        self._runtime = runtime
        self._settings = settings
        self._told = ("", "")

    def __call__(self, now: Problem) -> None:
        if (now.state, now.why) != self._told:
            self._told = (now.state, now.why)
            change = self._runtime.new_id()
            health = Health(self._writer, now.state, now.since_s, change, now.error_code, now.why, now.remedy)
            tell(self._meta, health, self._runtime, self._settings)


def read_health(meta: Meta) -> Health | None:
    record = meta.head(HEALTH)
    return unseal(record.data, Health, meta.path(HEALTH)) if record else None
