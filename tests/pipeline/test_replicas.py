"""Replicas: several processes run one pipeline on one storage. Here they run in one process, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from evertide.errors import (
    Unavailable,
)
from evertide.pipeline.state.machine import Machine
from evertide.pipeline.transaction.runner import Runner
from tests.pipeline.kit import crash, rows_of
from tests.pipeline.replica_kit import caught_up, leaders, order, pair, replica, shared


def test_a_replica_follows_and_takes_over() -> None:
    """If the leader's commits did not go through the follower's operators, it would continue from an older state."""
    kept = shared()
    with pair(kept) as (first, second):
        for number in range(5):
            first.push("orders", [order(number)])
            first.push("notes", [{"text": f"n{number}"}])
            first.commit()
        caught_up(second)
        assert second.time == first.time
        assert leaders(first, second) == [first]
        crash(first)
        second.push("orders", [order(7)])
        second.push("orders", deletes=[2])
        assert second.commit() == 6
        assert second in leaders(first, second)
        assert rows_of(second, "counts") == [(5, 5)]
        assert rows_of(second, "revenue") == [("c0", 20), ("c1", 30)]
        second.checkpoint()
        third = replica(kept)
        third.advance()
        assert third.time == second.time
        third.close()


def test_rows_may_be_pushed_to_any_replica() -> None:
    with pair(shared()) as (first, second):
        for number in range(6):
            one, other = (first, second) if number % 2 else (second, first)
            one.push("orders", [order(number)])
            time = one.commit()
            assert rows_of(one, "orders") == rows_of(other, "orders")
            caught_up(first, second)
            assert first.time == second.time == time
        assert rows_of(second, "counts") == [(6, 0)]


@pytest.mark.parametrize("how", ["commit again", "block"])
def test_a_commit_returns_when_its_rows_are_committed_not_those_of_a_peer(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail: the commit returned after it had replayed a transaction of the peer, and a crash lost the rows."""
    with pair(shared()) as (first, second):
        first.push("orders", [order(1)])
        first.commit()
        if how == "block":
            with second.transaction() as pushed:
                pushed.push("orders", [order(2)])
        else:
            second.push("orders", [order(2)])
            with monkeypatch.context() as patch:
                patch.setattr(Runner, "bind", refuse)
                with pytest.raises(Unavailable):
                    second.commit()
        first.push("orders", [order(3)])
        first.commit()
        assert second.commit() == 3
        crash(second)
        caught_up(first)
        assert [row[0] for row in rows_of(first, "orders")] == [1, 2, 3]


def refuse(*_: object) -> None:
    raise Unavailable(path="the journal", why="no answer")


def test_a_push_repeated_at_another_replica_is_applied_once() -> None:
    with pair(shared()) as (first, second):
        for one in (first, second, first):
            with one.transaction("shop", 1) as pushed:
                pushed.push("orders", [order(1)])
            assert one.take(pushed) == 1
        caught_up(first, second)
        assert rows_of(first, "counts") == [(1, 0)]


def test_two_replicas_that_compute_the_same_transaction_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds the transaction committed: it compares, appends nothing, and continues."""
    with pair(shared()) as (first, second):
        second.push("orders", [order(1)])
        real = Runner.commit

        def commit(runner: Runner) -> None:
            if runner.outcome is not None:
                monkeypatch.setattr(Runner, "commit", real)
                first.advance()  # the leader sees the bound transaction, and completes it
            real(runner)

        monkeypatch.setattr(Runner, "commit", commit)
        assert second.commit() == 1
        assert first.time == second.time == 1
        recorded = first._context.journal.read_outcome(1)
        assert recorded is not None
        assert recorded.writer == first._writer.id
        second.push("orders", [order(2)])
        assert second.commit() == 2
        caught_up(first, second)
        assert rows_of(first, "counts") == [(2, 0)]


def test_a_follower_that_is_behind_replays_many_transactions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a follower of a leader at full speed never catches up, and takes over late."""
    steps: list[int] = []
    step = Machine.step

    def counted(machine: Machine, *arguments: Any, count: int = 1) -> Any:
        steps.append(count)
        return step(machine, *arguments, count=count)

    kept = shared()
    with pair(kept) as (first, second):
        for number in range(40):
            first.push("orders", [order(number)], deletes=[number - 3] if number % 3 else [])
            first.push("notes", [{"text": f"n{number}"}])
            first.commit()
        monkeypatch.setattr(Machine, "step", counted)
        assert second.advance() == first.time
        assert steps == [40]
        expected = {name: rows_of(first, name) for name in ("counts", "revenue")}
        crash(first)
        second.push("orders", [order(50)])
        second.commit()
        second.push("orders", deletes=[50])
        second.commit()
        assert {name: rows_of(second, name) for name in ("counts", "revenue")} == expected
        crash(second)
    del steps[:]
    with replica(kept) as again:  # replays what its checkpoint lacks
        assert sum(steps) > len(steps)
        assert {name: rows_of(again, name) for name in ("counts", "revenue")} == expected


@pytest.mark.parametrize("transactions", range(1, 7))
def test_a_follower_behind_the_readable_times_restarts_from_a_checkpoint(
    transactions: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that is one transaction behind: to apply t, the time before it must be readable."""
    with pair(shared()) as (first, second):
        for number in range(transactions):
            first.push("orders", [order(number)])
            first.commit()
            first.checkpoint()
        is_behind = second.time < max(one.since for one in first.status().collections)
        assert second.advance() == first.time
        assert ("restarting from the newest checkpoint" in caplog.text) == is_behind == (transactions > 1)
        crash(first)
        second.push("orders", [order(9)])
        second.commit()
        assert rows_of(second, "counts") == [(transactions + 1, 0)]


def test_u1_a_waiting_transaction_that_a_peer_committed_is_not_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower has computed transaction 5 when storage fails; the leader commits 5 to 10 meanwhile.

    The follower appends none of them, is at 10 at once, and commits 11.
    """

    def away(*_: Any, **__: Any) -> None:
        raise Unavailable(path="meta", why="it is away")

    with pair(shared()) as (first, second):
        for number in range(4):
            first.push("orders", [order(number)])
            first.commit()
        caught_up(first, second)
        second.push("orders", [order(5)])
        with monkeypatch.context() as patched:
            patched.setattr("evertide.pipeline.transaction.runner.append_together", away)
            with pytest.raises(Unavailable):
                second.commit()
        assert second.time == 4
        assert first.advance() == 5, "the leader completes the bound transaction"
        for number in range(6, 11):
            first.push("orders", [order(number)])
            first.commit()
        journal = first._context.journal
        logs = {name: shard.log.read() for name, shard in first._runner.members.open_all().items()}
        assert (second.advance(), second.time) == (10, 10)
        assert {name: shard.log.read() for name, shard in first._runner.members.open_all().items()} == logs
        writers = [outcome.writer for time in range(5, 11) if (outcome := journal.read_outcome(time)) is not None]
        assert writers == [first._writer.id] * 6
        second.push("orders", [order(11)])
        assert second.commit() == 11
        caught_up(first, second)
        assert rows_of(first, "counts") == rows_of(second, "counts") == [(11, 0)]
