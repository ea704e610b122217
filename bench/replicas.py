"""Replicas and executors: how soon another replica goes on, what it costs the first, what a second executor brings.

All are real processes (`evertide run`, `kill -9`), on this one machine, which they share:

1. Takeover: from the kill of the one that leads to the first transaction that the other one committed.
2. Cost: transactions per second of the one that leads, alone and with one that follows; in turns, as the history grows.
3. Bulk load: the same transactions on a Spark cluster of two workers, with one core of it and with two.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.measure import Figure, Timing
from bench.shards import Progress
from evertide.pipeline.reader import Reader
from evertide.pipeline.replica_record import ReplicaStatus, replica_statuses
from evertide.runtime import SystemRuntime
from tests.servers.cluster import SparkCluster, running_cluster

__all__ = ["ReplicaSize", "replicas"]

LIMIT_S = 300.0
_RUNTIME = SystemRuntime()
_BEHIND = 5
"""Transactions: what a replica says of itself is up to a second old."""
_SCRIPT = """
CREATE TABLE bid (auction BIGINT NOT NULL, bidder BIGINT NOT NULL, price BIGINT NOT NULL) USING nexmark
OPTIONS (events_per_transaction '1000', rate '{rate}');
CREATE TABLE auction (id BIGINT NOT NULL, category BIGINT NOT NULL, PRIMARY KEY (id)) USING nexmark;
CREATE MATERIALIZED VIEW best AS SELECT auction, max(price) AS price, count(*) AS bids FROM bid GROUP BY auction;
CREATE MATERIALIZED VIEW per_category AS SELECT a.category, sum(b.price) AS total
FROM bid b JOIN auction a ON b.auction = a.id GROUP BY a.category;
"""


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    takeovers: int = 5
    rounds: int = 3
    transactions: int = 60
    """Of one measurement of the speed."""
    events: int = 400_000
    """Of one transaction of the bulk load."""
    loads: int = 3

    @classmethod
    def short(cls) -> ReplicaSize:
        return cls(takeovers=1, rounds=1, transactions=3, events=20_000, loads=1)


def replicas(size: ReplicaSize, moved: Progress) -> list[Figure]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("EVERTIDE_BENCH_DIR")) as scratch:
        place, found = Path(scratch), []
        for at, measure in enumerate((_takeover, _cost, _bulk), 1):
            (place / str(at)).mkdir()
            found.append(measure(place / str(at), size))
            moved(at, 3)
    return found


class _Runners:
    """Processes that run one pipeline, and a look at its storage."""

    def __init__(self, place: Path, rate: int) -> None:
        self._script, self._storage = place / "bench.sql", place / "storage"
        self._script.write_text(_SCRIPT.format(rate=rate))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._reader: Reader | None = None

    def start(self) -> None:
        command = ["run", str(self._script), "--storage", str(self._storage), "--quiet"]
        made = subprocess.Popen(
            [sys.executable, "-m", "evertide.cli", *command],
            env=_clean(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._processes[made.pid] = made

    def kill(self, one: ReplicaStatus) -> float:
        """When. Its parent takes note of its end, as any supervisor does: until then it seems to be there."""
        at_s = time.perf_counter()
        self._processes[one.pid].kill()
        self._processes[one.pid].wait()
        return at_s

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.close()

    @property
    def reader(self) -> Reader:
        if self._reader is None:
            _until((self._storage / "FORMAT").exists)
            self._reader = Reader.open(self._storage)
        return self._reader

    def running(self) -> tuple[ReplicaStatus, ...]:
        """The one that leads first."""
        reader = self.reader
        return replica_statuses(reader.storage.meta, reader.journal.committed_upper, reader.runtime, reader.settings)

    def are(self, count: int) -> bool:
        """So many, of which one leads, and all have taken something."""
        several = self.running()
        return len(several) == count and several[0].role == "leads" and min(one.time for one in several) > 2

    def commits(self, count: int) -> float:
        """Seconds that so many transactions take from now on."""
        first = self.reader.journal.committed_upper
        _until(lambda: self.reader.journal.committed_upper > first)
        begun, first = time.perf_counter(), self.reader.journal.committed_upper
        _until(lambda: self.reader.journal.committed_upper >= first + count)
        return time.perf_counter() - begun

    def has_committed(self, one: ReplicaStatus) -> bool:
        """Whether the last transaction is its."""
        found = self.reader.journal.committed(self.reader.journal.committed_upper - 1)
        return found is not None and found.writer == one.writer


@contextmanager
def _runners(place: Path, rate: int, count: int) -> Iterator[_Runners]:
    made = _Runners(place, rate)
    try:
        for _ in range(count):
            made.start()
        _until(lambda: made.are(count))
        yield made
    finally:
        made.end()


def _takeover(place: Path, size: ReplicaSize) -> Figure:
    taken = []
    with _runners(place, 4, 2) as runners:
        for number in range(size.takeovers):
            if number:
                runners.start()
            _until(lambda: runners.are(2) and runners.running()[1].behind <= _BEHIND)
            leader, other = runners.running()
            begun = runners.kill(leader)
            _until(partial(runners.has_committed, other))
            taken.append(time.perf_counter() - begun)
    timing = Timing.of(taken)
    detail = f"{timing}; same host, lead_interval_s 1, {len(taken)} kills, 4 transactions/s"
    return Figure("takeover: from kill -9 of the leader to the next transaction", f"{timing.median_s:.2f} s", detail)


def _cost(place: Path, size: ReplicaSize) -> Figure:
    alone, together, behind = [], [], []
    with _runners(place, 0, 1) as runners:
        runners.commits(size.transactions)  # warm-up
        for _ in range(size.rounds):
            alone.append(size.transactions / runners.commits(size.transactions))
            runners.start()
            _until(lambda: runners.are(2))
            together.append(size.transactions / runners.commits(size.transactions))
            follower = runners.running()[1]
            behind.append(follower.behind)
            runners.kill(follower)
            _until(lambda: runners.are(1))
    before, after = statistics.median(alone), statistics.median(together)
    share = 1 - after / before
    detail = f"{after:.1f} against {before:.1f} transactions/s of 1,000 events, the follower {max(behind)} behind; "
    detail += f"{size.rounds} rounds, both share {os.cpu_count()} cores"
    name = "cost of a second replica on the same machine to the one that leads"
    return Figure(name, f"{share:.0%}", detail, "at most 10%", share <= 0.10)


def _bulk(place: Path, size: ReplicaSize) -> Figure:
    with running_cluster(place, {}) as cluster:
        one, two = ([*_loaded(cluster, place, cores, size)] for cores in (1, 2))
    speedup = statistics.median(one) / statistics.median(two)
    detail = f"{Timing.of(two)} against {Timing.of(one)}, {size.events:,} events a transaction; "
    detail += f"driver and executors share {os.cpu_count()} cores"
    return Figure("bulk load with two executors of one core, against one", f"{speedup:.2f}x", detail)


def _loaded(cluster: SparkCluster, place: Path, cores: int, size: ReplicaSize) -> list[float]:
    arguments = [cluster.master, str(place / f"cores-{cores}"), str(size.events), str(size.loads)]
    command = [sys.executable, "-m", "bench.bulk", *arguments]
    env = cluster.env(cores_max=str(cores), executor_cores="1", driver_memory="2g")
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _until(holds: Callable[[], bool]) -> None:
    end_s = time.perf_counter() + LIMIT_S
    while not holds():
        if time.perf_counter() > end_s:
            raise TimeoutError("the replicas did not come to what is measured")
        _RUNTIME.sleep_s(0.005)


def _clean() -> dict[str, str]:
    """Each starts a Spark of its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_GATEWAY", "SPARK_"))}
