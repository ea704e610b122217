"""The record in which the leader reports its state, for processes that read the status from storage.

Location: Meta key `health`, version 1; only the newest record counts. The leader writes it when its state changes. The
record is informational: nothing depends on it, and the pipeline continues if it cannot be written.
"""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext

import msgspec

from evertide.errors import EvertideError
from evertide.problem import ComponentState, Problem
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Guard, Meta, Write, seal, unseal
from evertide.store.paths import HEALTH, writer_key
from evertide.store.retry import commit_until_known, limit_retries, retry_read, truncate_sometimes
from evertide.threads.outage_log import OutageLog

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
) -> bool:
    """Make a record the newest of its key, if `writer` is still registered. False if it was not written.

    The record must be unique, so it carries an id. A fenced process must not report for the leader.
    """
    guards = (Guard(writer_key(writer), 1),)
    head = retry_read(lambda: meta.head(key), runtime, settings)
    number = head.seqno if head else 0
    if commit_until_known(meta, [Write(key, number, seal(record))], guards, runtime, settings) is not None:
        return False
    truncate_sometimes(meta, key, number + 1)
    return True


class PipelineStateReporter:
    """Writes the state of one process to storage when it has changed. Any thread may call it.

    A state that could not be written is written by the next call. Of several threads, one writes, until the record has
    the last state; the others do not wait for it.
    """

    def __init__(self, meta: Meta, writer: str, runtime: Runtime, settings: Settings) -> None:
        self._meta = meta
        self._writer = writer
        self._runtime = runtime
        self._settings = settings
        self._last: Problem | None = None
        self._written = ("", "")
        self._failed = ("", "")
        self._writing = threading.Lock()
        self._failure = OutageLog(logger, "could not record the pipeline's state in storage", runtime)

    def __call__(self, now: Problem) -> None:
        self._last = now
        while (self._last.state, self._last.why) != self._written and self._writing.acquire(blocking=False):
            try:
                if not self._write(self._last):
                    return
            finally:
                self._writing.release()

    def _write(self, now: Problem) -> bool:
        state = now.state, now.why
        change = self._runtime.new_id()
        record = PipelineStateRecord(self._writer, now.state, now.since_s, change, now.error_code, now.why, now.remedy)
        try:
            with limit_retries(0.0) if state == self._failed else nullcontext():  # do not delay each transaction
                is_written = write_report(self._meta, HEALTH, self._writer, record, self._runtime, self._settings)
        except EvertideError as error:
            self._failed = state
            self._failure.note(error)
            return False
        if is_written:
            self._written, self._failed = state, ("", "")
            self._failure.end()
        return is_written


def read_pipeline_state(meta: Meta) -> PipelineStateRecord | None:
    record = meta.head(HEALTH)
    return unseal(record.data, PipelineStateRecord, meta.path(HEALTH)) if record else None
