"""Compares views from scratch by executors with the driver's way, for docs/decisions/0020.

A storage with the tables of Nexmark is opened with one more view, which a backfill then computes. Both gears, the wide
step and the portions of the driver, take turns on the same storage; the first pair of each view does not count. The
peer of both is one Spark batch of the same query over the same rows, written as Parquet.

Processor seconds are those of all threads of the driver, of the JVM, and of Python workers on executors. On a machine
with few cores they say more than the time: the executors of `local[2]` share the cores with the driver.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from bench.measure import Figure
from bench.shards import Progress
from bench.views import bench_spark
from evertide.pipeline.pipeline import Pipeline
from evertide.problem import ComponentState
from evertide.settings import Settings
from tests.kit.nexmark import WORKLOAD, Nexmark

_GEARS = {"wide": Settings(wide_rows_min=1), "driver": Settings(wide_rows_min=10**15)}


@dataclass(frozen=True, slots=True)
class WideSize:
    events: int = 10_000_000
    chunk: int = 500_000
    views: tuple[str, ...] = ("q3", "q4", "q5", "q9", "q18", "q20")
    rounds: int = 2
    master: str = "local[2]"

    @classmethod
    def short(cls) -> WideSize:
        return cls(events=6_000, chunk=3_000, views=("q4",), rounds=1)


@dataclass(frozen=True, slots=True)
class _Run:
    seconds: float
    driver: float
    jvm: float
    workers: float

    @property
    def processors(self) -> float:
        return self.driver + self.jvm + self.workers


def wide(size: WideSize, moved: Progress) -> list[Figure]:
    found: list[Figure] = []
    with (
        bench_spark(size.master) as spark,
        tempfile.TemporaryDirectory(dir=os.environ.get("EVERTIDE_BENCH_DIR")) as made,
    ):
        storage, files = Path(made) / "storage", Path(made) / "files"
        _load(spark, storage, files, size)
        ratios = []
        for at, view in enumerate(size.views):
            runs: dict[str, list[_Run]] = {gear: [] for gear in (*_GEARS, "spark")}
            for number in range(-1, size.rounds):
                for gear in runs if number % 2 else reversed(runs):
                    work = (
                        _spark(spark, files, Path(made) / "out", view)
                        if gear == "spark"
                        else _backfill(spark, storage, view, gear)
                    )
                    if number >= 0:
                        runs[gear].append(work)
            found.append(_line(view, runs, size))
            ratios.append(_median(runs["driver"]).seconds / _median(runs["wide"]).seconds)
            moved(at + 1, len(size.views))
    mean = statistics.geometric_mean(ratios)
    return [*found, Figure("wide step against the driver, geometric mean", f"{mean:.2f}x", f"{len(ratios)} views")]


def _load(spark: Any, storage: Path, files: Path, size: WideSize) -> None:
    """The same events into the tables of a storage, and into Parquet files."""
    generator = Nexmark(seed=3)
    with Pipeline.open(WORKLOAD.script([]), storage, spark=spark) as opened:
        for first in range(0, size.events, size.chunk):
            events = generator.events(first, size.chunk)
            for name, rows in (("person", events.person), ("auction", events.auction), ("bid", events.bid)):
                opened.push(name, rows)
                (files / name).mkdir(parents=True, exist_ok=True)
                pq.write_table(rows, files / name / f"{first:012d}.parquet")
            opened.commit()
        opened.checkpoint()


def _backfill(spark: Any, storage: Path, view: str, gear: str) -> _Run:
    """Add the view and remove it again; the time until it is running, without opening and closing."""
    opened: list[Pipeline] = []

    def compute() -> None:
        opened.append(Pipeline.open(WORKLOAD.script([view]), storage, spark=spark, settings=_GEARS[gear]))
        opened[0].wait_until_hydrated()

    measured = _measure(compute)
    [state] = [one.state for one in opened[0].status().collections if one.name == view]
    assert state is ComponentState.RUNNING, f"{view} is {state}"
    opened[0].close()
    Pipeline.open(WORKLOAD.script([]), storage, spark=spark).close()
    return measured


def _spark(spark: Any, files: Path, out: Path, view: str) -> _Run:
    for name in ("person", "auction", "bid"):
        spark.read.parquet(str(files / name)).createOrReplaceTempView(name)
    frame = spark.sql(WORKLOAD.queries[view])
    return _measure(lambda: frame.write.mode("overwrite").parquet(str(out)))


def _measure(call: Callable[[], object]) -> _Run:
    before, begun = _read_processors(), time.perf_counter()
    call()
    seconds, after = time.perf_counter() - begun, _read_processors()
    return _Run(seconds, *(end - start for start, end in zip(before, after, strict=True)))


def _read_processors() -> tuple[float, float, float]:
    """Processor seconds of the driver's Python, of the JVM, and of all other processes that they started."""
    process = psutil.Process()
    jvm, workers = 0.0, 0.0
    for child in process.children(recursive=True):
        try:
            own, is_java = child.cpu_times(), child.name() == "java"
        except psutil.NoSuchProcess:
            continue
        if is_java:
            jvm += own.user + own.system
        else:
            workers += own.user + own.system + own.children_user + own.children_system
    own = process.cpu_times()
    return own.user + own.system, jvm, workers


def _median(runs: list[_Run]) -> _Run:
    return sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]


def _line(view: str, runs: dict[str, list[_Run]], size: WideSize) -> Figure:
    median = {gear: _median(found) for gear, found in runs.items()}
    million = size.events / 1e6
    described = [
        f"{gear} {run.seconds:.1f} s, {run.processors / million:.2f} processor s per million events"
        f" (driver {run.driver:.1f}, JVM {run.jvm:.1f}, workers {run.workers:.1f})"
        for gear, run in median.items()
    ]
    ratio = median["driver"].seconds / median["wide"].seconds
    against = median["spark"].seconds / median["wide"].seconds
    return Figure(f"{view} from scratch", f"{ratio:.2f}x", f"{against:.2f}x a Spark batch; {'; '.join(described)}")
