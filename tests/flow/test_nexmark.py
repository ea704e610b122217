"""Nexmark: every query that is plain SQL, as views of one circuit, equal to the oracles after each transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evertide.flow import Circuit
from tests.flow.maintained import check_maintenance
from tests.kit.nexmark import WORKLOAD, Nexmark, transactions
from tests.kit.oracle import Reference, drive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.timeout(900)  # hundreds of small Spark jobs, on a machine that may be loaded


@pytest.fixture(scope="module")
def circuit(spark: SparkSession) -> Circuit:
    """For both tests, because creating it takes as long as some of the transactions."""
    return Circuit(spark, WORKLOAD.script())


def test_maintenance_is_unchanged(circuit: Circuit) -> None:
    check_maintenance(circuit, "nexmark")


def test_all_queries_are_maintained_through_the_transactions(circuit: Circuit, spark: SparkSession) -> None:
    """Slow events, so that a few thousand of them fill several windows.

    DuckDB is compared after each transaction; Spark, which takes longer, after every eighth and the last.
    """
    assert list(circuit.views) == list(WORKLOAD.queries)
    contents = drive(
        circuit,
        Reference(spark, circuit.tables),
        WORKLOAD.queries,
        transactions(Nexmark(seed=1, events_per_s=100), seed=1, count=24),
        spark_every=8,
        duckdb_every=1,
        duckdb_queries=WORKLOAD.duckdb,
    )
    assert [name for name, content in contents.items() if content.rows.num_rows == 0] == []
