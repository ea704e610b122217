"""A replica reports its progress in long work, for other processes to read (I13)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evertide.errors import GenerationMoved
from evertide.json_values import to_json_value
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.reading.reader import StorageReader
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.records.replica_record import LongWork, ReplicaStatus
from evertide.pipeline.transaction.runner import Runner
from evertide.problem import ComponentState
from evertide.runtime import SystemRuntime
from evertide.store.open import open_storage
from tests.cli.kit import document, evertide, order
from tests.pipeline.kit import SETTINGS, engine, open_pipeline, rows_of

QUICK = replace(SETTINGS, lead_interval_s=0.01, retry_view_s=0.001, replay_rows_max=1)
LIMIT_S = 30.0
RUNTIME = SystemRuntime()


def until(holds: Callable[[], bool]) -> None:
    end_s = RUNTIME.monotonic_s() + LIMIT_S
    while not holds():
        assert RUNTIME.monotonic_s() < end_s
        RUNTIME.sleep_s(0.01)


def open_with_threads(
    path: Path, *views: str, role: ProcessRole = ProcessRole.REPLICA, progress: Callable[..., None] | None = None
) -> Pipeline:
    """Open with threads, which report the progress."""
    store = open_storage(path, runtime=RUNTIME, settings=QUICK)
    return open_pipeline(store, engine(*views), role=role, settings=QUICK, threads=True, progress=progress)


def read_replica(path: Path, role: str) -> ReplicaStatus | None:
    """Read the status from storage alone, as any process does."""
    with StorageReader.open(path) as reader:
        return next((one for one in reader.status().replicas if one.role == role), None)


def test_a_restarted_replica_reports_how_much_it_has_replayed(tmp_path: Path) -> None:
    """Before it has opened. Otherwise a replica that replays for an hour would not be in the status at all."""
    seen: list[int] = []
    work = LongWork("replay", 2, 5)

    def note_progress(what: str, done: int, of: int) -> None:
        if (what, done, of) != ("replay", 2, 5):
            return
        until(lambda: (one := read_replica(tmp_path / "s", "read-only")) is not None and one.work == work)
        one = read_replica(tmp_path / "s", "read-only")
        assert one is not None
        assert (one.state, one.time, one.behind) == ("replaying", -1, 6)
        text = evertide("status", "--storage", tmp_path / "s").stdout
        assert "replay 2 of 5" in text
        known = document(evertide("status", "--storage", tmp_path / "s", "--json"))["replicas"]
        assert [each["work"] for each in known] == [None, {"what": "replay", "done": 2, "of": 5}]
        assert to_json_value(first.status())["replicas"][1]["work"] == known[1]["work"]
        seen.append(done)

    with open_with_threads(tmp_path / "s") as first:
        for number in range(5):
            first.push("orders", [order(number)])
            first.commit()
        with open_with_threads(tmp_path / "s", role=ProcessRole.READ_ONLY, progress=note_progress) as second:
            assert seen == [2]
            until(lambda: (one := read_replica(tmp_path / "s", "read-only")) is not None and one.state == "running")
            one = read_replica(tmp_path / "s", "read-only")
            assert one is not None
            assert (one.time, one.behind, one.work) == (second.time, 0, None)


def test_the_progress_of_a_backfill_is_reported(tmp_path: Path) -> None:
    with open_with_threads(tmp_path / "s", "counts") as p:
        p.push("orders", [order(1)])
        p.commit()
    seen: list[str] = []

    def note_backfill(what: str, done: int, of: int) -> None:
        if (what, done, of) == ("backfill", 0, 1):
            until(
                lambda: (one := read_replica(tmp_path / "s", "leads")) is not None and one.work == LongWork(what, 0, 1)
            )
            seen.append(what)

    with open_with_threads(tmp_path / "s", "counts", "share", progress=note_backfill) as p:
        assert p.wait_until_hydrated(LIMIT_S)
        assert seen == ["backfill"]
        until(lambda: (one := read_replica(tmp_path / "s", "leads")) is not None and one.work is None)


def test_a_backfill_whose_generation_changed_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer changed the generation at that moment: the view follows, and joins."""
    with open_with_threads(tmp_path / "s", "counts") as p:
        p.push("orders", [order(1, amount=20)])
        p.commit()
    change = Runner.change
    moved: list[int] = []

    def raced(self: Runner, **what: Any) -> None:
        if "share" in self.definition.list_away(ComponentState.HYDRATING) and "fingerprint" not in what and not moved:
            moved.append(self.time)
            raise GenerationMoved(writer=self.writer.id, why="a peer made another one")
        change(self, **what)

    monkeypatch.setattr(Runner, "change", raced)
    with open_with_threads(tmp_path / "s", "counts", "share") as p:
        assert p.wait_until_hydrated(LIMIT_S)
        until(lambda: (one := read_replica(tmp_path / "s", "leads")) is not None and one.work is None)
        assert len(moved) == 1
        assert p.status().state == "running"
        assert rows_of(p, "share") == [(1, 5)]
