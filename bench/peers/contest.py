"""The contest: runs the measurements of all engines, one after the other, and compares their results.

1. Each measurement is a separate process (`process`) with two threads; no other measurement runs meanwhile.
2. First, each engine runs each query over a few events, and the results must agree with Evertide's.
3. An engine that cannot express a query, or fails, is skipped for the query, and the report says why.
4. The short form runs in this process, on its Spark, without Flink and Pathway: it tests the benchmark, not the speed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bench.peers import nexmark
from bench.peers.agreement import check_agreement
from bench.peers.engine_spark import STREAMED
from bench.peers.flink_sql import FLINK
from bench.peers.jobs import TWO_THREADS, Job, Measured, Skipped
from bench.peers.pathway_queries import PATHWAY
from bench.peers.process import WorkerFailed
from bench.peers.starter import Starter
from bench.peers.worker import work
from bench.shards import Progress
from bench.views import bench_spark
from tests.kit.compare import Differs
from tests.kit.tpch import WORKLOAD as TPCH

ENGINES = ("evertide", "flink", "pathway", "streaming", "spark", "duckdb")
MEASURES = ("agree", "sustained", "refresh", "tpch", "recovery")
_RECOMPUTING = ("spark", "duckdb")
_REFRESHING = ("evertide", "streaming", *_RECOMPUTING)
"""Without engines that show results only with the next checkpoint, since that delay is a setting."""
_SLOW_ROUNDS = 3
"""Rounds of the engines that recompute."""
_RECOVERED = "q4"
"""A join and two aggregates; for this query, Flink's sources report their progress."""
_RECOVERING = ("evertide", "flink", "pathway")


@dataclass(frozen=True, slots=True)
class ContestSize:
    """The defaults take ten minutes."""

    measures: tuple[str, ...] = MEASURES
    engines: tuple[str, ...] = ENGINES
    queries: tuple[str, ...] = ("q4", "q12", "q20")
    agreeing: int = 20_000
    events: int = 1_000_000
    chunk: int = 500_000
    rounds: int = 1
    refreshed: tuple[str, ...] = ("q4", "q12")
    histories: tuple[int, ...] = (1_000_000,)
    sizes: tuple[int, ...] = (1, 1_000, 100_000)
    warm_up: int = 15
    refreshes: int = 11
    recovered: int = 1_000_000
    tpch: tuple[str, ...] = ("q01", "q03", "q13")
    scale: float = 0.05
    in_process: bool = False

    @classmethod
    def short(cls) -> ContestSize:
        return cls(
            measures=("agree", "sustained", "refresh", "tpch"),
            engines=("evertide", "streaming", "spark", "duckdb"),
            queries=("q12", "q20"),
            agreeing=2_000,
            events=4_000,
            chunk=2_000,
            refreshed=("q12",),
            histories=(2_000,),
            sizes=(1, 100),
            warm_up=0,
            refreshes=1,
            tpch=("q03",),
            scale=0.001,
            in_process=True,
        )

    @classmethod
    def full(cls) -> ContestSize:
        return cls(
            queries=nexmark.QUERIES,
            events=10_000_000,
            chunk=1_000_000,
            rounds=3,
            refreshed=nexmark.QUERIES,
            histories=(1_000_000, 10_000_000, 100_000_000),
            recovered=10_000_000,
            tpch=tuple(TPCH.queries),
            scale=1.0,
        )


class Contest:
    def __init__(
        self,
        size: ContestSize,
        moved: Progress,
        kept: Callable[[Contest], None] = lambda _: None,
        run: str | None = None,
    ) -> None:
        """`kept` is called after each measurement, so that the results of an aborted run are kept. `run` is the run
        that this contest continues."""
        self.size = size
        self._kept = kept
        self.measured: list[Measured] = []
        self.skipped: list[Skipped] = []
        self.agreed: dict[str, list[str]] = {}
        """By query, the engines that agree with Evertide."""
        self._moved = moved
        self._run = datetime.now(UTC).isoformat(timespec="seconds") if run is None else run
        self._scratch = Path()
        self._start = Starter()

    def run(self) -> None:
        with tempfile.TemporaryDirectory(dir=os.environ.get("EVERTIDE_BENCH_DIR"), prefix="evertide-peers-") as scratch:
            self._scratch = Path(scratch).resolve()
            with bench_spark(TWO_THREADS) if self.size.in_process else nullcontext():
                for number, measure in enumerate(self.size.measures):
                    self._moved(number, len(self.size.measures))
                    getattr(self, f"_{measure}")()

    # Measures

    def _agree(self) -> None:
        """Run all queries of an engine in one process, since no time is measured."""
        data = self._scratch / "few"
        nexmark.write_files(data, self.size.agreeing, self.size.agreeing)
        able = {query: tuple(self._able(query)) for query in self.size.queries}
        for engine in self.size.engines:
            result = self._scratch / "answers" / engine
            result.mkdir(parents=True)
            queries = tuple(query for query, engines in able.items() if engine in engines)
            self._run_job(engine, self._job("sustained", queries, data=str(data), result=str(result)))
        for query, engines in able.items():
            paths = {engine: self._scratch / "answers" / engine / f"{query}.parquet" for engine in engines}
            self._compare(query, {engine: path for engine, path in paths.items() if path.exists()})

    def _sustained(self) -> None:
        data = self._scratch / "events"
        nexmark.write_files(data, self.size.events, self.size.chunk)
        for query in self.size.queries:
            rows = nexmark.written_rows(data, query)
            for engine in self._able(query):
                if engine in _RECOMPUTING:
                    continue  # they have no state, so a sustained load has no meaning
                found = Measured(measure="sustained", engine=engine, query=query, events=rows)
                for _ in range(self.size.rounds):
                    lines = self._run_job(engine, self._job("sustained", (query,), data=str(data)))
                    for each in lines or ():
                        if each["what"] == "done":
                            found.seconds.append(each["seconds"])
                            found.peak_bytes = max(found.peak_bytes, each.get("peak_bytes", 0))
                            found.written_bytes = each.get("written_bytes", 0)
                            found.cpu_s = each.get("cpu_s", 0.0)
                self._keep(found)
        shutil.rmtree(data)

    def _refresh(self) -> None:
        """Engines without state run all queries over one history, since generating it takes long."""
        able = {query: tuple(self._able(query)) for query in self.size.refreshed}
        for engine in (name for name in self.size.engines if name in _REFRESHING):
            queries = tuple(query for query, engines in able.items() if engine in engines)
            is_slow = engine in _RECOMPUTING
            for together in [queries] if is_slow else [(query,) for query in queries]:
                job = self._job(
                    "refresh",
                    together,
                    histories=self.size.histories,
                    sizes=self.size.sizes,
                    warm_up=min(1, self.size.warm_up) if is_slow else self.size.warm_up,
                    rounds=min(_SLOW_ROUNDS, self.size.refreshes) if is_slow else self.size.refreshes,
                    is_recomputed=is_slow,
                )
                self._record_refreshes(engine, self._run_job(engine, job) or [])

    def _tpch(self) -> None:
        answers: dict[str, dict[str, Path]] = {query: {} for query in self.size.tpch}
        orders = max(1, int(1_500 * self.size.scale))
        for engine in ("evertide", "spark", "duckdb"):
            if engine not in self.size.engines:
                continue
            result = self._scratch / "tpch" / engine
            result.mkdir(parents=True)
            job = self._job(
                "tpch",
                self.size.tpch,
                scale=self.size.scale,
                sizes=(orders,),
                warm_up=self.size.warm_up,
                rounds=self.size.refreshes,
                result=str(result),
            )
            self._record_refreshes(engine, self._run_job(engine, job) or [], measure="tpch")
            for query in self.size.tpch:
                answers[query][engine] = result / f"{query}.parquet"
        for query, found in answers.items():
            self._compare(f"TPC-H {query}", found)

    def _recovery(self) -> None:
        data = self._scratch / "history"
        nexmark.write_files(data, self.size.recovered, self.size.chunk)
        for engine in _RECOVERING:
            if engine in self.size.engines:
                rows = self.size.recovered if engine == "evertide" else nexmark.written_rows(data, _RECOVERED)
                job = self._job("recovery", (_RECOVERED,), data=str(data), histories=(rows,), phase="first")
                try:
                    self._measure_recovery(engine, job)
                except WorkerFailed as error:
                    self._leave_out(engine, _RECOVERED, error)
                shutil.rmtree(job.place, ignore_errors=True)
        shutil.rmtree(data)

    # Steps

    def _measure_recovery(self, engine: str, job: Job) -> None:
        starts = Measured(measure="start", engine=engine, query=_RECOVERED, events=0)
        again = Measured(measure="recovery", engine=engine, query=_RECOVERED, events=self.size.recovered)
        with self._start.worker(engine, job) as first:
            first.wait_for("ready")
            starts.seconds.append(time.perf_counter() - first.begun_s)
            first.wait_for("loaded")
        with self._start.worker(engine, msgspec.structs.replace(job, phase="second")) as second:
            second.wait_for("ready")
            again.seconds.append(time.perf_counter() - second.begun_s)
        self._keep(starts)
        self._keep(again)

    def _record_refreshes(self, engine: str, lines: list[dict[str, Any]], measure: str = "refresh") -> None:
        by_case: dict[tuple[str, int, int], Measured] = {}
        for each in lines:
            case = (each["query"] or "all", each["history"], each["size"])
            if case not in by_case:
                query, history, size = case
                by_case[case] = Measured(measure=measure, engine=engine, query=query, events=history, size=size)
            by_case[case].seconds.append(each["seconds"])
        for found in by_case.values():
            self._keep(found)

    def _able(self, query: str) -> Iterator[str]:
        """The engines that can express the query, Evertide first, which is the reference."""
        for engine in self.size.engines:
            if engine == "streaming" and query not in STREAMED:
                self._skip(engine, query, "cannot be said in Structured Streaming without watermarks")
            elif engine == "flink" and query not in FLINK:
                self._skip(engine, query, "Flink has no OVER over what changes")
            elif engine == "pathway" and query not in PATHWAY:
                self._skip(engine, query, "is not written down for Pathway")
            else:
                yield engine

    def _job(self, measure: str, queries: tuple[str, ...], **values: Any) -> Job:
        place = tempfile.mkdtemp(dir=self._scratch)
        return Job(measure=measure, place=place, queries=queries, chunk=self.size.chunk, **values)

    def _run_job(self, engine: str, job: Job) -> list[dict[str, Any]] | None:
        """Run a job, and return the lines of its worker; None if it failed without any. Failures are recorded."""
        if self.size.in_process:
            lines: list[dict[str, Any]] = []
            work(engine, job, lambda what, **values: lines.append({"what": what, **values}))
            for each in lines:
                assert each["what"] != "failed", each
            return lines
        try:
            with self._start.worker(engine, job) as worker:
                lines = worker.read_all()
        except WorkerFailed as error:
            self._leave_out(engine, " ".join(job.queries), error)
            return [*error.lines] or None
        finally:
            shutil.rmtree(job.place, ignore_errors=True)
        for each in lines:
            if each["what"] == "failed":
                self._skip(engine, each["query"], f"failed: {each['why'][-600:]}")
        return lines

    def _compare(self, query: str, answers: dict[str, Path]) -> None:
        if "evertide" not in answers:
            return
        self.agreed[query] = []
        for engine, path in answers.items():
            if engine != "evertide":
                try:
                    check_agreement(path, answers["evertide"], f"{query} of {engine}")
                except Differs as error:
                    if self.size.in_process:
                        raise
                    self._skip(engine, query, f"has another result: {str(error)[:300]}")
                else:
                    self.agreed[query].append(engine)

    def _leave_out(self, engine: str, query: str, error: WorkerFailed) -> None:
        self._skip(engine, query, f"failed: {str(error)[-600:]}")

    def _skip(self, engine: str, query: str, why: str) -> None:
        found = Skipped(engine=engine, query=query, why=why)
        if found not in self.skipped:
            self.skipped.append(found)

    def _keep(self, found: Measured) -> None:
        if found.seconds:
            self.measured.append(msgspec.structs.replace(found, run=self._run))
            self._kept(self)
