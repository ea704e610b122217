"""Single queries of users, executed by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from evertide.plan.query.query import make_frame, run_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = pa.table({"id": [1], "customer": ["ann"]})


def explain_unknown(name: str) -> str:
    return "" if name == "orders" else f"no table or view {name!r}"


def refuse(spark: SparkSession, text: str, parameters: list[Any]) -> InvalidInput:
    def load(on: SparkSession, names: object) -> dict[str, Any]:
        return {"orders": make_frame(on, ORDERS)}

    with pytest.raises(InvalidInput) as refused:
        run_query(spark, text, load, parameters, explain_unknown=explain_unknown)
    return refused.value


def test_a_limit_far_above_the_number_of_rows_needs_memory_for_the_rows_only(spark: SparkSession) -> None:
    """Spark's own top-k would allocate room for twice the limit. Spark does not know the number of rows of explode."""
    text = "SELECT x FROM (SELECT explode(array(2, 3, 1)) AS x) ORDER BY x DESC LIMIT 400000000"
    assert run_query(spark, text, lambda *_: {}).column("x").to_pylist() == [3, 2, 1]
    assert run_query(spark, f"SELECT sum(x) AS n FROM ({text})", lambda *_: {}).to_pylist() == [{"n": 6}]


def test_a_subquery_above_a_limit_does_not_change_its_rows(spark: SparkSession) -> None:
    """Spark's default optimizer would drop the ORDER BY."""
    top = "(SELECT id FROM VALUES (1), (0), (4) AS s(id) ORDER BY id DESC LIMIT 1)"
    text = f"SELECT id, (SELECT max(v) FROM VALUES (4, 8) AS t(k, v) WHERE k = q.id) AS n FROM {top} AS q"
    assert run_query(spark, text, lambda *_: {}).to_pylist() == [{"id": 4, "n": 8}]


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        ("SELECT custmer FROM orders", "query:1:8", "no column 'custmer' in 'orders'; did you mean 'customer'?"),
        ("SELECT id,\n  o.custmer\nFROM orders o", "query:2:3", "no column 'custmer' in 'orders'"),
        ("SELECT '😀', custmer FROM orders", "query:1:13", "no column 'custmer'"),
        ("SELECT id FROM\n ordrs", "query:2:2", "no table or view 'ordrs'"),
        ("SELECT id FROM orders WHERE id IN (SELECT a FROM b)", "query:1:50", "no table or view 'b'"),
        ("SELECT summ(id) FROM orders", "query:1:8", "no function 'summ'; did you mean 'sum'?"),
        ("SELECT id FRM orders", "query:1:11", "syntax error at 'FRM'; did you mean 'FROM'?"),
        ("SELECT '😀', 1 +", "query:1:16", "syntax error at end of input"),
        ("SELECT 1, 1/0", "query:1:11", "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`"),
        ("SELECT cast(customer AS INT) FROM orders", "query:1:8", "[CAST_INVALID_INPUT] The value 'ann'"),
        ("SELECT id, input_file_name() FROM orders", "query:1:12", "input_file_name() is refused: the function shows"),
        ("SELECT id, current_user FROM orders", "query:1:12", "current_user is refused: the function shows facts"),
        ("SELECT id FROM orders, csv_files('a')", "query:1:24", "csv_files() in FROM is not allowed"),
        ("SHOW TABLES", "query:1:1", "ShowTables is not allowed"),
        ("SELECT * FROM orders WITH (a = 1)", "query:1:15", "options of a table are not allowed in a query"),
    ],
)  # fmt: skip
def test_an_error_has_its_place_in_the_query(spark: SparkSession, text: str, where: str, why: str) -> None:
    refused = refuse(spark, text, [])
    assert (refused.where, refused.why[: len(why)]) == (where, why)


def test_the_place_is_right_in_a_query_with_parameters(spark: SparkSession) -> None:
    assert refuse(spark, "SELECT ?, custmer FROM orders", ["a long text"]).where == "query:1:11"
