"""Large runs whose rows the executors condense: aggregates equal Spark's, and those of runs that are not condensed."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from evertide.flow import Circuit, pairs, stage
from evertide.flow.stage import Stage
from evertide.plan.fragment import condenser, fragment
from evertide.plan.fragment.condensed_column import ColumnUse, make_condensed_column
from evertide.plan.fragment.condenser import Condenser
from evertide.rows.digest import hash_rows
from tests.flow.grouped import random_aggregates
from tests.kit.exact_floats import ExactReference
from tests.kit.ledger import Ledger, Transaction
from tests.kit.oracle import Reference, drive
from tests.kit.transactions import random_transactions
from tests.soak.rounds import Soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = """
CREATE TABLE r (id BIGINT NOT NULL, k INT, g INT, b TINYINT, h SMALLINT, i INT, l BIGINT, x DOUBLE, y FLOAT, t STRING,
  d DECIMAL(7, 2), e DECIMAL(14, 3), f DECIMAL(18, 0), w DECIMAL(19, 4), v DECIMAL(28, 6), u DECIMAL(30, 2),
  PRIMARY KEY (id));
CREATE TABLE s (id BIGINT NOT NULL, k INT, c BIGINT NOT NULL, j INT NOT NULL, p DOUBLE, PRIMARY KEY (id));
"""
POOLS: dict[str, list[Any]] = {
    "k": [None, 0, 1, 2],
    "g": [None, 1, 2],
    "b": [None, -128, 0, 127],
    "h": [None, -(2**15), -1, 2**15 - 1],
    "i": [None, -(2**31), -(2**24), 2**24 - 1, 2**31 - 1],
    "l": [None, 0, 1, 2**24, 2**48 - 1, 2**53 + 2, 2**58],
    "c": [-(2**40), -1, 0, 3, 2**30, 2**53],
    "j": [-(2**31), 0, 7, 2**31 - 1],
    "p": [None, 0.0, -0.0, 5e-324, -3e-310, 0.1, -0.3, 1.0, 2.0**60, -12345.678, float("nan"), float("inf")],
    "d": [None, Decimal("-99999.99"), Decimal("0.01"), Decimal("99999.99")],
    "e": [None, Decimal("-99999999999.999"), Decimal("16777.216"), Decimal("99999999999.999")],
    "f": [None, Decimal(-(10**18) + 1), Decimal(2**48), Decimal(10**18 - 1)],
    "w": [None, Decimal(-(10**19) + 1).scaleb(-4), Decimal(2**63 - 1).scaleb(-4), Decimal(10**19 - 1).scaleb(-4)],
    "v": [None, Decimal(-(10**28) + 1).scaleb(-6), Decimal(1).scaleb(-6), Decimal(10**28 - 1).scaleb(-6)],
}
JOINED = "r JOIN s ON r.k = s.k"
CONDENSED = {
    "counts": f"SELECT g, count(*) AS n, count(r.t) AS t, count(x) AS x, count(r.l) AS l FROM {JOINED} GROUP BY g",
    "nested_counts": "SELECT g, count(try_parse_json(CAST(i AS STRING))) AS v, count(if(i > 0, map(i, t), NULL)) AS m,"
    " count(if(i > 0, named_struct('a', array(j), 'i', i), NULL)) AS s, count(if(j > 0, array(t), NULL)) AS a,"
    f" sum(j) AS j FROM {JOINED} GROUP BY g",
    "integers": "SELECT g, sum(b) AS b, sum(h) AS h, sum(i) AS i, try_sum(l) AS l, sum(c) AS c, sum(j) AS j,"
    f" count(*) AS n FROM {JOINED} GROUP BY g",
    "decimals": f"SELECT g, sum(d) AS d, sum(e) AS e, sum(f) AS f, sum(w) AS w, sum(v) AS v FROM {JOINED} GROUP BY g",
    "averages": "SELECT g, avg(b) AS b, avg(h) AS h, avg(i) AS i, avg(c) AS c, avg(d) AS d, avg(e) AS e, avg(f) AS f,"
    f" avg(w) AS w, count(c) AS n, sum(c) AS s FROM {JOINED} GROUP BY g",
    "filters": "SELECT g, sum(i) FILTER (WHERE j > 0) AS i, count(t) FILTER (WHERE b > 0) AS t, sum(i) AS a,"
    f" count(*) FILTER (WHERE i IS NULL) AS n FROM {JOINED} GROUP BY g",
    "extremes": f"SELECT g, min(i) AS i, max(t) AS t, max(c) AS c, sum(j) AS j, sum(i) AS s FROM {JOINED} GROUP BY g",
    "no_key": f"SELECT sum(c) AS c, sum(j) AS j, count(*) AS n, count(t) AS t FROM {JOINED}",
    "products": "SELECT g, sum(CAST(i AS DECIMAL(10, 0)) * j) AS p, sum(CAST(i % 100 AS BIGINT) * j) AS q"
    f" FROM {JOINED} GROUP BY g",
    "left_join": "SELECT g, count(s.id) AS n, sum(s.c) AS c, sum(j) AS j FROM r LEFT JOIN s ON r.k = s.k GROUP BY g",
    "full_join": "SELECT g, count(s.id) AS n, sum(s.c) AS c, sum(i) AS i FROM r FULL JOIN s ON r.k = s.k GROUP BY g",
    "no_join_key": "SELECT r.g, count(*) AS n, sum(j) AS j FROM r JOIN s ON r.k < s.k GROUP BY r.g",
    "exploded": "SELECT g, sum(q) AS q, count(*) AS n FROM r LATERAL VIEW explode(array(i, b, i)) z AS q GROUP BY g",
    "one_row": "SELECT r.id AS r, s.id AS s, sum(b) AS b, avg(h) AS h, sum(i) AS i, try_sum(l) AS l, sum(c) AS c,"
    " sum(j) AS j, sum(d) AS d, sum(f) AS f, sum(w) AS w, sum(v) AS v, sum(x) AS x, sum(y) AS y, sum(p) AS p,"
    f" count(t) AS t, max(y) AS z FROM {JOINED} GROUP BY r.id, s.id",
    "cube": "SELECT g, k, sum(i) AS i, avg(h) AS h, count(t) AS t FROM r GROUP BY CUBE (g, k)",
    "not_exact": f"SELECT g, avg(l) AS l, count(l) AS n FROM {JOINED} GROUP BY g",
    "floats": f"SELECT g, sum(x) AS x, avg(x) AS y, count(*) AS n, sum(p) AS p, sum(j) AS j FROM {JOINED} GROUP BY g",
    "singles": f"SELECT g, sum(y) AS y, avg(y) AS z, count(y) AS n, sum(p) AS p FROM {JOINED} GROUP BY g",
    "float_extremes": f"SELECT g, max(x) AS x, min(y) AS y, sum(p) AS p, sum(j) AS j FROM {JOINED} GROUP BY g",
    "float_keys": f"SELECT x, y, sum(j) AS j, count(*) AS n FROM {JOINED} GROUP BY x, y",
    "float_filter": f"SELECT g, sum(p) FILTER (WHERE x > 0) AS p, sum(p) AS a FROM {JOINED} GROUP BY g",
    "moments": "SELECT g, stddev(i) AS i, corr(x, p) AS c, sum(j) AS j, covar_pop(j, i) AS v, regr_slope(h, j) AS r"
    f" FROM {JOINED} GROUP BY g",
}
PLAIN = {
    "nested": f"SELECT q.x AS x, sum(j) AS j FROM (SELECT struct(x) AS q, j FROM {JOINED}) GROUP BY q",
}
QUERIES = CONDENSED | PLAIN


def make_script(queries: dict[str, str]) -> str:
    return TABLES + "".join(f"CREATE MATERIALIZED VIEW {name} AS {query};\n" for name, query in queries.items())


@pytest.fixture
def condensed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every run is large, and condensed if it can be. Returns the numbers of rows that the executors condensed to."""
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", 0)
    monkeypatch.setattr(pairs, "FACTOR", 0)
    sizes: list[int] = []
    expand = Condenser.expand

    def watched(self: Condenser, found: pa.Table) -> pa.Table | None:
        expanded = expand(self, found)
        sizes.append(found.num_rows if expanded is not None else -1)
        return expanded

    monkeypatch.setattr(Condenser, "expand", watched)
    return sizes


@pytest.mark.timeout(600)
def test_condensed_runs_equal_those_of_spark(
    spark: SparkSession, condensed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_condensed(spark, condensed, monkeypatch, 1, 5)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_condensed_runs_equal_those_of_spark_in_the_soak(
    spark: SparkSession, condensed: list[int], monkeypatch: pytest.MonkeyPatch, soak: Soak
) -> None:
    def run_round(seed: int) -> str:
        condensed.clear()
        check_condensed(spark, condensed, monkeypatch, seed, 12)
        return f"{len(condensed)} condensed runs"

    soak.rounds("condensed", run_round)


@pytest.mark.timeout(600)
def test_v6_random_aggregates_of_condensed_runs_equal_those_of_spark(
    spark: SparkSession, condensed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_ways(spark, monkeypatch, random_aggregates(3, 8), 3, 3)
    assert max(condensed) > 0


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_v6_many_random_aggregates_equal_those_of_spark(
    spark: SparkSession, condensed: list[int], monkeypatch: pytest.MonkeyPatch, soak: Soak
) -> None:
    def run_round(seed: int) -> str:
        condensed.clear()
        compare_ways(spark, monkeypatch, random_aggregates(seed, 12), seed, 6)
        return f"{len(condensed)} condensed runs"

    soak.rounds("aggregates", run_round)


def check_condensed(
    spark: SparkSession, condensed: list[int], monkeypatch: pytest.MonkeyPatch, seed: int, count: int
) -> None:
    compare_ways(spark, monkeypatch, QUERIES, seed, count)
    assert len(condensed) > count // 2 * len(CONDENSED)
    assert min(condensed) == -1, "no run was refused because of a BIGINT that is not exact as a double"


def compare_ways(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, queries: dict[str, str], seed: int, count: int
) -> None:
    """Compare large runs with Spark, floats with their exact values, and bit by bit with small ones, after each of some
    random transactions."""
    plain, large = Circuit(spark, make_script(queries)), Circuit(spark, make_script(queries))
    keys = {"r": ("id",), "s": ("id",)}
    given = list(
        random_transactions(plain.tables, seed, keys=keys, pools=POOLS, count=count, rows_each=12, rows_huge=40)
    )
    found: list[dict[str, pa.Table]] = []
    step = large.step

    def record_step(deltas: Any) -> dict[str, pa.Table]:
        found.append(step(deltas))
        return found[-1]

    monkeypatch.setattr(large, "step", record_step)
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", 0)
    reference = ExactReference(spark, large.tables, queries, large.views)
    drive(large, reference, queries, iter(given), spark_every=1, relative=0.0)
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", 1 << 40)
    for transaction, one in zip(given, found, strict=True):
        other = plain.step(transaction)
        assert [view for view in queries if not _are_same(one[view], other[view])] == []


def _are_same(one: pa.Table, other: pa.Table) -> bool:
    return one.schema == other.schema and all(map(np.array_equal, hash_rows(one), hash_rows(other)))


@pytest.mark.parametrize("name", QUERIES)
def test_aggregates_tell_which_runs_can_be_condensed(spark: SparkSession, condensed: list[int], name: str) -> None:
    """Spark groups nested floats together that are not bitwise equal."""
    circuit = Circuit(spark, make_script({name: QUERIES[name]}))
    schemas = circuit.tables
    for deltas in random_transactions(schemas, 5, keys={"r": ("id",), "s": ("id",)}, pools=POOLS, count=1):
        circuit.step(deltas)
    assert bool(condensed) == (name in CONDENSED)


SKEWED = """
CREATE TABLE r (k INT, a INT NOT NULL, g INT NOT NULL);
CREATE TABLE s (k INT, c INT NOT NULL, g INT NOT NULL);
CREATE MATERIALIZED VIEW v AS
  SELECT r.g AS rg, s.g AS sg, sum(CAST(r.a AS BIGINT) * s.c) AS x, count(*) AS n FROM r JOIN s ON r.k = s.k
  GROUP BY r.g, s.g;
"""


def skewed_rows(schemas: dict[str, pa.Schema], rows: int, per_key: int) -> Iterator[Transaction]:
    ledger = Ledger(schemas)
    for name, schema in schemas.items():
        columns = [[at // per_key for at in range(rows)], [*range(rows)], [at % 3 for at in range(rows)]]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
        ledger.insert(name, pa.Table.from_arrays(arrays, schema=schema))
    yield ledger.commit()


@pytest.mark.parametrize(("per_key", "is_condensed"), [(50, True), (2, False)])
def test_v3_pairs_of_a_skewed_join_do_not_reach_the_driver(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, per_key: int, *, is_condensed: bool
) -> None:
    """The first content of an aggregate of a join that makes many rows from few: groups reach the driver, not pairs.
    Without frequent keys, condensing would only add an exchange."""
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", 100)
    circuit = Circuit(spark, SKEWED)
    returned: list[int] = []
    compute = Stage._compute_delta

    def watched(self: Stage, **options: Any) -> pa.Table:
        delta = compute(self, **options)
        returned.append(delta.num_rows)
        return delta

    monkeypatch.setattr(Stage, "_compute_delta", watched)
    query = SKEWED.partition("AS\n")[2].rstrip().removesuffix(";")
    drive(circuit, Reference(spark, circuit.tables), {"v": query}, skewed_rows(circuit.tables, 600, per_key))
    assert (max(returned) < 100) == is_condensed, returned
    assert is_condensed or max(returned) == 600 * per_key


AVERAGE = """
CREATE TABLE r (k INT NOT NULL, l BIGINT);
CREATE TABLE s (k INT NOT NULL);
CREATE MATERIALIZED VIEW v AS SELECT r.k, avg(l) AS l FROM r JOIN s ON r.k = s.k GROUP BY r.k;
"""


@pytest.mark.parametrize(
    ("values", "average"),
    [([2**53 + 1, -(2**53)], 0.0), ([-(2**53) - 1, 2**53], 0.0), ([-(2**63), None], -(2.0**63)), ([2**53, 0], 2.0**52)],
)
def test_an_average_adds_up_doubles(
    spark: SparkSession, condensed: list[int], values: list[int | None], average: float
) -> None:
    """2^53 + 1 is 2^53 as a double, so rows with it are not condensed."""
    circuit = Circuit(spark, AVERAGE)
    rows = {
        "r": pa.table([[0, 0], pa.array(values, pa.int64())], circuit.tables["r"]),
        "s": pa.table([[0]], circuit.tables["s"]),
    }
    ledger = Ledger(circuit.tables)
    for name, inserted in rows.items():
        ledger.insert(name, inserted)
    assert circuit.step(ledger.commit())["v"].column("l").to_pylist() == [average]
    assert (condensed == [-1]) == any(value is not None and abs(value) > 2**53 for value in values)


SMALL_GROUPS = (
    SKEWED.replace("s.g AS sg", "r.a, s.k")
    .replace("r.g, s.g", "r.g, r.a, s.k")
    .replace(
        "SELECT",
        """SELECT
  sum(c) AS c, sum(s.g + c) AS d,""",
    )
)


def test_small_groups_of_many_columns_are_not_condensed(
    spark: SparkSession, condensed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each group has two rows, and would be decoded to seven. Later runs do not try again."""
    monkeypatch.setattr(condenser, "_ROWS_FEW", 0)
    circuit = Circuit(spark, SMALL_GROUPS)
    [rows] = skewed_rows(circuit.tables, 60, 2)
    delta = circuit.step(rows)["v"]
    assert (delta.num_rows, set(delta.column("n").to_pylist()), condensed) == (60, {2}, [-1])
    circuit.step(rows)
    assert condensed == [-1]


JOIN_ONLY = "CREATE MATERIALIZED VIEW v AS SELECT r.a, s.c FROM r JOIN s ON r.k = s.k;"
MANY_GROUPS = SKEWED.replace("count(*) AS n", "max(s.c * 1000 + r.a) AS m")
FEW_GROUPS = SKEWED.replace("count(*) AS n", "max(s.c % 5) AS m")


@pytest.mark.parametrize(("script", "is_condensed"), [(MANY_GROUPS, False), (FEW_GROUPS, True)])
def test_rows_are_condensed_if_a_sample_has_few_groups(
    spark: SparkSession, condensed: list[int], monkeypatch: pytest.MonkeyPatch, script: str, *, is_condensed: bool
) -> None:
    """Each pair of rows has another argument of MAX, or one of five."""
    monkeypatch.setattr(condenser, "_ROWS_SAMPLED", 400)
    circuit = Circuit(spark, script)
    query = script.partition("AS\n")[2].rstrip().removesuffix(";")
    drive(circuit, Reference(spark, circuit.tables), {"v": query}, skewed_rows(circuit.tables, 100, 50))
    assert bool(condensed) == is_condensed


@pytest.mark.parametrize(
    ("script", "is_estimated"), [(SKEWED, True), (SKEWED.partition("CREATE MAT")[0] + JOIN_ONLY, False)]
)
def test_pairs_are_estimated_for_aggregates_only(
    spark: SparkSession, condensed: list[int], monkeypatch: pytest.MonkeyPatch, script: str, *, is_estimated: bool
) -> None:
    estimated: list[object] = []
    monkeypatch.setattr(stage, "multiplies_rows", lambda *given: estimated.append(given))
    circuit = Circuit(spark, script)
    for rows in skewed_rows(circuit.tables, 4, 2):
        circuit.step(rows)
    assert bool(estimated) == is_estimated


def test_the_work_of_a_join_is_estimated_from_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """From every third row; the sampled side is the larger one."""
    monkeypatch.setattr(pairs, "_ROWS_SAMPLED", 100)
    few = pa.table({"k0": pa.array([1, 1, 2, None])})
    many = pa.table({"k0": pa.array([1, 2, 3] * 100, pa.int64()).take(pa.array(np.arange(300).repeat(1)))})
    assert pairs._estimate_pairs(few, many.slice(0, 99)) == 33 * 2 + 33 * 1
    assert pairs._estimate_pairs(few, many) == 100 * 2 * 3  # each sampled row has the key 1


@pytest.mark.parametrize("nullable", [False, True])
def test_a_decimal_sum_that_spark_cannot_hold_is_not_taken_for_zero(nullable: bool) -> None:
    """Spark's sum is NULL then: 10^10 pairs of the largest DECIMAL(28), which no test can join."""
    catalyst: Any = None
    field = pa.field("c0", pa.decimal128(28, 0), nullable)
    column = make_condensed_column(catalyst, field, ColumnUse.SUM)
    counts = [pa.array([3, 0, 2])] if nullable else []
    sums = pa.array([Decimal(7), None, Decimal(9)], pa.decimal128(38, 0))
    rows = column.read(None, [*counts, sums], 3)
    assert (rows is not None) == nullable, "a group of NULLs has no sum, if the column can be NULL"
    over = pa.array([Decimal(7), Decimal(0), None], pa.decimal128(38, 0))
    assert column.read(None, [*counts, over], 3) is None
