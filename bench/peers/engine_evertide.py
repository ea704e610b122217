"""Evertide as a durable pipeline, opened as by its users."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.peers import nexmark
from bench.peers.jobs import TWO_THREADS, Job
from bench.views import bench_spark
from evertide.pipeline.pipeline import Pipeline
from evertide.rows.changes import DIFF, consolidate_delta, expand
from evertide.settings import Settings
from tests.kit.ledger import Transaction
from tests.kit.nexmark import WORKLOAD
from tests.kit.oracle import Content
from tests.kit.tpch import WORKLOAD as TPCH
from tests.kit.tpch import generated, refreshes

Tell = Callable[..., None]
_SEED = 3
_KEYS = {
    "region": ("r_regionkey",),
    "nation": ("n_nationkey",),
    "supplier": ("s_suppkey",),
    "part": ("p_partkey",),
    "partsupp": ("ps_partkey", "ps_suppkey"),
    "customer": ("c_custkey",),
    "orders": ("o_orderkey",),
    "lineitem": ("l_orderkey", "l_linenumber"),
}


def sustained(job: Job, tell: Tell) -> None:
    """Read all files at full speed, with checkpoints, until all is committed and in a checkpoint."""
    [query] = job.queries
    script = nexmark.script_over_files(query, Path(job.data))
    settings = Settings(checkpoint_interval_s=job.checkpoint_s)
    with (
        bench_spark(TWO_THREADS) as spark,
        Pipeline.open(script, Path(job.place) / "storage", spark=spark, settings=settings) as opened,
    ):
        tell("ready")
        begun = time.perf_counter()
        opened.run(until_idle=True)
        opened.checkpoint()
        tell("done", seconds=time.perf_counter() - begun)
        if job.result:
            pq.write_table(opened.view(query).to_arrow(), Path(job.result) / f"{query}.parquet")


def refresh(job: Job, tell: Tell) -> None:
    [query] = job.queries
    with (
        bench_spark(TWO_THREADS) as spark,
        Pipeline.open(WORKLOAD.script([query]), Path(job.place) / query, spark=spark) as opened,
    ):
        for step in nexmark.steps(job):
            rows = nexmark.make_tables(nexmark.inputs_of(query), step.first, step.count)
            if step.first == 0 and "side_input" in rows:
                _push(opened, {"side_input": rows.pop("side_input")})
            taken = _push(opened, rows)
            if step.is_measured:
                tell("refresh", query=query, history=step.history, size=step.size, seconds=taken)


def _push(opened: Pipeline, tables: dict[str, pa.Table]) -> float:
    """The seconds from the first pushed row to the durable commit."""
    begun = time.perf_counter()
    for name, rows in tables.items():
        if rows.num_rows:
            opened.push(name, rows)
    opened.commit()
    return time.perf_counter() - begun


def recovery(job: Job, tell: Tell) -> None:
    """First: load the history, make a checkpoint, and push until killed. Second: open the pipeline again."""
    [query], [history] = job.queries, job.histories
    with bench_spark(TWO_THREADS) as spark:
        place = Path(job.place) / "storage"
        with Pipeline.open(WORKLOAD.script([query]), place, spark=spark) as opened:
            tell("ready")
            inputs = nexmark.inputs_of(query)
            if job.phase == "second":
                _push(opened, nexmark.make_tables(inputs, 2 * history, 1_000))
                tell("first")
                return
            for first in range(0, history, job.chunk):
                _push(opened, nexmark.make_tables(inputs, first, min(job.chunk, history - first)))
            opened.checkpoint()
            for number in itertools.count():
                _push(opened, nexmark.make_tables(inputs, history + 1_000 * number, 1_000))
                if number == 5:
                    tell("loaded")


def tpch(job: Job, tell: Tell) -> None:
    """Load the tables, then refresh them: orders are inserted and deleted, all tables change. One pipeline."""
    settings = Settings(checkpoint_interval_s=60)
    script = TPCH.script(job.queries)
    with (
        bench_spark(TWO_THREADS) as spark,
        Pipeline.open(script, Path(job.place) / "storage", spark=spark, settings=settings) as opened,
    ):
        for number, delta in enumerate(_changes(job)):
            taken = _find_changed(opened, delta)
            if number > job.warm_up:
                tell("refresh", query="", history=0, size=job.sizes[0], seconds=taken)
        if job.result:
            for query in job.queries:
                pq.write_table(opened.view(query).to_arrow(), Path(job.result) / f"{query}.parquet")


def final_tables(job: Job) -> dict[str, pa.Table]:
    """The content of the tables of TPC-H after the refreshes."""
    held = {name: Content(rows.schema, name) for name, rows in generated(job.scale).items()}
    for delta in _changes(job):
        for name, rows in delta.items():
            held[name].apply(rows)
    return {name: content.rows for name, content in held.items()}


def _changes(job: Job) -> Iterator[Transaction]:
    transactions = 1 + job.warm_up + job.rounds
    return refreshes(generated(job.scale), _SEED, transactions=transactions, orders_each=job.sizes[0])


def _find_changed(opened: Pipeline, delta: Transaction) -> float:
    """Push a delta as upserts and deletes by key."""
    prepared = [(name, *_by_key(name, rows)) for name, rows in delta.items() if rows.num_rows]
    begun = time.perf_counter()
    for name, rows, deletes in prepared:
        opened.push(name, rows, deletes=deletes)
    opened.commit()
    return time.perf_counter() - begun


def _by_key(name: str, delta: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows to upsert, and the keys to delete."""
    netted = consolidate_delta(delta, name)
    positive: Any = pc.greater(netted.column(DIFF), 0)
    added = expand(netted.filter(positive), name)
    gone = netted.filter(pc.invert(positive)).select(_KEYS[name])
    return added, gone.join(added.select(_KEYS[name]), list(_KEYS[name]), join_type="left anti")
