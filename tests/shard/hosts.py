"""`Host`, a process with shards on a storage, and stores whose calls can be hooked: for tests of storage safety."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from evertide.errors import (
    OutcomeUnknown,
    StorageFull,
    Unavailable,
)
from evertide.rows.changes import make_changes_schema
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.shard import Shard, Shards
from evertide.shard.shard_log import ShardLog
from evertide.store import (
    Blob,
    BlobEntry,
    Guard,
    MemoryBlob,
    MemoryMeta,
    Meta,
    Record,
    Stale,
    Write,
)
from evertide.store.writers import Writer
from tests.kit.runtime import ManualRuntime

SCHEMA = pa.schema([pa.field("k", pa.int64())])
SETTINGS = Settings(inline_bytes_max=1, rollup_every_diffs=1000, compaction_fan_in=2, fetchers=1)
"""Every part is a blob, and only a test makes roll-ups."""


def changes(rows: Mapping[int, int], time: int) -> pa.Table:
    """Changes at one time: each row has its own diff."""
    columns = [list(rows), [time] * len(rows), list(rows.values())]
    schema = make_changes_schema(SCHEMA)
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def content_of(shard: Shard, as_of: int) -> dict[int, int]:
    with shard.snapshot(as_of, timeout_s=0.001) as snapshot:
        found = snapshot.to_arrow()
    return dict(zip(found["k"].to_pylist(), found["__diff"].to_pylist(), strict=True))


class Host:
    """One process on a storage: its connection and its writer."""

    def __init__(self, blob: Blob, meta: Meta, runtime: Runtime, settings: Settings = SETTINGS) -> None:
        self.blob = blob
        self.meta = meta
        self.runtime = runtime
        self.settings = settings
        self.shards = Shards(blob, meta, runtime=runtime, settings=settings)
        self.writer = Writer.register(meta, runtime=runtime, settings=settings)

    def create(self, name: str = "a") -> Shard:
        return self.shards.create(name, SCHEMA, self.writer)

    def open(self, name: str = "a") -> Shard:
        return self.shards.open(name)

    def append(self, shard: Shard, rows: Mapping[int, int], upper: int | None = None) -> None:
        """Append at the shard's upper. The new upper is one more, unless `upper` is given."""
        lower = shard.upper
        shard.compare_and_append(changes(rows, lower), lower, upper or lower + 1, self.writer)

    def blobs(self, prefix: str = "") -> set[str]:
        return {entry.key for entry in self.blob.list(prefix)}


class Memory:
    """A storage in memory, and the processes on it."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.blob = MemoryBlob()
        self.meta = MemoryMeta(self.runtime)

    def host(self, blob: Blob | None = None, meta: Meta | None = None, **tuned: float) -> Host:
        settings = dataclasses.replace(SETTINGS, **tuned)  # type: ignore[arg-type]
        return Host(blob or self.blob, meta or self.meta, self.runtime, settings)

    def log(self, blob: Blob | None = None, meta: Meta | None = None, name: str = "a") -> ShardLog:
        """The log as a process that has just started reads it."""
        return ShardLog(name, blob or self.blob, meta or self.meta, self.runtime, SETTINGS)


Before = Callable[[str, str], None]
"""Called with the operation and its key before the operation."""


class HookedBlob:
    def __init__(self, inner: Blob, before: Before) -> None:
        self._inner = inner
        self._before = before

    def get(self, key: str) -> bytes:
        self._before("get", key)
        return self._inner.get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self._before("get_range", key)
        return self._inner.get_range(key, offset, length)

    def put(self, key: str, data: bytes) -> None:
        self._before("put", key)
        self._inner.put(key, data)

    def delete(self, key: str) -> bool:
        self._before("delete", key)
        return self._inner.delete(key)

    def list(self, prefix: str) -> Iterator[BlobEntry]:
        self._before("list", prefix)
        return self._inner.list(prefix)

    def list_unfinished(self, prefix: str) -> Iterator[str]:
        self._before("list_unfinished", prefix)
        return self._inner.list_unfinished(prefix)

    def path(self, key: str) -> str:
        return self._inner.path(key)


class HookedMeta:
    def __init__(self, inner: Meta, before: Before) -> None:
        self._inner = inner
        self._before = before

    def head(self, key: str) -> Record | None:
        self._before("head", key)
        return self._inner.head(key)

    def heads(self, prefix: str) -> dict[str, Record]:
        self._before("heads", prefix)
        return self._inner.heads(prefix)

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        self._before("scan", key)
        return self._inner.scan(key, after, limit)

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        self._before("commit", " ".join(write.key for write in writes))
        return self._inner.commit(writes, guards)

    def truncate(self, key: str, below: int) -> None:
        self._before("truncate", key)
        self._inner.truncate(key, below)

    def wait(self, key: str, after: int, timeout_s: float) -> bool:
        self._before("wait", key)
        return self._inner.wait(key, after, timeout_s)

    def close(self) -> None:
        self._inner.close()

    def path(self, key: str) -> str:
        return self._inner.path(key)


class Steps:
    """Runs `act` before the operation with number `at`, and counts all operations."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        self.at = at
        self.act = act
        self.count = 0
        self.said: list[str] = []

    def __call__(self, operation: str, key: str) -> None:
        self.count += 1
        self.said.append(f"{operation} {key}")
        if self.count == self.at:
            self.act()


def nothing() -> None:
    """An action for `Steps` that only counts."""


class LateMeta(HookedMeta):
    """A server that receives a commit, loses its connection, and executes the commit later."""

    def __init__(self, inner: Meta) -> None:
        super().__init__(inner, lambda _operation, _key: None)
        self.under_way: list[tuple[Sequence[Write], Sequence[Guard]]] = []
        self.script: list[str] = []
        self.between: Callable[[], None] = nothing

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        step = self.script.pop(0) if self.script else "done"
        path = self.path(writes[0].key)
        if step == "late":
            self.under_way.append((writes, guards))
            raise OutcomeUnknown(path=path, why="the connection was lost")
        if step == "full":
            raise StorageFull(path=path, why="no space left on device")
        if step == "away":
            self.between()
            raise Unavailable(path=path, why="no connection")
        return super().commit(writes, guards)

    def arrive(self) -> None:
        for writes, guards in self.under_way:
            self._inner.commit(writes, guards)
        self.under_way.clear()


def move_on(host: Host, shard: Shard, *, appends: int = 2) -> None:
    """Append, roll up and garbage-collect, so that a cached state and an old roll-up address become invalid."""
    for _ in range(appends):
        host.append(shard, {shard.upper: 1})
    assert shard.log.roll_up(host.writer)
    host.writer.beat()
    assert shard.collect_garbage(host.writer).diffs
