"""Measures the takeover by a follower, the cost of a follower for the leader, and the gain of a second executor.

Replicas are real processes (`evertide run`, `kill -9`) on one machine. In each round:

1. The leader runs alone: transactions per second at full speed.
2. A follower is started, and the same is measured again: the difference is the cost of the follower. It is measured
   with all cores for both, and with half of the cores for each, as on two machines. The CPU time of the leader per
   transaction is measured as well: if only the wall time grows, the replicas wait for cores.
3. The leader is killed. The takeover ends with the first commit of the follower, which leads in the next round.

Then the bulk load: the same transactions on a Spark with one executor of one core, and with two.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import pyspark

from bench.measure import Figure, Timing, own_spark
from bench.shards import Progress
from evertide.pipeline.reading.reader import StorageReader
from evertide.pipeline.records.replica_record import ReplicaStatus, read_replica_statuses
from evertide.runtime import SystemRuntime

LIMIT_S = 300.0
_CATCH_UP_S = 30.0
"""How long a new follower may take to catch up while the leader runs at full speed."""
_RUNTIME = SystemRuntime()
_BEHIND = 5
"""Transactions that a follower may be behind."""
_OLD_S = 1.5
"""The maximum age of a replica's status, approximately."""
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
    rounds: int = 4
    transactions: int = 60
    """Transactions per measurement of the speed."""
    rate: int = 0
    """Events per second; 0 is full speed."""
    events: int = 400_000
    """Events per transaction of the bulk load."""
    loads: int = 3

    @classmethod
    def short(cls) -> ReplicaSize:
        return cls(rounds=1, transactions=2, rate=2_000, events=20_000, loads=1)


@dataclass(frozen=True, slots=True)
class _TransactionCost:
    """The time of the leader per transaction."""

    wall_s: float
    cpu_s: float


@dataclass
class _Cost:
    """The measurements with these cores for the leader and for the follower."""

    what: str
    cores: tuple[set[int], set[int]] | None
    """None: all cores for both."""
    alone: list[_TransactionCost] = field(default_factory=list)
    together: list[_TransactionCost] = field(default_factory=list)

    def figure(self, behind: int) -> Figure:
        before, after = (statistics.median(cost.wall_s for cost in costs) for costs in (self.alone, self.together))
        own = [statistics.median(cost.cpu_s for cost in costs) * 1e3 for costs in (self.alone, self.together)]
        share = 1 - before / after
        detail = f"{1 / after:.1f} against {1 / before:.1f} transactions/s of 1,000 events; wall {after * 1e3:.0f} "
        detail += f"against {before * 1e3:.0f} ms each, of which the leader computes {own[1]:.0f} against {own[0]:.0f}"
        detail += f"; {len(self.alone)} rounds, the follower at most {behind} behind"
        return Figure(f"cost of a second replica, {self.what}", f"{share:.0%}", detail, "at most 10%", share <= 0.10)


def replicas(size: ReplicaSize, moved: Progress) -> list[Figure]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("EVERTIDE_BENCH_DIR")) as scratch:
        places = [Path(scratch) / name for name in ("two", "bulk")]
        for place in places:
            place.mkdir()
        found = _two(places[0], size, moved)
        return [*found, _bulk(places[1], size)]


class _Runners:
    """The processes that run one pipeline, and a reader of its storage."""

    def __init__(self, place: Path, rate: int) -> None:
        self._script, self._storage, self._log = place / "bench.sql", place / "storage", place / "log"
        self._script.write_text(_SCRIPT.format(rate=rate))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._reader: StorageReader | None = None

    def start(self) -> None:
        command = ["run", str(self._script), "--storage", str(self._storage), "--quiet"]
        with self._log.open("ab") as log:
            made = subprocess.Popen(
                [sys.executable, "-m", "evertide.cli", *command],
                env=own_spark(),
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self._processes[made.pid] = made

    def kill(self, one: ReplicaStatus) -> float:
        """Kill a replica, and return when. The wait reaps the process, which would seem to be alive otherwise."""
        at_s = time.perf_counter()
        killed = self._processes.pop(one.pid)
        killed.kill()
        killed.wait()
        return at_s

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.close()

    @property
    def reader(self) -> StorageReader:
        if self._reader is None:
            self._reader = StorageReader.open(self._storage)
        return self._reader

    def running(self) -> tuple[ReplicaStatus, ...]:
        """The running replicas, the leader first."""
        if not (self._storage / "FORMAT").exists():
            return ()
        reader = self.reader
        return read_replica_statuses(
            reader.storage.meta, reader.journal.committed_upper, reader.runtime, reader.settings
        )

    def are(self, count: int) -> bool:
        """Whether `count` replicas run, one of them leads, and all have processed transactions."""
        if any(process.poll() is not None for process in self._processes.values()):
            raise RuntimeError(f"a replica ended unexpectedly:\n{self._log.read_text()[-2000:]}")
        several = self.running()
        return len(several) == count and several[0].role == "leads" and min(one.time for one in several) > 2

    def measure_cost(self, count: int) -> _TransactionCost:
        """The time of the leader per transaction over the next `count` transactions."""
        leader, first = self.running()[0], self.reader.journal.committed_upper
        _until(lambda: self.reader.journal.committed_upper > first)
        begun, computed, first = time.perf_counter(), _cpu_s(leader), self.reader.journal.committed_upper
        _until(lambda: self.reader.journal.committed_upper >= first + count)
        made = self.reader.journal.committed_upper - first
        return _TransactionCost((time.perf_counter() - begun) / made, (_cpu_s(leader) - computed) / made)

    def is_caught_up(self) -> bool:
        """Whether the follower has caught up, as far as the age of its status tells."""
        first = self.reader.journal.committed_upper
        _RUNTIME.sleep_s(_OLD_S)
        return self.running()[1].behind <= self.reader.journal.committed_upper - first + _BEHIND

    def has_committed(self, one: ReplicaStatus) -> bool:
        """Whether this replica committed the last transaction."""
        found = self.reader.journal.read_outcome(self.reader.journal.committed_upper - 1)
        return found is not None and found.writer == one.writer


@contextmanager
def _runners(place: Path, rate: int) -> Iterator[_Runners]:
    made = _Runners(place, rate)
    try:
        made.start()
        _until(lambda: made.are(1))
        yield made
    finally:
        made.end()


def _two(place: Path, size: ReplicaSize, moved: Progress) -> list[Figure]:
    costs, taken, behind = _costs(), [], 0
    with _runners(place, size.rate) as runners:
        for number in range(size.rounds):
            runners.measure_cost(size.transactions)  # warm-up of a new leader
            for cost in costs:
                _pin(runners.running(), cost.cores)
                cost.alone.append(runners.measure_cost(size.transactions))
            runners.start()
            _until(lambda: runners.are(2))
            _holds_within(_CATCH_UP_S, runners.is_caught_up)  # otherwise the takeover takes longer
            for cost in reversed(costs):
                _pin(runners.running(), cost.cores)
                cost.together.append(runners.measure_cost(size.transactions))
            leader, other = runners.running()
            behind = max(behind, other.behind)
            begun = runners.kill(leader)
            _until(partial(runners.has_committed, other))
            taken.append(time.perf_counter() - begun)
            _until(lambda: runners.are(1))
            moved(number + 1, size.rounds + 1)
    timing = Timing.of(taken)
    detail = f"{timing}; same host, lead_interval_s 1, {len(taken)} kills, at full speed, "
    detail += f"the other one at most {behind} transactions behind"
    name = "takeover: from kill -9 of the leader to the next transaction"
    return [Figure(name, f"{timing.median_s:.2f} s", detail), *(cost.figure(behind) for cost in costs)]


def _costs() -> list[_Cost]:
    """Shared cores, as on one machine; and separate cores, as on two."""
    found = [_Cost(f"both share {os.cpu_count()} cores", None)]
    cores = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    half = len(cores) // 2
    if half:
        found.append(_Cost(f"each has {half} of {len(cores)} cores", (set(cores[:half]), set(cores[half:]))))
    return found


def _pin(several: Sequence[ReplicaStatus], cores: tuple[set[int], set[int]] | None) -> None:
    """Pin all threads of the leader and of the follower. A new thread inherits the cores of its creator."""
    for one, own in zip(several, cores or (None, None), strict=False):
        for process in _processes(one) if sys.platform == "linux" else ():
            for thread in process.threads():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, own or os.sched_getaffinity(0))


def _cpu_s(one: ReplicaStatus) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in _processes(one))


def _processes(one: ReplicaStatus) -> list[psutil.Process]:
    """The process of the replica, and its children such as Spark."""
    own = psutil.Process(one.pid)
    return [own, *own.children(recursive=True)]


def _bulk(place: Path, size: ReplicaSize) -> Figure:
    one, two = (_load(place, executors, size) for executors in (1, 2))
    speedup = statistics.median(one) / statistics.median(two)
    detail = f"{Timing.of(two)} against {Timing.of(one)}, {size.events:,} events a transaction; "
    detail += f"driver and executors share {os.cpu_count()} cores"
    return Figure("bulk load with two executors of one core, against one", f"{speedup:.2f}x", detail)


def _load(place: Path, executors: int, size: ReplicaSize) -> list[float]:
    """Executors are separate processes; the cluster's master and workers are threads of the driver."""
    master, storage = f"local-cluster[{executors},1,1024]", str(place / f"executors-{executors}")
    command = [sys.executable, "-m", "bench.bulk", master, storage, str(size.events), str(size.loads)]
    settings = {"spark.driver.memory": "2g", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    submit = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    env = own_spark() | {"PYSPARK_SUBMIT_ARGS": f"{submit} pyspark-shell", "SPARK_HOME": pyspark.__path__[0]}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _until(holds: Callable[[], bool]) -> None:
    if not _holds_within(LIMIT_S, holds):
        raise TimeoutError("the replicas did not reach the measured state in time")


def _holds_within(limit_s: float, holds: Callable[[], bool]) -> bool:
    end_s = time.perf_counter() + limit_s
    while not (is_so := holds()) and time.perf_counter() < end_s:
        _RUNTIME.sleep_s(0.02)
    return is_so
