"""Views computed by a wide step are equal, bit by bit, to those that step through each transaction (I15)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evertide.flow import Circuit
from tests.flow.checked import transactions_of, views_of
from tests.flow.wide_views import check_wide

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPTS = ("aggregates", "joins", "odd", "order", "sets", "subqueries", "values", "windows", "choices")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_wide_step_gives_what_transactions_give(spark: SparkSession, tmp_path: Path, name: str) -> None:
    script = views_of(spark, name).script
    transactions = list(transactions_of(Circuit(spark, script), seed=5, count=9))
    check_wide(spark, script, transactions[:6], transactions[6:], tmp_path)
