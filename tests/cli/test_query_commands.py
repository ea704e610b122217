"""`subscribe`, `query`, `explain`."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.cli.kit import SHOP, document, evertide, lines, make_storage, one_error, open_small, order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_subscribe_prints_all_rows_first_then_the_complete_time(tmp_path: Path) -> None:
    make_storage(tmp_path / "s")
    *rows, end = lines(evertide("subscribe", "REVENUE", "--storage", tmp_path / "s", "--no-follow", "--json"))
    assert end == {"complete": 3}
    assert rows == [
        {"time": 3, "diff": 1, "row": {"customer": "ann", "amount": 2}},
        {"time": 3, "diff": 1, "row": {"customer": "bob", "amount": 4}},
    ]


def test_subscribe_since_a_time_prints_each_transaction_of_a_running_pipeline(tmp_path: Path) -> None:
    with open_small(tmp_path / "s") as p:
        for amount in (10, 11, 12):
            p.push("orders", [order(1, amount=amount)])
            p.commit()
        told = lines(
            evertide("subscribe", "revenue", "--storage", tmp_path / "s", "--since", "1", "--no-follow", "--json")
        )
        changes = [(line["time"], line["diff"], line["row"]["amount"]) for line in told if "diff" in line]
        assert changes == [(2, -1, 10), (2, 1, 11), (3, -1, 11), (3, 1, 12)]
        assert told[-1] == {"complete": 3}
        p.push("orders", [order(2)])
        assert p.commit() == 4


def test_subscribe_for_people(tmp_path: Path) -> None:
    make_storage(tmp_path / "s")
    said = evertide("subscribe", "orders", "--storage", tmp_path / "s", "--since", "2", "--no-follow").stdout
    assert said.splitlines() == ["time 3", "  +1  id=3  customer=bob  amount=3"]


def test_v7_subscribe_prints_texts_that_are_not_valid_utf8(tmp_path: Path) -> None:
    """Fails with a UnicodeDecodeError."""
    with open_small(tmp_path / "s") as p:
        p.push("notes", pa.table({"text": pa.array([b"\xff\xfeabc"], pa.binary()).view(pa.string())}))
        p.commit()
    command = ("subscribe", "notes", "--storage", tmp_path / "s", "--no-follow")
    assert lines(evertide(*command, "--json"))[0]["row"] == {"text": "\ufffd\ufffdabc"}
    assert "text=\ufffd\ufffdabc" in evertide(*command).stdout


def test_subscribe_to_an_unknown_collection_or_time_is_refused(tmp_path: Path) -> None:
    make_storage(tmp_path / "s")
    assert "no such collection" in one_error(evertide("subscribe", "nothing", "--storage", tmp_path / "s"), 2)
    late = one_error(evertide("subscribe", "orders", "--storage", tmp_path / "s", "--since", "9"), 2)
    assert "the last time is 3" in late


def test_subscribe_since_a_compacted_time_is_refused(tmp_path: Path) -> None:
    """Reported as such, with the first readable time; not as an empty feed."""
    with open_small(tmp_path / "s") as p:
        for number in range(1, 5):
            p.push("orders", [order(number)])
            p.commit()
            p.checkpoint()
    command = ("subscribe", "orders", "--storage", tmp_path / "s", "--since", "0", "--no-follow", "--json")
    found = json.loads(one_error(evertide(*command), 3))
    assert found["error_code"] == "time_compacted"
    assert found["since"] == 3


def test_query_in_all_formats_and_at_a_time(tmp_path: Path) -> None:
    make_storage(tmp_path / "s")
    text = "SELECT customer, amount, amount AS amount FROM revenue ORDER BY customer"
    found = document(evertide("query", text, "--storage", tmp_path / "s", "--json"))
    assert found["time"] == 3
    assert found["columns"] == ["customer", "amount", "amount_2"]
    assert found["rows"][0] == {"customer": "ann", "amount": 2, "amount_2": 2}
    said = evertide("query", text, "--storage", tmp_path / "s", "--as-of", "2", "--format", "csv").stdout
    assert list(csv.reader(said.splitlines()))[1:] == [["ann", "2", "2"], ["bob", "1", "1"]]
    text = "WITH o AS (SELECT id FROM orders) SELECT count(*) AS n FROM o"
    said = evertide("query", text, "--engine", "duckdb", "--storage", tmp_path / "s").stdout
    assert said.split() == ["n", "3"]


@pytest.mark.parametrize(
    ("text", "engine", "time", "why"),
    [
        ("SELECT * FROM nothing", "auto", "3", "query:1:15: no table or view 'nothing'; there are counts"),
        ("SELEKT", "duckdb", "3", "SELEKT"),
        ("SELECT customer + 1 FROM orders", "auto", "3", "CAST_INVALID_INPUT"),
        ("SELECT * FROM orders", "duckdb", "4", "the last time is 3"),
    ],
)
def test_invalid_queries_are_refused(tmp_path: Path, text: str, engine: str, time: str, why: str) -> None:
    make_storage(tmp_path / "s")
    command = ("query", text, "--storage", tmp_path / "s", "--as-of", time, "--engine", engine, "--json")
    found = json.loads(one_error(evertide(*command), 2))
    assert found["error_code"] == "invalid_input"
    assert why in found["message"]


def test_explain_in_all_formats(tmp_path: Path, spark: SparkSession) -> None:
    script = tmp_path / "shop.sql"
    script.write_text(SHOP)
    assert "sums per group (customer)" in evertide("explain", script).stdout
    found = document(evertide("explain", script, "--json", "--view", "Revenue"))
    assert [view["name"] for view in found["views"]] == ["revenue"]
    assert evertide("explain", script, "--format", "mermaid").stdout.startswith("flowchart BT")
    assert evertide("explain", script, "--format", "dot").stdout.startswith("digraph")
    assert "no such materialized view" in one_error(evertide("explain", script, "--view", "orders"), 2)


def test_explain_names_the_line_of_a_refused_statement(tmp_path: Path, spark: SparkSession) -> None:
    script = tmp_path / "shop.sql"
    script.write_text(f"{SHOP}CREATE MATERIALIZED VIEW v AS SELECT now() AS n FROM orders;")
    failed = evertide("explain", script)
    assert failed.exit_code == 2
    assert "shop.sql:4:" in failed.stderr
    assert "cannot be read" in one_error(evertide("explain", tmp_path / "none.sql"), 2)
