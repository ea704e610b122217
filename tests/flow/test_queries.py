"""Random queries as views, equal to Spark's own results after each transaction: dozens here, hundreds in the soak."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from evertide.errors import ViewFailed
from evertide.flow import Circuit, pairs, stage
from evertide.plan.fragment import fragment
from evertide.plan.fragment.fragment import ROWS_SMALL_MAX
from tests.flow import joins
from tests.flow.checked import TABLES, Views, check
from tests.flow.joins import TABLES as TABLES_JOINED
from tests.flow.joins import check_joins, check_random_joins
from tests.kit.ledger import Transaction, delta_of
from tests.kit.oracle import Reference
from tests.kit.queries import random_queries
from tests.soak.rounds import Soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 10
COUNT_LONG = 15
TRANSACTIONS = 4
FAILING = "SELECT s.v FROM s JOIN u ON s.k = u.k AND 6 div (s.v - 2) >= 0"


def check_random_queries(spark: SparkSession, seed: int, count: int, transactions: int) -> None:
    tables = Circuit(spark, TABLES).tables
    queries = random_queries(tables, seed, count, accepts=partial(accepts, Reference(spark, tables)))
    check(spark, Views({f"q{at}": query for at, query in enumerate(queries)}), seed, transactions)


def accepts(reference: Reference, query: str) -> bool:
    """Whether Spark runs it over tables of which its optimizer does not see that they are empty.

    Spark refuses a subquery in some places, such as a correlated one in ON, and has internal errors, such as for a
    session window over `SELECT *`, or for constraints above UNION. It has some of them only for what it cannot remove.
    """
    try:
        reference.by_spark_over_unseen_rows(query)
    except (PySparkException, Py4JJavaError):
        return False
    return True


def force_linear_rule(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """With few rows the rule would hardly ever be used, nor would rows be condensed."""
    monkeypatch.setattr(stage, "ROWS_SURPLUS_MAX", 0)
    monkeypatch.setattr(pairs, "FACTOR", 0)
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", 0 if way == "large" else ROWS_SMALL_MAX)


@pytest.mark.timeout(600)  # hundreds of small Spark jobs, on a machine that may be loaded
@pytest.mark.parametrize("seed", [1, 3, 4])
def test_random_queries_are_maintained(spark: SparkSession, seed: int) -> None:
    check_random_queries(spark, seed, COUNT, TRANSACTIONS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["small", "large"])
def test_random_queries_are_maintained_by_the_linear_rule(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    force_linear_rule(monkeypatch, way)
    check_random_queries(spark, 5, COUNT, TRANSACTIONS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("seed", "way"), [(1, "small"), (3, "large")])
def test_v6_random_joins_are_maintained_by_the_linear_rule(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int, way: str
) -> None:
    force_linear_rule(monkeypatch, way)
    assert check_random_joins(spark, seed, 5, 6)["compared"] > 15


def test_v6_a_view_may_fail_where_spark_only_skips_an_empty_table(spark: SparkSession) -> None:
    """The row of s is not joined with any of u, but the condition fails for it."""
    assert check_joins(spark, {"v": FAILING}, [one_row(spark, "s", 1)], "no seed") == {"failed": 1}


def test_v6_a_view_may_fail_for_a_row_that_is_removed(spark: SparkSession) -> None:
    """The second transaction does not compute with the row of s, since r has no row for it. The third computes with
    the rows before it."""
    query = "SELECT r.v FROM r LEFT JOIN (s JOIN u ON s.b = u.b AND 6 div (s.v - 2) >= 0) ON r.k = s.k"
    removed = one_row(spark, "r", -1, k=3) | one_row(spark, "s", -1)
    transactions = [one_row(spark, "r", 1, k=3), one_row(spark, "s", 1), removed]
    assert check_joins(spark, {"v": query}, transactions, "no seed") == {"compared": 2, "failed": 1}


def test_v6_a_view_may_fail_behind_the_first_match_of_a_semi_join(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first row of s matches, and the condition fails for the second. Spark's answer depends on their order."""
    monkeypatch.setattr(Circuit, "step", fail)
    query = "SELECT u.v FROM u LEFT SEMI JOIN s ON u.k = s.k AND 6 div (u.v + s.v - 4) >= 0"
    rows = [one_row(spark, "s", 1, id=at, v=v)["s"] for at, v in enumerate((3, 2))]
    transaction = {"s": pa.concat_tables(rows)} | one_row(spark, "u", 1)
    assert check_joins(spark, {"v": query}, [transaction], "no seed") == {"failed": 1}


def test_v6_a_failure_that_spark_never_has_is_found(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Circuit, "step", fail)
    monkeypatch.setattr(joins, "_ORDERS", 2)
    with pytest.raises(AssertionError, match=r"no seed, transaction 0: view v.*needless"):
        check_joins(spark, {"v": FAILING.replace("- 2", "- 9")}, [one_row(spark, "s", 1)], "no seed")


def fail(*_: object) -> None:
    raise ViewFailed(views=("v",), time=0, why="needless")


def one_row(spark: SparkSession, table: str, diff: int, k: int = 2, **values: int) -> Transaction:
    row = {"k": k, "v": 2, "b": b"x"} | ({"id": 1} if table == "s" else {}) | values
    return {table: delta_of(pa.Table.from_pylist([row], schema=Circuit(spark, TABLES_JOINED).tables[table]), diff)}


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_v6_many_random_joins_are_maintained(spark: SparkSession, soak: Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_round(seed: int) -> str:
        force_linear_rule(monkeypatch, ("small", "small", "large")[seed % 3])
        return str(dict(check_random_joins(spark, seed, 8, 20)))

    soak.rounds("joins", run_round)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_random_queries_are_maintained(spark: SparkSession, soak: Soak) -> None:
    """Two of three rounds by the linear rule, wherever it applies: one of them on executors, with condensed rows."""

    def run_round(seed: int) -> str:
        with pytest.MonkeyPatch.context() as monkeypatch:
            if seed % 3:
                force_linear_rule(monkeypatch, ("small", "large")[seed % 3 - 1])
            check_random_queries(spark, seed, COUNT_LONG, 8)
        return f"{COUNT_LONG} queries"

    soak.rounds("queries", run_round)


def test_the_same_seed_gives_the_same_queries(spark: SparkSession) -> None:
    tables = Circuit(spark, TABLES).tables
    assert random_queries(tables, 7, 20) == random_queries(tables, 7, 20)
    assert random_queries(tables, 7, 20) != random_queries(tables, 8, 20)
    assert len(set(random_queries(tables, 7, 20))) == 20
