"""`MemoryBlob` and `MemoryMeta`: the contracts in a dictionary, for tests and as the model of the others.

The content lasts as long as the object: nothing is durable, and no other process shares it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from evertide.errors import BlobMissing, Conflict
from evertide.runtime import Runtime, SystemRuntime
from evertide.store.blob import BlobEntry
from evertide.store.key_notifier import KeyNotifier
from evertide.store.keys import (
    check_blob_key,
    check_blob_prefix,
    check_commit,
    check_limit,
    check_meta_key,
    check_range,
)
from evertide.store.meta import Guard, Record, Stale, Write
from evertide.types import SequenceNumber


class MemoryBlob:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blobs: dict[str, bytes] = {}

    def get(self, key: str) -> bytes:
        check_blob_key(key)
        with self._lock:
            data = self._blobs.get(key)
        if data is None:
            raise BlobMissing(path=self.path(key), why="there is no such blob")
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(key, offset, length)
        return self.get(key)[offset : offset + length]

    def put(self, key: str, data: bytes) -> None:
        check_blob_key(key)
        with self._lock:
            first = self._blobs.setdefault(key, bytes(data))
        if first != data:
            raise Conflict(where=self.path(key), why="the key exists with other bytes")

    def delete(self, key: str) -> bool:
        check_blob_key(key)
        with self._lock:
            return self._blobs.pop(key, None) is not None

    def list(self, prefix: str) -> Iterator[BlobEntry]:
        prefix = check_blob_prefix(prefix)
        with self._lock:
            found = [BlobEntry(key, len(data)) for key, data in self._blobs.items() if key.startswith(prefix)]
        return iter(sorted(found))

    def list_unfinished(self, prefix: str) -> Iterator[str]:
        check_blob_prefix(prefix)
        return iter(())

    def path(self, key: str) -> str:
        return f"memory:{key}"

    def __repr__(self) -> str:
        return "MemoryBlob()"


class MemoryMeta:
    def __init__(self, runtime: Runtime | None = None) -> None:
        self._lock = threading.Lock()
        self._log: dict[str, list[Record]] = {}
        self._notifier = KeyNotifier(runtime or SystemRuntime())

    def head(self, key: str) -> Record | None:
        check_meta_key(key)
        with self._lock:
            records = self._log.get(key)
            return records[-1] if records else None

    def heads(self, prefix: str) -> dict[str, Record]:
        with self._lock:
            return {key: self._log[key][-1] for key in sorted(self._log) if key.startswith(prefix)}

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        check_meta_key(key)
        check_limit(key, limit)
        with self._lock:
            records = self._log.get(key, [])
            start = max(0, after - records[0].seqno + 1) if records else 0  # records have no gaps
            return records[start : None if limit is None else start + limit]

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        checks = check_commit(writes, guards)
        with self._lock:
            for check in checks:
                found = self._number(check.key)
                if found != check.expected:
                    return Stale(check.key, check.expected, SequenceNumber(found))
            for write in writes:
                self._apply(write)
        self._notifier.notify(write.key for write in writes)
        return None

    def truncate(self, key: str, below: int) -> None:
        check_meta_key(key)
        with self._lock:
            records = self._log.get(key)
            if records:
                head = records[-1].seqno
                self._log[key] = [record for record in records if record.seqno >= min(below, head)]

    def wait(self, key: str, after: int, timeout_s: float) -> bool:
        check_meta_key(key)
        return self._notifier.wait(key, lambda: self._number(key) > after, timeout_s, poll_s=timeout_s)

    def close(self) -> None:
        self._notifier.notify_all_keys()

    def path(self, key: str) -> str:
        return f"memory:{key}"

    def __repr__(self) -> str:
        return "MemoryMeta()"

    def _number(self, key: str) -> int:
        records = self._log.get(key)
        return records[-1].seqno if records else 0

    def _apply(self, write: Write) -> None:
        if write.data is None:
            self._log.pop(write.key, None)
        else:
            self._log.setdefault(write.key, []).append(Record(SequenceNumber(write.expected + 1), bytes(write.data)))
