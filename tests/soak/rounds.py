"""Soak tests: rounds by seed, for an equal share of `EVERTIDE_SOAK_MINUTES` each. `make soak` runs all of them.

Every test runs at least one round. A round may take longer than its share, so the share of a test is what is left of
the time when it starts, divided by the tests that are left.

A round gets nothing but its seed, so a failing round repeats with `EVERTIDE_SEED=n`, which is the seed of the first
round; without it the first seed is random. A round that fails is printed at once, and the rounds after it still run:
one finding does not hide the next. The test fails in the end with all failures.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

import pytest

from evertide.runtime import SystemRuntime

MINUTES = float(os.environ.get("EVERTIDE_SOAK_MINUTES", "10"))
FAILURES_MAX = 5


class Soak:
    def __init__(self, share_s: float, capsys: pytest.CaptureFixture[str]) -> None:
        self._share_s = share_s
        self._capsys = capsys
        self._first_seed = int(os.environ.get("EVERTIDE_SEED") or int(SystemRuntime().random() * 10**8))

    def rounds(self, what: str, run_round: Callable[[int], str]) -> None:
        """Call `run_round(seed)` with one seed after the other until the share is used up; print a line for each."""
        runtime = SystemRuntime()
        begin_s = runtime.monotonic_s()
        failures: list[Exception] = []
        seed = self._first_seed
        while True:
            try:
                line = run_round(seed)
            except Exception as error:  # noqa: BLE001 - any failure is a finding; raised in the end
                error.add_note(f"{what}: seed {seed}; repeat this round with EVERTIDE_SEED={seed}")
                failures.append(error)
                line = "FAILED\n" + "".join(traceback.format_exception(error))
            with self._capsys.disabled():
                print(f"soak {runtime.monotonic_s() - begin_s:5.0f} s  {what}  seed {seed}  {line}", flush=True)
            seed += 1
            if runtime.monotonic_s() >= begin_s + self._share_s or len(failures) == FAILURES_MAX:
                break
        if failures:
            raise ExceptionGroup(f"{what}: {len(failures)} of {seed - self._first_seed} rounds failed", failures)


@pytest.fixture(scope="session")
def soak_deadline_s() -> float:
    return SystemRuntime().monotonic_s() + MINUTES * 60


@pytest.fixture
def soak(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], soak_deadline_s: float) -> Soak:
    items = request.session.items
    tests_left = sum("soak" in getattr(item, "fixturenames", ()) for item in items[items.index(request.node) :])
    return Soak((soak_deadline_s - SystemRuntime().monotonic_s()) / tests_left, capsys)
