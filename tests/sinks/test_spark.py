"""Sinks of a real pipeline, by its script: the Delta table and the files have the content of the views."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from evertide.errors import InvalidInput
from evertide.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = """
CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount DECIMAL(10, 2), at TIMESTAMP, PRIMARY KEY (id))
TBLPROPERTIES (
    'evertide.sinks' = 'copy', 'evertide.sink.copy.connector' = 'delta', 'evertide.sink.copy.path' = 'copy'
);
CREATE MATERIALIZED VIEW revenue TBLPROPERTIES (
    'evertide.sinks' = 'lake, log',
    'evertide.sink.lake.connector' = 'delta', 'evertide.sink.lake.path' = 'lake',
    'evertide.sink.log.connector' = 'files', 'evertide.sink.log.path' = 'log'
) AS SELECT customer, sum(amount) AS total, count(*) AS orders FROM orders GROUP BY customer;
"""


def order(number: int, customer: str | None, amount: str | None) -> dict[str, Any]:
    return {"id": number, "customer": customer, "amount": amount, "at": f"2024-02-29 12:00:0{number}"}


def rows(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in found), key=repr)


def read_log(base: Path) -> list[tuple[Any, ...]]:
    total: Counter[tuple[Any, ...]] = Counter()
    for row in pq.read_table(base / "log").to_pylist():
        diff, _ = row.pop("__diff"), row.pop("__time")
        total[tuple(row.values())] += diff
    return sorted(total.elements(), key=repr)


def test_a_script_with_sinks(spark: SparkSession, tmp_path: Path) -> None:
    script = tmp_path / "shop.sql"
    script.write_text(SCRIPT)
    with Pipeline.open(script, tmp_path / "shop.evertide", spark=spark) as p:
        steps = [
            ([order(1, "ann", "10.00"), order(2, "bob", "5.50"), order(3, None, None)], []),
            ([order(1, "ann", "12.00")], [{"id": 2}]),
            ([order(4, "bob", "1.00")], [{"id": 3}]),
        ]
        for given, deletes in steps:
            p.push("orders", given, deletes=deletes)
            p.commit()
            p.run(until_idle=True)
            assert rows(DeltaTable(tmp_path / "lake").to_pyarrow_table().to_pylist()) == rows(
                p.view("revenue").to_pylist()
            )
            assert rows(DeltaTable(tmp_path / "copy").to_pyarrow_table().to_pylist()) == rows(
                p.view("orders").to_pylist()
            )
            assert read_log(tmp_path) == rows(p.view("revenue").to_pylist())
        files = DeltaTable(tmp_path / "lake").file_uris()
        asked = duckdb.connect().execute(f"SELECT customer, total, orders FROM read_parquet({files!r})").fetchall()
        assert sorted(asked, key=repr) == rows(p.view("revenue").to_pylist())
        assert [(one.name, one.state, one.last) for one in p.status().sinks] == [
            ("copy", "running", 3),
            ("lake", "running", 3),
            ("log", "running", 3),
        ]


def test_errors_name_the_line_of_the_script(spark: SparkSession, tmp_path: Path) -> None:
    script = tmp_path / "shop.sql"
    script.write_text(SCRIPT.replace("log.path", "log.paht"))
    with pytest.raises(InvalidInput, match=r"shop.sql:6:1, sink 'log' of 'revenue': .* 'paht'; did you mean 'path'"):
        Pipeline.open(script, tmp_path / "shop.evertide", spark=spark)
