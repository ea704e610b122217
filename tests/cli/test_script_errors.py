"""Errors in scripts as a user sees them: tests/golden/script-errors.txt has each script and what the command prints.

`EVERTIDE_GOLDEN=write` rewrites the file.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evertide.errors import InvalidInput
from evertide.pipeline.pipeline import Pipeline
from evertide.plan.program.program import Program
from tests.cli.kit import evertide
from tests.kit.golden import compare_with_golden

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = "CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount BIGINT, PRIMARY KEY (id));\n"
SCRIPTS = {
    "a misspelled column": ORDERS
    + """
-- What each customer has paid
CREATE MATERIALIZED VIEW revenue AS
SELECT   custmer, sum(amount) AS amount
FROM     orders
GROUP BY customer;
""",
    "a misspelled table": ORDERS + "CREATE MATERIALIZED VIEW v AS SELECT id FROM ordrs;\n",
    "a misspelled function": ORDERS + "CREATE MATERIALIZED VIEW v AS SELECT summ(amount) AS s FROM orders;\n",
    "a misspelled keyword": "CRATE TABLE t (id INT);\n",
    "the type TEXT": "CREATE TABLE t (\n  id BIGINT,\n  n  TEXT\n);\n",
    "the type VARCHAR(20) with a collation": "CREATE TABLE t (n VARCHAR(20) COLLATE UTF8_LCASE);\n",
    "a streaming table with a CHAR column and a flow": ORDERS
    + """CREATE STREAMING TABLE t (id BIGINT, code CHAR(3));
CREATE FLOW f AS AUTO CDC INTO t FROM STREAM orders KEYS (id) SEQUENCE BY id;
""",
    "OR REPLACE": "CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT 1 AS one;\n",
    "CREATE TABLE AS SELECT": ORDERS + "CREATE TABLE t AS SELECT * FROM orders;\n",
    "INSERT": ORDERS + "INSERT INTO orders VALUES (1, 'ann', 10);\n",
    "statements that declare nothing, beside other errors": ORDERS
    + """INSERT INTO orders VALUES (1, 'ann', 10);
DROP TABLE orders;
CREATE TABLE codes (code VARCHAR);
CREATE MATERIALIZED VIEW v AS SELECT custmer FROM orders;
""",
    "the current time": ORDERS + "CREATE MATERIALIZED VIEW v AS\n  SELECT id, current_date() AS d FROM orders;\n",
    "a misspelled property": ORDERS
    + "CREATE MATERIALIZED VIEW v TBLPROPERTIES ('evertide.sink' = 'a') AS SELECT id FROM orders;\n",
    "several errors, without those of views that read a broken one": """CREATE TABLE orders (id BIGINT, note TEXT);
CREATE TABLE people (id BIGINT, name STRING);
CREATE MATERIALIZED VIEW open AS SELECT * FROM orders;
CREATE MATERIALIZED VIEW names AS SELECT nam FROM people;
CREATE MATERIALIZED VIEW count_of_names AS SELECT count(*) AS n FROM names;
CREATE MATERIALIZED VIEW ids AS SELECT id FROM peple;
""",
    "a quote that is not closed": "CREATE TABLE t (id INT);\nCREATE VIEW v AS SELECT 'a AS x;\n",
}
NEW_TABLES = {
    "a collated key": "CREATE TABLE t (id INT, name STRING COLLATE UTF8_LCASE, PRIMARY KEY (id, name));\n",
    "a MAP inside a key": ORDERS + "CREATE TABLE t (k STRUCT<m: MAP<STRING, INT>>, PRIMARY KEY (k));\n",
    "a VARIANT as a key": "CREATE TABLE t (v VARIANT, PRIMARY KEY (v));\n",
}
"""Declarations that only a storage that does not have the table refuses."""


def test_errors_in_scripts_are_printed_with_their_place_and_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = []
    for name, script in [*SCRIPTS.items(), *NEW_TABLES.items()]:
        Path("shop.sql").write_text(script)
        command = ["plan", "--storage", "none"] if name in NEW_TABLES else ["explain"]
        failed = evertide(*command, "shop.sql")
        assert (failed.exit_code, failed.stdout) == (2, "")
        assert capfd.readouterr().err == "", "neither Spark nor Java may write to the terminal"
        printed.append(f"== {name}\n{script.strip()}\n--\n{failed.stderr}")
    compare_with_golden("script-errors.txt", "\n".join(printed))


def test_programs_get_the_fields_of_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shop.sql").write_text(SCRIPTS["a misspelled column"])
    failed = evertide("explain", "shop.sql", "--json")
    body = json.loads(failed.stderr)
    assert (body["error_code"], body["exit_code"], body["where"]) == ("invalid_input", 2, "shop.sql:5:10")
    assert body["why"] == "no column 'custmer' in 'orders'; did you mean 'customer'?"


def test_an_error_of_a_statement_is_not_hidden_by_a_flow_that_needs_it(spark: SparkSession) -> None:
    script = """CREATE TABLE feed (id BIGINT, at BIGINT);
    CREATE STREAMING TABLE t (id TEXT);
    CREATE FLOW f AS AUTO CDC INTO t FROM STREAM feed KEYS (id) SEQUENCE BY at;"""
    with pytest.raises(InvalidInput, match="the type TEXT does not exist") as refused:
        Program(spark, script, "shop.sql")
    assert refused.value.where == "shop.sql:2:34"


def test_python_prints_the_line_of_each_error(spark: SparkSession, tmp_path: Path) -> None:
    """A file and a text alike."""
    script = f"{ORDERS}CREATE MATERIALIZED VIEW v AS SELECT\n custmer FROM orders;\n"
    (tmp_path / "shop.sql").write_text(script)
    for given in (script, tmp_path / "shop.sql"):
        with pytest.raises(InvalidInput) as refused:
            Pipeline.open(given, tmp_path / "s", spark=spark)
        assert refused.value.__notes__ == ["  3 |  custmer FROM orders;", "    |  ^"]
    with pytest.raises(InvalidInput) as refused:
        Pipeline.open(f"{script}CREATE TABLE t (a TEXT);", tmp_path / "s", spark=spark)
    assert refused.value.__notes__ == [
        "SQL:3:2: no column 'custmer' in 'orders'; did you mean 'customer'?",
        "  3 |  custmer FROM orders;",
        "    |  ^",
        "SQL:4:19: the type TEXT does not exist; use STRING",
        "  4 | CREATE TABLE t (a TEXT);",
        "    |                   ^",
    ]


def test_the_text_of_several_errors_lists_all(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput) as refused:
        Program(spark, "CREATE TABLE t (a TEXT);\nCREATE VIEW v AS SELECT b FROM s", "shop.sql")
    twin = pickle.loads(pickle.dumps(refused.value))
    assert twin.where == "shop.sql:1:19"
    assert "TEXT" in str(twin)
    assert "shop.sql:2:32: no table or view 's'" in str(twin)
