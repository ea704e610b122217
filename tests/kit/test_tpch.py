"""TPC-H: the tables are as declared, the refreshes keep their keys, and both engines agree on all 22 queries."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from evertide.errors import InvalidInput
from evertide.plan.script.statements import TableStatement, ViewStatement, parse_script
from tests.kit.compare import compare
from tests.kit.oracle import Reference
from tests.kit.tpch import WORKLOAD, generated, refreshes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCALE = 0.001
KEYS = {
    "region": ["r_regionkey"],
    "nation": ["n_nationkey"],
    "supplier": ["s_suppkey"],
    "part": ["p_partkey"],
    "partsupp": ["ps_partkey", "ps_suppkey"],
    "customer": ["c_custkey"],
    "orders": ["o_orderkey"],
    "lineitem": ["l_orderkey", "l_linenumber"],
}


def empty_reference(spark: SparkSession | None) -> Reference:
    return Reference(spark, {name: table.schema for name, table in generated(SCALE).items()})


def test_the_script_declares_eight_tables_and_22_views(spark: SparkSession) -> None:
    statements = parse_script(spark, WORKLOAD.script())
    tables = {one.name: one for one in statements if isinstance(one, TableStatement)}
    assert {name: list(table.key) for name, table in tables.items()} == KEYS
    views = [one.name for one in statements if isinstance(one, ViewStatement) and one.is_materialized]
    assert views == [f"q{number:02}" for number in range(1, 23)] == list(WORKLOAD.queries)


def test_the_rows_are_as_declared(spark: SparkSession) -> None:
    """As Spark parses the statements."""
    session = spark.newSession()
    for statement in parse_script(spark, WORKLOAD.tables):
        assert isinstance(statement, TableStatement)
        found = session.createDataFrame(generated(SCALE)[statement.name].slice(0, 1)).schema
        declared = [(column.name, column.type.strip('"'), column.nullable) for column in statement.columns]
        assert [(field.name, field.dataType.simpleString(), field.nullable) for field in found] == [
            (name, {"long": "bigint", "integer": "int"}.get(kind, kind), nullable) for name, kind, nullable in declared
        ]


def test_a_script_may_have_some_of_the_views() -> None:
    script = WORKLOAD.script(["q06", "q01"])
    assert script.startswith("CREATE TABLE region")
    assert script.index("VIEW q06") < script.index("VIEW q01")
    assert script.count("MATERIALIZED VIEW") == 2


def test_the_number_of_rows_of_a_scale_is_the_standards() -> None:
    sizes = {name: table.num_rows for name, table in generated(SCALE).items()}
    assert sizes["region"] == 5
    assert sizes["nation"] == 25
    assert sizes["customer"] == 150
    assert sizes["orders"] == 1500
    assert sizes["lineitem"] == 6005
    assert generated(SCALE) is generated(SCALE), "generated once"


def test_an_invalid_scale_is_refused() -> None:
    with pytest.raises(InvalidInput, match="scale"):
        generated(-1.0)


def test_refreshes_follow_from_the_seed() -> None:
    first, again, other = (list(refreshes(generated(SCALE), seed, transactions=6)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("seed", [1, 2])
def test_refreshes_change_all_tables_and_keep_their_keys(seed: int) -> None:
    reference = empty_reference(None)
    changed: Counter[str] = Counter()
    empty = 0
    for number, deltas in enumerate(refreshes(generated(SCALE), seed, transactions=30)):
        reference.apply(deltas)
        empty += not deltas
        for name in deltas if number else ():
            changed[name] += 1
        for name, key in KEYS.items():
            held = reference.rows(name).select(key)
            assert held.group_by(key).aggregate([]).num_rows == held.num_rows, f"{name}, transaction {number}"
    assert set(changed) == set(KEYS)
    assert changed["region"] >= 2
    assert empty >= 2


def test_refreshes_leave_no_table_empty_and_some_lines_without_order() -> None:
    reference = empty_reference(None)
    for deltas in refreshes(generated(SCALE), 1):
        reference.apply(deltas)
    assert all(reference.rows(name).num_rows for name in KEYS)
    orders = pa.chunked_array(reference.rows("orders").column("o_orderkey"))
    orphans = pc.sum(pc.invert(pc.is_in(reference.rows("lineitem").column("l_orderkey"), orders))).as_py()
    assert orphans > 0


def test_both_engines_agree_on_every_query(spark: SparkSession) -> None:
    reference = empty_reference(spark)
    for deltas in refreshes(generated(SCALE), 1):
        reference.apply(deltas)
    for name, query in WORKLOAD.queries.items():
        answer = reference.by_duckdb(WORKLOAD.duckdb[name])
        compare(reference.by_spark(query), answer, where=name, exact_types=False)


def test_every_query_gives_rows_that_change_with_the_transactions() -> None:
    reference = empty_reference(None)
    answers: dict[str, set[str]] = {name: set() for name in WORKLOAD.queries}
    for deltas in refreshes(generated(SCALE), 1):
        reference.apply(deltas)
        for name, query in WORKLOAD.duckdb.items():
            rows = reference.by_duckdb(query).to_pylist()
            assert any(value is not None for row in rows for value in row.values()), f"{name} returns no rows"
            answers[name].add(str(rows))
    assert {name: len(seen) for name, seen in answers.items() if len(seen) < 3} == {}
