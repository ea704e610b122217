"""Measures the refresh of a view, against a recomputation by Spark, and the bulk load.

Nexmark, one circuit per view. The history is loaded in transactions of a million events, which is the bulk load; then
transactions of a thousand events are the refreshes. The peer is a Spark batch over the same events as Parquet files
with an explicit schema, in the same session: a full recomputation for a refresh, and one batch with a Parquet sink for
the bulk load. Figures are ratios, since both ran on the same machine within minutes.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from bench.measure import Figure
from bench.shards import Progress
from evertide.flow import Circuit
from evertide.rows.changes import DIFF
from evertide.store.blobs.local import LocalBlob
from tests.kit.merging import BackgroundMerging
from tests.kit.nexmark import WORKLOAD, Nexmark

VIEWS = tuple(WORKLOAD.queries)


@dataclass(frozen=True, slots=True)
class ViewSize:
    """The events of the history, their chunks, and the number of refreshes, for warm-up and measured."""

    histories: tuple[int, ...] = (1_000_000, 10_000_000)
    chunk: int = 1_000_000
    refresh: int = 1_000
    warm_up: int = 15
    rounds: int = 11
    views: tuple[str, ...] = VIEWS

    @classmethod
    def short(cls) -> ViewSize:
        return cls(histories=(20_000,), chunk=10_000, refresh=500, warm_up=1, rounds=2, views=("q4", "q17"))


@dataclass(slots=True)
class Measured:
    """The measurements of one view with one history."""

    view: str
    events: int
    refresh_s: float
    recompute_s: float
    load_events_per_s: float
    batch_events_per_s: float
    jobs: int


def refresh(size: ViewSize, moved: Progress) -> list[Figure]:
    with bench_spark() as spark, tempfile.TemporaryDirectory(dir=os.environ.get("EVERTIDE_BENCH_DIR")) as scratch:
        found = []
        total = len(size.histories) * len(size.views)
        for events in size.histories:
            history = _History(Path(scratch) / str(events), events, size)
            for view in size.views:
                found.append(_measure(spark, view, history, size))
                moved(len(found), total)
            history.drop()
    return [*map(_line, found), *_summary(found, size)]


class _History:
    """The events before the refreshes: one chunk in memory at a time, and Parquet files for the peer."""

    def __init__(self, path: Path, events: int, size: ViewSize) -> None:
        self.path = path
        self.events = events
        self._size = size
        self._generator = Nexmark(seed=7)
        for name in ("person", "auction", "bid", "side_input"):
            (path / name).mkdir(parents=True)
        for at, chunk in enumerate(self.chunks()):
            for name, rows in chunk.items():
                pq.write_table(rows, path / name / f"{at:05d}.parquet")

    def chunks(self) -> Iterator[dict[str, pa.Table]]:
        for first in range(0, self.events, self._size.chunk):
            tables = self._tables(first, min(self._size.chunk, self.events - first))
            if first == 0:
                tables["side_input"] = self._generator.side_input(1_000)
            yield tables

    def refreshes(self) -> Iterator[dict[str, pa.Table]]:
        first = self.events
        while True:
            yield self._tables(first, self._size.refresh)
            first += self._size.refresh

    def frames(self, spark: SparkSession) -> dict[str, DataFrame]:
        return {
            name: spark.read.schema(_struct(spark, self.path / name)).parquet(str(self.path / name))
            for name in ("person", "auction", "bid", "side_input")
        }

    def drop(self) -> None:
        shutil.rmtree(self.path)

    def _tables(self, first: int, count: int) -> dict[str, pa.Table]:
        events = self._generator.events(first, count)
        return {"person": events.person, "auction": events.auction, "bid": events.bid}


def _struct(spark: SparkSession, path: Path) -> Any:
    return spark.read.parquet(str(next(path.glob("*.parquet")))).schema


def _measure(spark: SparkSession, view: str, history: _History, size: ViewSize) -> Measured:
    with tempfile.TemporaryDirectory(dir=history.path.parent) as state:
        circuit = Circuit(spark, WORKLOAD.script([view]), blob=LocalBlob(Path(state)))
        with BackgroundMerging(circuit):
            load_s = sum(_time(partial(circuit.step, deltas_of(chunk))) for chunk in history.chunks())
            while circuit.maintain():
                pass
            refreshes = history.refreshes()
            seconds = [
                _time(lambda: circuit.step(deltas_of(next(refreshes)))) for _ in range(size.warm_up + size.rounds)
            ]
            jobs = _jobs(spark, lambda: circuit.step(deltas_of(next(refreshes))))
    peer = spark.newSession()
    for name, frame in history.frames(peer).items():
        frame.createOrReplaceTempView(name)
    query = WORKLOAD.queries[view]
    recompute = [_time(lambda: _run(peer.sql(query))) for _ in range(3)]
    sink = str(history.path / f"sink-{view}")
    batch_s = _time(lambda: peer.sql(query).write.parquet(sink))
    shutil.rmtree(sink)
    return Measured(
        view,
        history.events,
        statistics.median(seconds[size.warm_up :]),
        statistics.median(recompute),
        history.events / load_s,
        history.events / batch_s,
        jobs,
    )


def _run(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _time(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _jobs(spark: SparkSession, call: Callable[[], object]) -> int:
    """The number of Spark jobs that the call starts."""
    context = spark.sparkContext
    before = len(context.statusTracker().getJobIdsForGroup("bench"))
    context.setJobGroup("bench", "")
    call()
    after = len(context.statusTracker().getJobIdsForGroup("bench"))
    context.setLocalProperty("spark.jobGroup.id", None)
    return after - before


def deltas_of(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    field = pa.field(DIFF, pa.int64(), nullable=False)
    return {
        name: rows.append_column(field, pa.array(np.ones(rows.num_rows, np.int64)))
        for name, rows in tables.items()
        if rows.num_rows
    }


def _line(found: Measured) -> Figure:
    faster = found.recompute_s / found.refresh_s
    load = found.load_events_per_s / found.batch_events_per_s
    detail = (
        f"refresh {found.refresh_s * 1e3:.0f} ms, {found.jobs} jobs; recomputation {found.recompute_s * 1e3:.0f} ms; "
        f"load {found.load_events_per_s / 1e3:.0f}k events/s, {load:.2f} of a batch"
    )
    return Figure(f"{found.view} at {_short(found.events)} events", f"{faster:.1f}x", detail)


def _summary(found: list[Measured], size: ViewSize) -> Iterator[Figure]:
    by_events = {events: [each for each in found if each.events == events] for events in size.histories}
    for events, each in by_events.items():
        faster = _mean([one.recompute_s / one.refresh_s for one in each])
        goal = {10_000_000: 10.0, 100_000_000: 100.0}.get(events)
        yield Figure(
            f"all views at {_short(events)} events: refresh against recomputation",
            f"{faster:.1f}x",
            f"geometric mean of {len(each)} views",
            f"at least {goal:.0f}x" if goal else "",
            faster >= goal if goal else None,
        )
        load = _mean([one.load_events_per_s / one.batch_events_per_s for one in each])
        is_judged = events == 10_000_000
        yield Figure(
            f"all views at {_short(events)} events: bulk load against one batch",
            f"{load:.2f}x",
            f"geometric mean of {len(each)} views",
            "at least 0.5x" if is_judged else "",
            load >= 0.5 if is_judged else None,
        )
    first, last = size.histories[0], size.histories[-1]
    if last > first:
        pairs = zip(by_events[first], by_events[last], strict=True)
        growth = _mean([after.refresh_s / before.refresh_s for before, after in pairs])
        name = f"growth of the refresh from {_short(first)} to {_short(last)} events"
        yield Figure(name, f"{growth:.2f}x", "geometric mean", "less than 1.3x", growth < 1.3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Figure("peak memory of the driver's Python", f"{peak:.0f} MiB", "without the JVM")


def _mean(ratios: list[float]) -> float:
    return statistics.geometric_mean(ratios)


def _short(events: int) -> str:
    return f"{events // 1_000_000}M" if events >= 1_000_000 else f"{events // 1_000}k"


@contextmanager
def bench_spark(master: str = "local[*]") -> Iterator[SparkSession]:
    """The active session, in tests; otherwise a new one, by default on all cores."""
    known = SparkSession.getActiveSession()
    if known is not None:
        yield known
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        SparkSession.builder.master(master)
        .appName("evertide-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "6g")
        .config("spark.sql.codegen.cache.maxEntries", "4000")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
