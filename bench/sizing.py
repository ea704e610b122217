"""Measures the bytes, parts, commits and memory per million rows and per view, for docs/sizing.md.

1. Nexmark into three views (a join with a maximum and an average, wide sums, top-k per group), loaded in large
   transactions: bytes and parts of tables, views and state, per million events; memory of Python and of the JVM.
2. One table and an increasing number of small views, in transactions of a few rows: commits to Meta, their bytes, and
   time, per transaction. The slope is the cost of one more view.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from bench.measure import Figure
from bench.shards import Progress
from bench.views import bench_spark
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.spark_engine import SparkEngine
from evertide.plan.catalyst.session import Session
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.store.meta import Guard, Meta, Record, Stale, Write
from evertide.store.open import open_storage
from tests.kit.checkpoint_files import checkpoint_files
from tests.kit.nexmark import WORKLOAD, Nexmark

NEXMARK = ("q4", "q17", "q19")
TABLES = """
CREATE TABLE orders (id BIGINT NOT NULL, customer BIGINT, amount BIGINT, PRIMARY KEY (id));
CREATE TABLE notes (text STRING);
"""


@dataclass(frozen=True, slots=True)
class SizingSize:
    events: int = 2_000_000
    chunk: int = 250_000
    views: tuple[int, ...] = (1, 10, 40)
    transactions: int = 30
    rows: int = 20
    """Rows per transaction."""

    @classmethod
    def short(cls) -> SizingSize:
        return cls(events=8_000, chunk=4_000, views=(1, 3), transactions=3)


def sizing(size: SizingSize, moved: Progress) -> list[Figure]:
    with bench_spark() as spark, tempfile.TemporaryDirectory(dir=os.environ.get("EVERTIDE_BENCH_DIR")) as scratch:
        steps = 1 + len(size.views)
        found = _rows(spark, Path(scratch) / "rows", size)
        moved(1, steps)
        measured = []
        for at, count in enumerate(size.views):
            measured.append(_views(spark, Path(scratch) / f"views-{count}", count, size))
            moved(2 + at, steps)
    return found + _slope(measured)


# Rows


def _rows(spark: Any, place: Path, size: SizingSize) -> list[Figure]:
    generator = Nexmark(seed=3)
    memory, taken = [_memory()], []
    with Pipeline.open(WORKLOAD.script(NEXMARK), place, spark=spark, settings=_settings()) as opened:
        for first in range(0, size.events, size.chunk):
            events = generator.events(first, size.chunk)
            for name, rows in (("person", events.person), ("auction", events.auction), ("bid", events.bid)):
                opened.push(name, rows)
            begun = time.perf_counter()
            opened.commit()
            taken.append(time.perf_counter() - begun)
            memory.append(_memory())
        files = [file.bytes for file in checkpoint_files(opened, opened.checkpoint()) if file.key.startswith("state/")]
        million, speed = size.events / 1e6, size.chunk / statistics.median(taken)
        detail = f"{size.chunk:,} a transaction, {len(NEXMARK)} views; first {taken[0]:.1f} s, last {taken[-1]:.1f} s"
        found = [Figure("loading", f"{speed / 1e3:.1f}k events/s", detail)]
        for kind in ("table", "view"):
            several = [one for one in opened.status().collections if one.kind == kind]
            parts = [_parts(opened, one.name) for one in several]
            name = f"shards of {kind}s, per million events"
            total, rows = sum(one.bytes for one in several), sum(one.rows for one in several)
            detail = f"{rows:,} changes in {sum(parts)} parts, {len(several)} {kind}s, {size.events:,} events"
            found.append(Figure(name, f"{total / 1e6 / million:.1f} MB", detail))
    detail = f"{len(files)} parts, {sum(files) / 1e6:.1f} MB for {len(NEXMARK)} views and the tables' keys"
    found.append(Figure("state, per million events", f"{sum(files) / 1e6 / million:.1f} MB", detail))
    for at, name in enumerate(("Python", "the JVM")):
        series = [each[at] for each in memory]
        middle = len(series) // 2
        grown = (max(series) - max(series[: middle + 1])) / (million / 2)
        detail = f"MB by transaction: {', '.join(f'{each:.0f}' for each in series)}"
        found.append(
            Figure(f"memory of {name}: growth per million events, in the second half", f"{grown:.0f} MB", detail)
        )
    return found


def _parts(opened: Pipeline, collection: str) -> int:
    shard = opened.collections.members().open_collection(collection)
    return sum(len(batch.parts) for batch in shard.inspect().batches)


def _memory() -> tuple[float, float]:
    """The memory in MB of this process, and of the JVMs that it started."""
    process = psutil.Process()
    java = sum(each.memory_info().rss for each in process.children(recursive=True) if each.name() == "java")
    return process.memory_info().rss / 1e6, java / 1e6


# Views


@dataclass(frozen=True, slots=True)
class _Cost:
    """The cost of one transaction."""

    commits: float
    bytes: float
    reads: float
    seconds: float


@dataclass(frozen=True, slots=True)
class _Measured:
    views: int
    touched: _Cost
    untouched: _Cost
    """The cost of transactions of a table that no view reads."""
    checkpoint_bytes: int
    open_s: float


def _views(spark: Any, place: Path, count: int, size: SizingSize) -> _Measured:
    script = TABLES + "".join(
        f"CREATE MATERIALIZED VIEW v{at} AS SELECT (customer + {at}) % 10 AS k, sum(amount) AS total, count(*) AS n "
        f"FROM orders GROUP BY (customer + {at}) % 10;\n"
        for at in range(count)
    )
    runtime, settings = SystemRuntime(), _settings()
    storage = open_storage(place, None, runtime=runtime, settings=settings)
    counted = _CountedMeta(storage.meta)
    begun = time.perf_counter()
    engine = SparkEngine(Session(spark, is_own=False), script)
    with Pipeline(
        engine, replace(storage, meta=counted), base=place, runtime=runtime, settings=settings, threads=False
    ) as opened:
        open_s = time.perf_counter() - begun

        def orders(number: int) -> None:
            first = number * size.rows
            rows = [{"id": first + i, "customer": i * 7919 + number, "amount": i} for i in range(size.rows)]
            opened.push("orders", rows)

        def notes(number: int) -> None:
            opened.push("notes", [{"text": f"{number} {i}"} for i in range(size.rows)])

        touched, untouched = (_cost(opened, counted, push, size.transactions) for push in (orders, notes))
        kept = sum(file.bytes for file in checkpoint_files(opened, opened.checkpoint()))
    return _Measured(count, touched, untouched, kept, open_s)


def _cost(opened: Pipeline, counted: _CountedMeta, push: Callable[[int], None], transactions: int) -> _Cost:
    for number in range(-2, 0):
        push(number)
        opened.commit()
    stood, seconds = (counted.commits, counted.bytes, counted.reads), []
    for number in range(transactions):
        push(number)
        begun = time.perf_counter()
        opened.commit()
        seconds.append(time.perf_counter() - begun)
    commits, written, reads = counted.commits - stood[0], counted.bytes - stood[1], counted.reads - stood[2]
    return _Cost(commits / transactions, written / transactions, reads / transactions, statistics.median(seconds))


def _slope(measured: Sequence[_Measured]) -> list[Figure]:
    found = []
    for one in measured:
        cost = one.touched
        detail = f"{cost.bytes / 1e3:.1f} kB written and {cost.reads:.1f} reads, {cost.seconds * 1e3:.0f} ms; "
        detail += f"opened in {one.open_s:.1f} s, checkpoint of {one.checkpoint_bytes / 1e3:.0f} kB"
        name = f"Meta: commits per transaction that touches all of {one.views} views"
        found.append(Figure(name, f"{cost.commits:.1f}", detail))
    first, last = measured[0], measured[-1]
    more = last.views - first.views
    for name, before, after in (
        ("a view more, if the transaction touches it", first.touched, last.touched),
        ("a view more, if it does not", first.untouched, last.untouched),
    ):
        cost_s, cost_bytes = (after.seconds - before.seconds) / more, (after.bytes - before.bytes) / more
        detail = f"and {cost_bytes:.0f} bytes in Meta; from {first.views} views to {last.views}"
        found.append(Figure(name, f"{cost_s * 1e3:.2f} ms", detail))
    return found


class _CountedMeta:
    """A Meta that counts reads, commits and the bytes of commits."""

    def __init__(self, meta: Meta) -> None:
        self._meta = meta
        self.commits = self.bytes = self.reads = 0

    def head(self, key: str) -> Record | None:
        self.reads += 1
        return self._meta.head(key)

    def heads(self, prefix: str) -> dict[str, Record]:
        self.reads += 1
        return self._meta.heads(prefix)

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]:
        self.reads += 1
        return self._meta.scan(key, after, limit)

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        self.commits += 1
        self.bytes += sum(len(write.data or b"") for write in writes)
        return self._meta.commit(writes, guards)

    def truncate(self, key: str, below: int) -> None:
        self._meta.truncate(key, below)

    def wait(self, key: str, after: int, timeout_s: float) -> bool:
        return self._meta.wait(key, after, timeout_s)

    def close(self) -> None:
        self._meta.close()

    def path(self, key: str) -> str:
        return self._meta.path(key)


def _settings() -> Settings:
    """No automatic checkpoints."""
    return Settings(checkpoint_interval_s=1e9)
