"""The calling thread computes few rows itself: the same rows as a job's. Work that a thread cannot do is a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from evertide.errors import ViewFailed
from evertide.flow import Circuit
from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.fragment.local_runner import LocalRunner, RunPath
from evertide.rows.changes import DIFF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = "CREATE TABLE r (a BIGINT NOT NULL, b STRING); CREATE TABLE s (a BIGINT NOT NULL, c BIGINT);"
JOINED = "SELECT r.b, s.c, count(*) AS n FROM r JOIN s ON r.a = s.a GROUP BY r.b, s.c HAVING max(r.a) > 1"
LATEST = "SELECT * FROM (SELECT *, lead(c) OVER (PARTITION BY a ORDER BY c) AS d FROM s) WHERE d IS NOT NULL"
UNITED = (
    "SELECT b, lag(a) OVER (PARTITION BY b ORDER BY a) AS p FROM (SELECT a, b FROM r UNION ALL SELECT a, 'x' FROM s)"
)
CHAINED = (
    "SELECT r.b, s.c, q.a AS e FROM r JOIN s ON r.a = s.a LEFT JOIN s q ON q.c = s.c"
    " WHERE EXISTS (SELECT * FROM r p WHERE p.a = r.a)"
)
TOGETHER = (
    "SELECT s.c, u.b FROM s JOIN (SELECT a, b FROM r UNION ALL SELECT r.a, 'x' FROM r JOIN s USING (a)) u ON u.a = s.a"
)
COUNTED = "SELECT b, max(a) AS m, count(DISTINCT a) AS n, count(DISTINCT a % 2) AS o FROM r GROUP BY b"
CROSS = "SELECT r.b, s.c FROM r LEFT JOIN s ON r.a < s.a"
HERE = (JOINED, LATEST, UNITED, CHAINED, TOGETHER, COUNTED)
"""Spark does not see that all rows of joins below joins are in one partition. Without the hint CHAINED and COUNTED are
jobs with a shuffle."""
MAPPED = "SELECT a + 1 AS a, upper(b) AS b FROM r WHERE a > 1"


def delta(*rows: tuple[Any, ...], columns: tuple[str, ...]) -> pa.Table:
    made = [dict(zip((*columns, DIFF), row, strict=True)) for row in rows]
    types = {"a": pa.int64(), "b": pa.string(), "c": pa.int64(), DIFF: pa.int64()}
    fields = [pa.field(name, types[name], nullable=name in "bc") for name in (*columns, DIFF)]
    return pa.Table.from_pylist(made, schema=pa.schema(fields))


def steps() -> list[dict[str, pa.Table]]:
    r, s = ("a", "b"), ("a", "c")
    return [
        {"r": delta((1, "x", 1), (2, "y", 1), columns=r), "s": delta((2, 7, 1), (3, None, 1), columns=s)},
        {"r": delta((3, None, 2), columns=r), "s": delta((2, 8, 1), columns=s)},
        {"r": delta((2, "y", -1), (2, "z", 1), columns=r)},
    ]


def circuit_of(spark: SparkSession, query: str) -> Circuit:
    return Circuit(spark, f"{TABLES} CREATE MATERIALIZED VIEW v AS {query};")


def answers(spark: SparkSession, query: str) -> list[list[dict[str, Any]]]:
    circuit = circuit_of(spark, query)
    return [circuit.step(deltas)["v"].to_pylist() for deltas in steps()]


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each run was executed."""
    found: list[str] = []
    real = LocalRunner._call_jvm

    def noted(self: LocalRunner, *arguments: Any, **options: Any) -> RunPath:
        found.append(path := real(self, *arguments, **options))
        return path

    monkeypatch.setattr(LocalRunner, "_call_jvm", noted)
    return found


def jobs(spark: SparkSession) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


@pytest.mark.parametrize("query", HERE)
def test_joins_aggregates_and_windows_need_no_job(spark: SparkSession, query: str, ways: list[str]) -> None:
    before = jobs(spark)
    found = answers(spark, query)
    assert any(found)
    assert {*ways} <= {"here", "place"}
    assert "here" in ways
    assert jobs(spark) == before


def test_maps_and_filters_need_no_plan(spark: SparkSession, ways: list[str]) -> None:
    assert any(answers(spark, MAPPED))
    assert {*ways} == {"place"}


@pytest.mark.parametrize("query", [*HERE, CROSS])
def test_a_job_returns_the_same_rows(
    spark: SparkSession, query: str, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = answers(spark, query)
    monkeypatch.setattr(LocalRunner, "is_enabled", False)
    assert answers(spark, query) == here
    assert "job" in ways


def test_a_query_with_a_broadcast_is_a_job(spark: SparkSession, ways: list[str]) -> None:
    assert any(answers(spark, CROSS))
    assert "job" in ways


def test_an_exchange_that_no_job_has_run_is_detected(spark: SparkSession) -> None:
    """Executed without a job it would return no rows, silently. A limit over several partitions hides one."""
    catalyst = Catalyst(spark)
    nil, struct = catalyst.seq([]), spark.range(1)._jdf.schema()
    lists = [catalyst.make_java_list([]) for _ in range(3)]
    made = catalyst.make_local_runner(
        spark.range(1)._jdf.queryExecution().optimizedPlan(), 0, *lists, nil, nil, struct, 1000
    )
    for frame in (spark.range(10).repartition(2), spark.range(0, 100, 1, 4).limit(3)):
        assert not made.canRunInDriver(frame._jdf.queryExecution().executedPlan())
    assert made.canRunInDriver(spark.range(0, 100, 1, 4)._jdf.queryExecution().executedPlan())


def test_a_failing_row_raises_the_same_error_as_in_a_job(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards the thread is no longer a task, and holds no memory."""
    asked: list[LocalRunner] = []
    real = LocalRunner.run

    def noted(self: LocalRunner, *terms: Any, **how: Any) -> Any:
        asked.append(self)
        return real(self, *terms, **how)

    monkeypatch.setattr(LocalRunner, "run", noted)
    circuit = circuit_of(spark, "SELECT r.b, max(1 / s.c) AS x FROM r JOIN s ON r.a = s.a GROUP BY r.b")
    with pytest.raises(ViewFailed, match="DIVIDE_BY_ZERO"):
        circuit.step({"r": delta((1, "x", 1), columns=("a", "b")), "s": delta((1, 0, 1), columns=("a", "c"))})
    assert Catalyst(spark).companion("org.apache.spark.TaskContext").get() is None
    assert [small._jvm.memoryUsed() for small in asked] == [0] * len(asked)
    assert asked
