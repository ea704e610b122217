"""The tables of functions that queries may call: complete for the installed engines, and enforced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

from evertide.errors import InvalidInput
from evertide.plan.query import functions as of_spark
from evertide.plan.query.query import remove_forbidden_functions, run_query
from evertide.server.query import duck_functions as of_duckdb
from evertide.server.query.duck import Duck, DuckDeclined
from evertide.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNLISTED = {"->", "unnest"}
"""DuckDB has them as syntax, and does not list them, or lists them only as tables."""


def test_every_function_of_duckdb_is_reviewed() -> None:
    """A new version of DuckDB fails this: put each new function into the table, with a reason if it is refused."""
    found = duckdb.connect().execute("SELECT DISTINCT function_name, function_type FROM duckdb_functions()").fetchall()
    in_from = {name for name, kind in found if kind in ("table", "table_macro")}
    in_expressions = {name for name, kind in found if kind in ("scalar", "aggregate", "macro", "window")}
    assert {kind for _, kind in found} == {"aggregate", "macro", "pragma", "scalar", "table", "table_macro", "window"}
    assert of_duckdb.ALLOWED | {*of_duckdb.REFUSED} == in_expressions | UNLISTED
    assert of_duckdb.ALLOWED_IN_FROM | {*of_duckdb.REFUSED_IN_FROM} == in_from
    assert not of_duckdb.ALLOWED & {*of_duckdb.REFUSED}
    assert not of_duckdb.ALLOWED_IN_FROM & {*of_duckdb.REFUSED_IN_FROM}


def test_every_function_of_spark_is_reviewed(spark: SparkSession) -> None:
    """A new version of Spark fails this: put each new function into the table, with a reason if it is refused."""
    found = {row["function"] for row in spark.newSession().sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert of_spark.ALLOWED | of_spark.ALLOWED_IN_FROM | {*of_spark.REFUSED} == found
    assert not (of_spark.ALLOWED | of_spark.ALLOWED_IN_FROM) & {*of_spark.REFUSED}


@pytest.mark.parametrize("name", sorted(of_duckdb.REFUSED))
def test_duckdb_refuses_a_function_in_every_position(name: str) -> None:
    duck = Duck(Settings())
    for text in (f"SELECT {name}(1)", f"SELECT 1 FROM t WHERE (SELECT sum({name.upper()}(a)) OVER (ORDER BY b)) > 1"):
        with pytest.raises(InvalidInput) as refused:
            duck.parse(text)
        assert refused.value.why == f"{name}() may not be called: {of_duckdb.REFUSED[name]}"
    with pytest.raises(InvalidInput):
        duck.parse(f"SELECT * FROM {name}(1)")


def test_a_function_outside_the_table_of_duckdb_is_left_to_spark() -> None:
    with pytest.raises(DuckDeclined):
        Duck(Settings()).parse("SELECT date_format(a, 'y') FROM t")
    for name in of_duckdb.REFUSED_IN_FROM:
        with pytest.raises(InvalidInput, match="in FROM"):
            Duck(Settings()).parse(f"SELECT * FROM {name}('x')")


@pytest.mark.parametrize(
    "text",
    [
        "WITH x AS (COPY t TO 'out.csv') SELECT 1",
        "WITH x AS MATERIALIZED (COPY (SELECT 1) TO 'out.csv') SELECT * FROM x",
        "SELECT 1 WHERE EXISTS (WITH x AS (DELETE FROM t RETURNING *) SELECT 1 FROM x)",
        "WITH x AS (INSERT INTO t VALUES (1) RETURNING *) SELECT * FROM x",
        "WITH x AS (UPDATE t SET a = 1 RETURNING *) SELECT * FROM x",
        "SELECT * FROM t AT (VERSION => 1)",
        "SELECT * FROM t AT (TIMESTAMP => TIMESTAMP '2020-01-01')",
        *("ATTACH 'x.db' AS x", "COPY t TO 'out.csv'", "PRAGMA database_list", "SET enable_external_access = true"),
        *("SET VARIABLE v = 1", "SELECT getvariable('v')", "RESET threads", "INSTALL httpfs", "LOAD 'x'"),
        *("UPDATE EXTENSIONS", "UPDATE EXTENSIONS (httpfs)"),
        *("EXPORT DATABASE 'x'", "IMPORT DATABASE 'x'", "CALL duckdb_settings()", "PREPARE p AS SELECT 1", "EXECUTE p"),
        *(
            "CREATE MACRO m() AS 1",
            "CREATE SECRET s (TYPE s3)",
            "USE memory",
            "CHECKPOINT",
            "BEGIN",
            "SELECT 1; SELECT 2",
        ),
        *("SELECT * FROM query_table('t')", "SELECT * FROM read_files('x')", "EXPLAIN ANALYZE SELECT 1"),
    ],
)
def test_duckdb_runs_nothing_but_a_select(text: str) -> None:
    """Fails for COPY in WITH if only the kind of the whole statement is checked."""
    with pytest.raises(InvalidInput):
        Duck(Settings()).parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "WITH a AS (SELECT 1 AS n), b AS MATERIALIZED (SELECT n FROM a) SELECT * FROM b UNION ALL SELECT 2",
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r",
        "SELECT * FROM (VALUES (1), (2)) AS v (n) WHERE n IN (SELECT a FROM t EXCEPT SELECT 1) ORDER BY n LIMIT 1",
    ],
)
def test_duckdb_accepts_every_form_of_a_select(text: str) -> None:
    Duck(Settings()).parse(text)


@pytest.mark.parametrize("name", sorted({*of_spark.REFUSED} - {"python_worker_logs"}))
def test_spark_has_no_refused_function(spark: SparkSession, name: str) -> None:
    for text in (f"SELECT {name}()", f"SELECT builtin.{name.upper()}('x', 'y')"):
        with pytest.raises(InvalidInput) as refused:
            run_query(spark, text, lambda *_: {})
        assert of_spark.REFUSED[name] in refused.value.why, text


@pytest.mark.parametrize(
    "text",
    [
        "SELECT current_user",
        "SELECT user AS x",
        "SELECT identifier('xpath_' || 'string')('<a>1</a>', 'a')",
        "SELECT system.builtin.xpath_string('<a>1</a>', 'a')",
        "SELECT count(*) OVER w FROM range(1) WINDOW w AS (ORDER BY xpath_string('<a>1</a>', 'a'))",
        "SELECT 1 FROM range(1) LATERAL VIEW explode(array(xpath_string('<a>1</a>', 'a'))) AS x",
        "FROM range(1) |> SELECT xpath_string('<a>1</a>', 'a')",
        "SELECT /*+ REPARTITION(xpath_int('<a>1</a>', 'a')) */ 1",
        "SELECT from_protobuf(binary('x'), 'm', '/etc/hostname')",
        "SELECT from_protobuf(binary('x'), 'm', '/no/such/file')",
        "SELECT from_avro(binary('x'), '', map('avroSchemaUrl', 'http://127.0.0.1:1/'))",
        "SELECT from_xml('<a/>', 'b INT', map('rowValidationXSDPath', '/etc/hostname'))",
    ],
)
def test_spark_finds_no_refused_function_by_indirect_names(spark: SparkSession, text: str) -> None:
    """Fails if only the parsed names are checked: `identifier` and WINDOW hide them."""
    with pytest.raises(InvalidInput) as refused:
        run_query(spark, text, lambda *_: {})
    assert "hostname" not in refused.value.why
    assert "/no/such/file" not in refused.value.why


def test_spark_has_all_other_functions(spark: SparkSession) -> None:
    restricted = spark.newSession()
    remove_forbidden_functions(restricted)
    state = restricted._jsparkSession.sessionState()
    for registry, allowed in (
        (state.functionRegistry(), of_spark.ALLOWED),
        (state.tableFunctionRegistry(), of_spark.ALLOWED_IN_FROM),
    ):
        left = {name.strip("`").rpartition(".")[2].strip("`") for name in registry.listFunction().mkString(" ").split()}
        assert left == allowed - {"!=", "<>", "case", "||"}  # which are only syntax
    found = run_query(spark, "SELECT sum(id) AS n, max(upper('x')) AS x FROM range(3)", lambda *_: {})
    assert found.to_pylist() == [{"n": 3, "x": "X"}]


def test_the_session_of_a_pipeline_keeps_its_functions(spark: SparkSession) -> None:
    """Views may call functions that queries may not."""
    run_query(spark, "SELECT 1", lambda *_: {})
    assert spark.sql("SELECT xpath_string('<a>1</a>', 'a') AS x").collect()[0]["x"] == "1"


@pytest.mark.parametrize("name", ["current_path", "current_user", "session_user", "user"])
def test_spark_refuses_a_function_without_parentheses(spark: SparkSession, name: str) -> None:
    """Spark resolves these names without its registry of functions."""
    with pytest.raises(InvalidInput, match="is refused: the function shows facts about the server"):
        run_query(spark, f"SELECT {name}", lambda *_: {})
