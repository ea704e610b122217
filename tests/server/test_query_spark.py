"""Queries that Spark answers or refuses, and explanations: a real pipeline behind a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from evertide.media import ARROW
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from evertide.server.query.spark_query import SparkQueryEngine
from evertide.server.query.worker_process import list_processes
from evertide.settings import Settings
from tests.server.kit import Answer, Client, limited, order, served
from tests.server.test_query_workers import workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from evertide.pipeline.reading.reader import StorageReader
    from evertide.plan.catalyst.session import Session

SCRIPT = """
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount BIGINT, more VARIANT, PRIMARY KEY (id))
COMMENT 'What was bought';
CREATE TABLE notes (text STRING);
CREATE MATERIALIZED VIEW revenue COMMENT 'By customer' AS
SELECT customer, sum(amount) AS amount FROM orders GROUP BY customer;
"""
ZONE = "America/New_York"


@dataclass(frozen=True)
class Served:
    pipeline: Pipeline
    client: Client

    def ask(self, sql: str, **more: Any) -> Answer:
        return self.client.post("/v1/query", {"sql": sql, **more})


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a shop whose time zone is that of the session when it was opened, as a project may set its own."""
    settings = Settings(query_limit_s=600, query_small_rows=2, query_memory_bytes=512 * 1024 * 1024)
    where = tmp_path_factory.mktemp("served") / "s"
    zone = spark.conf.get("spark.sql.session.timeZone")
    with ExitStack() as stack:
        spark.conf.set("spark.sql.session.timeZone", ZONE)
        try:
            p = stack.enter_context(Pipeline.open(SCRIPT, where, spark=spark, settings=settings))
        finally:
            spark.conf.set("spark.sql.session.timeZone", str(zone))
        client = stack.enter_context(served(p))
        rows = [{**order(1, "ann"), "more": {"a": [1]}}, order(2, "bob", 5), order(3, "bob", 7)]
        assert client.post("/v1/tables/orders/rows", rows).status == 200
        assert client.post("/v1/tables/notes/rows", [{"text": text} for text in "abc"]).status == 200
        yield Served(p, client)


def test_spark_answers_if_the_request_names_it_or_duckdb_cannot(shop: Served) -> None:
    total = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer ORDER BY 1"
    for more, engine in [({}, "spark"), ({"engine": "spark"}, "spark")]:  # orders has a VARIANT
        found = shop.ask(total, **more).body
        assert (found["engine"], found["rows"]) == (engine, [["ann", 10], ["bob", 12]])
    assert shop.ask("SELECT * FROM revenue ORDER BY 1").body["engine"] == "duckdb"
    own = "SELECT customer, x FROM revenue LATERAL VIEW explode(array(1)) t AS x ORDER BY 1"
    found = shop.ask(own).body
    assert (found["engine"], found["rows"]) == ("spark", [["ann", 1], ["bob", 1]])
    assert shop.ask(own, engine="duckdb").status == 400
    assert shop.ask("SELECT more FROM orders WHERE id = ?", parameters=[1]).body["rows"] == [[{"a": [1]}]]
    piped = shop.ask("FROM orders |> WHERE amount > 5 |> AGGREGATE count(*) AS n", engine="spark")
    assert piped.body["rows"] == [[2]]
    hidden = "WITH revenue AS (SELECT * FROM revenue), o AS (SELECT id FROM orders)"
    counted = shop.ask(f"{hidden} SELECT (SELECT count(*) FROM o) AS n FROM revenue LIMIT 1", engine="spark")
    assert counted.body["rows"] == [[3]]
    first = shop.ask("SELECT id FROM orders ORDER BY id", engine="spark", limit=2).body
    assert (first["rows"], first["is_truncated"]) == ([[1], [2]], True)


def test_a_query_runs_with_the_settings_of_the_views(shop: Served) -> None:
    """Fails if a query runs with Spark's defaults, or with the session's current settings: hours and dates would differ
    from those of the views."""
    sql = "SELECT hour(timestamp_seconds(0)) AS h, timestamp_seconds(0) AS t"
    found = shop.ask(sql, engine="spark").body
    assert found["rows"] == [[19, "1970-01-01T00:00:00+00:00"]]
    assert shop.pipeline.query(sql).to_pylist()[0]["h"] == 19
    found = shop.ask("SELECT hour(TIMESTAMPTZ '1970-01-01 00:00:00+00') AS h", engine="duckdb").body
    assert found["rows"] == [[19]]


def test_all_collections_are_read_at_the_requested_time(shop: Served) -> None:
    """At the requested time, with the errors of unreadable times. Fails if Spark reads the current content."""
    sql = "SELECT (SELECT count(*) FROM orders) AS o, (SELECT count(*) FROM notes) AS n"
    last = shop.pipeline.time
    found = shop.ask(sql, engine="spark").body
    assert (found["time"], found["rows"]) == (last, [[3, 3]])
    found = shop.ask(sql, engine="spark", as_of=last - 1).body
    assert (found["time"], found["rows"]) == (last - 1, [[3, 0]])
    answer = shop.ask(sql, engine="spark", as_of=last + 1)
    assert (answer.status, answer.body["error_code"]) == (400, "invalid_input")
    assert f"the last time is {last}" in answer.body["why"]


def test_a_query_over_many_rows_goes_to_spark(shop: Served) -> None:
    """Fails if the row counts of the collections are not checked."""
    assert shop.ask("SELECT count(*) AS n FROM notes").body["engine"] == "spark"
    assert shop.ask("SELECT count(*) AS n FROM revenue").body["engine"] == "duckdb"


HOSTILE = [
    "SELECT * FROM parquet.`{0}`",
    "SELECT * FROM csv.`{0}`",
    "SELECT * FROM text.`file://{0}`",
    "SELECT * FROM json.`http://127.0.0.1:1/x`",
    "SELECT * FROM `text`.`{0}`",
    "SELECT * FROM orders JOIN text.`{0}` t ON true",
    "SELECT id FROM orders WHERE customer IN (SELECT value FROM text.`{0}`)",
    "WITH t AS (SELECT * FROM text.`{0}`) SELECT * FROM t",
    "WITH `text.{0}` AS (SELECT 1) SELECT * FROM text.`{0}`",
    "WITH `global_temp.hidden` AS (SELECT 1) SELECT * FROM global_temp.hidden",
    "SELECT * FROM IDENTIFIER('text.`{0}`')",
    "SELECT * FROM IDENTIFIER('te' || 'xt.`{0}`')",
    "SELECT * FROM read_files('{0}')",
    "SELECT * FROM python_worker_logs()",
    "SELECT * FROM default.orders",
    "SELECT * FROM global_temp.x",
    "SELECT * FROM system.session.x",
    "SELECT * FROM nothing",
    "SELECT * FROM STREAM orders",
    "SELECT * FROM orders VERSION AS OF 1",
    "SELECT * FROM orders WITH ('storage' = '{0}')",
    "SELECT reflect('java.lang.System', 'getenv', 'HOME')",
    "SELECT java_method('java.lang.System', 'getProperty', 'user.home')",
    "SELECT try_reflect('java.lang.System', 'getenv', 'HOME')",
    "SELECT id FROM orders WHERE reflect('java.lang.System', 'getenv', 'HOME') = 'x'",
    "SELECT (SELECT java_method('java.lang.System', 'getenv', 'HOME'))",
    "SELECT transform(array(1), x -> length(reflect('java.lang.System', 'getenv', 'HOME')))",
    "SELECT TRANSFORM (id) USING 'cat {0}' AS (x) FROM orders",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "BEGIN SELECT 1; END",
    "SELECT 1; SELECT 2",
    "CREATE TABLE x (a INT)",
    "CREATE TEMPORARY VIEW v AS SELECT 1",
    "CREATE TEMPORARY FUNCTION f AS 'java.lang.String'",
    "CREATE TEMPORARY FUNCTION f(x INT) RETURNS INT RETURN x",
    "DROP VIEW orders",
    "INSERT INTO orders VALUES (1, 'x', 1, NULL)",
    "WITH x AS (SELECT 1) INSERT INTO orders SELECT * FROM x",
    "FROM orders INSERT INTO orders SELECT *",
    "INSERT OVERWRITE DIRECTORY '{0}.out' USING csv SELECT 1",
    "INSERT OVERWRITE LOCAL DIRECTORY '{0}.out' SELECT 1",
    "LOAD DATA LOCAL INPATH '{0}' INTO TABLE orders",
    "MERGE INTO orders USING orders o ON true WHEN MATCHED THEN DELETE",
    "UPDATE orders SET id = 1",
    "DELETE FROM orders",
    "TRUNCATE TABLE orders",
    "SET spark.sql.ansi.enabled = false",
    "RESET",
    "ADD JAR '{0}'",
    "ADD FILE '{0}'",
    "LIST JARS",
    "SELECT '${{env:PATH}}' AS x",
    "SELECT '${{system:user.dir}}' AS x",
    "SELECT * FROM ${{env:HOME}}",
    "CACHE TABLE orders",
    "UNCACHE TABLE orders",
    "REFRESH TABLE orders",
    "REFRESH '{0}'",
    "ANALYZE TABLE orders COMPUTE STATISTICS",
    "SHOW TABLES",
    "SHOW FUNCTIONS",
    "DESCRIBE orders",
    "EXPLAIN SELECT 1",
    "USE default",
    "CALL system.x()",
    "DECLARE x INT",
    "MSCK REPAIR TABLE orders",
]


def test_spark_refuses_statements_that_do_more_than_read_collections(
    shop: Served, spark: SparkSession, tmp_path: Path
) -> None:
    """By the result of Spark's own parser and analyzer. Some of these fail without either check: without the first,
    TRANSFORM and EXECUTE IMMEDIATE; without the second, reflect()."""
    kept = tmp_path / "secret.csv"
    kept.write_text("file-secret\n")
    spark.range(3).createOrReplaceGlobalTempView("hidden")
    for text in HOSTILE:
        with pytest.raises(InvalidInput) as refused:
            shop.pipeline.query(text.format(kept))
        assert "file-secret" not in str(refused.value), text
    for text in HOSTILE[:3]:
        answer = shop.ask(text.format(kept), engine="spark")
        assert (answer.status, answer.body["error_code"]) == (400, "invalid_input")
    named = "SELECT * FROM IDENTIFIER(?)"
    assert shop.ask(named, engine="spark", parameters=[f"text.`{kept}`"]).status == 400
    entity = f'<!DOCTYPE a [<!ENTITY x SYSTEM "file://{kept}">]><a>&x;</a>'
    assert "file-secret" not in str(shop.ask(f"SELECT xpath_string('{entity}', 'a') AS x", engine="spark").body)
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_a_view_is_explained_in_all_formats(shop: Served) -> None:
    found = shop.client.get("/v1/views/Revenue/explain").body
    assert [view["name"] for view in found["views"]] == ["revenue"]
    assert found["views"][0]["operators"][0]["how"]
    for form, begin in [("text", "revenue"), ("mermaid", "flowchart BT"), ("dot", "digraph")]:
        raw = shop.client.raw("GET", f"/v1/views/revenue/explain?format={form}")
        assert raw.content.decode().startswith(begin)
    assert shop.client.get("/v1/views/revenue/explain?format=csv").status == 406
    assert shop.client.get("/v1/views/orders/explain").status == 404


def test_collections_have_the_comments_and_queries_of_the_script(shop: Served) -> None:
    found = {one["name"]: one for one in shop.client.get("/v1/collections").body["collections"]}
    assert found["orders"]["comment"] == "What was bought"
    assert found["orders"]["columns"][-1]["type"] == "VARIANT"
    assert found["revenue"]["comment"] == "By customer"
    sql = "SELECT customer, sum(amount) AS amount FROM orders GROUP BY customer"
    assert " ".join(found["revenue"]["sql"].split()) == sql


def test_queries_that_are_nested_too_deeply_are_refused(shop: Served) -> None:
    """Fails with an error about an unreachable Spark if a stack overflow is not recognised."""
    answer = shop.ask("SELECT " + "- " * 4000 + "1 AS n", engine="spark")
    assert (answer.status, answer.body["why"]) == (400, "the expressions are nested too deeply; simplify the query")


@pytest.mark.parametrize(
    ("sql", "parameters", "why"),
    [
        ("SELECT array() AS x", [], "no table can have the types struct<x:array<void>>"),
        ("SELECT map() AS x", [], "no table can have the types"),
        ("SELECT ? AS x", [[]], "no table can have the types"),
        ("SELECT ? AS x", [[1, [2]]], "INTERNAL_ERROR"),
        ("SELECT ? AS x", [1 << 64], "does not fit into a BIGINT"),
        ("SELECT ? AS x", [{"a": [1 << 64]}], "no objects"),
        ("SELECT ? AS x", [json.loads("[" * 300 + "]" * 300)], "nested too deeply"),
        (
            "WITH RECURSIVE r MAX RECURSION LEVEL 5 AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) TABLE r",
            [],
            "LEVEL",
        ),
        ("OPEN c", [], "SQL_CURSOR"),
    ],
)
def test_no_query_ends_the_process_that_the_next_query_needs(
    shop: Served, sql: str, parameters: list[Any], why: str
) -> None:
    """Fails if an error that PySpark does not raise itself ends the process, or looks as if Spark were unreachable."""
    assert shop.ask("SELECT 1 AS n", engine="spark").status == 200
    before = _sparks()
    answer = shop.ask(sql, engine="spark", parameters=parameters)
    assert (answer.status, answer.body["error_code"]) == (400, "invalid_input"), answer.body
    assert why in answer.body["why"]
    assert _sparks() == before != []


FOLDED = "SELECT levenshtein(repeat('a', 300000), repeat('b', 300000)) AS n"
"""Computed by the planner: there is no job to cancel."""
DEEP = "SELECT aggregate(sequence(1, 4000000), 0L, (a, x) -> a + length(repeat('x', 5000 + id))) AS n FROM range(1)"
"""A job whose task does not check for interruption, and continues after the job is cancelled. Needs little memory."""


@pytest.mark.parametrize(
    ("sql", "limit_s", "why"),
    [
        ("SELECT count(*) AS n FROM range(100000000000000) WHERE id % 7 = 3", 1, "longer than 1 s"),
        ("SELECT count(*) AS n FROM range(10000000) a CROSS JOIN range(10000000) b WHERE a.id * b.id = 7", 1, "1 s"),
        (FOLDED, 1, "longer than 1 s"),
        (DEEP, 2, "longer than 2 s"),
        ("SELECT length(repeat('x', 450000000)) AS n", 600, "536870912 bytes of memory"),
    ],
    ids=["jobs", "join", "planning", "task", "memory"],
)
def test_a_query_beyond_its_limits_is_ended_and_disturbs_nothing(
    shop: Served, sql: str, limit_s: float, why: str
) -> None:
    """Fails, for the last query, if the pipeline's own JVM is used: it would end. Fails, for work in the planner, if a
    query that ignores the interruption is not killed. Each query is answered by the process that is left by the one
    before."""
    before = shop.pipeline.time
    with limited(shop.pipeline, limit_s):
        answer = shop.ask(sql, engine="spark")
    assert (answer.status, answer.body["error_code"]) == (422, "limit_exceeded"), answer.body
    assert why in answer.body["why"]
    assert shop.client.post("/v1/tables/notes/rows", [{"text": "on"}]).body["time"] == before + 1
    if (
        sql == FOLDED or limit_s > 60
    ):  # the others may end when they are interrupted, or be interrupted before they began
        assert _sparks() == []


class Tasks:
    """Simulates a Spark whose tasks end after this many checks: real ones end when they choose."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def cancel(self) -> None:
        pass

    def has_tasks(self) -> bool:
        self.looks -= 1
        return self.looks >= 0


@pytest.mark.parametrize(("looks", "needs_replacement"), [(0, False), (3, False), (10_000, True)])
def test_a_worker_whose_task_continues_after_its_query_is_replaced(looks: int, needs_replacement: bool) -> None:
    """Otherwise the task takes resources from the next query without a limit. Without a cancelled query, tasks are not
    checked."""
    asked = SparkQueryEngine(
        cast("StorageReader", SimpleNamespace(runtime=SystemRuntime())), cast("Session", Tasks(looks)), {}
    )
    assert not asked.needs_replacement()
    asked.interrupt()
    assert asked.needs_replacement() == needs_replacement
    assert not asked.needs_replacement(), "the next query is not affected"


def _sparks() -> list[int]:
    """Return the workers that have started child processes."""
    return [pid for pid in workers() if len(list_processes(pid)) > 1]


def test_v7_a_text_may_have_any_bytes(shop: Served) -> None:
    """As in a view: JSON has U+FFFD, Arrow has the bytes."""
    sql = "SELECT string(unhex('ff61')) AS x"
    assert shop.ask(sql, engine="spark").body["rows"] == [["\ufffda"]]
    content = json.dumps({"sql": sql, "engine": "spark"}).encode()
    raw = shop.client.raw("POST", "/v1/query", content, {"Content-Type": "application/json", "Accept": ARROW}).content
    assert pa.ipc.open_stream(raw).read_all()["x"].cast(pa.binary()).to_pylist() == [b"\xffa"]
