"""`ObservedBlob` and `ObservedMeta`: wrap any implementation and report every call and its outcome to an observer.

Answers and errors are unchanged. The time of a listing ends at its first entry, because the caller works while it reads
the rest. `wait` and `path` are not reported: a long wait is not a slow call, and `path` calls no storage.

`find_silence` says whether storage answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, TypeVar

from evertide.errors import EvertideError, OutcomeUnknown, Unavailable
from evertide.observer import NO_OBSERVER, Observer
from evertide.runtime import Runtime
from evertide.store.blob import Blob, BlobEntry
from evertide.store.meta import Guard, Meta, Record, Stale, Write
from evertide.store.open import Storage

T = TypeVar("T")

SILENT_S = 10.0
_BYTES_PER_S = 1 << 20
"""The slowest transfer that is not taken for silence."""
_READS_S = 60.0
"""For calls that read an unknown number of bytes."""
_WRITES = frozenset(("blob.put", "blob.delete", "meta.commit", "meta.truncate"))


@dataclass(frozen=True, slots=True)
class Silence:
    why: str
    may_have_written: bool
    """Whether a call without an answer is a write."""


def observe(storage: Storage, observer: Observer, runtime: Runtime) -> Storage:
    """Return the storage with observed calls, or unchanged if there is no observer."""
    if observer is NO_OBSERVER:
        return storage
    blob, meta = ObservedBlob(storage.blob, observer, runtime), ObservedMeta(storage.meta, observer, runtime)
    return replace(storage, blob=blob, meta=meta)


def find_silence(storage: Storage, since_s: float) -> Silence | None:
    """Why an observed storage is taken for silent; None if it is not. `since_s` is on the monotonic clock.

    A call should return after `SILENT_S`, and the time that its bytes take over a slow network. Calls that fail, one
    after the other, must not go on for `SILENT_S` after `since_s` without an answer between them.
    """
    stores = [one for one in (storage.blob, storage.meta) if isinstance(one, ObservedBlob | ObservedMeta)]
    reasons = [found for one in stores if (found := one.calls.find_silence(since_s))]
    may_have_written = any(one.calls.may_have_written() for one in stores)
    return Silence(reasons[0], may_have_written) if reasons else None


class _Calls:
    def __init__(self, observer: Observer, runtime: Runtime) -> None:
        self._observer = observer
        self._clock = runtime.monotonic_s
        self._running: dict[object, tuple[str, float, float]] = {}
        """Calls that have not returned: name, when they began, when they should have returned. Threads share it."""
        self._failing_s: float | None = None
        """When the first call began that failed since the last answer."""
        self._is_in_doubt = False
        """Whether one of the calls that failed since then may have written."""

    def report(
        self, name: str, call: Callable[[], T], size: Callable[[T], int] | int = 0, limit_s: float = SILENT_S
    ) -> T:
        began_s, key = self._clock(), object()
        due_s = began_s + limit_s + (size / _BYTES_PER_S if isinstance(size, int) else 0)
        self._running[key] = (name, began_s, due_s)
        try:
            answer = call()
        except EvertideError as error:
            is_away = isinstance(error, Unavailable | OutcomeUnknown)
            self._failing_s = (self._failing_s or began_s) if is_away else None
            self._is_in_doubt = isinstance(error, OutcomeUnknown) or (self._is_in_doubt and is_away)
            self._observer.on_storage_call(name, self._clock() - began_s, 0, error.error_code)
            raise
        finally:
            del self._running[key]
        self._failing_s, self._is_in_doubt = None, False
        count = size if isinstance(size, int) else size(answer)
        self._observer.on_storage_call(name, self._clock() - began_s, count, "")
        return answer

    def find_silence(self, since_s: float) -> str:
        now_s, failing_s = self._clock(), self._failing_s
        for name, began_s, due_s in [*self._running.values()]:
            if now_s > due_s:
                return f"{name} has not returned for {now_s - began_s:.0f} s"
        if failing_s is not None and now_s > max(failing_s, since_s) + SILENT_S:
            return f"all calls have failed for {now_s - failing_s:.0f} s"
        return ""

    def may_have_written(self) -> bool:
        return self._is_in_doubt or any(name in _WRITES for name, _, _ in [*self._running.values()])


class ObservedBlob:
    def __init__(self, inner: Blob, observer: Observer, runtime: Runtime) -> None:
        self._inner = inner
        self.calls = _Calls(observer, runtime)

    def __reduce__(self) -> tuple[Any, ...]:
        """Other processes use the blob without the observer."""
        return _unpickle, (self._inner,)

    def get(self, key: str) -> bytes:
        return self.calls.report("blob.get", lambda: self._inner.get(key), len, _READS_S)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self.calls.report("blob.get_range", lambda: self._inner.get_range(key, offset, length), len)

    def put(self, key: str, data: bytes) -> None:
        self.calls.report("blob.put", lambda: self._inner.put(key, data), len(data))

    def delete(self, key: str) -> bool:
        return self.calls.report("blob.delete", lambda: self._inner.delete(key))

    def list(self, prefix: str) -> Iterator[BlobEntry]:
        return self.calls.report("blob.list", lambda: _begin(self._inner.list(prefix)), limit_s=_READS_S)

    def list_unfinished(self, prefix: str) -> Iterator[str]:
        return self.calls.report(
            "blob.list_unfinished", lambda: _begin(self._inner.list_unfinished(prefix)), limit_s=_READS_S
        )

    def path(self, key: str) -> str:
        return self._inner.path(key)


def _unpickle(inner: Blob) -> Blob:
    return inner


class ObservedMeta:
    def __init__(self, inner: Meta, observer: Observer, runtime: Runtime) -> None:
        self._inner = inner
        self.calls = _Calls(observer, runtime)

    def head(self, key: str) -> Record | None:
        return self.calls.report("meta.head", lambda: self._inner.head(key), _size)

    def heads(self, prefix: str) -> dict[str, Record]:
        return self.calls.report("meta.heads", lambda: self._inner.heads(prefix), _size_of_heads)

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        return self.calls.report("meta.scan", lambda: self._inner.scan(key, after, limit), _size_of_all)

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        size = sum(len(write.data or b"") for write in writes)
        return self.calls.report("meta.commit", lambda: self._inner.commit(writes, guards), size)

    def truncate(self, key: str, below: int) -> None:
        self.calls.report("meta.truncate", lambda: self._inner.truncate(key, below))

    def wait(self, key: str, after: int, timeout_s: float) -> bool:
        return self._inner.wait(key, after, timeout_s)

    def close(self) -> None:
        self._inner.close()

    def path(self, key: str) -> str:
        return self._inner.path(key)


def _begin(entries: Iterator[T]) -> Iterator[T]:
    """Read the first entry now, so that an unreachable storage fails here."""
    first = list(islice(entries, 1))
    return chain(first, entries)


def _size(record: Record | None) -> int:
    return 0 if record is None else len(record.data)


def _size_of_all(records: list[Record]) -> int:
    return sum(len(record.data) for record in records)


def _size_of_heads(records: dict[str, Record]) -> int:
    return sum(len(record.data) for record in records.values())
