"""F7: a caught-up reader makes few calls, and wakes on a commit."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest

from evertide.errors import StorageForbidden
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.shard.shard import Shard
from evertide.shard.source import Delivered, Progressed, ShardSource
from evertide.store import Guard, MemoryBlob, MemoryMeta, Meta, Record, SqliteMeta, Stale, Write
from evertide.store.key_notifier import KeyNotifier
from evertide.store.writers import Writer
from tests.shard.conftest import Storage
from tests.shard.kit import SCHEMA, PassingBlob, PassingMeta, changes, make_shards, make_writer

RUNTIME = SystemRuntime()
IDLE_S = 0.5
WAIT_S = 0.25
"""How long a source sleeps in Meta's `wait` at a time."""


class CountingMeta(PassingMeta):
    def __init__(self, inner: Meta) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()

    def head(self, key: str) -> Record | None:
        self.calls["head"] += 1
        return super().head(key)

    def heads(self, prefix: str) -> dict[str, Record]:
        self.calls["heads"] += 1
        return super().heads(prefix)

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        self.calls["scan"] += 1
        return super().scan(key, after, limit)

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        self.calls["commit"] += 1
        return super().commit(writes, guards)

    def wait(self, key: str, after: int, timeout_s: float) -> bool:
        self.calls["wait"] += 1
        return super().wait(key, after, timeout_s)


def test_f7_a_caught_up_reader_makes_few_calls(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the sleep in `Lister.poll` and in `KeyNotifier.wait`: the clock bounds the number of calls, and no call
    writes.

    Fails without the lister's `wait`, and without the sleep between two polls of SQLite.
    """
    settings = Settings()
    meta = CountingMeta(storage.meta(settings))
    reads = count_reads(meta.inner, monkeypatch)
    shards = make_shards(storage.blob, meta, settings=settings)
    writer = make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    append(shard, writer, 0)
    with shard.listen(-1) as source:
        take_until(source, 1)
        meta.calls.clear()
        reads.clear()
        start_s = RUNTIME.monotonic_s()
        RUNTIME.sleep_s(IDLE_S)
        idle_s = RUNTIME.monotonic_s() - start_s
        rounds = idle_s / WAIT_S + 2
        assert set(meta.calls) <= {"scan", "wait"}
        assert meta.calls.total() <= 3 * rounds
        assert reads["read"] <= 3 * rounds + idle_s / settings.poll_interval_s + 2
        assert source.poll(0.0) is None


def count_reads(meta: Meta, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The reads that SQLite executes inside a `wait`, which the wrapper cannot see."""
    reads: Counter[str] = Counter()
    if isinstance(meta, SqliteMeta):
        inner = meta._read

        def read(name: str, values: Mapping[str, object]) -> object:
            reads["read"] += 1
            return inner(name, values)

        monkeypatch.setattr(meta, "_read", read)
    return reads


class SleepyMeta(PassingMeta):
    """Sleeps for much longer than requested, so that only a wake-up can end the wait soon."""

    def wait(self, key: str, after: int, timeout_s: float) -> bool:
        return super().wait(key, after, 60.0)


def test_f7_an_append_wakes_a_reader(storage: Storage) -> None:
    """Guards the notification in `KeyNotifier`: the lister sleeps for a minute here and SQLite polls once an hour, so
    only the append itself can wake the reader within the 20 s that `take_until` waits for an event.

    Fails if `notify` does nothing: the reader sleeps on.
    """
    settings = Settings(poll_interval_s=3600.0)
    shards = make_shards(storage.blob, SleepyMeta(storage.meta(settings)), settings=settings)
    writer = make_writer(shards)
    shard = shards.create("t", SCHEMA, writer)
    append(shard, writer, 0)
    source = shard.listen(-1).start()
    try:
        take_until(source, 1)
        for time in range(1, 9):
            append(shard, writer, time)
            take_until(source, time + 1)
    finally:
        source.stop()
        append(shard, writer, shard.upper)  # otherwise the lister would sleep on, and the join would wait for it
        source.join()


class SleeplessRuntime(SystemRuntime):
    def wait_s(self, condition: threading.Condition, seconds: float) -> None:
        raise AssertionError("the wait sleeps although the notification came after the poll began")


def test_f7_a_commit_between_poll_and_sleep_wakes_the_reader() -> None:
    """The notification comes after the first poll missed the commit and before the sleep: `KeyNotifier.wait` polls
    again at once.

    Fails without the comparison of `waiters.notifications`: it sleeps.
    """
    notifier = KeyNotifier(SleeplessRuntime())
    looks: list[int] = []

    def look() -> bool:
        looks.append(len(looks))
        if len(looks) == 1:
            notifier.notify(["key"])
        return len(looks) > 1

    assert notifier.wait("key", look, timeout_s=60.0, poll_s=60.0)
    assert looks == [0, 1]


@pytest.mark.parametrize("what", ["listing", "fetching"])
def test_f7_a_reader_pauses_between_retries_while_storage_forbids(what: str) -> None:
    """Permission was revoked: `reading` does not retry, so the source must pause before it tries again. It continues as
    soon as it is permitted. Fails without the pause: 40,000 calls in half a second.
    """
    forbidden = threading.Event()
    refused = Counter[str]()

    def check(key: str) -> None:
        if forbidden.is_set():
            refused[key] += 1
            raise StorageForbidden(path=key, why="not today")

    blob, meta = ForbiddenBlob(MemoryBlob()), ForbiddenMeta(MemoryMeta())
    writing = make_shards(blob.inner, meta.inner, settings=Settings(inline_bytes_max=1))
    writer = make_writer(writing)
    shard = writing.create("t", SCHEMA, writer)
    append(shard, writer, 0)
    reading = make_shards(blob, meta, settings=Settings(inline_bytes_max=1)).open("t")
    with reading.listen(-1) as source:
        take_until(source, 1)
        forbidden.set()
        if what == "listing":
            meta.check = check
        else:
            blob.check = check
        append(shard, writer, 1)
        start_s = RUNTIME.monotonic_s()
        RUNTIME.sleep_s(IDLE_S)
        idle_s = RUNTIME.monotonic_s() - start_s
        assert refused.total() > 0
        assert refused.total() <= 10 + idle_s * 100, "the source retries without a pause"
        if what == "listing":
            assert isinstance(source.error, StorageForbidden)
        forbidden.clear()
        take_until(source, 2)
        assert source.error is None


class ForbiddenBlob(PassingBlob):
    check: Callable[[str], None] | None = None

    def get(self, key: str) -> bytes:
        if self.check:
            self.check(key)
        return super().get(key)


class ForbiddenMeta(PassingMeta):
    check: Callable[[str], None] | None = None

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        if self.check:
            self.check(key)
        return super().scan(key, after, limit)


def append(shard: Shard, writer: Writer, time: int) -> None:
    shard.compare_and_append(changes([(time, "row")], time), time, time + 1, writer)


def take_until(source: ShardSource, frontier: int) -> None:
    """Take events until the frontier is reached."""
    while True:
        event = source.poll(20.0)
        assert isinstance(event, Delivered | Progressed), f"got {event} while waiting for {frontier}"
        if isinstance(event, Progressed) and event.frontier >= frontier:
            return
