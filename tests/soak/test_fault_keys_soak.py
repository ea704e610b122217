"""Rows that do not fit, in tables whose key has any type (X14), by seed for a share of `EVERTIDE_SOAK_MINUTES`."""

from __future__ import annotations

import pytest

from tests.pipeline.test_fault_keys import KEYS, compare_with_model
from tests.soak.rounds import Soak


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_faulty_rows(soak: Soak) -> None:
    def run_round(seed: int) -> str:
        for name in KEYS:
            compare_with_model(name, seed, 60)
        return f"{len(KEYS)} types"

    soak.rounds("faulty rows", run_round)
