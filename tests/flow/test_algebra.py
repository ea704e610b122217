"""The algebra of deltas, on a view of each kind of operator.

Every sequence of transactions between two contents gives the same content. The result of a step is a function of its
input, bit for bit: not of the order of rows, nor of rows that were added and removed before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from evertide.errors import EvertideError
from evertide.flow import Circuit
from evertide.rows.changes import DIFF, consolidate_delta
from tests.flow.checked import TABLES, transactions_of
from tests.kit.compacting import compact_circuit
from tests.kit.compare import compare
from tests.kit.ledger import Transaction, delta_of
from tests.kit.oracle import Content
from tests.kit.runtime import RandomStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEWS = {
    "mapped": "SELECT a + 1 AS a1, x * 2 AS y FROM r WHERE b IS NOT NULL",
    "inner_joined": "SELECT r.a, r.x, s.e FROM r JOIN s ON r.b = s.b",
    "left_joined": "SELECT r.a, r.x, s.id FROM r LEFT JOIN s ON r.b = s.b AND r.a < s.id",
    "full_joined": "SELECT r.c, s.id FROM r FULL JOIN s ON r.b = s.b",
    "not_in": "SELECT a, x FROM r WHERE a NOT IN (SELECT v FROM t)",
    "less_than": "SELECT r.a, t.k FROM r JOIN t ON r.a < t.v",
    "sums": "SELECT b, count(*) AS n, sum(a) AS sa, sum(x) AS sx, avg(x) AS ax, stddev(d) AS sd FROM r GROUP BY b",
    "extremes": "SELECT b, min(x) AS mi, max(x) AS ma, max(c) AS mc, collect_list(x) AS lx FROM r GROUP BY b",
    "distinct_counts": "SELECT b, count(DISTINCT a) AS da, count(DISTINCT x) AS dx, sum(d) AS sd FROM r GROUP BY b",
    "distinct_rows": "SELECT DISTINCT x, c FROM r",
    "global_sums": "SELECT count(*) AS n, sum(x) AS sx, max(c) AS mc FROM r",
    "rolled": "SELECT b, c, sum(x) AS sx, max(a) AS ma FROM r GROUP BY ROLLUP (b, c)",
    "windowed": "SELECT x, row_number() OVER w AS n, sum(x) OVER w AS y FROM r WINDOW w AS (PARTITION BY b ORDER BY a)",
    "top": "SELECT a, b, x FROM r ORDER BY a DESC LIMIT 4",
    "top_per_group": "SELECT b, x, c FROM r QUALIFY row_number() OVER (PARTITION BY b ORDER BY d) <= 2",
    "except_all": "SELECT a FROM r EXCEPT ALL SELECT id FROM s",
    "exploded": "SELECT e, count(*) AS n FROM (SELECT explode(w) AS e FROM t) GROUP BY e",
    "correlated": "SELECT id, (SELECT max(x) FROM r WHERE r.b = s.b) AS mx FROM s",
    "sessions": "SELECT session_window AS w, b, count(*) AS n FROM s GROUP BY session_window(ts, '5 seconds'), b",
    "twice": "SELECT n, count(*) AS c, max(z) FROM (SELECT count(*) AS n, sum(x) AS z FROM r GROUP BY b) GROUP BY n",
}
SCRIPT = "\n".join([TABLES, *(f"CREATE MATERIALIZED VIEW {name} AS {query};" for name, query in VIEWS.items())])


@pytest.fixture(scope="module")
def transactions(spark: SparkSession) -> list[Transaction]:
    return list(transactions_of(Circuit(spark, TABLES), seed=11, count=6))


@dataclass(frozen=True)
class Baseline:
    """The result of a circuit that got the transactions one by one: every delta as bytes, and the final content."""

    told: list[dict[str, bytes]]
    contents: dict[str, pa.Table]


@pytest.fixture(scope="module")
def baseline(spark: SparkSession, transactions: list[Transaction]) -> Baseline:
    steps: list[dict[str, bytes]] = []
    found = contents(Circuit(spark, SCRIPT), transactions, steps)
    return Baseline(steps, found)


def contents(
    circuit: Circuit, transactions: Iterable[Transaction], steps: list[dict[str, bytes]] | None = None
) -> dict[str, pa.Table]:
    """The final content of the views. `steps`, if given, receives every step's deltas as bytes."""
    held = {name: Content(schema, name) for name, schema in circuit.views.items()}
    for deltas in transactions:
        given = circuit.step(deltas)
        for name, delta in given.items():
            held[name].apply(delta)
        if steps is not None:
            steps.append({name: as_bytes(delta) for name, delta in given.items()})
    return {name: content.rows for name, content in held.items()}


def assert_same(found: dict[str, pa.Table], expected: dict[str, pa.Table]) -> None:
    """Bitwise equal, floats too."""
    for name, rows in found.items():
        compare(rows, expected[name], where=name, relative=0.0)


def merge(transactions: Sequence[Transaction]) -> Transaction:
    names = dict.fromkeys(name for deltas in transactions for name in deltas)
    return {name: pa.concat_tables([deltas[name] for deltas in transactions if name in deltas]) for name in names}


def inverse(deltas: Transaction) -> Transaction:
    return {name: net_times(delta, -1) for name, delta in deltas.items()}


def net_times(delta: pa.Table, factor: int) -> pa.Table:
    at = delta.schema.get_field_index(DIFF)
    return delta.set_column(at, delta.schema.field(at), pa.array(np.asarray(delta.column(DIFF)) * factor))


def shuffle(deltas: Transaction, chance: RandomStream) -> Transaction:
    made = {}
    for name, delta in deltas.items():
        order = sorted(range(delta.num_rows), key=lambda _: chance.bits())
        made[name] = delta.take(pa.array(order, pa.int64()))
    return made


def as_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.combine_chunks().to_batches():
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def deltas_as_bytes(circuit: Circuit, transactions: Iterable[Transaction]) -> list[dict[str, bytes]]:
    """Every delta of every view, as bytes."""
    return [{name: as_bytes(delta) for name, delta in circuit.step(deltas).items()} for deltas in transactions]


def assert_same_deltas(found: list[dict[str, bytes]], expected: list[dict[str, bytes]]) -> None:
    wrong = [
        (number, name)
        for number, (these, those) in enumerate(zip(found, expected, strict=True))
        for name in these
        if these[name] != those[name]
    ]
    assert wrong == []


def state_rows(circuit: Circuit) -> dict[str, int]:
    """The rows of every arrangement, after consolidation."""
    compact_circuit(circuit)
    return {name: kept.rows for name, kept in circuit.arrangements.items()}


def test_one_transaction_has_the_same_result_as_two(
    spark: SparkSession, transactions: list[Transaction], baseline: Baseline
) -> None:
    """The delta of a sum is the sum of the deltas."""
    pairs = [merge(transactions[at : at + 2]) for at in range(0, len(transactions), 2)]
    assert_same(contents(Circuit(spark, SCRIPT), pairs), baseline.contents)
    assert_same(contents(Circuit(spark, SCRIPT), [merge(transactions)]), baseline.contents)


def test_split_transactions_end_in_the_same_content(
    spark: SparkSession, transactions: list[Transaction], baseline: Baseline
) -> None:
    """By table, and by row: deletions come first, so that a key never occurs twice."""
    halves: list[Transaction] = []
    for deltas in transactions:
        for name, delta in deltas.items():
            consolidated = consolidate_delta(delta, name)
            signs = np.asarray(consolidated.column(DIFF))
            halves += [{name: consolidated.filter(pa.array(side))} for side in (signs < 0, signs > 0)]
    assert_same(contents(Circuit(spark, SCRIPT), halves), baseline.contents)


def test_a_transaction_and_its_inverse_leave_no_trace(spark: SparkSession, transactions: list[Transaction]) -> None:
    circuit = Circuit(spark, SCRIPT)
    for deltas in transactions[:2]:
        circuit.step(deltas)
    before = state_rows(circuit)
    whole = merge(transactions[2:])
    there, back = circuit.step(whole), circuit.step(inverse(whole))
    for name in VIEWS:
        assert consolidate_delta(pa.concat_tables([there[name], back[name]]), name).num_rows == 0, name
    assert state_rows(circuit) == before


def test_the_order_of_rows_does_not_matter(
    spark: SparkSession, transactions: list[Transaction], baseline: Baseline
) -> None:
    mixed = [shuffle(deltas, RandomStream(number)) for number, deltas in enumerate(transactions)]
    assert_same_deltas(deltas_as_bytes(Circuit(spark, SCRIPT), mixed), baseline.told)


def test_replaying_gives_the_same_bytes(
    spark: SparkSession, transactions: list[Transaction], baseline: Baseline
) -> None:
    assert_same_deltas(deltas_as_bytes(Circuit(spark, SCRIPT), transactions), baseline.told)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 / a AS y FROM r",
        "SELECT b, sum(1 / a) AS y FROM r GROUP BY b",
        "SELECT b, max(1 / a) AS y FROM r GROUP BY b",
        "SELECT s.id, 1 / r.a AS y FROM r JOIN s ON r.b = s.b",
        "SELECT a, sum(1 / a) OVER (PARTITION BY b) AS y FROM r",
    ],
)
def test_a_step_that_fails_changes_nothing(spark: SparkSession, query: str) -> None:
    beside = "SELECT count(*) AS n, sum(a) AS sa FROM r"
    script = f"{TABLES} CREATE MATERIALIZED VIEW n AS {beside}; CREATE MATERIALIZED VIEW y AS {query};"
    circuit, spared = Circuit(spark, script), Circuit(spark, script)
    schemas = circuit.tables

    def rows(*a: int) -> Transaction:
        r = pa.Table.from_pylist([{"a": value, "b": 1, "c": "x"} for value in a], schema=schemas["r"])
        s = pa.Table.from_pylist([{"id": value, "b": 1} for value in a], schema=schemas["s"])
        return {"r": delta_of(r, 1), "s": delta_of(s, 1)}

    before = deltas_as_bytes(circuit, [rows(1, 2)])
    assert deltas_as_bytes(spared, [rows(1, 2)]) == before
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        circuit.step(rows(4, 0))
    assert state_rows(circuit) == state_rows(spared)
    assert_same_deltas(deltas_as_bytes(circuit, [rows(4, 5), rows(7)]), deltas_as_bytes(spared, [rows(4, 5), rows(7)]))


def test_a_delta_of_something_else_is_refused(
    spark: SparkSession, transactions: list[Transaction], baseline: Baseline
) -> None:
    circuit, first = Circuit(spark, SCRIPT), transactions[0]
    begun = deltas_as_bytes(circuit, [first])
    with pytest.raises(EvertideError, match="nowhere"):
        circuit.step({"r": first["r"], "nowhere": first["r"]})
    assert_same_deltas([*begun, *deltas_as_bytes(circuit, transactions[1:2])], baseline.told[:2])
