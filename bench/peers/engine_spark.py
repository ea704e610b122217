"""Spark without Evertide: recomputes the query per refresh (as Declarative Pipelines do), or Structured Streaming.

Recomputation reads Parquet files with a known schema and discards the rows, so that only computation is measured.
Streaming has its state in RocksDB and a checkpoint per micro-batch, as Spark's guide recommends. It can express queries
that map, filter, join streams, or aggregate once: `STREAMED`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from bench.peers import nexmark
from bench.peers.engine_evertide import final_tables
from bench.peers.jobs import TWO_THREADS, Job
from bench.views import bench_spark
from tests.kit.nexmark import WORKLOAD
from tests.kit.tpch import WORKLOAD as TPCH

Tell = Callable[..., None]
STREAMED = ("q0", "q1", "q2", "q3", "q12", "q13", "q14", "q17", "q20", "q21", "q22")
_AGGREGATES = ("q12", "q17")
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PARTITIONS = "2"


class Recompute:
    """Recomputes the query for each refresh."""

    @staticmethod
    def sustained(job: Job, tell: Tell) -> None:
        """Run one batch over all files."""
        [query] = job.queries
        with bench_spark(TWO_THREADS) as spark:
            session = _session(spark, Path(job.data), nexmark.inputs_of(query))
            tell("ready")
            begun = time.perf_counter()
            session.sql(WORKLOAD.queries[query]).write.parquet(str(Path(job.place) / "sink"))
            tell("done", seconds=time.perf_counter() - begun)
            if job.result:
                _keep(session.sql(WORKLOAD.queries[query]), job, query)

    @staticmethod
    def refresh(job: Job, tell: Tell) -> None:
        """Run all queries over the same files."""
        with bench_spark(TWO_THREADS) as spark:
            inputs = nexmark.all_inputs(job.queries)
            files = _Files(Path(job.place) / "events", inputs)
            for step in nexmark.steps(job):
                files.add(nexmark.make_tables(inputs, step.first, step.count))
                if not step.query:
                    continue
                begun = time.perf_counter()
                session = _session(spark, files.path, nexmark.inputs_of(step.query))
                session.sql(WORKLOAD.queries[step.query]).write.format("noop").mode("overwrite").save()
                if step.is_measured:
                    taken = time.perf_counter() - begun
                    tell("refresh", query=step.query, history=step.history, size=step.size, seconds=taken)

    @staticmethod
    def tpch(job: Job, tell: Tell) -> None:
        """Run all queries over the tables after the refreshes."""
        path = Path(job.place) / "tables"
        for name, rows in final_tables(job).items():
            (path / name).mkdir(parents=True)
            pq.write_table(rows, path / name / "0.parquet")
        with bench_spark(TWO_THREADS) as spark:
            for _ in range(max(1, job.rounds // 4)):
                begun = time.perf_counter()
                session = _session(spark, path, [*TPCH_TABLES])
                for query in job.queries:
                    session.sql(TPCH.queries[query]).write.format("noop").mode("overwrite").save()
                tell("refresh", query="", history=0, size=job.sizes[0], seconds=time.perf_counter() - begun)
            for query in job.queries if job.result else ():
                _keep(session.sql(TPCH.queries[query]), job, query)


class Stream:
    """Runs micro-batches over new files."""

    @staticmethod
    def sustained(job: Job, tell: Tell) -> None:
        [query] = job.queries
        with bench_spark(TWO_THREADS) as spark:
            session = _streams(spark, Path(job.data), query)
            tell("ready")
            begun = time.perf_counter()
            started = _write(session, query, Path(job.place), "noop").trigger(availableNow=True).start()
            started.awaitTermination()
            tell("done", seconds=time.perf_counter() - begun)
            if job.result:
                _check(session, query, job)

    @staticmethod
    def refresh(job: Job, tell: Tell) -> None:
        [query] = job.queries
        with bench_spark(TWO_THREADS) as spark:
            _stream_refresh(spark, query, job, tell)


TPCH_TABLES = ("region", "nation", "supplier", "part", "partsupp", "customer", "orders", "lineitem")


def _stream_refresh(spark: SparkSession, query: str, job: Job, tell: Tell) -> None:
    files = _Files(Path(job.place) / query, nexmark.inputs_of(query))
    started: Any = None
    for step in nexmark.steps(job):
        rows = nexmark.make_tables(nexmark.inputs_of(query), step.first, step.count)
        if started is None:
            files.add(rows)
            session = _streams(spark, files.path, query)
            started = _write(session, query, files.path, "noop").start()
            started.processAllAvailable()
            continue
        begun = time.perf_counter()
        files.add({name: table for name, table in rows.items() if table.num_rows})
        started.processAllAvailable()
        if step.is_measured:
            taken = time.perf_counter() - begun
            tell("refresh", query=query, history=step.history, size=step.size, seconds=taken)
    started.stop()


class _Files:
    """A directory per table, in which files appear atomically."""

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        self.path = path
        self._number = 0
        for name in names:
            (path / name).mkdir(parents=True)

    def add(self, tables: dict[str, pa.Table]) -> None:
        for name, rows in tables.items():
            hidden = self.path / f"{name}.tmp"
            pq.write_table(rows, hidden)
            hidden.rename(self.path / name / f"{self._number:06d}.parquet")
        self._number += 1


def _session(spark: SparkSession, path: Path, tables: Any) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    for name in tables:
        session.read.schema(_struct(session, path / name)).parquet(str(path / name)).createOrReplaceTempView(name)
    return session


def _struct(session: SparkSession, path: Path) -> Any:
    return session.read.parquet(str(min(path.glob("*.parquet")))).schema


def _streams(spark: SparkSession, path: Path, query: str) -> SparkSession:
    """Register the tables as streams. The side input never changes, and is a table."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKSDB)
    session.conf.set("spark.sql.shuffle.partitions", _PARTITIONS)
    for name in nexmark.inputs_of(query):
        struct, place = _struct(session, path / name), str(path / name)
        if name == "side_input":
            frame = session.read.schema(struct).parquet(place)
        else:
            frame = session.readStream.schema(struct).option("maxFilesPerTrigger", "1").parquet(place)
        frame.createOrReplaceTempView(name)
    return session


def _write(session: SparkSession, query: str, place: Path, form: str) -> Any:
    mode = "update" if query in _AGGREGATES else "append"
    stream = session.sql(WORKLOAD.queries[query]).writeStream.format(form).outputMode(mode)
    return stream.option("checkpointLocation", str(place / "checkpoint"))


def _check(session: SparkSession, query: str, job: Job) -> None:
    """Run the stream again, with its complete result in memory, to compare it."""
    stream = session.sql(WORKLOAD.queries[query]).writeStream.format("memory").queryName("result")
    mode = "complete" if query in _AGGREGATES else "append"
    stream.outputMode(mode).trigger(availableNow=True).start().awaitTermination()
    _keep(session.table("result"), job, query)


def _keep(frame: DataFrame, job: Job, query: str) -> None:
    pq.write_table(frame.toArrow(), Path(job.result) / f"{query}.parquet")
