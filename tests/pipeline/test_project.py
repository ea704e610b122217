"""Projects of Spark Declarative Pipelines run unchanged, are correct after every transaction, or are refused
by name."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import evertide as et
from evertide.errors import InvalidInput
from evertide.flow import Circuit, explain
from evertide.pipeline.script_reader import read_project, read_script
from evertide.plan.program.program import Program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPEC = """
name: shop
storage: file:///tmp/shop
catalog: spark_catalog
database: default
configuration:
  spark.sql.session.timeZone: Asia/Tokyo
  spark.sql.shuffle.partitions: "200"
libraries:
  - glob:
      include: transformations/**
"""

SQL_ONLY = {
    "transformations/a_reads_b.sql": """
        CREATE MATERIALIZED VIEW per_city AS
        SELECT city, sum(amount) AS total, count(*) AS n FROM spending GROUP BY city;
    """,
    "transformations/b.sql": """
        CREATE TEMPORARY VIEW spending AS
        WITH big AS (SELECT * FROM STREAM(orders) AS o WHERE amount > 1)
        SELECT c.city, o.amount FROM big o JOIN customers c ON o.customer = c.name;
        CREATE STREAMING TABLE customers;
        CREATE FLOW moves AS AUTO CDC INTO customers FROM STREAM moved KEYS (name)
          APPLY AS DELETE WHEN gone SEQUENCE BY at COLUMNS * EXCEPT (at, gone);
        CREATE TEMPORARY VIEW moved AS SELECT *, name = 'eve' AS gone FROM moves_raw;
    """,
    "transformations/deep/c.sql": """
        CREATE STREAMING TABLE orders;
        CREATE FLOW north AS INSERT INTO orders BY NAME SELECT id, customer, amount FROM STREAM north_orders;
        CREATE FLOW south AS INSERT INTO orders BY NAME
          WITH s AS (SELECT * FROM STREAM south_orders)
          SELECT amount, customer, id FROM s UNION ALL SELECT 7, 'STREAM x', 7L;
        CREATE STREAMING TABLE big_orders AS SELECT id, amount FROM STREAM orders WHERE amount >= 10;
        CREATE TABLE north_orders (id BIGINT, customer STRING, amount INT);
        CREATE TABLE south_orders (id BIGINT, customer STRING, amount INT);
        CREATE TABLE moves_raw (name STRING, city STRING, at INT);
    """,
}

PYTHON = {
    "transformations/views.py": """
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from names import loud

@dp.materialized_view(comment="what each customer spent")
def spent() -> DataFrame:
    return spark.table("cleaned").groupBy("customer").agg(F.sum("amount").alias("total"))

@dp.temporary_view
def cleaned() -> DataFrame:
    return SparkSession.active().read.table("orders").where("amount > 0").withColumn("customer", loud("customer"))

@dp.table
def orders() -> DataFrame:
    return spark.readStream.format("json").schema("id BIGINT, customer STRING, amount INT").load("incoming")

@dp.table(name="names_seen")
def seen() -> DataFrame:
    return spark.readStream.option("header", True).csv("people", schema="name STRING").withWatermark("t", "1 day") \\
        if False else spark.read.csv("people", schema="name STRING", header=True).select(F.upper("name").alias("name"))
""",
    "transformations/flows.py": """
from pyspark import pipelines as dp
from pyspark.pipelines import create_auto_cdc_flow

dp.create_streaming_table("people", schema="name STRING")

@dp.append_flow(target="people")
def customers():
    return spark.readStream.table("orders").selectExpr("customer AS name")

@dp.append_flow(target="people", name="guests")
def visiting():
    return spark.table("names_seen").select("name")

dp.create_streaming_table("last_orders")
create_auto_cdc_flow(target="last_orders", source="orders", keys=["customer"], sequence_by="id",
                     apply_as_deletes="amount < 0", except_column_list=["id"])

@dp.materialized_view
def ten():
    return spark.range(10).where("id % 2 = 0")
""",
    "names.py": """
from pyspark.sql import functions as F

def loud(column):
    return F.upper(F.col(column))
""",
}

MIXED = {
    "transformations/orders.sql": """
        CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount INT, PRIMARY KEY (id));
        CREATE MATERIALIZED VIEW leaders AS SELECT customer FROM spent WHERE total >= 10;
    """,
    "transformations/spent.py": """
from pyspark import pipelines as dp
from pyspark.sql import functions as F

@dp.materialized_view(table_properties={"evertide.key": "customer"})
def spent():
    return spark.read.table("orders").groupBy("customer").agg(F.sum("amount").alias("total"))

@dp.materialized_view
def leading():
    return spark.table("leaders").agg(F.count("*").alias("n"))
""",
}


def write_project(root: Path, files: dict[str, str], spec: str = SPEC) -> Path:
    for name, text in {"spark-pipeline.yml": spec, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def rows(found: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in found)


def recompute(spark: SparkSession, query: str, **tables: tuple[str, list[tuple[Any, ...]]]) -> Counter[tuple[Any, ...]]:
    """Compute the query from scratch with Spark, in a session that does not know the pipeline."""
    session = spark.newSession()
    for name, (schema, content) in tables.items():
        session.createDataFrame(content, schema).createOrReplaceTempView(name)
    return Counter(tuple(row) for row in session.sql(query).collect())


def test_a_project_of_sql_files_runs_in_any_order(spark: SparkSession, tmp_path: Path) -> None:
    root = write_project(tmp_path / "shop", SQL_ONLY)
    schema, moves = "id BIGINT, customer STRING, amount INT", "name STRING, city STRING, at INT"
    given: dict[str, list[tuple[Any, ...]]] = {"north_orders": [], "south_orders": [], "moves_raw": []}
    steps: list[dict[str, list[tuple[Any, ...]]]] = [
        {"north_orders": [(1, "ann", 20), (2, "bob", 1)], "moves_raw": [("ann", "Oslo", 1), ("bob", "Rome", 1)]},
        {"south_orders": [(3, "bob", 15), (4, "eve", 30)], "moves_raw": [("eve", "Bonn", 1), ("ann", "Rome", 3)]},
        {"north_orders": [(5, "ann", 2)], "moves_raw": [("ann", "Oslo", 2), ("bob", "Oslo", 9)]},
    ]
    names = {"north_orders": schema, "south_orders": schema, "moves_raw": moves}
    orders = "SELECT * FROM north_orders UNION ALL SELECT * FROM south_orders UNION ALL SELECT 7L, 'STREAM x', 7"
    current = "SELECT name, max_by(city, at) AS city FROM moves_raw WHERE name <> 'eve' GROUP BY name"
    spent = f"SELECT city, sum(amount), count(*) FROM ({orders}) JOIN ({current}) ON customer = name WHERE amount > 1"
    with et.Pipeline.open(root, tmp_path / "storage", spark=spark) as p:
        for step in steps:
            for table, content in step.items():
                columns = [each.split()[0] for each in names[table].split(", ")]
                p.push(table, [dict(zip(columns, row, strict=True)) for row in content])
                given[table] += content
            p.commit()
            tables = {name: (names[name], content) for name, content in given.items()}
            assert rows(p.view("per_city").to_pylist()) == recompute(spark, f"{spent} GROUP BY city", **tables)
            big = f"SELECT id, amount FROM ({orders}) WHERE amount >= 10"
            assert rows(p.view("big_orders").to_pylist()) == recompute(spark, big, **tables)
        assert rows(p.view("customers").to_pylist()) == Counter([("ann", "Rome"), ("bob", "Oslo")])
        settings = p.engine.program.catalog.session.conf  # type: ignore[attr-defined]
        assert settings.get("spark.sql.session.timeZone") == "Asia/Tokyo", "the spec's configuration applies"
    with et.Pipeline.open(root / "spark-pipeline.yml", tmp_path / "storage", spark=spark) as p:
        assert p.time == len(steps), "opening again makes no transaction"


def test_a_project_of_python_files_reads_files(spark: SparkSession, tmp_path: Path) -> None:
    root = write_project(tmp_path / "shop", PYTHON)
    for name in ("incoming", "people"):
        (root / name).mkdir()
    (root / "people" / "a.csv").write_text("name\nzoe\n")
    given: list[tuple[Any, ...]] = []
    with et.Pipeline.open(root, tmp_path / "storage", spark=spark) as p:
        assert set(p.engine.tables) == {"orders", "names_seen_input"}, "a flow that only loads rows is the table itself"
        for number, content in enumerate(
            [[(1, "ann", 20), (2, "bob", 0)], [(3, "Ann", 5), (4, "bob", 8)], [(5, "ann", -1)]]
        ):
            lines = [json.dumps(dict(zip(("id", "customer", "amount"), row, strict=True))) for row in content]
            (root / "incoming" / f"{number}.json").write_text("\n".join(lines))
            p.run(until_idle=True)
            given += content
            tables = {"orders": ("id BIGINT, customer STRING, amount INT", given)}
            query = "SELECT upper(customer), sum(amount) FROM orders WHERE amount > 0 GROUP BY upper(customer)"
            assert rows(p.view("spent").to_pylist()) == recompute(spark, query, **tables)
            query = "SELECT customer FROM orders UNION ALL SELECT 'ZOE'"
            assert rows(p.view("people").to_pylist()) == recompute(spark, query, **tables)
            query = "SELECT customer, max_by(amount, id) AS a FROM orders GROUP BY customer HAVING a >= 0"
            assert rows(p.view("last_orders").to_pylist()) == recompute(spark, query, **tables)
        assert rows(p.view("ten").to_pylist()) == Counter([(0,), (2,), (4,), (6,), (8,)])


def test_sql_and_python_of_a_project_read_each_other(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_project(tmp_path / "shop", MIXED).parent)
    root = Path("shop")  # relative, as on a command line
    with et.Pipeline.open(root, tmp_path / "storage", spark=spark) as p:
        p.push("orders", [{"id": 1, "customer": "ann", "amount": 12}, {"id": 2, "customer": "bob", "amount": 9}])
        p.commit()
        p.push("orders", [{"id": 2, "customer": "bob", "amount": 10}], deletes=[1])
        p.commit()
        assert p.view("spent").to_pylist() == [{"customer": "bob", "total": 10}]
        assert p.view("leaders").to_pylist() == [{"customer": "bob"}]
        assert p.view("leading").to_pylist() == [{"n": 1}]
    found = explain(Circuit(spark, read_script(root)[0]))
    assert {view.name for view in found.views} == {"spent", "leaders", "leading"}


def test_a_script_may_declare_a_view_before_what_it_reads(spark: SparkSession) -> None:
    views = "CREATE MATERIALIZED VIEW b AS SELECT a + 1 AS b FROM a; CREATE MATERIALIZED VIEW a AS SELECT a FROM t;"
    assert list(Program(spark, f"{views} {TABLE}").views) == ["a", "b"]
    with pytest.raises(InvalidInput, match="'b' reads 'a' reads 'b'"):
        Program(spark, views.replace("FROM t", "FROM b").replace("SELECT a FROM", "SELECT b AS a FROM"))


def test_kafka_as_a_source_is_a_table_of_records(spark: SparkSession, tmp_path: Path) -> None:
    text = """
from pyspark import pipelines as dp
@dp.table
def records():
    return (spark.readStream.format("kafka").option("kafka.bootstrap.servers", "k:9092").option("subscribe", "orders")
            .option("kafka.security.protocol", "SSL").load())
"""
    project = read_project(write_project(tmp_path, {"transformations/a.py": text}))
    [table] = Circuit(spark, project).program.table_statements
    assert (table.name, table.connector) == ("records", "kafka")
    options = {"brokers": "k:9092", "topic": "orders", "format": "raw", "start": "latest"}
    assert table.options == {**options, "kafka.security.protocol": "SSL"}
    assert [column.name for column in table.columns] == ["key", "value", "topic", "partition", "offset", "timestamp"]


TABLE = "CREATE TABLE t (a INT);"
DP = "from pyspark import pipelines as dp\n"

REFUSED = {
    "sink": (DP + "dp.create_sink('out', 'kafka')", "a.py:2", "the sink 'out'.*evertide.sinks"),
    "partitions": (DP + "@dp.table(partition_cols=['a'])\ndef v(): ...", "a.py:2", "partition_cols= of 'v'"),
    "format": (DP + "@dp.materialized_view(format='delta')\ndef v(): ...", "a.py:2", "format= of 'v'"),
    "settings": (
        DP + "@dp.table(spark_conf={'a': 'b'})\ndef v(): ...",
        "a.py:2",
        "spark_conf= of 'v' is not supported; put settings into the spec",
    ),
    "qualified": (DP + "@dp.table(name='x.v')\ndef v(): ...", "a.py:2", "the name 'x.v' has a catalog or schema"),
    "twice": (
        DP + "@dp.table\ndef v(): ...\n@dp.table\ndef v(): ...",
        "a.py:4",
        "already declared, at .*a.py:2",
    ),
    "scd": (
        DP + "dp.create_auto_cdc_flow('t', 's', ['k'], 'at', stored_as_scd_type=2)",
        "a.py:2",
        "stored_as_scd_type=2 is not supported",
    ),
    "target": (
        DP + "@dp.append_flow(target='nobody')\ndef v(): ...",
        "a.py:2",
        "'nobody' is not a streaming table",
    ),
    "rate": (
        DP + "@dp.table\ndef v():\n  return spark.readStream.format('rate').load()",
        "a.py:2",
        "format 'rate' is not supported here; .*CREATE TABLE",
    ),
    "schema": (DP + "@dp.table\ndef v():\n  return spark.read.json('in')", "a.py:2", r"add \.schema"),
    "option": (
        DP + "@dp.table\ndef v():\n  return spark.read.option('multiLine', True).json('in', schema='a INT')",
        "a.py:2",
        "option 'multiline' of json is not supported here",
    ),
    "method": (
        DP + "@dp.table\ndef v():\n  return spark.read.jdbc('u')",
        "a.py:2",
        "spark.read.jdbc is not supported",
    ),
    "loaded outside": ("x = spark.read.json('in', schema='a INT')", "a.py", "outside of a decorated function"),
    "elsewhere": (
        DP + "@dp.table\ndef v():\n  return spark.table('lake.t')",
        "a.py:2",
        "no table or view",
    ),
    "mutation": ("spark.conf.set('spark.sql.ansi.enabled', 'false')", "a.py:1", "put the setting into the spec"),
    "fails": ("import nosuchmodule", "a.py:1", "ModuleNotFoundError: No module named 'nosuchmodule'"),
    "syntax": ("def f(:", "a.py:1", "SyntaxError"),
    "circle": (
        DP + "@dp.table\ndef v():\n  return spark.table('w')\n@dp.table\ndef w():\n  return spark.table('v')",
        "a.py:",
        "'v' reads 'w' reads 'v'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_features_are_refused_by_name(spark: SparkSession, tmp_path: Path, case: str) -> None:
    text, where, why = REFUSED[case]
    project = read_project(write_project(tmp_path, {"transformations/a.py": text, "transformations/t.sql": TABLE}))
    with pytest.raises(InvalidInput, match=why) as refused:
        Circuit(spark, project)
    assert where in refused.value.where


SPECS = {
    "no name": ("storage: x", "the field 'name' is missing"),
    "unknown": ("name: a\nfrequency: daily", "unknown field 'frequency'; the fields are name"),
    "no yaml": ("name: [", "not valid YAML"),
    "no fields": ("hello", "expected fields"),
    "library": ("name: a\nlibraries: [x.sql]", "the library 'x.sql' is not understood"),
    "glob": ("name: a\nlibraries: [{glob: {include: t/**/*.py}}]", "expected a file, or a directory"),
    "nothing": ("name: a\nlibraries: [{glob: {include: none/**}}]", "no file matches 'none/\\*\\*'"),
    "no libraries": ("name: a", "the project has no libraries"),
    "file": ("name: a\nlibraries: [{glob: {include: notes/**}}]", "notes/x.txt: libraries must be"),
    "number": (
        "name: a\nconfiguration: {a: 1}\nlibraries: [{glob: {include: t/**}}]",
        "the value 1 of the configuration 'a' is not a string",
    ),
}


@pytest.mark.parametrize("case", SPECS)
def test_a_wrong_spec_is_refused_before_spark_starts(tmp_path: Path, case: str) -> None:
    spec, why = SPECS[case]
    root = write_project(tmp_path, {"t/a.sql": TABLE, "notes/x.txt": ""}, spec)
    with pytest.raises(InvalidInput, match=why) as refused:
        read_script(root)
    assert "spark-pipeline.yml" in refused.value.where


def test_a_directory_without_a_spec_or_with_two_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"the directory has no spark-pipeline\.yml"):
        read_script(tmp_path)
    write_project(tmp_path, {"spark-pipeline.yaml": SPEC})
    with pytest.raises(InvalidInput, match="both"):
        read_script(tmp_path)


def test_a_setting_that_applies_only_at_start_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    spec = SPEC.replace("spark.sql.session.timeZone: Asia/Tokyo", "spark.executor.memory: 4g")
    project = read_project(write_project(tmp_path, {"transformations/t.sql": TABLE}, spec))
    with pytest.raises(InvalidInput, match=r"'spark\.executor\.memory' has an effect only when Spark starts"):
        Circuit(spark, project)


def test_flows_that_do_not_fit_together_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    files = {"transformations/t.sql": SQL_ONLY["transformations/deep/c.sql"].replace("SELECT 7,", "SELECT 'seven',")}
    project = read_project(write_project(tmp_path, files))
    with pytest.raises(InvalidInput, match="amount") as refused:
        Circuit(spark, project)
    why = refused.value.why
    assert why == "column 'amount' has the type \"long\" in flow 'south', but \"integer\" in flow 'north'"
    assert "t.sql:4" in refused.value.where
