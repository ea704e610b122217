"""Jobs of backfills have a pool of their own in Spark: a transaction's job does not wait behind all their tasks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.functions import udf

import evertide as et
from evertide.plan.catalyst.pool import BACKFILL_POOL, use_pool
from evertide.plan.fragment.fragment import ROWS_SMALL_MAX
from evertide.runtime import SystemRuntime
from tests.pipeline.test_threads import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2 * ROWS_SMALL_MAX
PROPERTY = "spark.scheduler.pool"


def gated(gate: Path) -> Any:
    """A function of which the first row of each of two partitions takes a ticket, and waits until there is one."""

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


def test_a_transaction_takes_the_next_core_that_a_task_of_a_backfill_leaves(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two cores, six tasks of a backfill of which four come to their end. First in first out, the last two had both
    cores, and the transaction waited for them."""
    gate = tmp_path / "gate"
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

    script, storage, tracker = "CREATE TABLE t (a BIGINT)", tmp_path / "s", spark.sparkContext.statusTracker()
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
            assert p.definition.away("hydrating") == ["filled"]
            assert p.view("seen").to_arrow().num_rows == ROWS + 1
        finally:
            (gate / "open").touch()
        assert p.hydrated(60)
        assert p.view("filled").to_arrow().num_rows == 3 * (ROWS + 1)


def test_the_pool_is_left_with_the_block_and_is_the_threads_own(spark: SparkSession) -> None:
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
