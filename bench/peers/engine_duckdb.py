"""DuckDB recomputes the query for each refresh, over tables in a database file, with two threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from bench.peers import nexmark
from bench.peers.engine_evertide import final_tables
from bench.peers.jobs import Job
from tests.kit.nexmark import WORKLOAD
from tests.kit.tpch import WORKLOAD as TPCH

Tell = Callable[..., None]


def sustained(job: Job, tell: Tell) -> None:
    """Run one batch over all files, into a table."""
    [query] = job.queries
    with _database(Path(job.place) / "sustained.duckdb") as database:
        for name in nexmark.inputs_of(query):
            database.execute(f"CREATE VIEW {name} AS SELECT * FROM '{Path(job.data) / name}/*.parquet'")
        tell("ready")
        begun = time.perf_counter()
        database.execute(f"CREATE TABLE result AS {WORKLOAD.duckdb[query]}")
        tell("done", seconds=time.perf_counter() - begun)
        if job.result:
            _keep(database, "FROM result", Path(job.result) / f"{query}.parquet")


def refresh(job: Job, tell: Tell) -> None:
    """Insert new events and recompute the result; both are measured. All queries share the tables."""
    inputs = nexmark.all_inputs(job.queries)
    with _database(Path(job.place) / "refresh.duckdb") as database:
        for step in nexmark.steps(job):
            rows = nexmark.make_tables(inputs, step.first, step.count)
            read = nexmark.inputs_of(step.query) if step.query else ()
            for name in rows.keys() - read:
                _insert(database, name, rows[name])
            if not step.query:
                continue
            begun = time.perf_counter()
            for name in rows.keys() & read:
                _insert(database, name, rows[name])
            database.execute(f"CREATE OR REPLACE TABLE result AS {WORKLOAD.duckdb[step.query]}")
            if step.is_measured:
                taken = time.perf_counter() - begun
                tell("refresh", query=step.query, history=step.history, size=step.size, seconds=taken)


def tpch(job: Job, tell: Tell) -> None:
    """Run all queries over the tables after the refreshes."""
    with _database(Path(job.place) / "tpch.duckdb") as database:
        for name, table in final_tables(job).items():
            _insert(database, name, table)
        for _ in range(max(1, job.rounds // 4)):
            begun = time.perf_counter()
            for query in job.queries:
                database.execute(f"CREATE OR REPLACE TABLE {query} AS {TPCH.duckdb[query]}")
            tell("refresh", query="", history=0, size=job.sizes[0], seconds=time.perf_counter() - begun)
        for query in job.queries if job.result else ():
            _keep(database, f"FROM {query}", Path(job.result) / f"{query}.parquet")


@contextmanager
def _database(path: Path) -> Iterator[Any]:
    with closing(duckdb.connect(str(path), config={"threads": 2})) as database:
        database.execute("SET TimeZone = 'UTC'")
        database.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")  # as in Spark
        yield database


def _insert(database: Any, name: str, rows: pa.Table) -> None:
    database.register("arriving", rows)
    database.execute(f"CREATE TABLE IF NOT EXISTS {name} AS FROM arriving LIMIT 0")
    database.execute(f"INSERT INTO {name} FROM arriving")
    database.unregister("arriving")


def _keep(database: Any, query: str, path: Path) -> None:
    pq.write_table(database.sql(query).to_arrow_table(), path)
