"""Single queries of users, executed by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evertide.plan.query.query import run_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_limit_far_above_the_number_of_rows_needs_memory_for_the_rows_only(spark: SparkSession) -> None:
    """Spark's own top-k would allocate room for twice the limit. Spark does not know the number of rows of explode."""
    text = "SELECT x FROM (SELECT explode(array(2, 3, 1)) AS x) ORDER BY x DESC LIMIT 400000000"
    assert run_query(spark, text, lambda *_: {}).column("x").to_pylist() == [3, 2, 1]
    assert run_query(spark, f"SELECT sum(x) AS n FROM ({text})", lambda *_: {}).to_pylist() == [{"n": 6}]
