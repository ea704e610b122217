"""J1: a process is killed again and again while data flows. It comes back each time, and in the end all is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from evertide.sources.generated.seeded import RandomStream
from evertide.testing.small_engine import SmallEngine
from tests.pipeline.kit import rows_of
from tests.pipeline.worker import DEFAULT, SMALL, open_worker
from tests.processes import running


def run_and_kill(
    storage: Path, kind: str, lines: int, views: str = DEFAULT, faults: float = 0.0
) -> tuple[int, list[int]]:
    """Where it began, and what it acknowledged until it was killed."""
    with running("tests.pipeline.worker", storage, kind, views, faults) as worker:
        told = worker.lines(lines) + worker.killed()
    assert not any(line.startswith("error") for line in told), told
    return int(worker.began), [int(line) for line in told if line not in ("", "-")]


def check(storage: Path, kind: str, at_least: int, views: str = DEFAULT) -> None:
    """All views equal what plain Python makes of the tables."""
    with open_worker(storage, kind, views) as p:
        assert p.hydrated(120)
        assert p.time >= at_least
        assert p.status().state == "running", p.status().why
        tables = {name: p.view(name).to_pylist() for name in ("north", "south")}
        for view in (SMALL[name] for name in views.split(",")):
            expected = sorted((tuple(row.values()) for row in view.function(tables)), key=repr)
            assert rows_of(p, view.name) == expected
        assert isinstance(p.engine, SmallEngine) == (kind == "small")


def cycles(storage: Path, kind: str, count: int, seed: int) -> None:
    chance = RandomStream(seed)
    used: list[int] = []
    for _ in range(count):
        began, acknowledged = run_and_kill(storage, kind, chance.below(12))
        if used:
            assert began >= used[-1], "what was acknowledged is gone"
        assert acknowledged == list(range(began + 1, began + 1 + len(acknowledged))), "a number was used twice"
        used += acknowledged
    check(storage, kind, used[-1] if used else 0)


def test_j1_eight_times_killed_and_restarted(tmp_path: Path) -> None:
    """More of them, with faults and other views, are in `tests/soak`."""
    cycles(tmp_path / "s", "small", 8, 1)


@pytest.mark.timeout(300)
def test_j1_killed_and_restarted_with_spark(tmp_path: Path, spark: object) -> None:
    """Few, as each start costs seconds; the check at the end is by the session that all tests share."""
    cycles(tmp_path / "s", "spark", 2, 2)
