"""Spark jobs of backfills run in a pool of their own: a transaction's job does not wait behind all their tasks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.functions import udf

import evertide as et
from evertide.plan.catalyst.driver import BACKFILL_POOL, use_pool
from evertide.plan.fragment.fragment import ROWS_SMALL_MAX
from evertide.problem import ComponentState
from evertide.runtime import SystemRuntime
from tests.pipeline.test_threads import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2 * ROWS_SMALL_MAX
PROPERTY = "spark.scheduler.pool"


def gated(gate: Path) -> Any:
    """Return a function that takes a ticket for the first row of each of two partitions, and waits until there
    is one."""

    def take(a: int) -> int:
        runtime = SystemRuntime()
        if a % ROWS_SMALL_MAX == 0:
            (gate / f"began-{runtime.new_id()}").touch()
            while not (gate / "open").exists():
                try:
                    next(gate.glob("ticket-*")).unlink()
                    break
                except (StopIteration, FileNotFoundError):
                    runtime.sleep_s(0.01)
        return a

    return udf(take, "long", useArrow=False)


def commit_during_backfill(spark: SparkSession, folder: Path) -> None:
    """Commit a transaction after two of the six tasks of a backfill on two cores; only four of the tasks finish."""
    gate = folder / "gate"
    gate.mkdir()
    held, plain = gated(gate), udf(lambda a: a + 1, "long", useArrow=False)

    @et.materialized_view
    def seen(session: SparkSession) -> DataFrame:
        return session.table("t").select(plain("a").alias("a"))

    @et.materialized_view
    def filled(session: SparkSession) -> DataFrame:
        first, *others = [session.table("t").select((held("a") + shift).alias("a")) for shift in range(3)]
        for other in others:
            first = first.unionAll(other)
        return first

    script, storage, tracker = "CREATE TABLE t (a BIGINT)", folder / "s", spark.sparkContext.statusTracker()
    with et.Pipeline.open(script, storage, spark=spark, functions=[seen]) as p:
        p.push("t", [{"a": a} for a in range(ROWS)])
        p.commit()
    with et.Pipeline.open(script, storage, spark=spark, functions=[seen, filled]) as p, ThreadPoolExecutor() as pool:
        try:
            wait_until(lambda: len([*gate.glob("began-*")]) == 2)
            p.push("t", [{"a": -1}])
            commit = pool.submit(p.commit)
            wait_until(lambda: len(tracker.getActiveStageIds()) == 2)
            for number in range(4):
                (gate / f"ticket-{number}").touch()
            wait_until(commit.done)
            assert p.definition.list_away(ComponentState.HYDRATING) == ["filled"]
            assert p.view("seen").to_arrow().num_rows == ROWS + 1
        finally:
            (gate / "open").touch()
        assert p.wait_until_hydrated(60)
        assert p.view("filled").to_arrow().num_rows == 3 * (ROWS + 1)


def test_a_transaction_gets_the_next_core_that_a_backfill_task_frees(spark: SparkSession, tmp_path: Path) -> None:
    """With first-in-first-out scheduling, the last two tasks of the backfill would hold both cores."""
    commit_during_backfill(spark, tmp_path)


def test_the_pool_applies_to_one_thread_and_ends_with_the_block(spark: SparkSession) -> None:
    context = spark.sparkContext
    assert context.getLocalProperty(PROPERTY) is None

    def beside() -> None:
        with use_pool(context, BACKFILL_POOL):
            assert context.getLocalProperty(PROPERTY) == BACKFILL_POOL
            assert pool.submit(context.getLocalProperty, PROPERTY).result() is None
            raise ZeroDivisionError

    with ThreadPoolExecutor() as pool, pytest.raises(ZeroDivisionError):
        beside()
    assert context.getLocalProperty(PROPERTY) is None
