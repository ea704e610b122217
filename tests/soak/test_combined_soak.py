"""Random runs in which features meet, on Spark, by seed for a share of `EVERTIDE_SOAK_MINUTES`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pipeline.combined import CombinedRun
from tests.soak.rounds import Soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_x1_features_meet_at_random(spark: SparkSession, soak: Soak) -> None:
    soak.rounds("combined", lambda seed: str(CombinedRun(spark, seed, threads=seed % 3 != 0).run(60)))
