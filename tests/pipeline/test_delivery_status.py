"""The status of sinks: how far behind they are, in the leader and as other processes read it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.records.ownership import ProcessRole
from evertide.pipeline.status.status import read_status
from evertide.runtime import SystemRuntime
from evertide.shard.shard import Shards
from tests.kit.delivering import deliver_once
from tests.kit.runtime import ManualRuntime
from tests.pipeline.kit import SETTINGS, VIEWS, storage
from tests.pipeline.sink_kit import Bucket, delivery_threads_of, into, order, push_orders, shop


def test_the_status_of_a_late_sink_has_its_delay() -> None:
    runtime, bucket = ManualRuntime(), Bucket()
    with into(lake=bucket), shop(storage(), runtime=runtime) as p:
        push_orders(p, [order(1)])
        assert p.status().sinks[0].state == "running"
        runtime.advance_s(61)
        [status] = p.status().sinks
        assert (status.state, status.behind) == ("lagging", 2)
        assert status.problem is not None
        assert status.problem.since_s == pytest.approx(runtime.wall_s() - 61)
        deliver_once(p)
        assert p.status().sinks[0].state == "running"


def deliver_one(p: Pipeline, patch: pytest.MonkeyPatch) -> None:
    """Let a slow target receive one transaction."""
    patch.setattr(
        "evertide.shard.state.ShardState.find_read_end", lambda state, lower, _rows: min(lower + 1, state.upper)
    )
    for sink_thread in delivery_threads_of(p)._sink_threads.values():
        delivery_threads_of(p)._step(sink_thread)


def test_a_sink_that_moves_but_falls_behind_is_lagging_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of the oldest transaction counts: a measure that restarts with each delivery never exceeds the limit."""
    runtime, bucket, kept = ManualRuntime(), Bucket(), storage()
    with into(lake=bucket), shop(kept, runtime=runtime) as p:
        states = []
        for minute in range(10):
            for number in range(4):
                push_orders(p, [order(minute * 4 + number)])
            runtime.advance_s(30)
            deliver_one(p, monkeypatch)
            states.append(p.status().sinks[0].state)
        [status] = p.status().sinks
        assert states[0] == "running"
        assert states[-1] == "lagging"
        assert status.problem is not None
        assert f"{status.behind} transactions behind" in status.problem.why
        since_s = status.problem.since_s
        assert (
            since_s
            == p._context.journal.read(delivery_threads_of(p)._sink_threads["lake"].delivery.position + 1).bound_at_s
        )
        monkeypatch.undo()
    with into(lake=bucket), shop(kept, runtime=runtime) as p:  # the age is durable: it survives a restart
        problem = p.status().sinks[0].problem
        assert problem is not None
        assert (problem.state, problem.since_s) == ("lagging", since_s)
        deliver_once(p)
        assert (p.status().sinks[0].state, p.status().sinks[0].problem) == ("running", None)


def test_a_sink_is_lagging_by_its_backlog_however_young_that_is() -> None:
    bucket = Bucket()
    with into(lake=bucket), shop(storage(), settings=replace(SETTINGS, sink_lag_transactions=3)) as p:
        push_orders(p, [order(0)])
        deliver_once(p)
        for number in range(1, 4):
            push_orders(p, [order(number)])
        assert p.status().sinks[0].state == "running"
        push_orders(p, [order(4)])
        assert (p.status().sinks[0].state, p.status().sinks[0].behind) == ("lagging", 4)


def test_the_age_of_a_transaction_that_the_journal_has_forgotten_is_that_of_the_oldest_kept() -> None:
    runtime, bucket = ManualRuntime(), Bucket()
    with into(lake=bucket), shop(storage(), runtime=runtime) as p:
        push_orders(p, [order(0)])
        deliver_once(p)
        for number in range(1, 6):
            push_orders(p, [order(number)])
            p.checkpoint()
            runtime.advance_s(100)
        journal = p._context.journal
        oldest = journal.describe()[0]
        assert oldest.time > bucket.numbers[-1] + 1
        [status] = p.status().sinks
        assert status.state == "lagging"
        assert status.problem is not None
        assert status.problem.since_s == oldest.bound_at_s


def test_a_follower_reports_the_sinks_of_the_leader() -> None:
    """The follower would say that everything is delivered, while the leader says that its sink stalls."""
    kept, bucket = storage(), Bucket()
    settings = replace(SETTINGS, lead_interval_s=1e-6)
    with (
        into(lake=bucket),
        shop(kept, settings=settings, role=ProcessRole.REPLICA) as leader,
        shop(kept, settings=settings, role=ProcessRole.REPLICA) as follower,
    ):
        bucket.is_failing = True
        for number in range(3):
            push_orders(leader, [order(number)])
        deliver_once(leader)
        while follower.advance() is not None:
            pass
        mine, seen = leader.status(), follower.status()
        assert [(one.name, one.state, one.behind) for one in seen.sinks] == [("lake", "stalled", 4)]
        assert seen.sinks == mine.sinks
        assert seen.flushed == mine.flushed == -1


def test_t3_other_processes_read_the_status_of_sinks_from_storage() -> None:
    """The durable position of the sink, and the last report of its process."""
    kept, bucket = storage(), Bucket()
    shards = Shards(kept.blob, kept.meta, runtime=SystemRuntime(), settings=SETTINGS)
    with into(lake=bucket), shop(kept) as p:
        push_orders(p, [order(1)])
        deliver_once(p)
        bucket.is_failing = True
        push_orders(p, [order(2)])
        deliver_once(p)
        found = read_status(kept, shards, p._context.journal, p._context.checkpoints)
        assert found.sinks == p.status().sinks
        assert (found.sinks[0].state, found.sinks[0].behind) == ("stalled", 1)
        assert (found.time, found.flushed) == (2, 1)
        journal, checkpoints = p._context.journal, p._context.checkpoints
    [stopped] = read_status(kept, shards, journal, checkpoints).sinks
    assert (stopped.state, stopped.problem) == ("stopped", None), "the report is that of an ended process"
    with shop(kept, VIEWS["revenue"]) as p:
        assert read_status(kept, shards, journal, checkpoints).sinks == ()
