"""The machine and the processes of `tests/shard`, for `EVERTIDE_SOAK_MINUTES` minutes: `make soak`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from evertide.runtime import SystemRuntime
from tests.shard.test_machine import CROSSING, NARROW, cross_everywhere, run_machine
from tests.shard.test_processes import run_processes

RUNTIME = SystemRuntime()
MINUTES = float(os.environ.get("EVERTIDE_SOAK_MINUTES", "10"))


def soak(what: str, capsys: pytest.CaptureFixture[str], once: Callable[[int], str]) -> None:
    """Again and again for half of the time, with a line for each round."""
    begin_s = RUNTIME.monotonic_s()
    number = 0
    while RUNTIME.monotonic_s() < begin_s + MINUTES * 60 / 2:
        number += 1
        said = once(number)
        with capsys.disabled():
            passed_s = RUNTIME.monotonic_s() - begin_s
            print(f"soak {passed_s:5.0f} s  {what} round {number}  {said}", flush=True)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_machine(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "evertide")

    def once(_number: int) -> str:
        run_machine(100, 60)
        return "100 examples of 60 steps"

    soak("machine", capsys, once)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("deed", NARROW)
def test_every_crossing(deed: str, caplog: pytest.LogCaptureFixture) -> None:
    """All of them, once: a few minutes."""
    caplog.set_level("CRITICAL", "evertide")
    for deeds in dict.fromkeys(CROSSING):
        cross_everywhere(deed, deeds)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def once(number: int) -> str:
        directory = tmp_path / str(number)
        directory.mkdir()
        return run_processes(directory, 20.0, seed=os.getpid() * 1000 + number)

    soak("processes", capsys, once)
