"""What a transaction costs beside what it changes: a step never costs much more than a recomputation would.

Counted are rows that go into fragments and come out of them, and the ways that stages take; never time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from evertide.flow import Circuit
from evertide.flow.stage import Stage
from evertide.plan.fragment import fragment
from evertide.plan.fragment.fragment import Fragment
from evertide.plan.fragment.local_runner import LocalRunner
from evertide.testing.ledger import Ledger, Transaction
from evertide.testing.oracle import Reference, drive

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
    """All that is sold, and then some that come and go: one in a hundred."""
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
def test_v3_what_several_subqueries_read_is_computed_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rows go through fragments than the tables hold."""
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
def test_v3_few_rows_that_make_many_are_shared_by_the_executors(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr(fragment, "ROWS_JOINED_MAX", 500)
    circuit = Circuit(spark, f"{PAIRS} CREATE MATERIALIZED VIEW v AS {query};")
    [stage] = [part for part in circuit.order if isinstance(part, Stage)]
    tried: list[str] = []
    run = LocalRunner.run

    def watched(self: LocalRunner, *given: Any, **options: Any) -> Any:
        found = run(self, *given, **options)
        tried.append(self.last_path)
        return found

    monkeypatch.setattr(LocalRunner, "run", watched)
    ledger = Ledger(circuit.tables)

    def insert(key: int, count: int) -> Transaction:
        for name in ("r", "s"):
            ledger.insert(name, rows_of(circuit.tables[name], [(key, n) for n in range(count)]))
        return ledger.commit()

    given = [insert(1, 5), insert(2, 40), insert(3, 60), insert(4, 6)]
    drive(circuit, Reference(spark, circuit.tables), {"v": query}, given)
    if query == PAIRED:
        assert tried == ["here", "too many", "here"]  # of 120 rows it is known that 80 were too many
        assert dict(stage.run_counts) == {"small": 2, "large": 2}
    else:
        assert "too many" in tried
        assert stage.run_counts["large"] > 0
