"""Tables and views as Spark's analyzer sees them, and refused queries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evertide.errors import InvalidInput
from evertide.plan.algebra.refusals import refuse_unmaintainable
from evertide.plan.catalyst.walk import get_kind, walk_nodes
from evertide.plan.script.catalog import Query, SparkCatalog
from evertide.plan.script.statements import FlowStatement, TableStatement, ViewStatement, parse_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = """
CREATE TABLE orders (id BIGINT NOT NULL, customer BIGINT, amount DECIMAL(10, 2), at TIMESTAMP, PRIMARY KEY (id));
CREATE TABLE customers (id BIGINT NOT NULL, name STRING NOT NULL, city STRING, PRIMARY KEY (id));
"""


def declare(spark: SparkSession, script: str) -> tuple[SparkCatalog, list[Query]]:
    catalog, queries = SparkCatalog(spark), []
    for statement in parse_script(spark, TABLES + script, "shop.sql"):
        match statement:
            case TableStatement():
                catalog.add_table(statement)
            case ViewStatement():
                queries.append(catalog.add_view(statement))
            case FlowStatement():
                raise AssertionError("no flows here")
    return catalog, queries


def declare_and_check(spark: SparkSession, query: str) -> None:
    catalog, (view,) = declare(spark, f"CREATE MATERIALIZED VIEW v AS {query}")
    refuse_unmaintainable(view, catalog)


def test_views_read_tables_materialized_views_and_through_plain_views(spark: SparkSession) -> None:
    _, (large, per_city, top) = declare(
        spark,
        """
        CREATE VIEW large AS SELECT * FROM orders WHERE amount > 100;
        CREATE MATERIALIZED VIEW per_city AS
            SELECT city, count(*) AS n FROM large JOIN customers ON customer = customers.id GROUP BY city;
        CREATE MATERIALIZED VIEW top AS
            SELECT city FROM per_city WHERE n = (SELECT max(n) FROM per_city) AND city IN (SELECT city FROM customers);
        """,
    )
    assert large.reads == ("orders",)
    assert per_city.reads == ("orders", "customers")
    assert top.reads == ("per_city", "customers")


def test_a_leaf_survives_the_optimizer_and_keeps_not_null(spark: SparkSession) -> None:
    """Spark would fold away an empty local relation with everything above it."""
    catalog, (view,) = declare(spark, "CREATE MATERIALIZED VIEW v AS SELECT name FROM customers WHERE name IS NOT NULL")
    kinds = [get_kind(node) for node in walk_nodes(view.optimized)]
    assert kinds == ["Project", "LogicalRDD"], "IS NOT NULL is always true on a NOT NULL column"
    assert [catalog.find_leaf(node) for node in walk_nodes(view.optimized)] == ["", "customers"]


def test_the_users_session_is_unchanged(spark: SparkSession) -> None:
    spark.range(3).createOrReplaceTempView("mine")
    with pytest.raises(InvalidInput, match="no table or view 'mine'"):
        declare(spark, "CREATE MATERIALIZED VIEW v AS SELECT * FROM mine")
    assert "orders" not in [table.name for table in spark.catalog.listTables()]


def test_the_users_settings_and_functions_apply(spark: SparkSession) -> None:
    user = spark.newSession()
    user.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    user.udf.register("doubled", lambda number: number * 2, "bigint")
    catalog, (view,) = declare(user, "CREATE MATERIALIZED VIEW v AS SELECT doubled(id) AS d FROM orders")
    assert catalog.session.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    assert "BatchEvalPython" in [get_kind(node) for node in walk_nodes(view.optimized)]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT * FROM missing", "no table or view 'missing'; the script declares"),
        ("SELECT * FROM order", "did you mean 'orders'?"),
        ("SELECT nothing FROM orders", "no column 'nothing' in 'orders'; the columns are "),
        ("SELECT id, now() FROM orders", "now() has no fixed value"),
        ("SELECT id FROM orders WHERE at > current_timestamp()", "current_timestamp() has no fixed value"),
        ("SELECT id FROM orders WHERE id IN (SELECT id FROM customers WHERE name = current_user())", "current_user()"),
        ("SELECT id, rand() AS r FROM orders", "rand() is not deterministic"),
        ("SELECT id, 1 + uuid() AS r FROM orders", "uuid() is not deterministic"),
        ("SELECT id, monotonically_increasing_id() AS r FROM orders", "monotonically_increasing_id() is not det"),
        ("SELECT id FROM orders LIMIT 10", "LIMIT and OFFSET without ORDER BY"),
        ("SELECT id FROM orders SORT BY id LIMIT 10", "LIMIT and OFFSET without ORDER BY"),
        (
            "SELECT id FROM (SELECT id FROM orders ORDER BY id) GROUP BY id LIMIT 10",
            "LIMIT and OFFSET without ORDER BY",
        ),
        ("SELECT * FROM orders TABLESAMPLE (10 PERCENT)", "TABLESAMPLE selects rows at random"),
    ],
)
def test_a_query_that_cannot_be_maintained_is_refused_by_name(spark: SparkSession, query: str, why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        declare_and_check(spark, query)
    assert refused.value.where.startswith("shop.sql:4:")
    assert why in refused.value.why


@pytest.mark.parametrize(
    ("script", "where", "why"),
    [
        ("SELECT id,\n  custmer FROM orders", "5:3", "no column 'custmer' in 'orders'; did you mean 'customer'?"),
        ("SELECT o.custmer\nFROM orders o", "4:38", "no column 'custmer' in 'orders'; did you mean 'customer'?"),
        ("SELECT p.id FROM orders o", "4:38", "no column 'p.id'; did you mean 'o.id'?"),
        ("SELECT custmer FROM orders o, customers c", "4:38", "no column 'custmer'; did you mean 'customer'?"),
        ("SELECT 'ü😀', custmer FROM orders", "4:44", "no column 'custmer' in 'orders'; did you mean 'customer'?"),
        (
            "SELECT * FROM STREAM orders\nWHERE amont > 1",
            "5:7",
            "no column 'amont' in 'orders'; did you mean 'amount'?",
        ),
        ("SELECT amount FROM (SELECT id FROM orders)", "4:38", "no column 'amount'; the columns are id"),
        ("SELECT name FROM custmers", "4:48", "no table or view 'custmers'; did you mean 'customers'?"),
        ("SELECT summ(amount) FROM orders", "4:38", "no function 'summ'; did you mean 'sum'?"),
        ("SELECT o.id FROM orders o, customers\nWHERE id = 1", "5:7", "'id' is ambiguous; write customers.id or o.id"),
        ("SELECT id, current_date()\nFROM orders", "4:42", "current_date() has no fixed value"),
        ("SELECT id FROM orders\n  LIMIT 10", "5:3", "LIMIT and OFFSET without ORDER BY"),
    ],
)
def test_an_error_in_a_query_has_its_position(spark: SparkSession, script: str, where: str, why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        declare_and_check(spark, script)
    assert why in refused.value.why
    assert refused.value.where == f"shop.sql:{where}"


def test_relations_outside_the_pipeline_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(f"{tmp_path}/outside")
    with pytest.raises(InvalidInput, match="which is not a table or view of the pipeline"):
        declare_and_check(spark, f"SELECT * FROM parquet.`{tmp_path}/outside`")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM orders ORDER BY amount DESC, id LIMIT 10",
        "SELECT amount FROM orders ORDER BY id LIMIT 10 OFFSET 5",
        "SELECT 1 AS one",
        "SELECT * FROM VALUES (1, 'a') AS t(id, name) JOIN customers USING (id)",
        "WITH big AS (SELECT * FROM orders WHERE amount > 1) SELECT count(*) AS n FROM big JOIN big AS b USING (id)",
        "SELECT id, (SELECT max(amount) FROM orders) AS m FROM customers",
        "SELECT id FROM customers c WHERE EXISTS (SELECT 1 FROM orders WHERE customer = c.id)",
        "SELECT window(at, '5 minutes') AS w, sum(amount) AS s FROM orders GROUP BY window(at, '5 minutes')",
    ],
)
def test_a_query_that_can_be_maintained_is_accepted(spark: SparkSession, query: str) -> None:
    declare_and_check(spark, query)
