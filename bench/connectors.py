"""Measures rows per second, and memory over many rows, of the PostgreSQL and Kafka sources.

A durable pipeline of a table and an aggregate reads a backlog. The peer, over the same rows in the same run, is a
consumer that only decodes them (`bench.bare_consumers`). The servers are those of the tests, on the same machine.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.bare_consumers import consume_kafka, consume_postgres
from bench.measure import Figure, Timing
from bench.orders import COLUMNS, PARTITIONS, POSTGRES, VIEW, fill_kafka
from bench.shards import Progress
from bench.views import bench_spark
from evertide.pipeline.pipeline import Pipeline
from evertide.settings import Settings
from tests.servers.kafka import running_kafka
from tests.sources.postgres.server import Database, running_logical

_SAMPLE_S = 0.25
_SERVER = {
    "listen_addresses": "127.0.0.1",
    "logical_decoding_work_mem": "64MB",
    "shared_buffers": "128MB",
    "max_wal_size": "4GB",
}
"""Close to PostgreSQL's defaults: the tests' server has less memory, and no TCP."""


@dataclass(frozen=True, slots=True)
class ConnectorSize:
    """Rows per round, rows per small transaction, and rows of the run that measures memory."""

    rows: int = 1_000_000
    transaction: int = 10
    rounds: int = 3
    memory_rows: int = 10_000_000
    spread_rows: int = 500_000
    """Rows of a transaction that executors read."""

    @classmethod
    def short(cls) -> ConnectorSize:
        return cls(rows=20_000, transaction=100, rounds=1, memory_rows=50_000, spread_rows=110_000)


@dataclass(slots=True)
class Reader:
    script: str
    storage: Path
    spark: Any
    settings: Settings = field(default_factory=Settings)
    taken: int = 0
    resident: list[tuple[int, float]] = field(default_factory=list)
    """(rows read so far, resident MiB of this process)."""

    def catch_up(self, rows: int) -> float:
        """Run until the view has `rows` more rows; the seconds, without opening and closing."""
        wanted, is_over = self.taken + rows, threading.Event()
        with Pipeline.open(self.script, self.storage, spark=self.spark, settings=self.settings) as opened:
            begun = ended = time.perf_counter()

            def note_end(_time: int, _seconds: float) -> None:
                nonlocal ended
                ended = time.perf_counter()

            watcher = threading.Thread(target=self._watch, args=(opened, wanted, is_over), daemon=True)
            watcher.start()
            try:
                opened.run(on_transaction=note_end)
            finally:
                is_over.set()
                watcher.join()
        assert self.taken == wanted, (self.taken, wanted)
        return ended - begun

    def _watch(self, opened: Pipeline, wanted: int, is_over: threading.Event) -> None:
        """Read the view every `_SAMPLE_S`: a read after each transaction would cost too much."""
        process, seen = psutil.Process(), -1
        while not is_over.wait(_SAMPLE_S):
            if opened.time != seen:
                seen = opened.time
                self.taken = sum(opened.view("per_city").to_arrow().column("orders").to_pylist())
                self.resident.append((self.taken, process.memory_info().rss / 2**20))
            if self.taken >= wanted:
                opened.stop()
                return


def _compare(name: str, size: ConnectorSize, make: Callable[[], object], **both: Callable[[], float]) -> Figure:
    """Alternate rounds of both, over the same rows. The first round is a warm-up."""
    (ours, _), (plain, _) = both.items()
    taken: dict[str, list[float]] = {ours: [], plain: []}
    for number in range(-1, size.rounds):
        make()
        for which in (ours, plain) if number % 2 else (plain, ours):
            seconds = both[which]()
            if number >= 0:
                taken[which].append(seconds)
    ratio = statistics.median(taken[plain]) / statistics.median(taken[ours])
    speeds = [f"{which} {size.rows / statistics.median(taken[which]) / 1e3:.0f}k rows/s" for which in taken]
    detail = f"{', '.join(speeds)}; {size.rows:,} rows in {Timing.of(taken[ours])}"
    return Figure(name, f"{ratio:.2f}x", detail, "at least 0.5x", ratio >= 0.5)


def _memory(reader: Reader, name: str, rows: int) -> Figure:
    """Compare the medians of the last and the first tenth, since compaction needs more memory for a while."""
    before, first = reader.taken, len(reader.resident)
    seconds = reader.catch_up(rows)
    tenths: dict[int, list[float]] = {}
    for taken, mib in reader.resident[first:]:
        if taken > before:
            tenths.setdefault(min(9, (taken - before - 1) * 10 // rows), []).append(mib)
    levels = [statistics.median(tenths[tenth]) for tenth in sorted(tenths)]
    growth = levels[-1] / levels[0]
    series = ", ".join(f"{level:.0f}" for level in levels)
    peak = max(max(several) for several in tenths.values())
    detail = f"medians of each tenth {series}, at most {peak:.0f} MiB; {rows / seconds / 1e3:.0f}k rows/s"
    title = f"{name}: the driver's memory over {rows:,} rows"
    return Figure(title, f"{growth:.2f}x", detail, "at most 1.15x", growth <= 1.15)


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def kafka(size: ConnectorSize, moved: Progress) -> list[Figure]:
    with _scratch() as scratch, bench_spark() as spark, running_kafka() as broker:
        admin = AdminClient({"bootstrap.servers": broker.brokers, "log_level": 0})
        for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in ("orders", "spread")]).values():
            future.result()
        made, following = 0, dict.fromkeys(range(PARTITIONS), 0)

        def make(rows: int = size.rows) -> None:
            nonlocal made
            _elsewhere(fill_kafka, broker.brokers, "orders", made, rows)
            made += rows

        def plain() -> None:
            following.update(consume_kafka(broker.brokers, "orders", following, size.rows))

        def reader(name: str, topic: str, options: str = "", settings: Settings = Settings()) -> Reader:  # noqa: B008 - frozen
            given = f"brokers '{broker.brokers}', topic '{topic}', format 'json'{options}"
            script = f"CREATE TABLE orders ({COLUMNS}) USING kafka OPTIONS ({given});\n{VIEW};"
            return Reader(script, scratch / name, spark, settings)

        ours = reader("ours", "orders")
        name = f"Kafka, JSON, {PARTITIONS} partitions: rows per second against a plain consumer"
        found = [_compare(name, size, make, ours=lambda: ours.catch_up(size.rows), plain=lambda: _timed(plain))]
        moved(1, 3)
        found.append(_spread(size, broker.brokers, reader))
        moved(2, 3)
        make(size.memory_rows)
        return [*found, _memory(ours, "Kafka", size.memory_rows)]


def _spread(size: ConnectorSize, brokers: str, reader: Callable[..., Reader]) -> Figure:
    """Read large transactions with executors and with threads, twice each; the second run counts."""
    _elsewhere(fill_kafka, brokers, "spread", 0, size.rows)
    settings = Settings(transaction_rows_max=size.spread_rows, transaction_bytes_max=1 << 30)
    seconds = {}
    for number, kind in ((number, kind) for number in range(2) for kind in ("never", "always")):
        one = reader(f"{kind}-{number}", "spread", f", executors '{kind}'", settings)
        seconds[kind] = one.catch_up(size.rows)
    ratio = seconds["never"] / seconds["always"]
    name = f"Kafka, transactions of {size.spread_rows:,}: executors of this machine against threads"
    detail = " against ".join(f"{size.rows / seconds[kind] / 1e3:.0f}k rows/s" for kind in ("always", "never"))
    return Figure(name, f"{ratio:.2f}x", detail)


def _elsewhere(call: Callable[..., None], *arguments: Any) -> None:
    """Call in a separate process, so that its memory is not measured."""
    process = multiprocessing.get_context("spawn").Process(target=call, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


def postgres(size: ConnectorSize, moved: Progress) -> list[Figure]:
    with _scratch() as scratch, bench_spark() as spark, running_logical(**_SERVER, port=_free_port()) as server:
        db = Database(server, "bench")
        db.run(*POSTGRES)
        address = f"postgresql://evertide@127.0.0.1:{server.port}/{db.name}"
        options = f"url '{address}', slot '{db.slot}', publication 'bench'"
        script = f"CREATE TABLE orders ({COLUMNS}, PRIMARY KEY (id)) USING postgres OPTIONS ({options});\n{VIEW};"
        reader, made = Reader(script, scratch / "ours", spark), 0

        def make(step: int, rows: int = size.rows) -> None:
            nonlocal made
            db.run(f"CALL fill({made}, {made + rows}, {step})")
            made += rows

        make(1_000, 1_000)
        reader.catch_up(1_000)  # creates the slot and reads the snapshot
        db.run("SELECT pg_create_logical_replication_slot('plain', 'pgoutput')")
        plain = partial(consume_postgres, address, "plain", "bench", size.rows)
        found: list[Figure] = []
        for what, step in (
            (f"transactions of {size.transaction} rows", size.transaction),
            ("one transaction", size.rows),
        ):
            name = f"PostgreSQL, {what}: rows per second against a plain consumer"
            found.append(
                _compare(
                    name,
                    size,
                    partial(make, step),
                    ours=lambda: reader.catch_up(size.rows),
                    plain=lambda: _timed(plain),
                )
            )
            moved(len(found), 3)
        make(1_000, size.memory_rows)
        found.append(_memory(reader, "PostgreSQL", size.memory_rows))
        db.close()
        return found


def _free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("EVERTIDE_BENCH_DIR"), prefix="bench-") as name:
        yield Path(name)


BENCHMARKS: dict[str, Callable[[ConnectorSize, Progress], list[Figure]]] = {"kafka": kafka, "postgres": postgres}
