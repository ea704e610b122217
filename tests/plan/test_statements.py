"""Statements: parsed by Spark, never executed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evertide.errors import InvalidInput
from evertide.plan.script.catalog import SparkCatalog
from evertide.plan.script.statements import DeclaredColumn, FlowStatement, TableStatement, ViewStatement, parse_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOP = """
-- What the shop sells
CREATE TABLE orders (
  id BIGINT NOT NULL COMMENT 'the key', amount DECIMAL(10,2) DEFAULT 0, tags ARRAY<STRING>, PRIMARY KEY (id)
) USING push OPTIONS (topic 'orders', 'batch.rows' 100) COMMENT 'all of them' TBLPROPERTIES ('evertide.keep' = 'none');

CREATE VIEW large AS SELECT * FROM orders WHERE amount > 100;
CREATE TEMPORARY VIEW small AS SELECT * FROM orders WHERE amount < 1;
CREATE MATERIALIZED VIEW revenue COMMENT 'per day' TBLPROPERTIES ('evertide.refresh' = 'full')
AS SELECT sum(amount) AS total FROM orders;
CREATE STREAMING TABLE customers (id BIGINT NOT NULL, name STRING);
CREATE FLOW changes AS AUTO CDC INTO customers FROM STREAM feed KEYS (id)
  APPLY AS DELETE WHEN op = 'D' SEQUENCE BY ts COLUMNS * EXCEPT (op, ts) STORED AS SCD TYPE 1;
"""


def test_a_plain_view_may_rename_its_columns(spark: SparkSession) -> None:
    table = "CREATE TABLE t (a INT, b INT);"
    for kind in ("VIEW", "TEMPORARY VIEW"):
        [_, view] = parse_script(
            spark, f"{table} CREATE {kind} w (x, y COMMENT 'the b') AS SELECT a, b FROM t", "a.sql"
        )
        assert isinstance(view, ViewStatement)
        assert (view.columns, view.query) == (("x", "y"), "SELECT a, b FROM t")
    catalog = SparkCatalog(spark)
    wrong = f"{table}\nCREATE VIEW w (x) AS SELECT a, b FROM t"
    declared, view = parse_script(spark, wrong, "a.sql")
    assert isinstance(declared, TableStatement)
    assert isinstance(view, ViewStatement)
    catalog.add_table(declared)
    with pytest.raises(InvalidInput, match="the view names 1 columns, but its query has 2") as refused:
        catalog.add_view(view)
    assert refused.value.where == "a.sql:2:1, view 'w'"


def test_a_script_is_read_into_values(spark: SparkSession) -> None:
    table, large, small, revenue, customers, flow = parse_script(spark, SHOP, "shop.sql")
    assert table == TableStatement(
        name="orders",
        columns=(
            DeclaredColumn("id", '"long"', nullable=False, comment="the key"),
            DeclaredColumn("amount", '"decimal(10,2)"', default="0"),
            DeclaredColumn("tags", '{"type":"array","elementType":"string","containsNull":true}'),
        ),
        key=("id",),
        connector="push",
        options={"topic": "orders", "batch.rows": "100"},
        properties={"evertide.keep": "none"},
        comment="all of them",
        is_streaming=False,
        where="shop.sql:3:1",
    )
    assert large == ViewStatement("large", "SELECT * FROM orders WHERE amount > 100", False, {}, "", "shop.sql:7:1")
    assert isinstance(small, ViewStatement)
    assert (small.name, small.is_materialized, small.query) == ("small", False, "SELECT * FROM orders WHERE amount < 1")
    assert revenue == ViewStatement(
        "revenue",
        "SELECT sum(amount) AS total FROM orders",
        True,
        {"evertide.refresh": "full"},
        "per day",
        "shop.sql:9:1",
    )
    assert isinstance(customers, TableStatement)
    assert (customers.is_streaming, [column.name for column in customers.columns]) == (True, ["id", "name"])
    assert flow == FlowStatement(
        name="changes",
        target="customers",
        source="feed",
        keys=("id",),
        sequence_by="ts",
        delete_when="(op = 'D')",
        without=("op", "ts"),
        where="shop.sql:12:1",
    )


def test_nothing_is_executed(spark: SparkSession) -> None:
    before = [table.name for table in spark.catalog.listTables()]
    parse_script(spark, SHOP)
    assert [table.name for table in spark.catalog.listTables()] == before


@pytest.mark.parametrize(
    ("script", "line", "why"),
    [
        ("SELECT 1", 1, "a SELECT alone is not supported; write CREATE MATERIALIZED VIEW"),
        ("DROP TABLE a", 1, "DROP TABLE is not supported; leave the table out: its rows stay"),
        ("\nCREATE TABLE t (a INT\n,, b INT)", 3, "syntax error at ','"),
        ("CREATE TABLE t (a INT);\nCREATE VIEW T AS SELECT 1", 2, "'T' is already declared, at shop.sql:1:1"),
        ("CREATE TABLE db.t (a INT)", 1, "the name 'db.t' has a catalog or schema; names in a pipeline have none"),
        ("CREATE TABLE t (a INT, PRIMARY KEY (b))", 1, "the key 'b' is not a column of the table; it has a"),
        ("CREATE TABLE t (a INT, CHECK (a > 0))", 1, "the constraint CheckConstraint is not supported"),
        ("CREATE TABLE t (a INT) PARTITIONED BY (a)", 1, "PARTITIONED BY is not supported"),
        ("CREATE TABLE t (a INT) LOCATION 'x'", 1, "LOCATION is not supported"),
        ("CREATE TABLE t (a INT, b INT GENERATED ALWAYS AS (a + 1))", 1, "GENERATED ALWAYS AS is not supported"),
        (
            "CREATE FLOW f AS AUTO CDC INTO t FROM STREAM s KEYS (id) SEQUENCE BY ts STORED AS SCD TYPE 2",
            1,
            "STORED AS SCD TYPE 2 is not supported",
        ),
        ("CREATE TABLE t (a INT, b ARRAY<VARCHAR(3) COLLATE UTF8_LCASE>)", 1, "use STRING COLLATE"),
        ("CREATE TABLE t (a CHAR(3) COLLATE UTF8_LCASE)", 1, "use STRING COLLATE"),
        ("CREATE TABLE t (a INT,\n b TEXT)", 2, "the type TEXT does not exist; use STRING"),
        ("CREATE TABLE t (a VARCHAR)", 1, "the type VARCHAR needs a length, as in VARCHAR(20); or use STRING"),
        ("CREATE TABLE t (a TIME(3))", 1, "TIME(3) is not supported, since tables store all digits; declare TIME,"),
        ("CREATE TABLE t (a INT, b ARRAY<STRUCT<x: TIME(0)>>)", 1, "TIME(0) is not supported"),
        ("CREATE TABLE t (a MAP<INTERVAL DAY, INT>)", 1, "INTERVAL DAY is not supported"),
        ("CREATE TABLE t (a INTERVAL HOUR TO MINUTE)", 1, "declare INTERVAL DAY TO SECOND"),
        ("CREATE TABLE t (a INTERVAL MINUTE TO SECOND)", 1, "declare INTERVAL DAY TO SECOND"),
        ("CREATE TABLE t (a BIGIN)", 1, "use BIGINT"),
        ("CREATE TABLE t (a WIDGET)", 1, "docs/sql.md lists the types"),
        ("CREATE TABLE t AS SELECT 1 AS a", 1, "write CREATE MATERIALIZED VIEW name AS SELECT"),
        ("CREATE OR REPLACE TABLE t (a INT)", 1, "leave out OR REPLACE"),
        ("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT 1 AS a", 1, "OR REPLACE is not needed: leave it out"),
        ("INSERT INTO t VALUES (1)", 1, "INSERT is not supported: a script only declares"),
        ("\n SELCT 1", 2, "syntax error at 'SELCT'; did you mean 'SELECT'?"),
        ("USE elsewhere", 1, "the statement SetCatalogAndNamespace is not supported; a script has CREATE TABLE"),
    ],
)
def test_unsupported_statements_are_refused_by_name(spark: SparkSession, script: str, line: int, why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_script(spark, script, "shop.sql")
    assert refused.value.where.startswith(f"shop.sql:{line}:")
    assert why in refused.value.why
