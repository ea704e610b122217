"""Evertide's properties are checked, other properties are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evertide.errors import InvalidInput
from evertide.plan.program.program import Program
from evertide.plan.program.properties import check_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_valid_values_and_other_properties_are_accepted() -> None:
    check_properties({"evertide.keep": "none", "owner": "ann"}, is_view=False, where="t")
    check_properties({"evertide.refresh": "incremental"}, is_view=True, where="v")


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (
            "CREATE TABLE t (a INT) TBLPROPERTIES ('evertide.keeps' = 'none')",
            "table 't'.*property 'evertide.keeps' does not exist",
        ),
        ("CREATE TABLE t (a INT) TBLPROPERTIES ('evertide.keep' = 'some')", "'some', but must be 'all' or 'none'"),
        (
            "CREATE MATERIALIZED VIEW v TBLPROPERTIES ('evertide.refresh' = 'full') AS SELECT 1 AS a",
            "view 'v'.*'full', but must be 'incremental'",
        ),
    ],
)
def test_invalid_properties_are_refused(spark: SparkSession, statement: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        Program(spark, statement)


def test_a_name_that_spark_cannot_use_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match="my table/x"):
        Program(spark, "CREATE TABLE `my table/x` (a INT)")
