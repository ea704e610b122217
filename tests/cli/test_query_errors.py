"""Errors in queries as a user sees them: tests/golden/query-errors.txt has each query and what the command prints.

`EVERTIDE_GOLDEN=write` rewrites the file.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from evertide.pipeline.reading.query import Question
from evertide.server.query.workers import Workers
from tests.cli.kit import evertide, make_storage
from tests.kit.golden import compare_with_golden

QUERIES = {
    "a misspelled column": "SELECT id, amount,\n       custmer\nFROM orders",
    "a column that the table does not have": "SELECT price FROM orders",
    "a misspelled column after an alias": "SELECT o.custmer FROM orders o JOIN revenue r ON o.customer = r.customer",
    "a misspelled table": "SELECT * FROM ordrs",
    "a table that there is not": "SELECT * FROM warehouse",
    "a misspelled function": "SELECT customer, summ(amount) FROM orders GROUP BY customer",
    "a misspelled SELECT": "SELEC * FROM orders",
    "a misspelled FROM": "SELECT id FRM orders",
    "a misspelled WHERE": "SELECT id\nFROM orders\nWERE id = 1",
    "a parenthesis that is not closed": "SELECT sum(amount FROM orders",
    "a quote that is not closed": "SELECT * FROM orders WHERE customer = 'ann",
    "an end that is missing": "SELECT * FROM orders WHERE id =",
    "another statement": "DELETE FROM orders",
    "a syntax that only Spark has, misspelled": "FROM orders |> WERE id = 1",
}


def test_errors_in_queries_are_printed_with_their_place_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails for each query that goes on to Spark, which takes half a minute to start."""
    make_storage(tmp_path / "s")

    def ask_spark(_: Workers, question: Question) -> None:
        raise AssertionError(question.sql)

    monkeypatch.setattr(Workers, "ask_spark", ask_spark)
    printed = []
    for name, text in QUERIES.items():
        failed = evertide("query", text, "--storage", tmp_path / "s")
        assert (failed.exit_code, failed.stdout) == (2, "")
        printed.append(f"== {name}\n{text}\n--\n{failed.stderr}")
    compare_with_golden("query-errors.txt", "\n".join(printed))
