"""X5: checkpoints and garbage collection of the leader while other replicas commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from evertide.errors import (
    Conflict,
    EvertideError,
    OutcomeUnknown,
)
from evertide.pipeline.input.pushes import PushTransaction
from evertide.pipeline.maintenance.checkpointer import Checkpointer
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.state.machine import Machine
from evertide.problem import ComponentState
from evertide.shard.maintenance import Maintenance
from tests.pipeline.kit import Row, crash, open_pipeline, rows_of
from tests.pipeline.replica_kit import QUICK, caught_up, order, pair, replica, shared


def test_garbage_collection_by_the_leader_keeps_parts_that_a_follower_uses() -> None:
    """The follower's state uses parts of a checkpoint that the leader dropped long ago."""
    kept = shared()
    first = replica(kept)
    for number in range(8):
        first.push("orders", [order(number)])
        first.commit()
    first.checkpoint()
    second = replica(kept)
    for number in range(8, 30):
        first.push("orders", [order(number)])
        first.push("orders", deletes=[number - 8])
        first.commit()
        first.checkpoint()
        first._runner.machine.maintain()
        first._leader_tasks.checkpointer.collect_garbage()
        second.advance()
        second._leader_tasks.checkpointer.collect_garbage()
    crash(first)
    second.push("orders", [order(40)])
    second.commit()
    assert rows_of(second, "counts") == [(9, 0)]
    second.close()
    with open_pipeline(kept, settings=QUICK) as p:
        assert rows_of(p, "counts") == [(9, 0)]


def test_a_checkpoint_is_of_one_time_while_a_peer_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards and positions are those of the checkpoint's time; otherwise a repair would lose input."""
    with pair(shared()) as (first, second):
        first.push("orders", [order(1)])
        first.commit()
        caught_up(first, second)
        real = Machine.save

        def save(machine: Machine, *args: Any) -> Any:
            monkeypatch.setattr(Machine, "save", real)
            with second.transaction("shop", 7) as pushed:
                pushed.push("orders", [order(2)])
            second.take(pushed)
            return real(machine, *args)

        monkeypatch.setattr(Machine, "save", save)
        entry = first.checkpoint()
        manifest = first._context.checkpoints.read(entry)
        assert (entry.time, second.time) == (2, 2)
        assert "shop" not in manifest.positions["push"]
        caught_up(first, second)
        assert first.checkpoint().time == 3
        crash(first)
        crash(second)
    with open_pipeline(first.storage, settings=QUICK) as p:
        assert rows_of(p, "counts") == [(2, 0)]


def compact_while_saving(first: Pipeline, second: Pipeline, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """During the next save, a follower commits, and maintenance merges its transactions with older ones."""
    real = Machine.save

    def save(machine: Machine, *args: Any) -> Any:
        patch.setattr(Machine, "save", real)
        found = real(machine, *args)
        for number in range(100, 106):
            second.push("orders", [order(number)])
            second.commit()
        Maintenance(first._context.shards, first._writer, first._context.checkpoints.find_pins).run_once()
        return found

    return lambda: patch.setattr(Machine, "save", save)


def test_x5_a_checkpoint_is_right_if_a_follower_commits_while_it_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states of the shards are those of the checkpoint's time, and no collector deletes a part of them."""
    with pair(shared()) as (first, second):
        for number in range(5):
            first.push("orders", [order(number)])
            first.commit()
        caught_up(first, second)
        compact_while_saving(first, second, monkeypatch)()
        entry = first.checkpoint()
        assert entry.time == 6
        first._context.checkpoints.verify(entry, shards=True)
        first.run(until_idle=True)
        assert first.time == second.time == 11
        first.close()
        crash(second)
    with open_pipeline(first.storage, settings=QUICK) as p:
        assert rows_of(p, "counts") == [(11, 0)]


def test_x5_an_outdated_draft_of_a_checkpoint_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the leader's last transaction and its read of the shards, a follower commits, and all is compacted."""
    with pair(shared()) as (first, second):
        for number in range(5):
            first.push("orders", [order(number)])
            first.commit()
        caught_up(first, second)
        real, tries = Checkpointer._draft, []

        def draft(checkpointer: Checkpointer, *args: Any) -> Any:
            tries.append(1)
            if len(tries) == 1:
                for number in range(8):
                    second.push("orders", [order(100 + number)])
                    second.commit()
                Maintenance(first._context.shards, first._writer, first._context.checkpoints.find_pins).run_once()
            return real(checkpointer, *args)

        monkeypatch.setattr(Checkpointer, "_draft", draft)
        assert first.checkpoint().time == second.time + 1 == 14
        assert len(tries) == 2
        assert first.status().problems == ()


def test_x5_a_checkpoint_is_right_if_a_follower_changes_the_generation_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pair(shared(), "revenue", "share") as (first, second):
        first.push("orders", [order(1, 5)])
        first.commit()
        caught_up(first, second)
        real = Machine.save

        def save(machine: Machine, *args: Any) -> Any:
            monkeypatch.setattr(Machine, "save", real)
            second.push("orders", [order(2, 0)])
            second.commit()
            return real(machine, *args)

        monkeypatch.setattr(Machine, "save", save)
        entry = first.checkpoint()
        assert (entry.time, first.definition.list_away(ComponentState.FAILED)) == (3, ["share"])
        assert first._context.checkpoints.read(entry).generation == second.definition.generation


@pytest.mark.parametrize("error", [Conflict(where="shard", why="it was"), OutcomeUnknown(path="s3", why="503")])
def test_x5_a_checkpoint_that_keeps_failing_ends_nothing(error: EvertideError, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status reports the failure until a checkpoint succeeds, and the transactions continue."""

    def failing(*_: Any) -> Any:
        raise error

    with open_pipeline(shared(), settings=replace(QUICK, checkpoint_interval_s=1e-6)) as p:
        with monkeypatch.context() as patched:
            patched.setattr(Checkpointer, "_draft", failing)
            for number in range(3):
                p._pushes.offer_pushed(make_push(p, [order(number)]))
                p.run(transactions=1)
            [problem] = p.status().problems
            assert (p.status().state, problem.state, problem.error_code) == ("running", "warning", error.error_code)
            assert error.message in problem.why
        p._pushes.offer_pushed(make_push(p, [order(9)]))
        p.run(transactions=1)
        assert p.status().problems == ()
        assert rows_of(p, "counts") == [(4, 0)]


def make_push(p: Pipeline, rows: list[Row]) -> PushTransaction:
    pushed = p.transaction()
    pushed.push("orders", rows)
    return pushed
