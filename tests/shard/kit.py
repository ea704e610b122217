"""What tests of shards share: shards, changes to append, content to compare, and storage with hooks.

`changes` builds a delta, `rows_at` reads a shard's content. Everything else is a `Blob` or `Meta` that forwards calls
and lets a test intervene.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TypeAlias

import pyarrow as pa

from evertide.rows.changes import DIFF, TIME, make_changes_schema
from evertide.runtime import Runtime, SystemRuntime
from evertide.settings import Settings
from evertide.shard.read import PartListing, TimeWindow, fetch
from evertide.shard.shard import Shard, Shards
from evertide.shard.source import Event, ShardSource
from evertide.store import Blob, BlobEntry, Guard, MemoryBlob, MemoryMeta, Meta, Record, Stale, Write
from evertide.store.writers import Writer

Row: TypeAlias = tuple[int, str]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])

INLINE = Settings(poll_interval_s=0.01, retry_wait_s=0.001, retry_wait_max_s=0.01, retry_limit_s=20.0)
"""Small batches are inline in the state, as by default."""

BLOBS = Settings(
    poll_interval_s=0.01, retry_wait_s=0.001, retry_wait_max_s=0.01, retry_limit_s=20.0, inline_bytes_max=1
)
"""Every batch, however small, is a blob: for tests in which blobs matter."""


def make_shards(
    blob: Blob | None = None, meta: Meta | None = None, *, runtime: Runtime | None = None, settings: Settings = INLINE
) -> Shards:
    """The shards of one process. Two calls with the same blob and meta give two processes on one storage."""
    return Shards(blob or MemoryBlob(), meta or MemoryMeta(), runtime=runtime or SystemRuntime(), settings=settings)


def make_writer(shards: Shards, label: str = "") -> Writer:
    return Writer.register(shards.meta, runtime=shards.runtime, settings=shards.settings, label=label)


def changes(rows: Iterable[Row], time: int, diff: int = 1) -> pa.Table:
    """Changes at one time, with the same diff for all rows."""
    rows = list(rows)
    columns = [[row[0] for row in rows], [row[1] for row in rows], [time] * len(rows), [diff] * len(rows)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, make_changes_schema(SCHEMA), strict=True)]
    return pa.Table.from_arrays(arrays, schema=make_changes_schema(SCHEMA))


def concat_changes(*tables: pa.Table) -> pa.Table:
    return pa.concat_tables([make_changes_schema(SCHEMA).empty_table(), *tables])


def totals(*tables: pa.Table) -> Counter[Row]:
    """The multiset that the changes add up to. A negative count stays negative."""
    count: Counter[Row] = Counter()
    for table in tables:
        for row in table.to_pylist():
            count[row["id"], row["name"]] += row[DIFF]
    return Counter({row: number for row, number in count.items() if number})


def rows_at(shard: Shard, time: int) -> Counter[Row]:
    with shard.snapshot(time, timeout_s=10.0) as snapshot:
        return totals(snapshot.to_arrow())


def updates_of(shard: Shard) -> Counter[tuple[int, Row, int]]:
    """Every change that is stored in the shard, as (time, row, diff), not consolidated: a change stored twice is
    counted twice.
    """
    version = shard.log.read()
    listed = PartListing(TimeWindow(0, version.state.upper), version.state.parts, shard.schema, version.seqno)
    tables = [fetch(shard.log, part, listed) for part in listed.parts]
    return Counter((row[TIME], (row["id"], row["name"]), row[DIFF]) for row in concat_changes(*tables).to_pylist())


class PassingMeta:
    """Forwards every call. Tests override the calls that they intercept."""

    def __init__(self, inner: Meta) -> None:
        self.inner = inner

    def head(self, key: str) -> Record | None:
        return self.inner.head(key)

    def heads(self, prefix: str) -> dict[str, Record]:
        return self.inner.heads(prefix)

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        return self.inner.scan(key, after, limit)

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        return self.inner.commit(writes, guards)

    def truncate(self, key: str, below: int) -> None:
        self.inner.truncate(key, below)

    def wait(self, key: str, after: int, timeout_s: float) -> bool:
        return self.inner.wait(key, after, timeout_s)

    def close(self) -> None:
        self.inner.close()

    def path(self, key: str) -> str:
        return self.inner.path(key)


class PassingBlob:
    """Forwards every call. Tests override the calls that they intercept."""

    def __init__(self, inner: Blob) -> None:
        self.inner = inner

    def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self.inner.get_range(key, offset, length)

    def put(self, key: str, data: bytes) -> None:
        self.inner.put(key, data)

    def delete(self, key: str) -> bool:
        return self.inner.delete(key)

    def list(self, prefix: str) -> Iterator[BlobEntry]:
        return self.inner.list(prefix)

    def list_unfinished(self, prefix: str) -> Iterator[str]:
        return self.inner.list_unfinished(prefix)

    def path(self, key: str) -> str:
        return self.inner.path(key)


class HookMeta(PassingMeta):
    """Runs hooks around the next commit that writes a key with this prefix. A hook runs for one commit only."""

    def __init__(self, inner: Meta, prefix: str = "shard/") -> None:
        super().__init__(inner)
        self._prefix = prefix
        self._before: list[Callable[[], None]] = []
        self._after: list[Callable[[], None]] = []

    def before_commit(self, hook: Callable[[], None]) -> None:
        self._before.append(hook)

    def after_commit(self, hook: Callable[[], None]) -> None:
        """Run the hook after a commit took effect, before it returns. An error of the hook is raised to the caller."""
        self._after.append(hook)

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        concerned = any(write.key.startswith(self._prefix) for write in writes)
        if concerned and self._before:
            self._before.pop(0)()
        stale = self.inner.commit(writes, guards)
        if concerned and stale is None and self._after:
            self._after.pop(0)()
        return stale


class GateBlob(PassingBlob):
    """Each `get` of a part waits until the test opens it.

    Enter this context last: it must open before a source is joined.
    """

    def __init__(self, inner: Blob) -> None:
        super().__init__(inner)
        self._condition = threading.Condition()
        self._closed = True
        self._opened: set[str] = set()
        self._asked: set[str] = set()

    def get(self, key: str) -> bytes:
        if key.startswith("parts/"):
            with self._condition:
                self._asked.add(key)
                self._condition.notify_all()
                assert self._condition.wait_for(lambda: not self._closed or key in self._opened, 60.0), (
                    "the test did not open this part"
                )
        return self.inner.get(key)

    def open(self, key: str) -> None:
        with self._condition:
            self._opened.add(key)
            self._condition.notify_all()

    def open_all(self) -> None:
        with self._condition:
            self._closed = False
            self._condition.notify_all()

    def __enter__(self) -> GateBlob:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.open_all()

    def wait_until_asked(self, keys: Iterable[str]) -> None:
        """Wait until each of these parts was requested."""
        wanted = set(keys)
        with self._condition:
            assert self._condition.wait_for(lambda: wanted <= self._asked, 60.0), wanted - self._asked


class StillMeta(PassingMeta):
    """Records up to which record the lister of a source has listed everything. The lister waits only in that state."""

    def __init__(self, inner: Meta) -> None:
        super().__init__(inner)
        self.waits: Counter[str] = Counter()
        self._waited: dict[str, int] = {}

    def wait(self, key: str, after: int, timeout_s: float) -> bool:
        self._waited[key] = after
        self.waits[key] += 1
        return super().wait(key, after, timeout_s)

    def is_listed(self, key: str) -> bool:
        head = self.inner.head(key)
        return head is not None and self._waited.get(key, 0) >= head.seqno


def events_until_still(source: ShardSource, meta: StillMeta) -> list[Event]:
    """Return all events, up to the point at which no thread can produce another. No commit may happen meanwhile.

    This point is reached if the lister waits and has listed everything (or has ended), no task is left, every fetcher
    waits for a task, and the lister has completed one more loop since then, in case a fetcher asked it to restart. The
    events that are in the queue by then are the last ones.
    """
    lister, tasks, key = source._threads[0], source._tasks, source.log.key
    seen: list[Event] = []
    calm_at: int | None = None
    while True:
        listed = meta.is_listed(key) or not lister.is_alive()
        with tasks.mutex:
            waiting = len(tasks.not_empty._waiters)  # type: ignore[attr-defined]
            idle = listed and not tasks.queue and waiting == len(source._threads) - 1
        event = source.poll(0.001)
        if event is not None:
            seen.append(event)
            calm_at = None
        elif idle and calm_at is None:
            calm_at = meta.waits[key]
        elif idle and calm_at is not None and (meta.waits[key] >= calm_at + 2 or not lister.is_alive()):
            return seen
