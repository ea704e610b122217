"""X1-X4, X6, X11-X13: random combinations of features on Spark; every view equals the oracle after every transaction.

A short form, with a few seeds; `make soak` runs longer (`tests/soak/test_combined_soak.py`). `EVERTIDE_SEED=7` repeats
a run.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.combined import CombinedRun, count_few_rows_as_many

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = [int(os.environ["EVERTIDE_SEED"])] if "EVERTIDE_SEED" in os.environ else [1, 2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_x1_random_combinations_of_features_equal_the_oracle(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    count_few_rows_as_many(monkeypatch)
    CombinedRun(spark, seed, threads=seed % 2 == 0).run(20)
