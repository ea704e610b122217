"""`FaultyBlob` and `FaultyMeta`: wrap any implementation and inject failures.

Each call ends in exactly one of four ways: the outcomes of I14, and what really happened.

    DONE         done, and the caller learns it
    DONE_LOST    done, but the answer is lost: `OutcomeUnknown`
    LOST         not done, and the answer is lost: `OutcomeUnknown`
    REFUSED      not done, and the caller learns it: `Unavailable`

Reads end in DONE or REFUSED only. `Faults` decides, and counts the injected failures.
"""

from __future__ import annotations

import enum
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from evertide.errors import OutcomeUnknown, Unavailable
from evertide.runtime import Runtime
from evertide.store.blob import Blob, BlobEntry
from evertide.store.meta import Guard, Meta, Record, Stale, Write

T = TypeVar("T")


class Fault(enum.Enum):
    DONE = "done"
    DONE_LOST = "done, but the answer was lost"
    LOST = "lost before it was done"
    REFUSED = "refused"


class Faults:
    """How the next calls end: `choose(operation, key)` decides for writes, `choose_read` for reads."""

    def __init__(
        self,
        choose: Callable[[str, str], Fault],
        choose_read: Callable[[str, str], Fault],
        refusal: type[Unavailable] = Unavailable,
    ) -> None:
        """`refusal` is the class of the error that a refused call raises."""
        self._refusal = refusal
        self._choose = choose
        self._choose_read = choose_read
        self._lock = threading.Lock()
        self.injected: Counter[Fault] = Counter()

    @classmethod
    def none(cls) -> Faults:
        return cls.scripted()

    @classmethod
    def scripted(cls, writes: Iterable[Fault] = (), reads: Iterable[Fault] = ()) -> Faults:
        """End the calls as listed, in order; then with DONE."""
        return cls(_script(writes), _script(reads))

    @classmethod
    def seeded(cls, runtime: Runtime, probability: float) -> Faults:
        """Fail each call with this probability, in one of the ways that are possible for it."""

        def choose(_operation: str, _key: str) -> Fault:
            if runtime.random() >= probability:
                return Fault.DONE
            return (Fault.DONE_LOST, Fault.LOST, Fault.REFUSED)[int(runtime.random() * 3)]

        def choose_read(_operation: str, _key: str) -> Fault:
            return Fault.REFUSED if runtime.random() < probability else Fault.DONE

        return cls(choose, choose_read)

    def write(self, operation: str, key: str, path: str, call: Callable[[], T]) -> T:
        fault = self._count(self._choose, operation, key)
        if fault is Fault.REFUSED:
            raise self._refusal(path=path, why=f"injected: {operation} {fault.value}")
        if fault is Fault.LOST:
            raise OutcomeUnknown(path=path, why=f"injected: {operation} {fault.value}")
        answer = call()
        if fault is Fault.DONE_LOST:
            raise OutcomeUnknown(path=path, why=f"injected: {operation} {fault.value}")
        return answer

    def read(self, operation: str, key: str, path: str, call: Callable[[], T]) -> T:
        if self._count(self._choose_read, operation, key) is Fault.REFUSED:
            raise self._refusal(path=path, why=f"injected: {operation} {Fault.REFUSED.value}")
        return call()

    def _count(self, choose: Callable[[str, str], Fault], operation: str, key: str) -> Fault:
        with self._lock:
            fault = choose(operation, key)
            if fault is not Fault.DONE and choose is self._choose_read:
                fault = Fault.REFUSED
            if fault is not Fault.DONE:
                self.injected[fault] += 1
            return fault


def _script(faults: Iterable[Fault]) -> Callable[[str, str], Fault]:
    rest = deque(faults)
    return lambda _operation, _key: rest.popleft() if rest else Fault.DONE


class FaultyBlob:
    def __init__(self, inner: Blob, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def get(self, key: str) -> bytes:
        return self._faults.read("get", key, self.path(key), lambda: self._inner.get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._faults.read("get_range", key, self.path(key), lambda: self._inner.get_range(key, offset, length))

    def put(self, key: str, data: bytes) -> None:
        self._faults.write("put", key, self.path(key), lambda: self._inner.put(key, data))

    def delete(self, key: str) -> bool:
        return self._faults.write("delete", key, self.path(key), lambda: self._inner.delete(key))

    def list(self, prefix: str) -> Iterator[BlobEntry]:
        return self._faults.read("list", prefix, self.path(prefix), lambda: self._inner.list(prefix))

    def list_unfinished(self, prefix: str) -> Iterator[str]:
        return self._faults.read(
            "list_unfinished", prefix, self.path(prefix), lambda: self._inner.list_unfinished(prefix)
        )

    def path(self, key: str) -> str:
        return self._inner.path(key)


class FaultyMeta:
    def __init__(self, inner: Meta, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def head(self, key: str) -> Record | None:
        return self._faults.read("head", key, self.path(key), lambda: self._inner.head(key))

    def heads(self, prefix: str) -> dict[str, Record]:
        return self._faults.read("heads", prefix, self.path(prefix), lambda: self._inner.heads(prefix))

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        return self._faults.read("scan", key, self.path(key), lambda: self._inner.scan(key, after, limit))

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        key = writes[0].key if writes else ""
        return self._faults.write("commit", key, self.path(key), lambda: self._inner.commit(writes, guards))

    def truncate(self, key: str, below: int) -> None:
        self._faults.write("truncate", key, self.path(key), lambda: self._inner.truncate(key, below))

    def wait(self, key: str, after: int, timeout_s: float) -> bool:
        return self._faults.read("wait", key, self.path(key), lambda: self._inner.wait(key, after, timeout_s))

    def close(self) -> None:
        self._inner.close()

    def path(self, key: str) -> str:
        return self._inner.path(key)
