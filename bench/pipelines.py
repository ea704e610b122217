"""Measures the cost of durability, and the time of a restart and of a replay.

Nexmark into three views (a join with a maximum and an average, wide sums, top-k per group), in transactions of a
thousand events. The peers, in the same run: a circuit without a pipeline, with the same deltas; a process that only
starts Spark; the first run of the replayed transactions.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.measure import Figure, alternate, own_spark
from bench.shards import Progress
from bench.views import bench_spark, deltas_of
from evertide.flow import Circuit
from evertide.pipeline.pipeline import Pipeline
from evertide.settings import Settings
from evertide.store.blobs.local import LocalBlob
from tests.kit.checkpoint_files import checkpoint_files
from tests.kit.nexmark import WORKLOAD, Nexmark

VIEWS = ("q4", "q17", "q19")
_STEPS = 6


@dataclass(frozen=True, slots=True)
class PipelineSize:
    history: int = 500_000
    chunk: int = 100_000
    transaction: int = 1_000
    warm_up: int = 15
    rounds: int = 21
    replayed: int = 40
    starts: int = 3

    @classmethod
    def short(cls) -> PipelineSize:
        return cls(history=4_000, chunk=2_000, transaction=200, warm_up=1, rounds=3, replayed=3, starts=1)


def pipeline(size: PipelineSize, moved: Progress) -> list[Figure]:
    with bench_spark() as spark, tempfile.TemporaryDirectory(dir=os.environ.get("EVERTIDE_BENCH_DIR")) as scratch:
        place = Path(scratch)
        done = iter(range(1, _STEPS + 1))

        def note_step(figures: list[Figure]) -> list[Figure]:
            moved(next(done), _STEPS)
            return figures

        events = _Events(size)
        opened = Pipeline.open(_script(), place / "pipeline", spark=spark, settings=_settings())
        bare = Circuit(spark, _script(), blob=LocalBlob(_make_directory(place / "bare")))
        for chunk in events.history():
            _commit(opened, chunk)
            bare.step(deltas_of(chunk))
        note_step([])
        found = note_step(_overhead(opened, bare, events, size))
        found += note_step(_checkpoints(opened, events))
        found += note_step(_replay(opened, events, size, place, spark))
        found += note_step(_restart(place, size))
        note_step([])
    return found


class _Events:
    """One stream of events for all measurements; no event is returned twice."""

    def __init__(self, size: PipelineSize) -> None:
        self._generator = Nexmark(seed=11)
        self._size = size
        self._next = 0

    def take(self, count: int) -> dict[str, pa.Table]:
        events = self._generator.events(self._next, count)
        self._next += count
        return {"person": events.person, "auction": events.auction, "bid": events.bid}

    def history(self) -> Iterator[dict[str, pa.Table]]:
        for _ in range(0, self._size.history, self._size.chunk):
            yield self.take(self._size.chunk)

    def transaction(self) -> dict[str, pa.Table]:
        return self.take(self._size.transaction)


def _overhead(opened: Pipeline, bare: Circuit, events: _Events, size: PipelineSize) -> list[Figure]:
    waiting: dict[int, dict[str, pa.Table]] = {}

    def of(number: int) -> dict[str, pa.Table]:
        return waiting.setdefault(number, events.transaction())

    durable, step = alternate(
        size.rounds,
        lambda number: _commit(opened, of(number)),
        lambda number: bare.step(deltas_of(of(number))),
        warm_up=size.warm_up,
    )
    ratio = durable.median_s / step.median_s
    name = f"durable transaction of {size.transaction:,} events over the bare circuit step"
    return [Figure(name, f"{ratio:.2f}x", f"{durable} against {step}", "at most 1.3x", ratio <= 1.3)]


def _checkpoints(opened: Pipeline, events: _Events) -> list[Figure]:
    first_s, first, known = _checkpoint(opened, set())
    for _ in range(5):
        _commit(opened, events.transaction())
    again_s, again, named = _checkpoint(opened, known)
    share = again / max(1, sum(named.values()))
    detail = (
        f"{again / 1e6:.2f} of {sum(named.values()) / 1e6:.2f} MB are new, in {again_s * 1e3:.0f} ms; "
        f"the first added {first / 1e6:.2f} MB in {first_s * 1e3:.0f} ms"
    )
    return [Figure("a checkpoint after five transactions: bytes that it adds", f"{share:.2f} of all", detail)]


def _checkpoint(opened: Pipeline, known: set[str] | dict[str, int]) -> tuple[float, int, dict[str, int]]:
    begun = time.perf_counter()
    entry = opened.checkpoint()
    taken = time.perf_counter() - begun
    files = {file.key: file.bytes for file in checkpoint_files(opened, entry) if file.key.startswith("state/")}
    return taken, sum(size for key, size in files.items() if key not in known), files


def _replay(opened: Pipeline, events: _Events, size: PipelineSize, place: Path, spark: Any) -> list[Figure]:
    """Run transactions, and replay them after a crash."""
    made = [_time(partial(_commit, opened, events.transaction())) for _ in range(size.replayed)]
    opened.close(checkpoint=False)
    taken: list[float] = []
    last = [time.perf_counter()]

    def progress(what: str, _done: int, _total: int) -> None:
        now = time.perf_counter()
        if what == "replay":
            taken.append(now - last[0])
        last[0] = now

    Pipeline.open(_script(), place / "pipeline", spark=spark, settings=_settings(), progress=progress).close()
    replayed = statistics.median(taken[1:] or taken)
    speed = statistics.median(made) / replayed
    detail = f"{replayed * 1e3:.0f} ms against {statistics.median(made) * 1e3:.0f} ms, {len(taken)} transactions"
    return [Figure("replay against making the same transactions", f"{speed:.2f}x", detail, "at least 1x", speed >= 1)]


def _restart(place: Path, size: PipelineSize) -> list[Figure]:
    """Two processes: one that starts Spark and ends, one that opens the pipeline and ends."""
    script = place / "pipeline.sql"
    script.write_text(_script())
    nothing = "from evertide.plan.catalyst.session import open_session; open_session().close()"
    opening = (
        "from evertide.pipeline.pipeline import Pipeline; "
        f"Pipeline.open({str(script)!r}, {str(place / 'pipeline')!r}).close()"
    )

    def run(code: str) -> float:
        command = [sys.executable, "-c", code]
        return _time(lambda: subprocess.run(command, check=True, capture_output=True, env=own_spark()))

    bare = statistics.median(run(nothing) for _ in range(size.starts))
    whole = statistics.median(run(opening) for _ in range(size.starts))
    detail = f"{whole:.1f} s against {bare:.1f} s, {len(VIEWS)} views"
    return [Figure("restart to running, and an orderly end, over starting Spark alone", f"{whole / bare:.2f}x", detail)]


def _commit(opened: Pipeline, chunk: dict[str, pa.Table]) -> int:
    for name, rows in chunk.items():
        opened.push(name, rows)
    return opened.commit()


def _time(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _script() -> str:
    return WORKLOAD.script(VIEWS)


def _settings() -> Settings:
    """No automatic checkpoints."""
    return Settings(checkpoint_interval_s=1e9)


def _make_directory(directory: Path) -> Path:
    directory.mkdir()
    return directory
