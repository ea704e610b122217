"""J1: a process is killed repeatedly while data flows. It recovers each time, and the views end correct."""

from __future__ import annotations

from pathlib import Path

import pytest

from evertide.sources.generated.seeded import RandomStream
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import rows_of
from tests.pipeline.worker import DEFAULT, SMALL, open_worker
from tests.processes import running


def run_and_kill(
    storage: Path, kind: str, lines: int, views: str = DEFAULT, faults: float = 0.0
) -> tuple[int, list[int]]:
    """Return the time at which the process began, and what it acknowledged until it was killed."""
    with running("tests.pipeline.worker", storage, kind, views, faults) as worker:
        told = worker.lines(lines) + worker.kill()
    assert not any(line.startswith("error") for line in told), told
    return int(worker.began), [int(line) for line in told if line not in ("", "-")]


def check(storage: Path, kind: str, at_least: int, views: str = DEFAULT) -> None:
    """Check that all views equal plain Python over the tables."""
    with open_worker(storage, kind, views) as p:
        assert p.wait_until_hydrated(120)
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
            assert began >= used[-1], "an acknowledged transaction is gone"
        assert acknowledged == list(range(began + 1, began + 1 + len(acknowledged))), (
            "a transaction number was used twice"
        )
        used += acknowledged
    check(storage, kind, used[-1] if used else 0)


def test_j1_views_are_right_after_fifteen_kills_and_restarts(tmp_path: Path) -> None:
    """`tests/soak` has more rounds, with faults and other views."""
    cycles(tmp_path / "s", "small", 15, 1)


@pytest.mark.timeout(300)
def test_j1_views_on_spark_are_right_after_kills_and_restarts(tmp_path: Path, spark: object) -> None:
    """Few rounds, as each start takes seconds; the check at the end uses the session that all tests share."""
    cycles(tmp_path / "s", "spark", 2, 2)
