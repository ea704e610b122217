"""How callers use a storage that fails: they retry and read back, until every call has a definite answer.

Around a `FaultyBlob` and a `FaultyMeta`, these must pass the conformance suites as if no call ever failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from evertide.errors import BlobMissing, OutcomeUnknown, Unavailable
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store import Blob, BlobEntry, Guard, Meta, Record, Stale, Write
from evertide.store.retry import commit_until_known, put_until_known, retry_read

T = TypeVar("T")


class SettledBlob:
    def __init__(self, inner: Blob, runtime: Runtime, settings: Settings) -> None:
        self.inner = inner
        self._runtime = runtime
        self._settings = settings

    def get(self, key: str) -> bytes:
        return self._read(lambda: self.inner.get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._read(lambda: self.inner.get_range(key, offset, length))

    def put(self, key: str, data: bytes) -> None:
        put_until_known(self.inner, key, data, self._runtime, self._settings)

    def delete(self, key: str) -> bool:
        try:
            self.get(key)
        except BlobMissing:
            return retry(lambda: self.inner.delete(key)) and False
        retry(lambda: self.inner.delete(key))
        return True

    def list(self, prefix: str) -> Iterator[BlobEntry]:
        return self._read(lambda: self.inner.list(prefix))

    def list_unfinished(self, prefix: str) -> Iterator[str]:
        return self._read(lambda: self.inner.list_unfinished(prefix))

    def path(self, key: str) -> str:
        return self.inner.path(key)

    def _read(self, call: Callable[[], T]) -> T:
        return retry_read(call, self._runtime, self._settings)


class SettledMeta:
    def __init__(self, inner: Meta, runtime: Runtime, settings: Settings) -> None:
        self.inner = inner
        self._runtime = runtime
        self._settings = settings

    def head(self, key: str) -> Record | None:
        return self._read(lambda: self.inner.head(key))

    def heads(self, prefix: str) -> dict[str, Record]:
        return self._read(lambda: self.inner.heads(prefix))

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        return self._read(lambda: self.inner.scan(key, after, limit))

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        if not writes:
            return retry(lambda: self.inner.commit(writes, guards))
        return commit_until_known(self.inner, writes, guards, self._runtime, self._settings)

    def truncate(self, key: str, below: int) -> None:
        retry(lambda: self.inner.truncate(key, below))

    def wait(self, key: str, after: int, timeout_s: float) -> bool:
        return self._read(lambda: self.inner.wait(key, after, timeout_s))

    def close(self) -> None:
        self.inner.close()

    def path(self, key: str) -> str:
        return self.inner.path(key)

    def _read(self, call: Callable[[], T]) -> T:
        return retry_read(call, self._runtime, self._settings)


def retry(call: Callable[[], T]) -> T:
    """Retry a call that may take effect twice."""
    while True:
        try:
            return call()
        except (Unavailable, OutcomeUnknown):
            continue
