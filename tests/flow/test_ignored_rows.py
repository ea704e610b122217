"""Arguments of aggregate functions that fail for rows that the function ignores: the view must not fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from evertide.errors import ViewFailed
from evertide.flow import Circuit
from evertide.plan.fragment import fragment
from tests.kit.oracle import Reference, drive
from tests.kit.transactions import random_transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = "CREATE TABLE r (k INT NOT NULL, v INT, b TINYINT NOT NULL, at TIMESTAMP);\n"
POOLS: dict[str, list[Any]] = {"k": [1, 2], "v": [0, 1, 2, None], "b": [-128, 0, 1]}
ANY = "6 div v"
MET = "FILTER (WHERE v <> 0)"
QUERIES = {
    "sums": f"SELECT k, sum({ANY}) {MET} AS a, avg({ANY}) {MET} AS b, stddev({ANY}) {MET} AS c FROM r GROUP BY k",
    "narrow": "SELECT k, sum(-b) FILTER (WHERE b > -128) AS a, sum(b) AS b FROM r GROUP BY k",
    "decimals": f"SELECT k, sum(CAST(6 AS DECIMAL(5, 2)) / v) {MET} AS a FROM r GROUP BY k",
    "extremes": f"SELECT k, max({ANY}) {MET} AS a, min({ANY}) {MET} AS b, max(v) AS c FROM r GROUP BY k",
    "counts": f"SELECT k, count({ANY}) {MET} AS a, count(*) AS b, bool_and({ANY} > 2) {MET} AS c FROM r GROUP BY k",
    "beside_distinct": f"SELECT k, sum({ANY}) {MET} AS a, count(DISTINCT b) AS b FROM r GROUP BY k",
    "of_all": f"SELECT sum({ANY}) {MET} AS a, count(DISTINCT v) AS b FROM r",
    "cubed": f"SELECT k, b, sum({ANY}) {MET} AS a FROM r GROUP BY CUBE (k, b)",
    "sessions": f"SELECT k, sum({ANY}) {MET} AS a FROM r GROUP BY k, session_window(at, '5 minutes')",
    "joined": "SELECT r.k, sum(6 div r.v) FILTER (WHERE r.v <> 0) AS a FROM r JOIN r s ON r.k = s.k GROUP BY r.k",
    "two_conditions": f"SELECT k, sum({ANY}) {MET} AS a, sum({ANY}) FILTER (WHERE v > 1) AS b FROM r GROUP BY k",
    "null_before": f"SELECT k, count(nullif(v, 0), {ANY}, b) AS a, regr_count(nullif(v, 0), {ANY}) AS b,"
    f" covar_pop(nullif(v, 0), {ANY}) AS c, regr_r2(nullif(v, 0), {ANY}) AS d FROM r GROUP BY k",
    "null_behind": f"SELECT k, regr_slope({ANY}, nullif(v, 0)) AS a, regr_intercept({ANY}, nullif(v, 0)) AS b FROM r"
    " GROUP BY k",
    "null_and_condition": f"SELECT k, corr(nullif(v, 2), {ANY}) {MET} AS a FROM r GROUP BY k",
}
FAILING = ("sum(6 div v)", "count(6 div v, nullif(v, 0))", "regr_slope(nullif(v, 0), 6 div v)")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rows_small_max", [fragment.ROWS_SMALL_MAX, 0], ids=["small", "large"])
def test_v6_an_argument_may_fail_for_a_row_that_its_function_ignores(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, rows_small_max: int
) -> None:
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", rows_small_max)
    made = "".join(f"CREATE MATERIALIZED VIEW {name} AS {query};\n" for name, query in QUERIES.items())
    circuit = Circuit(spark, TABLES + made)
    rows = random_transactions(circuit.tables, 1, pools=POOLS, count=4, rows_each=6, rows_huge=12)
    drive(circuit, Reference(spark, circuit.tables), QUERIES, rows)


@pytest.mark.parametrize("function", FAILING)
def test_v6_a_view_fails_if_spark_evaluates_the_argument(spark: SparkSession, function: str) -> None:
    circuit = Circuit(spark, f"{TABLES} CREATE MATERIALIZED VIEW v AS SELECT k, {function} AS a FROM r GROUP BY k;")
    [rows] = random_transactions(circuit.tables, 1, pools=POOLS | {"v": [0]}, count=1, rows_each=6)
    with pytest.raises(ViewFailed, match="DIVIDE_BY_ZERO"):
        circuit.step(rows)
