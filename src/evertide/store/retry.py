"""Retries after each outcome of a storage call (I14).

- "did not happen" (`Unavailable`): wait and retry, for at most `retry_limit_s`. A full or forbidden disk does not
  recover within seconds, so the caller gets those errors at once.
- "may have happened" (`OutcomeUnknown`): for a blob, repeat the put (same key, same bytes: rule 2 of `Blob`); for a
  commit, commit again with the same expected numbers, of which at most one can succeed; if that is stale, read back. If
  storage becomes unreachable while the outcome is in doubt, the caller gets `OutcomeUnknown`.
- Within `limit_retries`, a thread retries for less than `retry_limit_s`; a pipeline that stops retries for seconds only
  (`evertide.runtime.StoppableRuntime`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from evertide.errors import EvertideError, OutcomeUnknown, StorageForbidden, StorageFull, Unavailable
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.blob import Blob, BlobEntry
from evertide.store.meta import Guard, Meta, Stale, Write
from evertide.threads.steps import note_step

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LIMITS = threading.local()


@contextmanager
def limit_retries(limit_s: float) -> Iterator[None]:
    """Within the block, this thread retries a storage call for at most `limit_s` instead of `retry_limit_s`."""
    before = getattr(_LIMITS, "limit_s", None)
    _LIMITS.limit_s = limit_s
    try:
        yield
    finally:
        _LIMITS.limit_s = before


class Backoff:
    """The waits between the retries of one call: they double, with jitter, until the limit."""

    def __init__(self, runtime: Runtime, settings: Settings) -> None:
        self._runtime = runtime
        self._wait_s = settings.retry_wait_s
        self._wait_max_s = settings.retry_wait_max_s
        thread_limit_s: float | None = getattr(_LIMITS, "limit_s", None)
        limit_s = settings.retry_limit_s if thread_limit_s is None else min(thread_limit_s, settings.retry_limit_s)
        self._began_s = runtime.monotonic_s()
        self._deadline_s = self._began_s + limit_s

    def wait_after(self, error: Unavailable | OutcomeUnknown) -> None:
        """Wait before the next retry, or raise the error if a retry is pointless."""
        is_late = self._runtime.monotonic_s() >= self._deadline_s or self._runtime.is_giving_up(self._began_s)
        if is_late or isinstance(error, StorageFull | StorageForbidden):
            raise error
        note_step()  # waiting for storage is not a hang
        self._runtime.sleep_s(self._wait_s * (0.5 + self._runtime.random()))
        self._wait_s = min(self._wait_s * 2, self._wait_max_s)


def retry_read(call: Callable[[], T], runtime: Runtime, settings: Settings) -> T:
    """Retry a read while storage does not answer."""
    return _retry(call, (Unavailable,), runtime, settings)


def put_until_known(blob: Blob, key: str, content: bytes, runtime: Runtime, settings: Settings) -> None:
    _retry(lambda: blob.put(key, content), (Unavailable, OutcomeUnknown), runtime, settings)


def _retry(
    call: Callable[[], T],
    errors: tuple[type[Unavailable | OutcomeUnknown], ...],
    runtime: Runtime,
    settings: Settings,
) -> T:
    backoff: Backoff | None = None
    while True:
        try:
            answer = call()
        except errors as error:
            backoff = backoff or Backoff(runtime, settings)
            backoff.wait_after(error)
        else:
            note_step()
            return answer


def commit_until_known(
    meta: Meta, writes: Sequence[Write], guards: Sequence[Guard], runtime: Runtime, settings: Settings
) -> Stale | None:
    """Commit, and retry until the outcome is known.

    The bytes of the first write must be unique to this call (they contain an id), and its key must not be truncated
    meanwhile: they identify the commit when it is read back.
    """
    backoff: Backoff | None = None
    doubt: OutcomeUnknown | None = None
    while True:
        try:
            stale = meta.commit(writes, guards)
            if stale is not None and doubt is not None and _has_happened(meta, writes[0]):
                return None
        except (Unavailable, OutcomeUnknown) as error:
            doubt = doubt or (error if isinstance(error, OutcomeUnknown) else None)
            backoff = backoff or Backoff(runtime, settings)
            backoff.wait_after(doubt or error)
        else:
            note_step()
            return stale


def commit_under_new_id(
    meta: Meta, make: Callable[[str], Sequence[Write]], runtime: Runtime, settings: Settings
) -> str:
    """Commit writes that create keys under a new id, and return the id.

    A retry after an unknown outcome uses another id: the first attempt may still arrive, even after its keys were
    removed, and must not restore them. An id that no process uses sends no heartbeats, and expires.
    """
    backoff: Backoff | None = None
    while True:
        fresh = runtime.new_id()
        try:
            stale = meta.commit(make(fresh))
        except (Unavailable, OutcomeUnknown) as error:
            backoff = backoff or Backoff(runtime, settings)
            backoff.wait_after(error)
        else:
            if stale is None:
                return fresh


def truncate_sometimes(meta: Meta, key: str, seqno: int, every: int = 64) -> None:
    """Delete the records before `seqno` once in `every` calls, for a key of which only the head counts.

    This is housekeeping after a successful commit: a failure is logged, so that it is not mistaken for the commit's.
    """
    if seqno % every == 0:
        try:
            meta.truncate(key, seqno)
        except EvertideError as error:
            logger.warning("could not delete the old records of %s: %s", key, error)


def _has_happened(meta: Meta, write: Write) -> bool:
    if write.data is None:
        return meta.head(write.key) is None
    found = meta.scan(write.key, after=write.expected, limit=1)
    return bool(found) and found[0].seqno == write.expected + 1 and found[0].data == write.data


class RetryingBlob:
    def __init__(self, blob: Blob, runtime: Runtime, settings: Settings) -> None:
        self._blob = blob
        self._runtime = runtime
        self._settings = settings

    def get(self, key: str) -> bytes:
        return retry_read(lambda: self._blob.get(key), self._runtime, self._settings)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return retry_read(lambda: self._blob.get_range(key, offset, length), self._runtime, self._settings)

    def put(self, key: str, data: bytes) -> None:
        put_until_known(self._blob, key, data, self._runtime, self._settings)

    def delete(self, key: str) -> bool:
        """Retry after an unknown outcome, too. The result may then be False for a blob that existed."""
        return _retry(lambda: self._blob.delete(key), (Unavailable, OutcomeUnknown), self._runtime, self._settings)

    def list(self, prefix: str) -> Iterator[BlobEntry]:
        return iter(retry_read(lambda: [*self._blob.list(prefix)], self._runtime, self._settings))

    def list_unfinished(self, prefix: str) -> Iterator[str]:
        return iter(retry_read(lambda: [*self._blob.list_unfinished(prefix)], self._runtime, self._settings))

    def path(self, key: str) -> str:
        return self._blob.path(key)
