"""Soak tests: rounds by seed, for an equal share of `EVERTIDE_SOAK_MINUTES` each. `make soak` runs all of them.

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
        while runtime.monotonic_s() < begin_s + self._share_s and len(failures) < FAILURES_MAX:
            try:
                line = run_round(seed)
            except Exception as error:  # noqa: BLE001 - any failure is a finding; raised in the end
                error.add_note(f"{what}: seed {seed}; repeat this round with EVERTIDE_SEED={seed}")
                failures.append(error)
                line = "FAILED\n" + "".join(traceback.format_exception(error))
            with self._capsys.disabled():
                print(f"soak {runtime.monotonic_s() - begin_s:5.0f} s  {what}  seed {seed}  {line}", flush=True)
            seed += 1
        if failures:
            raise ExceptionGroup(f"{what}: {len(failures)} of {seed - self._first_seed} rounds failed", failures)


@pytest.fixture
def soak(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Soak:
    sharing = sum("soak" in getattr(item, "fixturenames", ()) for item in request.session.items)
    return Soak(MINUTES * 60 / sharing, capsys)
