"""The state machine and the processes of `tests/shard`, for a share of `EVERTIDE_SOAK_MINUTES`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shard.machine import cross_everywhere, run_machine
from tests.shard.machine_actors import CROSSING
from tests.shard.test_machine import NARROW
from tests.shard.test_processes import run_processes
from tests.soak.rounds import Soak


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_machine(soak: Soak, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "evertide")

    def run_round(seed: int) -> str:
        run_machine(100, 60, seed=seed)
        return "100 examples of 60 steps"

    soak.rounds("machine", run_round)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("action", NARROW)
def test_every_crossing(action: str, caplog: pytest.LogCaptureFixture) -> None:
    """All pairs, once: a few minutes."""
    caplog.set_level("CRITICAL", "evertide")
    for actions in dict.fromkeys(CROSSING):
        cross_everywhere(action, actions)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_processes(tmp_path: Path, soak: Soak) -> None:
    def run_round(seed: int) -> str:
        directory = tmp_path / str(seed)
        directory.mkdir()
        return run_processes(directory, 20.0, seed=seed)

    soak.rounds("processes", run_round)
