"""TPC-H, 22 of 22: all as views of one circuit, equal to the oracles after each of the refreshes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evertide.flow import Circuit
from tests.flow.maintained import check_maintenance
from tests.kit.oracle import Reference, drive
from tests.kit.tpch import WORKLOAD, generated, refreshes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SCALE = 0.001
pytestmark = pytest.mark.timeout(900)  # hundreds of small Spark jobs, on a machine that may be loaded


@pytest.fixture(scope="module")
def circuit(spark: SparkSession) -> Circuit:
    """For both tests, because creating it takes as long as some of the refreshes."""
    return Circuit(spark, WORKLOAD.script())


def test_maintenance_is_unchanged(circuit: Circuit) -> None:
    check_maintenance(circuit, "tpch")


def test_all_22_queries_are_maintained_through_the_refreshes(circuit: Circuit, spark: SparkSession) -> None:
    """DuckDB is compared after each transaction; Spark, which takes longer, after every sixth and the last."""
    assert list(circuit.views) == list(WORKLOAD.queries)
    contents = drive(
        circuit,
        Reference(spark, circuit.tables),
        WORKLOAD.queries,
        refreshes(generated(SCALE), seed=1, transactions=24),
        spark_every=6,
        duckdb_every=1,
        duckdb_queries=WORKLOAD.duckdb,
    )
    assert [name for name, content in contents.items() if content.rows.num_rows == 0] == []
