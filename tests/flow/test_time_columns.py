"""Columns of type TIME, in every kind of operator, against Spark's own results."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from evertide.errors import InvalidInput
from evertide.flow import Circuit
from tests.kit.oracle import Reference, drive, read_types
from tests.kit.transactions import random_transactions

TABLES = "CREATE TABLE o (id BIGINT NOT NULL, x TIME, b INT, PRIMARY KEY (id)); CREATE TABLE c (x TIME, w ARRAY<TIME>);"
QUERIES = {
    "read": "SELECT id, x, hour(x) AS h, CAST(x AS STRING) AS s, "
    "x - INTERVAL '0' SECOND > TIME'00:00:05' AS late FROM o",
    "grouped": "SELECT x, count(*) AS n, sum(b) AS s FROM o GROUP BY x",
    "aggregated": "SELECT b, min(x) AS low, max(x) AS top, count(DISTINCT x) AS n, sort_array(collect_list(x)) AS l, "
    "max_by(id, struct(x, id)) AS last FROM o GROUP BY b",
    "joined": "SELECT o.id, c.w FROM o LEFT JOIN c ON o.x = c.x",
    "without": "SELECT id FROM o WHERE x IN (SELECT x FROM c) OR NOT EXISTS (SELECT 1 FROM c WHERE c.x > o.x)",
    "numbered": "SELECT id, x, row_number() OVER (PARTITION BY b ORDER BY x, id) AS r, "
    "lag(x) OVER (ORDER BY x, id) AS p FROM o",
    "least": "SELECT x, id FROM o ORDER BY x DESC, id LIMIT 3",
    "distinct_times": "SELECT x FROM o EXCEPT SELECT get(w, 0) FROM c",
}


@pytest.mark.timeout(600)
def test_columns_of_times_are_maintained(spark: SparkSession) -> None:
    views = "".join(f"CREATE MATERIALIZED VIEW {name} AS {query};\n" for name, query in QUERIES.items())
    circuit = Circuit(spark, TABLES + views)
    rows = random_transactions(circuit.tables, 4, keys={"o": ["id"]}, count=8, rows_each=6, rows_huge=20)
    reference = Reference(spark, circuit.tables, types=read_types(circuit.program))
    drive(circuit, reference, QUERIES, rows, spark_every=1)


def test_a_session_without_the_type_is_refused_with_the_setting(spark: SparkSession) -> None:
    session = SparkSession(spark.sparkContext, jsparkSession=spark._jsparkSession.cloneSession())
    session.conf.set("spark.sql.timeType.enabled", "false")
    with pytest.raises(InvalidInput, match=r"the type TIME is off in this Spark session; set spark\.sql\.timeType"):
        Circuit(session, TABLES)
