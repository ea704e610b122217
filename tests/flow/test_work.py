"""The cost of a transaction relative to its changes: a step never costs much more than a recomputation would.

The tests count rows that go into fragments and come out of them, and how stages are computed; never time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from evertide.flow import Circuit, stage
from evertide.flow.stage import RunKind, Stage
from evertide.plan.fragment import fragment
from evertide.plan.fragment.forms import Form
from evertide.plan.fragment.fragment import Fragment
from evertide.plan.fragment.local_runner import LocalRunner, RunPath
from tests.kit.ledger import Ledger, Transaction
from tests.kit.oracle import Reference, drive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ITEMS, BRANDS, DAYS = 60, 6, 20
FACTS = {"store": 300, "catalog": 150, "web": 90}
SALES = """
CREATE TABLE item (i BIGINT NOT NULL, brand INT, class INT, PRIMARY KEY (i));
CREATE TABLE day (d BIGINT NOT NULL, year INT, PRIMARY KEY (d));
""" + "".join(
    f"CREATE TABLE {name} (id BIGINT NOT NULL, i BIGINT, d BIGINT, quantity INT, price INT, PRIMARY KEY (id));"
    for name in FACTS
)
BRANDS_SOLD = " INTERSECT ".join(
    f"SELECT n.brand AS b, n.class AS c FROM {name} s, item n, day y WHERE s.i = n.i AND s.d = y.d AND year < 2002"
    for name in FACTS
)
SOLD = " UNION ALL ".join(
    f"SELECT quantity, price FROM {name} s, day y WHERE s.d = y.d AND year < 2002" for name in FACTS
)
CHANNELS = " UNION ALL ".join(
    f"""SELECT '{name}' AS channel, brand, class, sum(quantity * price) AS sales, count(*) AS n
    FROM {name} s, item n, day y WHERE s.i IN (SELECT i FROM crossed) AND s.i = n.i AND s.d = y.d AND year = 2001
    GROUP BY brand, class HAVING sum(quantity * price) > (SELECT a FROM average)"""
    for name in FACTS
)
CROSSED = f"""
WITH crossed AS (SELECT i FROM item, ({BRANDS_SOLD}) WHERE brand = b AND class = c),
  average AS (SELECT avg(quantity * price) AS a FROM ({SOLD}))
SELECT channel, brand, class, sum(sales) AS sales, sum(n) AS n FROM ({CHANNELS}) GROUP BY ROLLUP (channel, brand, class)
"""
"""In the shape of TPC-DS query 14."""


def rows_of(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def sales(tables: dict[str, pa.Schema], count: int) -> Iterator[Transaction]:
    """All sales, and then a hundredth of them added and removed."""
    ledger = Ledger(tables)
    ledger.insert("item", rows_of(tables["item"], [(i, i % BRANDS, i % 2) for i in range(ITEMS)]))
    ledger.insert("day", rows_of(tables["day"], [(d, 1999 + d % 5) for d in range(DAYS)]))
    for name, size in FACTS.items():
        made = [(n, n * 7 % ITEMS, n * 3 % DAYS, 1 + n % 9, n % 50) for n in range(size)]
        ledger.insert(name, rows_of(tables[name], made))
    yield ledger.commit()
    for number in range(count):
        for name, size in FACTS.items():
            few = size // 100 + 1
            ledger.delete(name, range(few))
            made = [(size + number * few + n, (number + n) % ITEMS, n % DAYS, 5, 7) for n in range(few)]
            ledger.insert(name, rows_of(tables[name], made))
        yield ledger.commit()


@pytest.mark.timeout(600)
def test_v3_a_relation_that_several_subqueries_read_is_computed_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer rows go through fragments than the tables have."""
    circuit = Circuit(spark, f"{SALES} CREATE MATERIALIZED VIEW v AS {CROSSED};")
    through: list[int] = []
    run = Fragment.run

    def counted(self: Fragment, terms: Any, **options: Any) -> pa.Table:
        found = run(self, terms, **options)
        through[-1] += found.num_rows + sum(rows.num_rows for _, leaves in terms for rows in leaves)
        return found

    def noted() -> Iterator[Transaction]:
        for transaction in sales(circuit.tables, 3):
            through.append(0)
            yield transaction

    monkeypatch.setattr(Fragment, "run", counted)
    drive(circuit, Reference(spark, circuit.tables), {"v": CROSSED}, noted(), spark_every=2)
    assert max(through[1:]) < sum(FACTS.values()), through


PAIRS = "CREATE TABLE r (k INT, a INT); CREATE TABLE s (k INT, c INT);"
PAIRED = "SELECT r.a, s.c, r.k FROM r JOIN s ON r.k = s.k"


@pytest.mark.parametrize(
    "query", [PAIRED, "SELECT r.a, s.c, r.k FROM r LEFT JOIN s ON r.k <= s.k"], ids=["here", "job"]
)
def test_v3_few_rows_with_a_large_result_are_computed_by_the_executors(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(fragment, "ROWS_JOINED_MAX", 500)
    circuit = Circuit(spark, f"{PAIRS} CREATE MATERIALIZED VIEW v AS {query};")
    [only] = [part for part in circuit.parts if isinstance(part, Stage)]
    tried: list[str] = []
    call = LocalRunner._call_jvm

    def watched(self: LocalRunner, *given: Any, **options: Any) -> RunPath:
        tried.append(path := call(self, *given, **options))
        return path

    monkeypatch.setattr(LocalRunner, "_call_jvm", watched)
    ledger = Ledger(circuit.tables)

    def insert(key: int, count: int) -> Transaction:
        for name in ("r", "s"):
            ledger.insert(name, rows_of(circuit.tables[name], [(key, n) for n in range(count)]))
        return ledger.commit()

    given = [insert(1, 5), insert(2, 40), insert(3, 60), insert(4, 6)]
    drive(circuit, Reference(spark, circuit.tables), {"v": query}, given)
    if query == PAIRED:
        assert tried == ["here", "too many", "here"]  # with 120 rows it is known that 80 were too many
        assert dict(only.run_counts) == {"small": 2, "large": 2}
    else:
        assert "too many" in tried
        assert only.run_counts[RunKind.LARGE] > 0


HOT, HOT_ROWS = 5, 40
NEAR = "SELECT r.a, s.c FROM r JOIN s ON r.a BETWEEN s.c AND s.c + 1"
OUTER = "SELECT r.a, s.c, r.k FROM r LEFT JOIN s ON r.k = s.k AND r.a <> s.c + 7"
RIGHT = "SELECT r.a + 1 AS a, s.c FROM r RIGHT JOIN s ON r.k = s.k AND s.c > 0 WHERE coalesce(r.a, 0) <> 3"
FULL = "SELECT r.a, s.c, r.k FROM r FULL JOIN s ON r.k = s.k AND r.a <= 2 * s.c"
UNITED = "SELECT u.a, s.c FROM (SELECT k, a FROM r UNION ALL SELECT k + 1, c FROM s WHERE c > 3) u JOIN s ON u.k = s.k"


def skewed_transactions(tables: dict[str, pa.Schema], count: int) -> Iterator[Transaction]:
    """A few keys with many rows on both sides; then each of them loses a row, and gets another one, on both sides."""
    ledger = Ledger(tables)
    for name in ("r", "s"):
        made = [(key, n) for key in range(HOT) for n in range(HOT_ROWS)]
        ledger.insert(name, rows_of(tables[name], made))
    yield ledger.commit()
    for number in range(count):
        for name in ("r", "s"):
            ledger.delete(name, [key * HOT_ROWS - key for key in range(HOT)])
            ledger.insert(name, rows_of(tables[name], [(key, HOT_ROWS + number) for key in range(HOT)]))
        yield ledger.commit()


@pytest.mark.parametrize(
    ("query", "way"),
    [
        *product((PAIRED, NEAR, UNITED), ("few rows", "many rows", "too many pairs")),
        *product((OUTER, RIGHT, FULL), ("many rows", "too many pairs")),
    ],
)
def test_v3_only_added_or_removed_pairs_are_computed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, query: str, way: str
) -> None:
    """Of a join whose frequent keys change on both sides. By the difference rule, all pairs of these keys are computed
    twice. The pairs of rows that may match are counted, including those that a condition rejects. The rows of an
    outer join without a partner are an anti join, which computes no pairs.
    """
    if way == "few rows":
        monkeypatch.setattr(stage, "ROWS_SURPLUS_MAX", HOT_ROWS)
    elif way == "many rows":
        monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", 0)
    else:
        monkeypatch.setattr(fragment, "ROWS_JOINED_MAX", HOT_ROWS)
    circuit = Circuit(spark, f"{PAIRS} CREATE MATERIALIZED VIEW v AS {query};")
    pairs: list[int] = []
    ran: list[Any] = []
    run_large, run_small = Fragment._run_large, LocalRunner.run

    def large(self: Fragment, terms: Any, **options: Any) -> pa.Table:
        ran.extend(several for form, several in terms.items() if form in (Form.WHOLE, Form.MATCHED))
        return run_large(self, terms, **options)

    def small(self: LocalRunner, terms: Any, **options: Any) -> Any:
        found = run_small(self, terms, **options)
        if found is not None:  # a run that ended early has produced as many rows as it may, and no more
            ran.append(terms)
        return found

    monkeypatch.setattr(Fragment, "_run_large", large)
    monkeypatch.setattr(LocalRunner, "run", small)

    def noted() -> Iterator[Transaction]:
        for transaction in skewed_transactions(circuit.tables, 3):
            yield transaction
            pairs.append(sum(meetings(leaves) for terms in ran for _, leaves in terms))
            ran.clear()

    drive(circuit, Reference(spark, circuit.tables), {"v": query}, noted())
    whole = pairs[0]
    assert whole >= HOT * HOT_ROWS**2
    assert max(pairs[1:]) < whole / 4, pairs


EXPLODED = "r LATERAL VIEW explode(array(k, a)) AS e"


def test_v8_parts_that_group_exploded_rows_by_other_columns_are_not_shared(spark: SparkSession) -> None:
    """They differ only in the columns that the explode passes on."""
    first, second = (f"SELECT {by}, e, count(*) AS n FROM {EXPLODED} GROUP BY {by}, e" for by in ("k", "a"))
    query = f"SELECT x.k, x.n, y.a, y.n AS m FROM ({first}) x JOIN ({second}) y ON x.e = y.e"
    circuit = Circuit(spark, f"{PAIRS} CREATE MATERIALIZED VIEW v AS {query};")
    ledger = Ledger(circuit.tables)
    ledger.insert("r", rows_of(circuit.tables["r"], [(key, 2 * key) for key in range(3)]))
    drive(circuit, Reference(spark, circuit.tables), {"v": query}, [ledger.commit()])


FAILING = {
    "no row without a partner": "SELECT r.a, 10 div coalesce(s.c, 0) AS q FROM r LEFT JOIN s ON r.k = s.k",
    "a condition on the left": "SELECT r.a, s.c FROM r LEFT JOIN s ON r.k = s.k AND 10 div r.a > 1",
    "a condition on the right": "SELECT r.a, s.c FROM r RIGHT JOIN s ON r.k = s.k AND 10 div s.c > 1",
    "conditions on both sides": "SELECT r.a, s.c FROM r FULL JOIN s ON r.k = s.k AND 10 div r.a > 1 AND 10 div s.c > 1",
}


@pytest.mark.parametrize("query", FAILING.values(), ids=FAILING)
def test_v6_an_expression_is_not_evaluated_for_rows_that_are_not_there(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """The parts of an outer join that the linear rule runs separately. A value of 0 makes the expressions fail; it is
    only in rows without a partner, for which conditions of ON are not evaluated."""
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", 0)
    circuit = Circuit(spark, f"{PAIRS} CREATE MATERIALIZED VIEW v AS {query};")
    [only] = [part for part in circuit.parts if isinstance(part, Stage)]
    ledger = Ledger(circuit.tables)

    def transactions() -> Iterator[Transaction]:
        for number in range(3):
            for at, name in enumerate(("r", "s")):
                ledger.insert(name, rows_of(circuit.tables[name], [(key, number + 1) for key in range(4)]))
                if query != FAILING["no row without a partner"]:
                    ledger.insert(name, rows_of(circuit.tables[name], [(100 * at + 10 + number, 0)]))
            yield ledger.commit()

    drive(circuit, Reference(spark, circuit.tables), {"v": query}, transactions())
    assert only.run_counts[RunKind.LARGE] + only.run_counts[RunKind.RECOMPUTE] == 3


def meetings(leaves: list[pa.Table]) -> int:
    """How many pairs of rows a join may examine, if all leaves but the last are one side of it, by nested loops."""
    *left, right = [rows.num_rows for rows in leaves]
    return int(sum(left) * right)
