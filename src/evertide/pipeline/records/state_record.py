"""The record in which the leader reports its state, for processes that read the status from storage.

Location: Meta key `health`, version 1; only the newest record counts. The leader writes it when its state changes. The
record is informational: nothing depends on it, and the pipeline continues if it cannot be written.
"""

from __future__ import annotations

import logging
import threading

import msgspec

from evertide.errors import EvertideError
from evertide.problem import ComponentState, Problem
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Guard, Meta, Write, seal, unseal
from evertide.store.paths import HEALTH, writer_key
from evertide.store.retry import commit_until_known, retry_read, truncate_sometimes

logger = logging.getLogger(__name__)


class PipelineStateRecord(msgspec.Struct, frozen=True):
    writer: str
    state: ComponentState
    since_s: float
    change: str
    """A unique id, by which a writer recognizes its own commit after an unknown outcome."""
    error_code: str = ""
    why: str = ""
    remedy: str = ""


def write_report(  # noqa: PLR0917
    meta: Meta,
    key: str,
    writer: str,
    record: msgspec.Struct,
    runtime: Runtime,
    settings: Settings,
) -> None:
    """Make a record the newest of its key, if `writer` is still registered; log a failure.

    The record must be unique, so it carries an id. A fenced process must not report for the leader.
    """
    guards = (Guard(writer_key(writer), 1),)
    try:
        head = retry_read(lambda: meta.head(key), runtime, settings)
        number = head.seqno if head else 0
        if commit_until_known(meta, [Write(key, number, seal(record))], guards, runtime, settings) is None:
            truncate_sometimes(meta, key, number + 1)
    except EvertideError as error:
        logger.warning("could not record the pipeline's state in storage (%s): %s", key, error)


class PipelineStateReporter:
    """Writes the state of one process to storage when it has changed. Any thread may call it."""

    def __init__(self, meta: Meta, writer: str, runtime: Runtime, settings: Settings) -> None:
        self._meta = meta
        self._writer = writer
        self._runtime = runtime
        self._settings = settings
        self._written = ("", "")
        self._lock = threading.Lock()

    def __call__(self, now: Problem) -> None:
        with self._lock:
            is_news = (now.state, now.why) != self._written
            self._written = (now.state, now.why)
        if is_news:
            change = self._runtime.new_id()
            record = PipelineStateRecord(
                self._writer, now.state, now.since_s, change, now.error_code, now.why, now.remedy
            )
            write_report(self._meta, HEALTH, self._writer, record, self._runtime, self._settings)


def read_pipeline_state(meta: Meta) -> PipelineStateRecord | None:
    record = meta.head(HEALTH)
    return unseal(record.data, PipelineStateRecord, meta.path(HEALTH)) if record else None
