"""Views of many kinds and their fingerprints; run as a program, it prints those that a new process computes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from evertide.plan.program.fingerprint import Fingerprints
from evertide.plan.program.program import Program
from evertide.plan.program.view_function import ViewFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES = """
CREATE TABLE r (a BIGINT, b BIGINT, c STRING, d DECIMAL(10, 2), x DOUBLE);
CREATE TABLE s (id BIGINT NOT NULL, b BIGINT, e STRING, ts TIMESTAMP, PRIMARY KEY (id));
CREATE TABLE t (k BIGINT NOT NULL, v INT, w ARRAY<INT>, PRIMARY KEY (k));
"""

QUERIES = {
    "moved": "SELECT b, a FROM r",
    "computed": "SELECT a + b AS ab, upper(c) AS u, try_cast(c AS INT) AS i, CAST(c AS TIMESTAMP) AS ts FROM r",
    "inner_": "SELECT r.a, r.c, s.e FROM r JOIN s ON r.b = s.b",
    "residual": "SELECT r.a, s.id FROM r LEFT JOIN s ON r.b = s.b AND r.a < s.id",
    "self_join": "SELECT x.a, y.a AS ya FROM r x JOIN r y ON x.b = y.b AND x.a < y.a",
    "not_in": "SELECT * FROM r WHERE a NOT IN (SELECT b FROM s)",
    "sums": "SELECT b, count(*) AS n, sum(d) AS sd, avg(x) AS ax, stddev(a) AS sa FROM r GROUP BY b",
    "extremes": "SELECT b, min(a) AS mi, max(c) AS ma, collect_set(c) AS cs FROM r GROUP BY b",
    "distincts": """SELECT b, count(DISTINCT a) AS x, count(DISTINCT c) AS y, sum(DISTINCT a + 1) AS z, sum(a) AS sa,
        count(*) AS n, count(DISTINCT c, a) AS u, count(DISTINCT a) FILTER (WHERE a > 2) AS w FROM r GROUP BY b""",
    "cubed": "SELECT a, b, count(DISTINCT c) AS n, count(DISTINCT d) AS m FROM r GROUP BY CUBE (a, b)",
    "by_expression": "SELECT a % 2 AS p, c || 'x' AS q, count(*) AS n FROM r GROUP BY a % 2, c || 'x'",
    "scalar": "SELECT a, (SELECT max(v) FROM t) AS mv FROM r WHERE a > (SELECT avg(a) FROM r)",
    "correlated": "SELECT id, (SELECT count(*) FROM r WHERE r.b = s.b) AS n FROM s",
    "exists_": "SELECT * FROM r WHERE EXISTS (SELECT 1 FROM s WHERE s.b = r.b AND s.id > r.a)",
    "except_all": "SELECT a FROM r EXCEPT ALL SELECT id FROM s",
    "numbered": """SELECT id, b, row_number() OVER (PARTITION BY b ORDER BY ts) AS rn, lag(id) OVER
        (PARTITION BY b ORDER BY ts) AS l, sum(id) OVER (PARTITION BY b + 1) AS su FROM s""",
    "top": "SELECT id, b FROM s ORDER BY b DESC, id LIMIT 3",
    "exploded": "SELECT k, e.pos, e.col FROM t LATERAL VIEW OUTER posexplode(w) e",
    "tumbling": "SELECT window(ts, '10 seconds').start AS st, count(*) AS n FROM s GROUP BY window(ts, '10 seconds')",
    "sessions": "SELECT session_window(ts, '5 seconds') AS w, b, count(*) AS n FROM s GROUP BY 1, 2",
    "lambdas": "SELECT transform(w, y -> y + k) AS q, aggregate(w, 0, (acc, z) -> acc + z) AS su FROM t",
    "literals": """SELECT X'0aff' AS bi, array(1, 2) AS ar, map('a', 1) AS ma, INTERVAL 3 DAYS AS i,
        timestamp'2020-01-01 00:00:00' AS ts, struct(1, X'01') AS st, a FROM r""",
    "in_set": "SELECT a FROM r WHERE a IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)",
    "constants": "SELECT r.a, v.n FROM r JOIN (VALUES (1, 'one'), (2, 'two')) v(k, n) ON r.a = v.k",
    "parsed": "SELECT from_json(c, 'a INT', map('mode', 'FAILFAST')) AS j FROM r",
    "pivoted": "SELECT * FROM (SELECT b, c, a FROM r) PIVOT (sum(a) FOR c IN ('x', 'y'))",
    "over_view": "SELECT b, n FROM sums WHERE n > 1",
}
LIMIT = 3


def within_limit(price: int | None) -> bool:
    """Reads a global, and has a set among its constants."""
    return price is not None and (price < LIMIT or str(price) in {"one", "two", "three"})


def python_view(session: SparkSession) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - costs a second

    return session.table("r").where(F.udf(within_limit, "boolean", useArrow=False)("a"))


def script(names: list[str], queries: dict[str, str], tables: str) -> str:
    views = [f"CREATE MATERIALIZED VIEW {name} AS {queries[name]};" for name in names]
    return "\n".join([tables, *views])


def fingerprints(
    spark: SparkSession, names: list[str] | None = None, *, changed: dict[str, str] | None = None, tables: str = TABLES
) -> dict[str, str]:
    """Fingerprints by view, and that of the pipeline as ""."""
    chosen = list(QUERIES) if names is None else names
    functions = [ViewFunction("in_python", python_view)] if names is None or "in_python" in names else []
    queries = script([name for name in chosen if name != "in_python"], QUERIES | (changed or {}), tables)
    found = Fingerprints(Program(spark, queries, functions=functions))
    return {**found.views, "": found.pipeline}


def main(scratch: Path) -> None:
    """Compute them in another order, after other work, so that all of Spark's counters have advanced."""
    from tests.servers.spark import running_spark  # noqa: PLC0415 - costs a second

    with running_spark(scratch) as spark:
        for rows in range(50):
            spark.range(rows).selectExpr("id + 1 AS n").groupBy("n").count()
        last = ["sums", "over_view"]
        names = [*(name for name in reversed(QUERIES) if name not in last), *last, "in_python"]
        print(json.dumps(fingerprints(spark, names)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
