"""Views of replicas: they fail, leave and recover on all replicas at the same transaction, and are compared."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from evertide.errors import (
    RecomputationDelayed,
)
from evertide.pipeline.transaction.runner import Runner
from evertide.problem import ComponentState
from tests.pipeline.kit import Row, crash, engine, rows_of
from tests.pipeline.replica_kit import QUICK, advance_all, caught_up, order, pair, replica, shared


@pytest.mark.parametrize("is_racing", [False, True])
def test_j11_a_follower_with_other_digests_recomputes_the_view(
    is_racing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the comparison of digests, the follower would continue with other state than its peers."""
    kept = shared()
    first = replica(kept)
    made, is_wrong = engine(), True
    right = made.small_views[0].function

    def other(tables: Mapping[str, list[Row]]) -> list[Any]:
        return [{**row, "amount": row["amount"] + is_wrong} for row in right(tables)]

    made.small_views = [replace(made.small_views[0], function=other), made.small_views[1]]
    second = replica(kept, made, settings=replace(QUICK, retry_view_s=0.05))
    if is_racing:
        real = Runner.commit

        def commit(runner: Runner) -> None:
            if runner.outcome is not None:
                monkeypatch.setattr(Runner, "commit", real)
                first.advance()
            real(runner)

        monkeypatch.setattr(Runner, "commit", commit)
        second.push("orders", [order(1)])
        assert second.commit() == 1
    else:
        first.push("orders", [order(1)])
        first.commit()
    for _ in range(2):  # recomputed, it is as wrong as before; then it waits
        with pytest.raises(RecomputationDelayed, match="revenue"):
            advance_all(second)
    assert len([*kept.blob.list("evidence")]) == 1
    first.push("orders", [order(2)])
    assert first.commit() == 2
    is_wrong = False
    while second.time < first.time:
        with suppress(RecomputationDelayed):
            second.advance()
    second.push("orders", [order(3)])
    second.commit()
    caught_up(first, second)
    assert rows_of(first, "revenue") == rows_of(second, "revenue") == [("c0", 10), ("c1", 20)]
    second.close()
    first.close()


def test_a_failing_view_leaves_and_recovers_on_all_replicas() -> None:
    """If the follower kept its generation, it would diverge at the first transaction without the view."""
    with pair(shared(), "revenue", "share") as (first, second):
        first.push("orders", [order(1, 5)])
        first.commit()
        caught_up(first, second)
        first.push("orders", [order(2, 0)])
        first.commit()
        caught_up(first, second)
        assert second.definition.list_away(ComponentState.FAILED) == ["share"]
        assert [list(cohort.views) for cohort in second._runner.machine.cohorts] == [["revenue"]]
        second.push("orders", [order(2, 4)])
        second.commit()
        caught_up(first, second)
        first.push("orders", [order(3, 10)])  # changes its input, so it is retried
        first.commit()
        caught_up(first, second)
        assert rows_of(first, "share") == [(1, 20), (2, 25), (3, 10)]
        crash(first)
        second.push("orders", [order(4, 50)])
        second.commit()
        assert rows_of(second, "share") == [(1, 20), (2, 25), (3, 10), (4, 2)]


def test_a_view_that_fails_at_a_follower_leaves_at_the_leader() -> None:
    with pair(shared(), "revenue", "share") as (first, second):
        second.push("orders", [order(1, 0)])
        second.commit()
        caught_up(first, second)
        assert first.definition.list_away(ComponentState.FAILED) == ["share"]
        first.push("orders", [order(1, 50)])
        first.commit()
        caught_up(first, second)
        assert rows_of(second, "share") == [(1, 2)]


def test_a_transaction_that_waits_for_its_commit_follows_a_new_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view joined meanwhile: its part of the transaction is computed before the commit, or it would miss it."""
    with pair(shared(), "revenue", "share") as (first, second):
        first.push("orders", [order(1, 0)])
        first.commit()
        first.push("orders", [order(1, 5)])
        first._leader_tasks.backfills._tried_s["share"] = 1e18  # not now
        first.commit()
        caught_up(first, second)
        real = Runner.commit

        def commit(runner: Runner) -> None:
            if runner.outcome is None:
                return
            monkeypatch.setattr(Runner, "commit", real)
            first._leader_tasks.backfills.retry("share")
            real(runner)

        monkeypatch.setattr(Runner, "commit", commit)
        second.push("orders", [order(2, 10)])
        second.commit()
        caught_up(first, second)
        assert rows_of(second, "share") == [(1, 20), (2, 10)]
        assert rows_of(first, "share") == rows_of(second, "share")
