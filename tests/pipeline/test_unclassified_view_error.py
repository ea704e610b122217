"""X13: a row fails a view with an error that PySpark has no class for. Only that view fails, and it recovers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import evertide as et
from evertide.plan.fragment.fragment import ROWS_SMALL_MAX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "CREATE TABLE t (k INT NOT NULL, j STRING, x STRING, n STRING, PRIMARY KEY (k));\n"
GOOD = "CREATE MATERIALIZED VIEW good AS SELECT count(*) AS n FROM t;\n"
BAD = {
    "parsed": "parse_json(j)",
    "of_json": "from_json(j, 'a INT', map('mode', 'FAILFAST'))",
    "of_csv": "from_csv(n, 'a INT', map('mode', 'FAILFAST'))",
    "of_xml": "from_xml(x, 'a INT', map('mode', 'FAILFAST'))",
    "path": "xpath_string(x, 'a')",
    "paths": "xpath(x, 'a/text()')",
    "number": "xpath_int(x, 'a')",
    "padded": "length(lpad(j, if(j = 'no json', 2147483640, 5), 'x'))",
    "repeated": "length(repeat(j, if(j = 'no json', 300000000, 1)))",
}
HIGHEST = "SELECT k % 3 AS g, max(xpath_string(x, 'doc/a')) AS z FROM t GROUP BY k % 3"
JOINED = "SELECT a.k, parse_json(concat(a.j, b.j)) AS z FROM t a JOIN t b ON a.k = b.k + 1 WHERE a.j = 'no json'"


def view(name: str, query: str) -> str:
    return f"CREATE MATERIALIZED VIEW {name} AS {query};\n"


def row(k: int, *, is_bad: bool = False) -> dict[str, Any]:
    if is_bad:
        return {"k": k, "j": "no json", "x": "<a>1</b>", "n": "one"}
    return {"k": k, "j": '{"a": 1}', "x": "<doc><a>1</a></doc>", "n": "1"}


def failed(p: et.Pipeline) -> dict[str, str]:
    return {one.name: one.why for one in p.status().collections if one.state == "failed"}


def test_x13_only_the_views_that_a_bad_row_fails_leave_and_they_recover(spark: SparkSession, tmp_path: Path) -> None:
    """Seen to fail: the error counted as Spark being unavailable; the transaction was retried for ever, and no view
    advanced."""
    queries = {name: f"SELECT k, {expression} AS z FROM t" for name, expression in BAD.items()}
    queries |= {"highest": HIGHEST, "joined": JOINED}
    script = TABLE + GOOD + "".join(view(name, query) for name, query in queries.items())
    settings = et.Settings(retry_view_s=0.001)
    with et.Pipeline.open(script, tmp_path / "s", spark=spark, settings=settings) as p:
        p.push("t", [row(1), row(2)])
        p.commit()
        assert not failed(p)
        p.push("t", [row(3), row(4, is_bad=True), row(5)])
        p.commit()
        assert failed(p).keys() == queries.keys()
        assert all("'k': 4" in why for why in failed(p).values())
        assert p.view("good").to_pylist() == [{"n": 5}]
        assert p.status().state == "running"
        p.push("t", deletes=[4])
        p.commit()
        p.wait_until_hydrated()
        assert not failed(p)
        assert p.view("padded").to_pylist() == [{"k": k, "z": 5} for k in (1, 2, 3, 5)]
        assert {one["z"] for one in p.view("highest").to_pylist()} == {"1"}


def test_x13_one_bad_row_of_many_and_of_a_backfill_fails_only_its_view(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that executors share, where the error of a task reaches the driver as the failure of a job."""
    many = ROWS_SMALL_MAX + 1000
    parsed = view("parsed", "SELECT k, parse_json(j) AS z FROM t")
    with et.Pipeline.open(TABLE + GOOD + parsed, tmp_path / "s", spark=spark) as p:
        p.push("t", [row(k, is_bad=k == 777) for k in range(many)])
        p.commit()
        assert p.view("good").to_pylist() == [{"n": many}]
        assert failed(p).keys() == {"parsed"}
        assert "'k': 777" in failed(p)["parsed"]
    added = view("padded", f"SELECT k, {BAD['padded']} AS z FROM t")
    with et.Pipeline.open(TABLE + GOOD + added, tmp_path / "s", spark=spark) as p:
        p.wait_until_hydrated()
        assert failed(p).keys() == {"padded"}
        assert "'k': 777" in failed(p)["padded"]
        p.push("t", deletes=[777])
        p.commit()
        while failed(p):
            p.wait_until_hydrated()
            p.push("t", [row(many)])
            p.commit()
        assert p.view("padded").to_arrow().num_rows == many
