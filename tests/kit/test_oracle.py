"""The reference, and a drive that detects every way in which a circuit may be wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException

from evertide.errors import InvalidInput
from evertide.plan.program.program import Program
from evertide.rows.changes import consolidate_delta
from tests.kit.compare import Differs, compare
from tests.kit.ledger import Transaction, delta_of, delta_schema
from tests.kit.oracle import Content, Reference, drive, read_types
from tests.kit.runtime import RandomStream
from tests.kit.transactions import random_transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMAS = {
    "t": pa.schema([pa.field("k", pa.int64(), nullable=False), ("g", pa.string()), ("x", pa.float64())]),
    "u": pa.schema([("g", pa.string()), ("n", pa.int64())]),
}
COLLATED = pa.schema([("t", pa.string()), ("p", pa.struct([("f", pa.string())]))])
QUERIES = {
    "sums": "SELECT g, sum(x) AS x, count(*) AS n FROM t GROUP BY g",
    "joined": "SELECT t.k, t.x, u.n FROM t JOIN u ON t.g = u.g",
}

Spoil = Callable[[str, int, pa.Table], pa.Table]


class Recomputing:
    """A stand-in for a circuit: recomputes every view and returns the difference. A test can make it wrong.

    As with a circuit, the first step also returns the rows that a view has without any input.
    """

    def __init__(self, spark: SparkSession, queries: Mapping[str, str], spoil: Spoil = lambda *given: given[2]) -> None:
        self._reference = Reference(spark, SCHEMAS)
        self._queries = dict(queries)
        self._spoil = spoil
        self._time = -1
        self.views = {name: self._reference.by_spark(query).schema for name, query in queries.items()}
        self._held = {name: schema.empty_table() for name, schema in self.views.items()}

    def step(self, deltas: Transaction) -> dict[str, pa.Table]:
        self._reference.apply(deltas)
        self._time += 1
        return {name: self._spoil(name, self._time, self._delta(name)) for name in self._queries}

    def _delta(self, name: str) -> pa.Table:
        old, self._held[name] = self._held[name], self._reference.by_spark(self._queries[name])
        return consolidate_delta(pa.concat_tables([delta_of(old, -1), delta_of(self._held[name], 1)]))


def deltas(seed: int = 1, count: int = 5) -> list[Transaction]:
    return list(random_transactions(SCHEMAS, seed, keys={"t": ["k"]}, count=count))


# Content


def test_content_adds_up_and_keeps_counts() -> None:
    content = Content(SCHEMAS["u"])
    row = pa.table({"g": ["a"], "n": [1]}, schema=SCHEMAS["u"])
    content.apply(delta_of(row, 3))
    content.apply(delta_of(row, -1))
    assert content.rows.to_pylist() == row.to_pylist() * 2
    content.apply(delta_of(row, -2))
    assert content.rows.num_rows == 0


def test_content_refuses_negative_counts_and_stays_unchanged() -> None:
    content = Content(SCHEMAS["u"], "view v")
    row = pa.table({"g": ["a"], "n": [1]}, schema=SCHEMAS["u"])
    content.apply(delta_of(row, 1))
    with pytest.raises(Differs, match=r"view v: 1 rows would be there less than no time\n.*'g': 'a'"):
        content.apply(delta_of(row, -2))
    assert content.rows.num_rows == 1


def test_content_refuses_other_columns() -> None:
    with pytest.raises(Differs, match="the delta has the columns g string, but must have g string, n int64, __diff"):
        Content(SCHEMAS["u"]).apply(pa.table({"g": pa.array([], pa.string())}))


# Reference


def test_both_engines_query_the_content_of_the_tables(spark: SparkSession) -> None:
    reference = Reference(spark, SCHEMAS)
    for transaction in deltas():
        reference.apply(transaction)
        for query in QUERIES.values():
            compare(reference.by_spark(query), reference.by_duckdb(query), exact_types=False)
        assert reference.rows("t").num_rows == reference.by_duckdb("SELECT * FROM t").num_rows


def test_both_engines_keep_the_order_of_a_limit_below_a_subquery(spark: SparkSession) -> None:
    """With Spark's default rules, only DuckDB does."""
    reference = Reference(spark, {"u": SCHEMAS["u"]})
    rows = pa.table({"g": ["a", "b"], "n": [1, 2]}, schema=SCHEMAS["u"])
    reference.apply({"u": delta_of(rows, 1)})
    top = "(SELECT n FROM u ORDER BY n DESC LIMIT 1)"
    query = f"SELECT q.n, (SELECT max(u.g) FROM u WHERE u.n = q.n) AS g FROM {top} AS q"
    for found in (reference.by_spark(query), reference.by_spark_over_unseen_rows(query), reference.by_duckdb(query)):
        assert found.to_pylist() == [{"n": 2, "g": "b"}]


def test_views_may_name_earlier_ones(spark: SparkSession) -> None:
    views = {"sums": QUERIES["sums"], "largest": "SELECT max(n) AS n FROM sums"}
    reference = Reference(spark, SCHEMAS, views)
    answers = []
    for transaction in deltas():
        reference.apply(transaction)
        answers.append(reference.by_spark(views["largest"]))
        compare(reference.by_duckdb(views["largest"]), answers[-1])
    assert len({str(answer.to_pylist()) for answer in answers}) > 1


def test_the_optimizer_does_not_see_unseen_rows(spark: SparkSession) -> None:
    """Spark removes a join with a table that it knows to be empty, with what it would evaluate over the other table."""
    reference = Reference(spark, SCHEMAS)
    reference.apply({"t": delta_of(pa.table({"k": [2], "g": ["a"], "x": [1.0]}, schema=SCHEMAS["t"]), 1)})
    query = "SELECT t.k FROM t JOIN u ON t.g = u.g AND 6 div (t.k - {}) > 0"
    assert reference.by_spark(query.format(2)).num_rows == 0
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
        reference.by_spark_over_unseen_rows(query.format(2))
    compare(reference.by_spark_over_unseen_rows(query.format(1)), reference.by_spark(query.format(1)))
    reference.apply({"u": delta_of(pa.table({"g": ["a"], "n": [1]}, schema=SCHEMAS["u"]), 1)})
    assert reference.by_spark_over_unseen_rows(query.format(1)).to_pylist() == [{"k": 2}]


def test_the_tables_of_spark_have_their_collations(spark: SparkSession) -> None:
    program = Program(spark, "CREATE TABLE c (t STRING COLLATE UTF8_LCASE, p STRUCT<f: STRING COLLATE UNICODE_CI>);")
    reference = Reference(spark, {"c": COLLATED}, types=read_types(program))
    rows = [{"t": text, "p": {"f": text}} for text in ("a", "A", "b", "B")]
    reference.apply({"c": delta_of(pa.Table.from_pylist(rows, schema=COLLATED), 1)})
    for answer in (reference.by_spark, reference.by_spark_over_unseen_rows):
        assert answer("SELECT count(*) AS n FROM c GROUP BY t").to_pylist() == [{"n": 2}, {"n": 2}]
        assert answer("SELECT count(DISTINCT p) AS n FROM c").to_pylist() == [{"n": 2}]


def test_unseen_rows_can_be_in_another_order(spark: SparkSession) -> None:
    reference = Reference(spark, SCHEMAS)
    reference.apply({"u": delta_of(pa.table({"g": ["a"] * 9, "n": range(9)}, schema=SCHEMAS["u"]), 1)})
    chance = RandomStream(1)
    orders = [
        reference.by_spark_over_unseen_rows("SELECT n FROM u", shuffle)["n"].to_pylist()
        for shuffle in (None, chance, chance)
    ]
    assert len({tuple(order) for order in orders}) == 3
    assert [sorted(order) for order in orders] == [list(range(9))] * 3


def test_the_users_session_is_unchanged(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    Reference(spark, SCHEMAS).by_spark("SELECT * FROM t")
    assert not spark.catalog.tableExists("t")
    assert spark.conf.get("spark.sql.shuffle.partitions") == before


def test_a_reference_without_spark_is_an_error() -> None:
    reference = Reference(None, SCHEMAS)
    assert reference.by_duckdb("SELECT count(*) AS n FROM t").to_pylist() == [{"n": 0}]
    with pytest.raises(InvalidInput, match="without a Spark session"):
        reference.by_spark("SELECT 1")


def test_null_order_and_time_zone_are_sparks(spark: SparkSession) -> None:
    reference = Reference(spark, {"t": pa.schema([("x", pa.int64()), ("moment", pa.timestamp("us", "UTC"))])})
    rows = pa.table(
        {"x": [None, 1, 2], "moment": [0, 1, None]}, schema=pa.schema([("x", pa.int64()), ("moment", pa.int64())])
    )
    rows = rows.set_column(1, "moment", rows.column("moment").cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")))
    reference.apply({"t": delta_of(rows, 1)})
    for query in [
        "SELECT x FROM t ORDER BY x LIMIT 1",
        "SELECT x FROM t ORDER BY x DESC LIMIT 1",
        "SELECT hour(moment) AS h FROM t",
    ]:
        compare(reference.by_spark(query), reference.by_duckdb(query), exact_types=False)


# Drive


def test_a_right_circuit_passes(spark: SparkSession) -> None:
    reference = Reference(spark, SCHEMAS)
    contents = drive(Recomputing(spark, QUERIES), reference, QUERIES, deltas(), duckdb_every=1)
    assert set(contents) == set(QUERIES)
    compare(contents["sums"].rows, reference.by_spark(QUERIES["sums"]))


def losing(name: str, number: int, delta: pa.Table) -> pa.Table:
    return delta.slice(0, delta.num_rows - 1) if name == "sums" else delta


def doubling(name: str, number: int, delta: pa.Table) -> pa.Table:
    return pa.concat_tables([delta, delta.filter(pa.compute.greater(delta.column("__diff"), 0))])


def forgetting(name: str, number: int, delta: pa.Table) -> pa.Table:
    return delta.filter(pa.compute.greater(delta.column("__diff"), 0)) if name == "sums" else delta


@pytest.mark.parametrize("spoil", [losing, doubling, forgetting])
@pytest.mark.parametrize(("spark_every", "duckdb_every", "by"), [(1, 0, "Spark"), (0, 1, "DuckDB")])
def test_a_wrong_circuit_is_detected(
    spark: SparkSession, spoil: Spoil, spark_every: int, duckdb_every: int, by: str
) -> None:
    circuit = Recomputing(spark, QUERIES, spoil)
    reference = Reference(spark, SCHEMAS)
    with pytest.raises(Differs, match=rf"view sums, transaction \d, by {by}: "):
        drive(circuit, reference, QUERIES, deltas(seed=3, count=3), spark_every=spark_every, duckdb_every=duckdb_every)


def test_the_end_is_checked_with_any_interval(spark: SparkSession) -> None:
    circuit = Recomputing(spark, QUERIES, doubling)
    with pytest.raises(Differs, match="view sums, transaction 4, by Spark"):
        drive(circuit, Reference(spark, SCHEMAS), QUERIES, deltas(seed=3, count=5), spark_every=100)


def test_one_run_reports_all_wrong_views(spark: SparkSession) -> None:
    queries = {**QUERIES, "more": "SELECT g FROM t"}
    with pytest.raises(
        Differs, match=r"views sums, joined, more, transaction 0, by Spark: view sums(.|\n)*\nview more"
    ):
        drive(Recomputing(spark, queries, doubling), Reference(spark, SCHEMAS), queries, [deltas(seed=3)[0]])


def test_a_deletion_of_a_missing_row_is_reported_at_once(spark: SparkSession) -> None:
    def inventing(name: str, number: int, delta: pa.Table) -> pa.Table:
        unknown = pa.table({"g": ["never"], "x": [1.0], "n": [1]}, schema=delta.drop_columns(["__diff"]).schema)
        return pa.concat_tables([delta, delta_of(unknown, -1)]) if number == 2 else delta

    queries = {"sums": QUERIES["sums"]}
    with pytest.raises(Differs, match=r"view sums, transaction 2: 1 rows would be there(.|\n)*'never'"):
        drive(Recomputing(spark, queries, inventing), Reference(spark, SCHEMAS), queries, deltas(), spark_every=0)


def test_a_view_without_a_delta_is_reported(spark: SparkSession) -> None:
    class Silent:
        def __init__(self) -> None:
            self.views = {"v": SCHEMAS["u"]}

        def step(self, deltas: Transaction) -> dict[str, pa.Table]:
            return {}

    with pytest.raises(Differs, match="view v, transaction 0: the circuit gave no delta"):
        drive(Silent(), Reference(spark, SCHEMAS), {"v": "SELECT * FROM u"}, deltas())


def test_a_delta_schema_ends_in_the_diff() -> None:
    assert delta_schema(SCHEMAS["u"]).names == ["g", "n", "__diff"]
