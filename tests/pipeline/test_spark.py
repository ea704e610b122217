"""Real pipelines: on Spark, on a disk, from a script."""

from __future__ import annotations

import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import evertide as et
from evertide.errors import InvalidInput, ScratchUnavailable
from evertide.pipeline.reading.collections import View
from evertide.runtime import SystemRuntime
from tests.pipeline.kit import crash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOP = """
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount INT, PRIMARY KEY (id));
CREATE TABLE changes (name STRING, city STRING, at INT, gone BOOLEAN);
CREATE STREAMING TABLE customers;
CREATE FLOW f AS AUTO CDC INTO customers FROM STREAM changes KEYS (name)
APPLY AS DELETE WHEN gone SEQUENCE BY at COLUMNS * EXCEPT (at, gone);
CREATE MATERIALIZED VIEW revenue AS
SELECT c.city, sum(o.amount) AS total, max(o.amount) AS top
FROM orders o LEFT JOIN customers c ON o.customer = c.name GROUP BY c.city;
CREATE MATERIALIZED VIEW shares AS SELECT id, 100 / amount AS share FROM orders;
"""


def rows(view: View) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in view.to_pylist()), key=repr)


def test_views_are_right_from_the_first_order_to_a_changed_script(spark: SparkSession, tmp_path: Path) -> None:
    storage = tmp_path / "shop.evertide"
    with et.Pipeline.open(SHOP, storage, spark=spark) as p:
        p.push("orders", [{"id": 1, "customer": "ann", "amount": 20}, {"id": 2, "customer": "bob", "amount": 5}])
        p.push("changes", [{"name": "ann", "city": "Oslo", "at": 1, "gone": False}])
        p.commit()
        assert rows(p.view("revenue")) == [("Oslo", 20, 20), (None, 5, 5)]
        p.push("changes", [{"name": "bob", "city": "Rome", "at": 7, "gone": None}])
        p.push("orders", spark.createDataFrame([(1, "ann", 21)], "id BIGINT, customer STRING, amount INT"))
        p.commit()
        p.push("orders", pa.table({"id": [3], "customer": ["eve"], "amount": pa.array([0], pa.int32())}))
        t = p.commit()
        [failed] = [one for one in p.status().collections if one.state == "failed"]
        assert failed.name == "shares"
        assert "DIVIDE_BY_ZERO" in failed.why
        assert "100 / amount" in failed.why
        assert "'id': 3" in failed.why
        assert rows(p.view("revenue").as_of(t - 1)) == [("Oslo", 21, 21), ("Rome", 5, 5)]
        asked = p.query("SELECT count(*) AS n, max(share) AS m FROM shares JOIN orders USING (id)", as_of=t - 1)
        assert asked.to_pylist() == [{"n": 2, "m": 20.0}]
        assert p.view("customers").to_spark().count() == 2
        assert {view.name for each in p.explain() for view in each.views} >= {"revenue", "customers"}
        crash(p)
    with et.Pipeline.open(SHOP, storage, spark=spark) as p:
        assert p.time == t
        p.push("orders", deletes=[3])
        p.push("changes", [{"name": "ann", "city": "Oslo", "at": 9, "gone": True}])
        p.commit()
        assert p.wait_until_hydrated(60)
        assert rows(p.view("shares")) == [(1, 100 / 21), (2, 20.0)]
        assert rows(p.view("revenue")) == [("Rome", 5, 5), (None, 21, 21)]

    @et.materialized_view
    def spenders(session: SparkSession) -> DataFrame:
        return session.table("orders").where("amount > 10").select("customer")

    script = tmp_path / "shop.sql"
    script.write_text(SHOP.replace("sum(o.amount) AS total", "sum(o.amount) AS total, count(*) AS n"))
    with et.Pipeline.open(script, storage, spark=spark, functions=[spenders]) as p:
        assert p.wait_until_hydrated(60)
        assert rows(p.view("revenue")) == [("Rome", 5, 1, 5), (None, 21, 1, 21)]
        p.push("orders", [{"id": 2, "customer": "bob", "amount": 50}])
        p.commit()
        assert Counter(rows(p.view("spenders"))) == Counter([("ann",), ("bob",)])
        with pytest.raises(InvalidInput, match="nothing_like_it"):
            p.query("SELECT * FROM nothing_like_it")


def test_files_are_read_once_and_bad_rows_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    """A directory with CSV files, over a restart."""
    (tmp_path / "in").mkdir()
    script = tmp_path / "files.sql"
    script.write_text("""
        CREATE TABLE sales (id BIGINT NOT NULL, amount INT, PRIMARY KEY (id)) USING csv
        OPTIONS (path 'in', header 'true');
        CREATE MATERIALIZED VIEW total AS SELECT sum(amount) AS total, count(*) AS n FROM sales;
    """)
    storage = tmp_path / "s"
    (tmp_path / "in" / "a.csv").write_text("id,amount\n1,10\n2,ten\n3,30\n")

    with et.Pipeline.open(script, storage, spark=spark) as p:
        p.run(until_idle=True)
        assert rows(p.view("total")) == [(40, 2)]
        [letter] = p.view("evertide_errors").to_pylist()
        assert (letter["table"], letter["line"]) == ("sales", 3)
        assert letter["place"].endswith("a.csv")
        assert "ten" in letter["raw"]
    (tmp_path / "in" / "b.csv").write_text("id,amount\n2,20\n")
    with et.Pipeline.open(script, storage, spark=spark) as p:
        p.run(until_idle=True)
        assert rows(p.view("total")) == [(60, 3)]
        assert p.view("evertide_errors").to_pylist() == []


def test_x17_names_that_change_only_in_case_are_the_same_collections(spark: SparkSession, tmp_path: Path) -> None:
    """Also for tables that a flow feeds, and for a view in Python; nothing is recomputed."""

    @et.materialized_view
    def large(session: SparkSession) -> DataFrame:
        return session.table("orders").where("amount > 10")

    storage = tmp_path / "shop.evertide"
    with et.Pipeline.open(SHOP, storage, spark=spark, functions=[large]) as p:
        p.push("orders", [{"id": 1, "customer": "ann", "amount": 20}])
        p.push("changes", [{"name": "ann", "city": "Oslo", "at": 1, "gone": False}])
        p.commit()
        known = p.definition
    script = SHOP
    for name in ("orders", "changes", "customers", "revenue", "shares"):
        script = script.replace(f" {name}", f" {name.title()}")
    with et.Pipeline.open(script, storage, spark=spark, functions=[replace(large, name="LARGE")]) as p:
        assert p.definition == known
        p.push("ORDERS", [{"id": 2, "customer": "ann", "amount": 5}])
        p.commit()
        assert rows(p.view("revenue")) == [("Oslo", 25, 20)]
        assert rows(p.view("Large")) == [(1, "ann", 20)]
        assert p.query("SELECT count(*) AS n FROM Shares").to_pylist() == [{"n": 2}]


def test_an_unreadable_script_is_refused_with_its_path(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no-such\.sql"):
        et.Pipeline.open("no-such.sql", tmp_path / "s", spark=spark)
    with pytest.raises(InvalidInput, match="SQL:1:1, table 't'"):
        et.Pipeline.open("CREATE TABLE t (a INT) USING nothing;", tmp_path / "s", spark=spark)
    with et.Pipeline.open("CREATE TABLE t (a INT);", tmp_path / "s", spark=spark) as p:
        assert p.commit() == 0


def test_a_timestamp_without_a_zone_has_none_in_spark_either(spark: SparkSession, tmp_path: Path) -> None:
    """Otherwise a session in another zone would return another hour."""
    script = "CREATE TABLE t (id BIGINT NOT NULL, here TIMESTAMP_NTZ, at TIMESTAMP, PRIMARY KEY (id));"
    with et.Pipeline.open(script, tmp_path / "s", spark=spark) as p:
        at = datetime(2026, 11, 16, 12, tzinfo=UTC)
        noon = at.replace(tzinfo=None)
        p.push("t", [{"id": 1, "here": noon, "at": at}])
        p.commit()
        kinds = {field.name: field.dataType.simpleString() for field in p.view("t").to_spark().schema}
        assert kinds == {"id": "bigint", "here": "timestamp_ntz", "at": "timestamp"}
        [asked] = p.query("SELECT typeof(here) AS kind, here FROM t").to_pylist()
        assert asked == {"kind": "timestamp_ntz", "here": noon}


def test_a_view_added_over_many_rows_equals_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """In portions: with orders that were changed and deleted, and notes that were only added."""
    head, _, tail = SHOP.partition("CREATE MATERIALIZED VIEW")
    best = "SELECT o.customer, count(*) AS n, max_by(o.id, o.amount) AS best FROM orders o GROUP BY o.customer"
    alone = "SELECT c.name FROM customers c LEFT ANTI JOIN orders o ON o.customer = c.name"
    queries = {"revenue": tail.partition(" AS\n")[2].partition(";")[0], "best": best, "alone": alone}
    with et.Pipeline.open(head, tmp_path / "s", spark=spark) as p:
        for first in range(0, 1000, 200):
            numbers = range(first, first + 300)
            p.push("orders", [{"id": n % 700, "customer": f"c{n % 7}", "amount": n} for n in numbers])
            p.push(
                "changes", [{"name": f"c{n % 9}", "city": f"t{n % 4}", "at": n, "gone": n % 13 == 0} for n in numbers]
            )
            p.push("orders", deletes=[*range(first, first + 40)])
            p.commit()
    views = "".join(f"CREATE MATERIALIZED VIEW {name} AS\n{query};\n" for name, query in queries.items())
    with et.Pipeline.open(head + views, tmp_path / "s", spark=spark, settings=et.Settings(portion_rows_max=150)) as p:
        p.wait_until_hydrated()
        for change in (0, 1):
            p.push("orders", [{"id": 5, "customer": "c8", "amount": change}])
            p.commit()
            for name, query in queries.items():
                again = p.query(query).to_pylist()
                assert rows(p.view(name)) == sorted((tuple(row.values()) for row in again), key=repr)


def test_t7_views_after_a_transaction_in_portions_equal_a_query(spark: SparkSession, tmp_path: Path) -> None:
    settings = et.Settings(portion_rows_max=150, push_buffer_bytes=1)
    with et.Pipeline.open(SHOP, tmp_path / "s", spark=spark, settings=settings) as p:
        for first in range(0, 1000, 100):
            numbers = range(first, first + 150)  # every third of them twice
            p.push("orders", [{"id": n % 700, "customer": f"c{n % 7}", "amount": n % 90 + 1} for n in numbers])
            p.push("changes", [{"name": f"c{first // 100 % 7}", "city": f"t{first % 300}", "at": first, "gone": False}])
        t = p.commit()
        recorded = p._context.journal.read_outcome(t)
        assert recorded is not None
        assert recorded.portions > 3
        again = p.query(
            "SELECT c.city, sum(o.amount) AS total, max(o.amount) AS top "
            "FROM orders o LEFT JOIN customers c ON o.customer = c.name GROUP BY c.city"
        )
        assert rows(p.view("revenue")) == sorted((tuple(row.values()) for row in again.to_pylist()), key=repr)
        crash(p)
    with et.Pipeline.open(SHOP, tmp_path / "s", spark=spark, settings=settings) as p:  # replayed, in portions too
        assert p.time == t
        assert len(rows(p.view("shares"))) == 700


def test_x12_a_transaction_without_room_for_scratch_files_waits_and_continues(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail: a bare error of the file system ended the process, with the transaction bound."""
    script = "CREATE TABLE t (a INT); CREATE MATERIALIZED VIEW v AS SELECT a + 1 AS b FROM t;"
    settings, runtime = et.Settings(retry_wait_max_s=0.01), SystemRuntime()
    with et.Pipeline.open(script, tmp_path / "s", spark=spark, settings=settings) as p, ThreadPoolExecutor(1) as aside:
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
            p.push("t", [{"a": 1}])
            with pytest.raises(ScratchUnavailable):
                p.commit()
            running = aside.submit(p.run)
            while p.status().state != "stalled":
                runtime.sleep_s(0.01)
            assert p.status().problems[0].error_code == "scratch_unavailable"
            assert rows(p.view("v")) == []
        while not rows(p.view("v")):
            runtime.sleep_s(0.01)
        p.stop()
        running.result()
        assert rows(p.view("v")) == [(2,)]
        assert p.status().state == "running"
