"""X1-X4, X6, X11, X14: features meet at random, on Spark, and every view equals the oracle after every transaction.

A short form, by a few seeds; `make soak` runs on (`tests/soak/test_combined_soak.py`). `EVERTIDE_SEED=7` repeats a run.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.combined import CombinedRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = [int(os.environ["EVERTIDE_SEED"])] if "EVERTIDE_SEED" in os.environ else [1, 2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_x1_features_meet_at_random(spark: SparkSession, seed: int) -> None:
    CombinedRun(spark, seed, threads=seed % 2 == 0).run(25)
