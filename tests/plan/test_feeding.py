"""Streaming tables with AUTO CDC flows are tables with keys; what does not fit together is refused with its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evertide.errors import InvalidInput
from evertide.plan.nodes import Scan, walk
from evertide.plan.program import Program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGES = "CREATE TABLE changes (id BIGINT, name STRING, op STRING, at BIGINT);"
FLOW = """CREATE FLOW f AS AUTO CDC INTO customers FROM STREAM changes KEYS (id)
APPLY AS DELETE WHEN op = 'd' SEQUENCE BY at COLUMNS * EXCEPT (op, at);"""


def test_a_flow_gives_its_table_columns_and_key(spark: SparkSession) -> None:
    program = Program(
        spark,
        f"{CHANGES} CREATE STREAMING TABLE customers; {FLOW}"
        "CREATE MATERIALIZED VIEW v AS SELECT id, name FROM customers WHERE id IS NOT NULL;",
    )
    assert [(column.name, column.nullable) for column in program.tables["customers"]] == [
        ("id", False),
        ("name", True),
    ]
    [scan] = [node for node in walk(program.views["v"]) if isinstance(node, Scan)]
    assert scan.unique == (scan.output[0].id,)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (f"{CHANGES} {FLOW}", "'customers' is no streaming table"),
        (f"CREATE STREAMING TABLE customers; {FLOW}", "'changes', which the flow reads"),
        ("CREATE STREAMING TABLE customers;", "neither columns nor a flow"),
        (f"{CHANGES} CREATE STREAMING TABLE customers (name STRING); {FLOW}", "the key 'id' is not a column"),
        (
            f"{CHANGES} CREATE STREAMING TABLE customers; {FLOW} {FLOW.replace('FLOW f', 'FLOW g')}",
            "fed by 'f' already",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(spark: SparkSession, script: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        Program(spark, script)
