"""Unexpected errors in the threads of a pipeline: status reports them, and the rest of the pipeline continues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from evertide.checkpoint.catalog import Checkpoints
from evertide.errors import BlobMissing, Unavailable, Unexpected
from evertide.pipeline.maintenance.state_maintenance import StateMaintenance
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.state.machine import Machine
from evertide.problem import ComponentState, Problem
from evertide.runtime import SystemRuntime
from tests.kit.runtime import ManualRuntime
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import Row, engine, open_pipeline, rows_of, shares, storage
from tests.pipeline.replica_kit import shared
from tests.pipeline.test_damaged_checkpoint import seen_by_others

LIMIT_S = 30.0


def wait_until(holds: Callable[[], bool]) -> None:
    runtime = SystemRuntime()
    deadline_s = runtime.monotonic_s() + LIMIT_S
    while not holds():
        assert runtime.monotonic_s() < deadline_s
        runtime.sleep_s(0.005)


def order(number: int, amount: int = 5) -> Row:
    return {"id": number, "customer": "ann", "amount": amount}


def sharing(function: Callable[[Mapping[str, list[Row]]], list[Row]]) -> SmallEngine:
    made = engine("revenue", "share")
    made.small_views = [made.small_views[0], replace(made.small_views[1], function=function)]
    return made


def whys(p: Pipeline) -> list[str]:
    return [one.why for one in p.status().problems]


def test_x1_a_backfill_with_an_unexpected_error_is_reported_and_retried() -> None:
    """Without the guard the view stayed `hydrating` for ever, while the state was `running`."""
    kept, is_broken = storage(), threading.Event()
    is_broken.set()

    def broken(tables: Mapping[str, list[Row]]) -> list[Row]:
        if is_broken.is_set():
            raise FileNotFoundError("leaves")
        return shares(tables)

    with open_pipeline(kept, engine("revenue")) as p:
        p.push("orders", [order(1)])
        p.commit()
    with open_pipeline(kept, sharing(broken), threads=True) as p:
        wait_until(lambda: bool(whys(p)))
        assert whys(p) == ["the thread evertide-backfill died: FileNotFoundError: leaves"]
        p.push("orders", [order(2)])
        p.commit()
        assert rows_of(p, "revenue") == [("ann", 10)]
        is_broken.clear()
        while p.definition.list_away(ComponentState.HYDRATING):
            p.advance()
        assert rows_of(p, "share") == [(1, 20), (2, 20)]
        p.wait_until_hydrated()
        assert not whys(p)


def test_a_transaction_with_an_unexpected_error_leaves_the_state_failed() -> None:
    def broken(tables: Mapping[str, list[Row]]) -> list[Row]:
        if tables["orders"]:
            raise MemoryError("no room")
        return []

    with open_pipeline(storage(), sharing(broken)) as p:
        p.push("orders", [order(1)])
        with pytest.raises(Unexpected, match="MemoryError: no room"):
            p.commit()
        status = p.status()
        assert (status.state, status.problems[0].error_code) == ("failed", "unexpected")
        assert "MemoryError: no room" in status.why
        with pytest.raises(Unexpected):
            p.advance()


def test_opening_with_an_unexpected_error_leaves_the_state_failed() -> None:
    """The error was raised unchanged."""
    kept = shared()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            Checkpoints, "restore", lambda *_, **__: (_ for _ in ()).throw(pa.ArrowInvalid("offset overflow"))
        )
        open_pipeline(kept).close(checkpoint=False)
        with pytest.raises(Unexpected, match="opening the pipeline: ArrowInvalid: offset overflow") as raised:
            open_pipeline(kept)
        assert isinstance(raised.value.__cause__, pa.ArrowInvalid)
        status = seen_by_others(kept)
    assert (status.state, status.problems[0].error_code) == ("failed", "unexpected")
    with open_pipeline(kept) as p:
        assert p.status().state == "running"


def test_problems_of_a_server_are_in_the_status() -> None:
    with open_pipeline(storage(), engine("revenue")) as p:
        p.watch(
            lambda: [
                Problem(ComponentState.WARNING, "unexpected", "the thread evertide-http died", "Start it again.", 1.0)
            ]
        )
        assert whys(p) == ["the thread evertide-http died"]
        assert p.status().state == "running"


def test_state_that_cannot_be_merged_is_retried_after_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if each tick, every 0.2 s, tries again."""
    runtime, tries = ManualRuntime(), [0]

    def fail(*_: object) -> bool:
        tries[0] += 1
        raise Unavailable(path="state/part", why="no answer")

    with open_pipeline(storage(), runtime=runtime) as p:
        checkpointer = p._leader_tasks.checkpointer
        maintenance = StateMaintenance(p._runner, checkpointer, p._turn)
        with monkeypatch.context() as patched:
            patched.setattr(Machine, "maintain", fail)
            assert maintenance.tick()
            assert maintenance.tick()
            assert tries == [1]
            assert [one.error_code for one in p.status().problems] == ["unavailable"]
            runtime.advance_s(p.settings.maintenance_interval_s)
            maintenance.tick()
            assert tries == [2]
        runtime.advance_s(60)
        maintenance.tick()
        assert p.status().problems == ()


def test_status_has_the_failures_of_maintenance() -> None:
    with open_pipeline(storage(), threads=True) as p:
        maintenance = p._leader_tasks._maintenance
        assert maintenance is not None
        maintenance.failing.add("maintenance of shard gone", BlobMissing(path="parts/gone", why="it is not there"))
        [found] = p.status().problems
        assert (found.state, found.error_code) == ("warning", "blob_missing")
        assert "maintenance of shard gone fails" in found.why
