"""Reading during all kinds of changes: the content that a reader builds from events equals the shard's content at every
frontier (I5).
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace

import pytest

from evertide.errors import EvertideError, TimeCompacted
from evertide.rows.changes import DIFF, TIME
from evertide.runtime import Runtime, SystemRuntime
from evertide.settings import Settings
from evertide.shard.shard import Shard, Shards
from evertide.shard.source import Delivered, Progressed, Restarted, ShardSource
from evertide.store import Blob
from evertide.store.writers import Writer
from evertide.types import Time
from tests.kit.runtime import ManualRuntime, RandomStream
from tests.shard.conftest import Storage
from tests.shard.kit import SCHEMA, PassingBlob, Row, changes, concat_changes, make_shards, make_writer, rows_at

pytestmark = pytest.mark.usefixtures("shorten_stop_checks")

TRANSACTIONS = 200
SETTINGS = Settings(
    poll_interval_s=0.01,
    retry_wait_s=0.001,
    retry_wait_max_s=0.01,
    inline_bytes_max=1500,
    part_rows_max=24,
    row_group_rows=10,
    compaction_fan_in=4,
    compaction_rows_max=200,
    rollup_every_diffs=16,
)
"""All limits are small: inline batches and blobs, several parts per batch, merges in slices, many roll-ups."""

ALL_BLOBS = replace(SETTINGS, inline_bytes_max=1)


class History:
    """The changes of each transaction and the content after it, derived from the seed."""

    def __init__(self, seed: int) -> None:
        rng = RandomStream(seed).fork(1)
        content: Counter[Row] = Counter()
        self.deltas: list[Counter[Row]] = []
        self.contents: list[Counter[Row]] = []
        for _ in range(TRANSACTIONS):
            delta: Counter[Row] = Counter()
            for _ in range(rng.below(3) * rng.below(4)):
                delta[rng.below(30), "abc"[rng.below(3)]] += 1
            for row, count in sorted(content.items()):
                if rng.below(24) == 0:
                    delta[row] -= 1 + rng.below(count)
            content = Counter({row: n for row in {*content, *delta} if (n := content[row] + delta[row])})
            self.deltas.append(Counter({row: n for row, n in delta.items() if n}))
            self.contents.append(content)


class Driver:
    """Appends the history, and compacts, collects and otherwise changes the shard, as the seed decides."""

    def __init__(self, shards: Shards, history: History, rng: RandomStream) -> None:
        self.shards = shards
        self.history = history
        self.rng = rng
        self.writer: Writer = make_writer(shards)
        self.shard: Shard = shards.create("t", SCHEMA, self.writer)
        self.upper = 0
        self.floor = 0
        """Since does not advance past this time."""
        self.error: EvertideError | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def append(self) -> None:
        upper = min(TRANSACTIONS, self.upper + 1 + self.rng.below(3))
        tables = [
            changes([row], time, diff)
            for time in range(self.upper, upper)
            for row, diff in self.history.deltas[time].items()
        ]
        self.shard.compare_and_append(concat_changes(*tables), self.upper, upper, self.writer)
        self.upper = upper

    def disturb(self) -> None:
        match self.rng.below(7):
            case 0:
                self.shard.compact(self.writer)
            case 1:
                self.shard.collect_garbage(self.writer)
            case 2:
                self.shard.advance_since(self.rng.below(min(self.upper, self.floor) + 1), self.writer)
            case 3:
                self.shards.leases.beat()
            case 4:
                self.shards.runtime.sleep_s(self.rng.random() / 500)

    def run(self) -> None:
        try:
            while self.upper < TRANSACTIONS:
                self.append()
                self.disturb()
        except EvertideError as error:
            self.error = error


class Consumer:
    """The content below the frontier, built from events only."""

    def __init__(self, source: ShardSource, content: Counter[Row]) -> None:
        self.source = source
        self.frontier = source.frontier
        self.content = Counter(content)
        self.pending: list[tuple[int, Row, int]] = []
        self.restarts = 0

    def advance(self) -> bool:
        """Take an event. True if the frontier moved."""
        event = self.source.poll(20.0)
        if isinstance(event, Delivered):
            for row in event.changes.to_pylist():
                assert row[TIME] >= max(event.time, self.frontier)
                self.pending.append((row[TIME], (row["id"], row["name"]), row[DIFF]))
        elif isinstance(event, Restarted):
            assert event.frontier == self.frontier
            self.pending = []
            self.restarts += 1
        else:
            assert isinstance(event, Progressed), event
            self.move(event.frontier)
            return True
        return False

    def move(self, frontier: Time) -> None:
        assert frontier > self.frontier
        self.frontier = frontier
        for time, row, diff in self.pending:
            if time < frontier:
                self.content[row] += diff
        self.pending = [change for change in self.pending if change[0] >= frontier]
        self.content = Counter({row: count for row, count in self.content.items() if count})


def open_source(shard: Shard, history: History, rng: RandomStream, upper: int) -> tuple[ShardSource, Counter[Row]]:
    """Subscribe to, or listen after, a time that exists already or will exist."""
    as_of = rng.below(upper + 5)
    if rng.below(2):
        return shard.subscribe(as_of), Counter()
    return shard.listen(as_of), history.contents[as_of]


@pytest.mark.parametrize("seed", range(3))
def test_f_subscribe_equals_snapshot(storage: Storage, seed: int) -> None:
    """Guards I5 and I6 together: under appends, compaction, garbage collection, roll-ups and a moving since, the
    content that is built from events equals the history, and a snapshot where one can be taken, at every frontier.

    Fails without the cut to the window, below or above (changes are delivered twice), and if the frontier does not wait
    for parts (it moves when they are listed).
    """
    history = History(seed)
    rng = RandomStream(seed).fork(2)
    driver = Driver(storage.open(SETTINGS), history, RandomStream(seed).fork(3))
    for _ in range(10):
        driver.append()
    reader = storage.open(SETTINGS).open("t")
    source, content = open_source(reader, history, rng, driver.upper)
    consumer = Consumer(source, content)
    with source:
        driver.floor = TRANSACTIONS  # the lease protects the parts that the reader needs
        wait_for_lease(driver)
        driver.thread.start()
        while consumer.frontier < TRANSACTIONS:
            if not consumer.advance():
                continue
            assert consumer.content == history.contents[consumer.frontier - 1]
            if rng.below(8) == 0:
                compare_with_snapshot(reader, consumer)
            if rng.below(4) == 0:
                reader._leases.beat()
        driver.thread.join(60.0)
        assert driver.error is None
        assert (consumer.restarts, source.error) == (0, None)
        compare_with_snapshot(reader, consumer)


def wait_for_lease(driver: Driver) -> None:
    while not driver.shards.meta.heads("lease/t/"):
        driver.shards.runtime.sleep_s(0.001)


def compare_with_snapshot(shard: Shard, consumer: Consumer) -> None:
    try:
        found = rows_at(shard, consumer.frontier - 1)
    except TimeCompacted:
        return  # the source is ahead of its consumer, and has released the times that it delivered
    assert found == consumer.content


class SlowBlob(PassingBlob):
    """So slow that garbage collection is often faster."""

    def __init__(self, inner: Blob, rng: RandomStream) -> None:
        super().__init__(inner)
        self._chance = rng
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes:
        with self._lock:
            wait_s = self._chance.random() / 50 if self._chance.below(3) == 0 else 0.0
        SystemRuntime().sleep_s(wait_s)
        return super().get(key)


class JumpingDriver(Driver):
    """Also lets the reader's lease expire again and again, and collects right then."""

    source: ShardSource

    def disturb(self) -> None:
        runtime: Runtime = self.shards.runtime
        assert isinstance(runtime, ManualRuntime)
        self.floor = max(self.source.frontier - 1, 0)
        super().disturb()
        if self.rng.below(5) == 0:
            for _ in range(SETTINGS.compaction_fan_in):
                if self.upper < TRANSACTIONS:
                    self.append()
            runtime.advance_s(SETTINGS.lease_ttl_s + 1)
            self.shard.compact(self.writer)
            self.shard.collect_garbage(self.writer)
        SystemRuntime().sleep_s(self.rng.random() / 500)


@pytest.mark.parametrize("seed", range(1, 4))
def test_f_subscribe_equals_snapshot_while_leases_are_lost(seed: int) -> None:
    """F5 at random: the reader loses its lease at any moment, restarts by itself, and is right at every frontier. It
    never gets an error about a missing file. Since stays below its frontier, so that it can always continue.

    Fails if a fetch does not check the lease that its part was listed under: the reader freezes on a missing part.
    """
    history = History(seed)
    rng = RandomStream(seed).fork(2)
    shards = make_shards(runtime=ManualRuntime(seed), settings=ALL_BLOBS)
    driver = JumpingDriver(shards, history, RandomStream(seed).fork(3))
    slow = SlowBlob(shards.blob, RandomStream(seed).fork(4))
    reader = make_shards(slow, shards.meta, runtime=shards.runtime, settings=ALL_BLOBS).open("t")
    for _ in range(10):
        driver.append()
    source, content = open_source(reader, history, rng, driver.upper)
    consumer = Consumer(source, content)
    with source:
        driver.source = source
        wait_for_lease(driver)
        driver.thread.start()
        while consumer.frontier < TRANSACTIONS:
            if consumer.advance():
                assert consumer.content == history.contents[consumer.frontier - 1]
            if rng.below(16) == 0:
                reader._leases.beat()
        driver.thread.join(60.0)
        assert driver.error is None
        assert source.error is None
