"""How each operator of every TPC-H and Nexmark view is maintained, as a golden file.

A change of these files is a change of what transactions cost: EVERTIDE_GOLDEN=write writes them anew, and the
difference is for people to read. Nothing is computed again as a whole; should a view ever need it, it is named here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evertide.flow import Circuit
from evertide.flow.explain import explain
from evertide.testing import nexmark, tpch
from evertide.testing.workload import Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent.parent / "golden" / "maintenance"
WRITE = os.environ.get("EVERTIDE_GOLDEN") == "write"
WHOLE: list[tuple[str, str]] = []
"""Views, and their operators, that are computed again as a whole."""


@pytest.mark.parametrize(("name", "workload"), [("tpch", tpch.WORKLOAD), ("nexmark", nexmark.WORKLOAD)])
def test_maintenance_is_as_it_was(spark: SparkSession, name: str, workload: Workload) -> None:
    explanation = explain(Circuit(spark, workload.script()))
    assert [(view, operator.what) for view, operator in explanation.whole] == WHOLE
    found = explanation.text(has_state=False) + "\n"
    path = GOLDEN / f"{name}.txt"
    if WRITE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, "utf-8")
    assert found == path.read_text("utf-8")
