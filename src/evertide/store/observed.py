"""`ObservedBlob` and `ObservedMeta`: wrap any implementation and report every call and its outcome to an observer.

Answers and errors are unchanged. The time of a listing ends at its first entry, because the caller works while it reads
the rest. `wait` and `path` are not reported: a long wait is not a slow call, and `path` calls no storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TypeVar

from evertide.errors import EvertideError
from evertide.observer import NO_OBSERVER, Observer
from evertide.runtime import Runtime
from evertide.store.blob import Blob, BlobEntry
from evertide.store.meta import Guard, Meta, Record, Stale, Write
from evertide.store.open import Storage

__all__ = ["ObservedBlob", "ObservedMeta", "observe"]

T = TypeVar("T")


def observe(storage: Storage, observer: Observer, runtime: Runtime) -> Storage:
    """Return the storage with observed calls, or unchanged if there is no observer."""
    if observer is NO_OBSERVER:
        return storage
    blob, meta = ObservedBlob(storage.blob, observer, runtime), ObservedMeta(storage.meta, observer, runtime)
    return replace(storage, blob=blob, meta=meta)


class _Calls:
    def __init__(self, observer: Observer, runtime: Runtime) -> None:
        self._observer = observer
        self._clock = runtime.monotonic_s

    def report(self, name: str, call: Callable[[], T], size: Callable[[T], int] | int = 0) -> T:
        began_s = self._clock()
        try:
            answer = call()
        except EvertideError as error:
            self._observer.on_storage_call(name, self._clock() - began_s, 0, error.error_code)
            raise
        count = size if isinstance(size, int) else size(answer)
        self._observer.on_storage_call(name, self._clock() - began_s, count, "")
        return answer


class ObservedBlob:
    def __init__(self, inner: Blob, observer: Observer, runtime: Runtime) -> None:
        self._inner = inner
        self._calls = _Calls(observer, runtime)

    def get(self, key: str) -> bytes:
        return self._calls.report("blob.get", lambda: self._inner.get(key), len)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._calls.report("blob.get_range", lambda: self._inner.get_range(key, offset, length), len)

    def put(self, key: str, data: bytes) -> None:
        self._calls.report("blob.put", lambda: self._inner.put(key, data), len(data))

    def delete(self, key: str) -> bool:
        return self._calls.report("blob.delete", lambda: self._inner.delete(key))

    def list(self, prefix: str) -> Iterator[BlobEntry]:
        return self._calls.report("blob.list", lambda: _begun(self._inner.list(prefix)))

    def unfinished(self, prefix: str) -> Iterator[str]:
        return self._calls.report("blob.unfinished", lambda: _begun(self._inner.unfinished(prefix)))

    def path(self, key: str) -> str:
        return self._inner.path(key)


class ObservedMeta:
    def __init__(self, inner: Meta, observer: Observer, runtime: Runtime) -> None:
        self._inner = inner
        self._calls = _Calls(observer, runtime)

    def head(self, key: str) -> Record | None:
        return self._calls.report("meta.head", lambda: self._inner.head(key), _size)

    def heads(self, prefix: str) -> dict[str, Record]:
        return self._calls.report("meta.heads", lambda: self._inner.heads(prefix), _size_of_heads)

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        return self._calls.report("meta.scan", lambda: self._inner.scan(key, after, limit), _size_of_all)

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        size = sum(len(write.data or b"") for write in writes)
        return self._calls.report("meta.commit", lambda: self._inner.commit(writes, guards), size)

    def truncate(self, key: str, below: int) -> None:
        self._calls.report("meta.truncate", lambda: self._inner.truncate(key, below))

    def wait(self, key: str, after: int, timeout_s: float) -> bool:
        return self._inner.wait(key, after, timeout_s)

    def close(self) -> None:
        self._inner.close()

    def path(self, key: str) -> str:
        return self._inner.path(key)


def _begun(entries: Iterator[T]) -> Iterator[T]:
    """Read the first entry now, so that an unreachable storage fails here."""
    first = list(islice(entries, 1))
    return chain(first, entries)


def _size(record: Record | None) -> int:
    return 0 if record is None else len(record.data)


def _size_of_all(records: list[Record]) -> int:
    return sum(len(record.data) for record in records)


def _size_of_heads(records: dict[str, Record]) -> int:
    return sum(len(record.data) for record in records.values())
