"""Measures shards: append, scan, open, and whether files and memory stay bounded under load."""

from __future__ import annotations

import gc
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

from bench.measure import Figure, alternate
from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.shard.maintenance import Maintenance
from evertide.shard.shard import Shard, Shards
from evertide.store.blobs.local import LocalBlob
from evertide.store.metas.sqlite import SqliteMeta
from evertide.store.writers import Writer

Progress = Callable[[int, int], None]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.int64()),
        pa.field("amount", pa.float64()),
        pa.field("city", pa.string()),
    ]
)
_CITIES = np.array([f"city-{number:03d}" for number in range(500)])


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of the full form; the short form only shows that the benchmarks run."""

    append_rounds: int = 400
    scan_rows: int = 10_000_000
    scan_parts: int = 200
    scan_rounds: int = 5
    open_appends: int = 10_000
    load_appends: int = 10_000

    @classmethod
    def short(cls) -> Size:
        return cls(20, 20_000, 4, 2, 60, 100)


@dataclass(frozen=True, slots=True)
class Place:
    root: Path
    shards: Shards
    writer: Writer

    def reopened(self) -> Shards:
        old = self.shards
        return Shards(old.blob, old.meta, runtime=old.runtime, settings=old.settings)


@contextmanager
def place(settings: Settings | None = None) -> Iterator[Place]:
    """A storage in `EVERTIDE_BENCH_DIR` or the current directory: the temporary directory may be in memory."""
    settings = settings or Settings()
    runtime = SystemRuntime()
    with tempfile.TemporaryDirectory(dir=os.environ.get("EVERTIDE_BENCH_DIR", Path.cwd()), prefix=".bench-") as name:
        root = Path(name)
        meta = SqliteMeta(root / "meta.db", runtime, settings)
        try:
            shards = Shards(LocalBlob(root), meta, runtime=runtime, settings=settings)
            yield Place(root, shards, Writer.register(meta, runtime=runtime, settings=settings))
        finally:
            meta.close()


def batch(time: int, rows: int, *, seed: int = 0) -> pa.Table:
    random = np.random.default_rng([seed, time])
    columns = {
        "id": pa.array(random.integers(0, 1 << 40, rows)),
        "customer": pa.array(random.integers(0, 100_000, rows)),
        "amount": pa.array(random.random(rows) * 1000),
        "city": pa.array(_CITIES[random.integers(0, len(_CITIES), rows)], pa.string()),
        "__time": pa.array(np.full(rows, time)),
        "__diff": pa.array(np.ones(rows, np.int64)),
    }
    return pa.table(columns)


def append(size: Size, progress: Progress) -> list[Figure]:
    """A durable append of 1,000 rows, against a bare fsynced SQLite insert of the bytes that it stores."""
    with place() as here:
        shard = here.shards.create("orders", SCHEMA, here.writer)
        shard.compare_and_append(batch(0, 1000), 0, 1, here.writer)
        stored = sum(part.bytes for part in shard.log.read_cached().state.parts)
        bare = sqlite3.connect(here.root / "bare.db", isolation_level=None)
        bare.execute("PRAGMA journal_mode=WAL")
        bare.execute("PRAGMA synchronous=FULL")
        bare.execute("CREATE TABLE blobs (id INTEGER PRIMARY KEY, data BLOB)")
        content = os.urandom(stored)
        tables = [batch(time, 1000) for time in range(1, size.append_rounds + 22)]

        def one(number: int) -> None:
            upper = shard.log.read_cached().state.upper
            shard.compare_and_append(tables[upper - 1], upper, upper + 1, here.writer)
            progress(max(number, 0) + 1, size.append_rounds)

        def peer(_number: int) -> None:
            bare.execute("BEGIN IMMEDIATE")
            bare.execute("INSERT INTO blobs (data) VALUES (?)", (content,))
            bare.execute("COMMIT")

        ours, theirs = alternate(size.append_rounds, one, peer, warm_up=20)
        bare.close()
    ratio = ours.median_s / theirs.median_s
    detail = f"{stored:,} bytes; append {ours}, SQLite insert {theirs}"
    return [Figure("durable append of 1,000 rows / bare SQLite insert", f"{ratio:.2f}x", detail, "<= 2x", ratio <= 2)]


def scan(size: Size, progress: Progress) -> list[Figure]:
    """A snapshot, part by part with verification, against pyarrow on the same files."""
    with place() as here:
        shard = here.shards.create("orders", SCHEMA, here.writer)
        rows = size.scan_rows // size.scan_parts
        for time in range(size.scan_parts):
            shard.compare_and_append(batch(time, rows), time, time + 1, here.writer)
            progress(time + 1, size.scan_parts + size.scan_rounds)
        files = [here.root / part.key for part in shard.log.read_cached().state.parts if part.key]

        def ours(number: int) -> None:
            with shard.snapshot(size.scan_parts - 1) as snapshot:
                found = sum(table.num_rows for table in snapshot.scan())
            if found != rows * size.scan_parts:
                raise AssertionError(f"{found} rows")
            progress(size.scan_parts + max(number, 0) + 1, size.scan_parts + size.scan_rounds)

        def one_by_one(_number: int) -> None:
            sum(pq.read_table(file).num_rows for file in files)

        def dataset(_number: int) -> None:
            scanner = pa.dataset.dataset(files, format="parquet").scanner()
            sum(found.num_rows for found in scanner.to_batches())

        figures = []
        for name, peer in (("read_table, file by file", one_by_one), ("dataset scanner", dataset)):
            mine, theirs = alternate(size.scan_rounds, ours, peer)
            ratio = mine.median_s / theirs.median_s
            detail = f"{rows * size.scan_parts:,} rows, {len(files)} parts; snapshot {mine}, pyarrow {theirs}"
            figures.append(Figure(f"snapshot scan / pyarrow {name}", f"{ratio:.2f}x", detail, "<= 1.2x", ratio <= 1.2))
    return figures


def opening(size: Size, progress: Progress) -> list[Figure]:
    """Opening a shard with a long history, against one with a short history, both with compaction."""
    with place() as here:
        short = here.shards.create("short", SCHEMA, here.writer)
        long = here.shards.create("long", SCHEMA, here.writer)
        _fill(short, 10, here.writer, lambda _done, _all: None)
        with Maintenance(here.shards, here.writer):
            _fill(long, size.open_appends, here.writer, progress)
        long.compact(here.writer)
        long.collect_garbage(here.writer)
        mine, theirs = alternate(50, lambda _n: here.reopened().open("long"), lambda _n: here.reopened().open("short"))
        ratio = mine.median_s / theirs.median_s
    detail = f"after {size.open_appends:,} appends {mine}, after 10 {theirs}"
    return [Figure("opening a long-lived shard / a young one", f"{ratio:.2f}x", detail, "<= 2x", ratio <= 2)]


def load(size: Size, progress: Progress) -> list[Figure]:
    """Many appends with concurrent compaction and garbage collection: do files and memory stay bounded?"""
    settings = replace(Settings(), garbage_interval_s=1.0, maintenance_interval_s=0.25)
    process = psutil.Process()
    files, resident = [], []
    with place(settings) as here:
        shard = here.shards.create("orders", SCHEMA, here.writer)
        with Maintenance(here.shards, here.writer) as maintenance:
            for tenth in range(10):
                _fill(shard, size.load_appends // 10, here.writer, progress)
                shard.advance_since(shard.upper - 1, here.writer)
                gc.collect()
                files.append(sum(1 for found in here.root.rglob("*") if found.is_file()))
                resident.append(process.memory_info().rss / 2**20)
                progress((tenth + 1) * size.load_appends // 10, size.load_appends)
        problems = maintenance.failing.errors
        shard.compact(here.writer)
        shard.collect_garbage(here.writer)
        end = sum(1 for found in here.root.rglob("*") if found.is_file())
        inside = shard.inspect()
    if problems:
        raise AssertionError(f"maintenance failed: {problems}")
    growth = resident[-1] - resident[4]
    return [
        Figure(
            f"files after {size.load_appends:,} appends",
            f"{end}",
            f"after each tenth: {', '.join(map(str, files))}; {len(inside.batches)} batches, {inside.rows:,} rows",
            "bounded",
            max(files[5:]) < 2 * max(files[:5]) + 50,
        ),
        Figure(
            "memory over the second half of them",
            f"{growth:+.0f} MiB",
            f"resident after each tenth: {', '.join(f'{mib:.0f}' for mib in resident)} MiB",
            "bounded",
            growth < 100,
        ),
    ]


def _fill(shard: Shard, appends: int, writer: Writer, progress: Progress) -> None:
    start = shard.upper
    table = batch(0, 100)
    place_of_time = table.schema.get_field_index("__time")
    for time in range(start, start + appends):
        stamped = table.set_column(place_of_time, "__time", pa.array(np.full(100, time)))
        shard.compare_and_append(stamped, time, time + 1, writer)
        progress(time + 1 - start, appends)


BENCHMARKS: dict[str, Callable[[Size, Progress], list[Figure]]] = {
    "append": append,
    "scan": scan,
    "open": opening,
    "load": load,
}
