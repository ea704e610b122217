"""Measures shapes: latency from a commit to a client, rates of changes and clients, and the first sync.

A table on a disk, without Spark, is served as by `evertide run --listen`. The clients are another process on the same
machine (`bench.shape_clients`).

1. Commit to client: from the end of a commit of one row to its arrival at a client, with more and more shapes.
2. First sync: one client reads a whole table. The first read makes the snapshot, the next one reuses it.
3. Clients: one waits for each shape. Memory of the server per client, and the time until a change reaches one of them,
   and all of them.
4. Changes: the rate at which the process reads changes, matches them with all shapes and writes the logs, without
   clients.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from bench.measure import Figure, Timing
from bench.shape_clients import raise_file_limit
from bench.shards import Progress
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from evertide.server.app import make_app
from evertide.server.server import Server, tune_garbage_collection
from evertide.settings import Settings
from evertide.shapes.options import ShapeOptions
from evertide.shapes.protocol.requests import parse_request
from evertide.shapes.service import ShapeService
from evertide.store.open import open_storage
from tests.kit.small_engine import SmallEngine

_RUNTIME = SystemRuntime()
GOAL_LATENCY_S = 0.020
GOAL_ROWS_S = 20_000
_SPARE_FILES = 2_000
_SETTLE_S = 0.05
_OPTIONS = ShapeOptions(idle_s=3600, shapes_max=100_000, clients_max=100_000)
"""No shape is removed, although most have no client."""
_ID = pa.field("id", pa.int64(), nullable=False)
ORDERS = DeclaredTable(
    "orders", pa.schema([_ID, ("owner", pa.int64()), ("state", pa.string()), ("amount", pa.float64())]), ("id",)
)
HISTORY = replace(ORDERS, name="history")


@dataclass(frozen=True, slots=True)
class ShapesSize:
    shapes: tuple[int, ...] = (1, 100, 10_000)
    rounds: int = 51
    history: int = 1_000_000
    transaction: int = 1_000
    transactions: int = 20

    @classmethod
    def short(cls) -> ShapesSize:
        return cls(shapes=(1, 20), rounds=3, history=1_000, transaction=50, transactions=2)


def shapes(size: ShapesSize, moved: Progress) -> list[Figure]:
    steps = len(size.shapes) + 3
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("EVERTIDE_BENCH_DIR")) as scratch, _served(scratch) as served:
        served.push("orders", range(served.clients_max(max(size.shapes))))
        with served.clients() as one:
            one.ask(follow=[0])
            for count in size.shapes:
                served.make_shapes(count)
                found.append(_latency(served, one, count, size.rounds))
                moved(len(found), steps)
            found += _first_sync(served, one, size.history)
        moved(steps - 2, steps)
        found += _clients(served, size)
        moved(steps - 1, steps)
        served.service.stop()  # from here on, only this thread reads the changes
        _settle()
        found += [_rate(served, size, hit) for hit in (1.0, 0.1)]
    return found


class _Clients:
    """The process of the clients."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, **command: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the client process ended unexpectedly; its output is above")
        return json.loads(answer)


@dataclass
class _Served:
    pipeline: Pipeline
    service: ShapeService
    server: Server
    files_max: int
    shapes: int = 0
    pushed: int = 1_000_000
    """The id of the last pushed row: each row needs a new id to be a change."""

    def clients_max(self, wanted: int) -> int:
        return min(wanted, self.files_max - _SPARE_FILES)

    def push(self, table: str, ids: range | np.ndarray[Any, Any], owners: Any = None) -> int:
        """Push and commit rows of these owners, by default one row per owner; the number of the transaction."""
        numbers = np.asarray(ids)
        columns = [numbers, numbers if owners is None else owners, ["open"] * len(numbers), numbers * 0.5]
        self.pipeline.push(table, pa.table(columns, schema=ORDERS.schema))
        return self.pipeline.commit()

    def make_shapes(self, count: int) -> None:
        """Make shapes, one per owner, until there are `count`."""
        known = self.service.shapes
        for owner in range(self.shapes, count):
            asked = parse_request({"table": "orders", "where": f"owner = {owner}", "offset": "-1"})
            known.find_or_create(known.find_definition(asked))
        self.shapes = max(count, self.shapes)

    @contextmanager
    def clients(self) -> Iterator[_Clients]:
        command = [sys.executable, "-m", "bench.shape_clients", self.server.host, str(self.server.port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                made = _Clients(process)
                made.ask(follow=[])  # waits until the process has started
                yield made
            finally:
                process.kill()


@contextmanager
def _served(place: str) -> Iterator[_Served]:
    runtime, settings = SystemRuntime(), Settings()
    storage = open_storage(Path(place) / "storage", runtime=runtime, settings=settings)
    engine = SmallEngine((ORDERS, HISTORY), [])
    with Pipeline(engine, storage, base=Path(place), runtime=runtime, settings=settings) as pipeline:
        service = ShapeService(pipeline.collections, _OPTIONS)
        with Server() as server, service:
            tune_garbage_collection()
            server.start(make_app(pipeline, shapes=service))
            try:
                yield _Served(pipeline, service, server, raise_file_limit())
            finally:
                service.drain()
                server.stop()


def _latency(served: _Served, clients: _Clients, count: int, rounds: int) -> Figure:
    took, commits = _measure(served, clients, rounds)
    detail = f"{took}; the commit itself {commits}; {rounds} rounds, one client, the others' clauses are owner = const"
    met = took.median_s <= GOAL_LATENCY_S
    return Figure(f"commit to client, {count:,} shapes", _ms(took.median_s), detail, "20 ms, at any number", met)


def _measure(served: _Served, clients: _Clients, rounds: int) -> tuple[Timing, Timing]:
    """The times from the end of a commit of one row to the client, and the times of the commits."""
    took, commits = [], []
    for number in range(-1, rounds):
        SystemRuntime().sleep_s(_SETTLE_S)  # until the client waits again
        begun_s = time.perf_counter()
        served.pushed += 1
        transaction = served.push("orders", range(served.pushed, served.pushed + 1), [0])
        done_s = time.perf_counter()
        arrived = clients.ask(expect=transaction + 1, clients=1)
        if number >= 0:
            commits.append(done_s - begun_s)
            took.append(max(0.0, arrived["last_s"] - done_s))
    return Timing.of(took), Timing.of(commits)


def _first_sync(served: _Served, clients: _Clients, rows: int) -> list[Figure]:
    for ids in np.array_split(np.arange(rows), max(1, rows // 100_000)):
        served.push("history", ids)
    found = []
    for name in ("first sync of a table", "first sync of a table, made before"):
        told = clients.ask(sync="history")
        detail = f"{told['rows']:,} rows, {told['bytes'] / 1e6:,.0f} MB in {told['seconds']:.2f} s, one client"
        found.append(Figure(name, f"{told['rows'] / told['seconds']:,.0f} rows/s", detail))
    return found


def _clients(served: _Served, size: ShapesSize) -> list[Figure]:
    count = served.clients_max(max(size.shapes))
    process = psutil.Process()
    before = process.memory_info().rss
    with served.clients() as clients:
        begun_s = time.perf_counter()
        clients.ask(follow=list(range(count)))
        waiting_s = time.perf_counter() - begun_s
        taken = (process.memory_info().rss - before) / count
        one, _ = _measure(served, clients, size.rounds)
        begun_s = time.perf_counter()
        transaction = served.push("orders", range(2_000_000, 2_000_000 + count), np.arange(count))
        done_s = time.perf_counter()
        all_of_them = clients.ask(expect=transaction + 1, clients=count)
    waits = f"{count:,} clients wait, one for each shape"
    slowest = f"half of them after {_ms(all_of_them['median_s'] - done_s)}; the commit itself {done_s - begun_s:.2f} s"
    return [
        Figure(
            "memory of a client that waits", f"{taken / 1024:,.1f} KiB", f"{waits}; of the server's process, resident"
        ),
        Figure("clients that begin", f"{count / waiting_s:,.0f}/s", f"{count:,} in {waiting_s:.1f} s, 100 at a time"),
        Figure(
            f"commit to client, {count:,} clients",
            _ms(one.median_s),
            f"{one}; {waits}, a change of one of them; {size.rounds} rounds",
            "20 ms",
            one.median_s <= GOAL_LATENCY_S,
        ),
        Figure(f"a change for each of {count:,} clients", _ms(all_of_them["last_s"] - done_s), f"the last; {slowest}"),
    ]


def _rate(served: _Served, size: ShapesSize, hit: float) -> Figure:
    random = np.random.default_rng(7)
    taken_s = core_s = 0.0
    for _ in range(size.transactions):
        owners = random.integers(0, served.shapes, size.transaction)
        chosen = np.where(random.random(size.transaction) < hit, owners, -1)
        served.push("orders", random.choice(500_000, size.transaction, replace=False) + 3_000_000, chosen)
        begun_s, core_begun_s = time.perf_counter(), time.process_time()
        served.service.shapes.follow()
        taken_s += time.perf_counter() - begun_s
        core_s += time.process_time() - core_begun_s
    rows = size.transaction * size.transactions
    detail = f"{size.transactions} transactions of {size.transaction:,} rows; read, matched and written; "
    detail += f"by the time of the processor {rows / max(core_s, 1e-9):,.0f} rows/s"
    name = f"row changes with {served.shapes:,} shapes, {hit:.0%} of rows concern one"
    rate = rows / taken_s
    return Figure(name, f"{rate:,.0f} rows/s", detail, f"{GOAL_ROWS_S:,} rows/s", rate >= GOAL_ROWS_S)


def _settle() -> None:
    """Wait until the server is idle: the disconnected clients still use CPU time."""
    while True:
        before_s = time.process_time()
        _RUNTIME.sleep_s(1.0)
        if time.process_time() - before_s < 0.1:
            return


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"
