"""The large way: the executors share the rows. Its result equals that of the small way, bit for bit, and Spark's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from evertide.flow import Circuit
from evertide.flow.state.runs import DeltaRun
from evertide.plan.catalyst.catalyst import Catalyst
from evertide.plan.fragment import fragment
from evertide.rows.digest import hash_rows
from tests.kit.oracle import Reference, drive
from tests.kit.transactions import random_transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = """
CREATE TABLE r (a INT, b BIGINT, c STRING, x DOUBLE, t TIMESTAMP, d DECIMAL(12, 2));
CREATE TABLE s (id BIGINT NOT NULL, e INT, f STRING, PRIMARY KEY (id));
"""
QUERIES = {
    "moved_and_computed": "SELECT c, b + 1 AS b1, x, a, upper(c) AS big, d FROM r",
    "a_constant_beside": "SELECT c, b, 'k' AS k FROM r",
    "all_computed": "SELECT a + 1 AS a1, b * 2 AS b2 FROM r",
    "filtered": "SELECT c, b + 1 AS b1 FROM r WHERE a > 1",
    "joined": "SELECT r.c, s.f, r.b FROM r JOIN s ON r.b = s.id AND r.a < s.e",
    "outer_joined": "SELECT r.c, s.f, r.b FROM r FULL JOIN s ON r.b = s.id",
    "variants": "SELECT r.c, CAST(if(s.e > 1, s.e, NULL) AS VARIANT) AS v FROM r LEFT JOIN s ON r.b = s.id",
    "hopping": "SELECT b, window.start AS since, count(*) AS n FROM r GROUP BY b, window(t, '10 days', '2 days')",
    "cube": "SELECT a, b, count(*) AS n, count(c) AS nc FROM r GROUP BY CUBE (a, b)",
    "exploded": "SELECT w, count(*) AS n FROM r LATERAL VIEW explode(array(a, a, b)) AS w GROUP BY w",
    "exploded_floats": "SELECT w, count(*) AS n FROM r LATERAL VIEW explode(array(x, -x, x)) AS w GROUP BY w",
    "exploded_variants": "SELECT b, count(v) AS n FROM (SELECT b, CAST(w AS VARIANT) AS v FROM r "
    "LATERAL VIEW explode(array(a, a, b)) AS w) GROUP BY b",
    "extremes": "SELECT b, min(a) AS i, max(a) AS j, min(c) AS k, max(c) AS l, max(x) AS m, min(t) AS n, "
    "max(d) AS o, min(d) AS p, min(a) FILTER (WHERE x > 0) AS q, max(a) FILTER (WHERE x > 0) AS r FROM r GROUP BY b",
}
SCRIPT = TABLES + "".join(f"CREATE MATERIALIZED VIEW {name} AS {query};\n" for name, query in QUERIES.items())


@pytest.mark.parametrize("seed", [1, 2])
def test_large_runs_have_the_result_of_small_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    small, large = Circuit(spark, SCRIPT), Circuit(spark, SCRIPT)
    given = random_transactions(small.tables, seed, keys={"s": ("id",)}, count=5, rows_each=12, rows_huge=60)
    transactions = list(given)
    expected = [small.step(transaction) for transaction in transactions]
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", 0)
    found: list[dict[str, pa.Table]] = []
    step = large.step

    def record_step(deltas: Any) -> dict[str, pa.Table]:
        found.append(step(deltas))
        return found[-1]

    monkeypatch.setattr(large, "step", record_step)
    drive(large, Reference(spark, large.tables), QUERIES, iter(transactions), spark_every=2)
    for one, other in zip(found, expected, strict=True):
        assert [view for view in QUERIES if not _are_same(one[view], other[view])] == []


def _are_same(one: pa.Table, other: pa.Table) -> bool:
    """Bitwise equal, where Arrow would distinguish one NaN from another."""
    return one.schema == other.schema and all(map(np.array_equal, hash_rows(one), hash_rows(other)))


def test_columns_that_only_move_stay_on_the_driver(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    spread = Catalyst.spread

    def watched(self: Catalyst, rows: pa.Table, *more: object) -> object:
        seen.append([str(kind) for kind in rows.schema.types])
        return spread(self, rows, *more)

    monkeypatch.setattr(Catalyst, "spread", watched)
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", 0)
    circuit = Circuit(spark, TABLES + "CREATE MATERIALIZED VIEW v AS SELECT c, b + 1 AS b1, x FROM r;")
    [first, *_] = random_transactions(circuit.tables, 3, keys={"s": ("id",)}, count=1, rows_each=9, rows_huge=9)
    circuit.step(first)
    assert seen == [["int64"]]


def test_shuffles_use_the_current_number_of_executors(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster most executors register after the session began."""
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", 0)
    circuit = Circuit(spark, TABLES + "CREATE MATERIALIZED VIEW v AS SELECT r.c, s.f FROM r JOIN s ON r.b = s.id;")
    conf = circuit.program.catalyst._large.conf()
    conf.set("spark.sql.shuffle.partitions", "97")
    [first, *_] = random_transactions(circuit.tables, 3, keys={"s": ("id",)}, count=1, rows_each=9, rows_huge=9)
    circuit.step(first)
    assert conf.get("spark.sql.shuffle.partitions") == str(spark.sparkContext.defaultParallelism)


def test_min_and_max_of_an_argument_share_its_values(spark: SparkSession) -> None:
    query = "SELECT b, min(a) AS i, max(a) AS j, max(a) FILTER (WHERE x > 0) AS k FROM r GROUP BY b"
    circuit = Circuit(spark, f"{TABLES} CREATE MATERIALIZED VIEW v AS {query};")
    assert sum(name.rpartition(".")[2] in ("x0", "x1", "x2") for name in circuit.arrangements) == 2


def test_the_first_lookup_sorts_a_large_delta() -> None:
    made: list[int] = []

    def arrange(delta: pa.Table) -> object:
        made.append(delta.num_rows)
        return delta

    run = DeltaRun(pa.table({"a": [1, 2, 3]}), arrange)  # type: ignore[arg-type]
    assert (run.rows, made) == (3, [])
    assert run.block is run.block
    assert made == [3]
