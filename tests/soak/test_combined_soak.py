"""Random runs that combine features, on Spark, by seed for a share of `EVERTIDE_SOAK_MINUTES`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pipeline.combined import CombinedRun, count_few_rows_as_many
from tests.soak.rounds import Soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_x1_random_combinations_of_features_equal_the_oracle(
    spark: SparkSession, soak: Soak, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_few_rows_as_many(monkeypatch)
    soak.rounds("combined", lambda seed: str(CombinedRun(spark, seed, threads=seed % 3 != 0).run(60)))
