"""Rows that do not fit, in tables whose key has any type (X14), by seed for a share of `EVERTIDE_SOAK_MINUTES`."""

from __future__ import annotations

import os

import pytest

from tests.pipeline.test_fault_keys import KEYS, compare_with_model
from tests.soak.test_soak import soak


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_faulty_rows(capsys: pytest.CaptureFixture[str]) -> None:
    def once(number: int) -> str:
        seed = os.getpid() * 1000 + number
        for name in KEYS:
            compare_with_model(name, seed, 60)
        return f"{len(KEYS)} types, seed {seed}"

    soak("faulty rows", capsys, once)
