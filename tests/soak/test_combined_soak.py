"""Random runs in which features meet, on Spark, for a share of `EVERTIDE_SOAK_MINUTES`; a failure prints its seed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.combined import CombinedRun
from tests.soak.test_soak import soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_x1_features_meet_at_random(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    def once(number: int) -> str:
        seed = os.getpid() * 1000 + number
        return f"seed {seed}, {CombinedRun(spark, seed, threads=number % 3 != 0).run(60)}"

    soak("combined", capsys, once)
