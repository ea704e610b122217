"""Views computed by a wide step are equal, bit by bit, to those that step through each transaction (I15)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from evertide.flow import Circuit
from evertide.flow.wide.outlets import Tools
from evertide.flow.wide.step import WideInput, WideStep
from evertide.runtime import SystemRuntime
from evertide.store.memory import MemoryBlob
from tests.flow.checked import transactions_of, views_of
from tests.flow.wide_views import SETTINGS, check_wide

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPTS = ("aggregates", "joins", "odd", "order", "sets", "subqueries", "values", "windows", "choices")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_wide_step_gives_what_transactions_give(spark: SparkSession, tmp_path: Path, name: str) -> None:
    script = views_of(spark, name).script
    transactions = list(transactions_of(Circuit(spark, script), seed=5, count=9))
    check_wide(spark, script, transactions[:6], transactions[6:], tmp_path)


def test_two_tries_of_a_step_never_give_two_blobs_one_name() -> None:
    """Both write parts of views in the driver, under one claim of the writer."""
    names = set()
    for number in (1, 2):
        tools = Tools(MemoryBlob(), SystemRuntime(), SETTINGS, "w", number, 7)
        step = WideStep({}, [], {}, WideInput(cast("Any", None), tools, {}, {}, 0))
        names.add(step._make_attempt().next_suffix())
    assert len(names) == 2
