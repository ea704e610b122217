"""X7: state that is not what it should be is discarded, and computed again from the tables; the evidence is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest

from evertide.errors import Diverged, Recomputing
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.recovery.divergence import Backoff, Evidence
from evertide.pipeline.status.status import divergences
from evertide.rows.changes import DIFF
from evertide.store.open import Storage
from evertide.testing.small_engine import SmallCohort, SmallEngine
from tests.pipeline.kit import (
    NOTES,
    ORDERS,
    SETTINGS,
    VIEWS,
    Row,
    ScriptedSource,
    batch,
    crash,
    engine,
    kept_less,
    open_pipeline,
    rows_of,
    with_sources,
)
from tests.pipeline.test_backfill import check
from tests.pipeline.test_replicas import advance_all, caught_up, pair, replica, shared


def order(number: int, amount: int = 10) -> Row:
    return {"id": number, "customer": "ann", "amount": amount}


def lose_row(p: Pipeline, row: Row, diff: int = -1) -> None:
    """Take a row from the state of the first cohort, as a bug or damaged memory would."""
    cohort = p._runner.machine.cohorts[0]
    assert isinstance(cohort, SmallCohort)
    schema = pa.schema([*ORDERS.schema, pa.field(DIFF, pa.int64(), nullable=False)])
    cohort._kept["orders"].apply(pa.Table.from_pylist([{**row, DIFF: diff}], schema))


def evidence(kept: Storage) -> list[Evidence]:
    return [msgspec.json.decode(kept.blob.get(one.key), type=Evidence) for one in kept.blob.list("evidence")]


def with_wrong_checkpoints(kept: Storage) -> None:
    """Both checkpoints lack a row, and a transaction after them is committed by a process that has it."""
    p = open_pipeline(kept)
    p.push("orders", [order(1)])
    p.commit()
    for number in (2, 3):
        p.push("orders", [order(number)])
        p.commit()
        lose_row(p, order(1))
        p.checkpoint()
        lose_row(p, order(1), 1)
    p.push("orders", [order(4)])
    p.commit()
    crash(p)


def test_x7_checkpoints_that_lack_a_row_do_not_keep_a_pipeline_from_opening() -> None:
    """It opened with `diverged` each time, whatever was tried."""
    kept = shared()
    with_wrong_checkpoints(kept)
    with open_pipeline(kept) as p:
        check(p, "revenue", "counts")
        p.push("orders", deletes=[1])
        p.commit()
        check(p, "revenue", "counts")
        crash(p)
    [found] = evidence(kept)
    assert set(found.views) == {"revenue", "counts"}
    assert found.transaction == 4
    assert "rows, digest" in found.why
    assert found.state
    assert found.versions["pyarrow"] == pa.__version__
    with open_pipeline(kept) as p:
        check(p, "revenue", "counts")
        assert len(evidence(kept)) == 1


def test_x7_status_says_so_until_the_views_are_back() -> None:
    kept = shared()
    with_wrong_checkpoints(kept)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("evertide.pipeline.backfill.scheduler.BackfillScheduler._start", lambda *_: None)
        with open_pipeline(kept) as p:
            found = [one for one in p.status().problems if one.error_code == "state_diverged"]
            assert [one.state for one in found] == ["warning", "warning"]
            assert all("evidence/" in one.why and "recomputes the view" in one.why for one in found)
            assert {one.state for one in p.status().collections if one.kind == "view"} == {"hydrating"}
            p.push("orders", [order(5)])
            p.commit()
            crash(p)
    with open_pipeline(kept) as p:
        check(p, "revenue", "counts")
        assert not divergences(p.definition)


def test_x7_state_that_contradicts_itself_in_a_transaction() -> None:
    """The row that is deleted is not there: the views leave, and the transaction goes through without them."""
    kept = shared()
    with open_pipeline(kept) as p:
        p.push("orders", [order(1), order(2)])
        p.commit()
        lose_row(p, order(1))
        p.push("orders", deletes=[1])
        p.push("notes", [{"text": "x"}])
        p.commit()
        p.advance()
        assert rows_of(p, "orders") == [(2, "ann", 10)]
        check(p, "revenue", "counts")
        assert p.status().state == "running"
    assert len(evidence(kept)) == 1


def test_x7_a_leader_whose_state_differs_from_what_a_follower_committed() -> None:
    kept = shared()
    with pair(kept) as (first, second):
        first.push("orders", [order(1)])
        first.commit()
        caught_up(first, second)
        lose_row(first, order(1))
        second.push("orders", [order(2)])
        second.commit()
        caught_up(first, second)
        first.advance()
        second.push("orders", [order(3)])
        second.commit()
        caught_up(first, second)
        for p in (first, second):
            check(p, "revenue", "counts")
    assert len(evidence(kept)) == 1


@contextmanager
def unkept() -> Iterator[tuple[SmallEngine, ScriptedSource]]:
    table = replace(kept_less(ORDERS), connector="scripted")
    source = ScriptedSource("orders", ("orders",), [batch(ORDERS, [order(1)])])
    with with_sources(source):
        yield SmallEngine([table, NOTES], [VIEWS["revenue"]]), source


def test_x7_a_view_over_a_table_that_is_not_kept_stays_an_error() -> None:
    """Nothing is there that it could be computed from."""
    kept = shared()
    with unkept() as (made, _):
        p = open_pipeline(kept, made)
        p.advance()
        crash(p)
        other = replace(VIEWS["revenue"], function=lambda _: [{"customer": "nobody", "amount": 1}])
        with pytest.raises(Diverged, match="revenue"):
            open_pipeline(kept, SmallEngine(made.declared, [other]))
    assert not evidence(kept)


def test_waits_double_and_start_over_after_a_quiet_time() -> None:
    backoff = Backoff(5.0)
    assert backoff.wait_s(100.0) == 0
    waits = []
    for _ in range(9):
        backoff.note_try(100.0)
        waits.append(backoff.wait_s(100.0))
    assert waits == [5, 10, 20, 40, 80, 160, 320, 600, 600]
    backoff.note_try(100.0 + 3600)
    assert backoff.wait_s(3700.0) == 5


def test_x7_a_view_that_diverges_again_and_again_waits_longer_each_time() -> None:
    """Else it would be computed again without a pause."""
    kept = shared()
    with open_pipeline(kept, engine(), settings=replace(SETTINGS, retry_view_s=1000.0)) as p:
        p.push("orders", [order(1), order(2), order(3)])
        p.commit()
        for number in (1, 2):
            lose_row(p, order(number))
            p.push("orders", deletes=[number])
            p.commit()
            p.advance()
        assert set(p.definition.diverged()) == {"revenue", "counts"}
        assert all(one.wait_s for one in p.status().problems if one.error_code == "state_diverged")
    assert len(evidence(kept)) == 2


def lose_key(p: Pipeline, row: Row) -> None:
    """Take a row from what the state knows of a table by key."""
    schema = pa.schema([*ORDERS.schema, pa.field(DIFF, pa.int64(), nullable=False)])
    p._runner.machine.tables._by_key["orders"].apply(pa.Table.from_pylist([{**row, DIFF: -1}], schema))


@pytest.mark.parametrize("is_leader", [False, True])
def test_x7_rows_by_key_that_differ_from_what_a_peer_committed(is_leader: bool) -> None:
    """Both compute the transaction, and one of them lacks a row by key. It ended with `diverged`."""
    kept = shared()
    with pair(kept) as (first, second):
        first.push("orders", [order(1), order(2)])
        first.commit()
        caught_up(first, second)
        lose_key(first if is_leader else second, order(1))
        commits = {p: p._runner.commit for p in (first, second)}

        def later() -> None:
            """The follower has computed what it bound: now the leader computes and commits it, or tries to."""
            if second._runner.outcome is not None and second._runner.outcome.is_complete:
                second._runner.commit = commits[second]  # type: ignore[method-assign]
                if is_leader:
                    first._runner.commit = too_late  # type: ignore[method-assign]
                first.advance()
            commits[second]()

        def too_late() -> None:
            if first._runner.outcome is not None and first._runner.outcome.is_complete:
                first._runner.commit = commits[first]  # type: ignore[method-assign]
                second._runner.commit()
            commits[first]()

        second._runner.commit = later  # type: ignore[method-assign]
        second.push("orders", [order(1, 7)])
        second.commit()
        caught_up(first, second)
        for _ in range(3):
            first.advance()
        for number in (1, 2, 3):
            second.push("orders", [order(number, 20 + number)])
            second.commit()
            caught_up(first, second)
        first.push("orders", deletes=[1])
        first.commit()
        caught_up(first, second)
        for p in (first, second):
            assert rows_of(p, "orders") == [(2, "ann", 22), (3, "ann", 23)]
            check(p, "revenue", "counts")
            assert p.status().state == "running"
    assert any("table 'orders'" in one.why for one in evidence(kept))


def test_x7_a_follower_that_computes_something_else_while_it_opens() -> None:
    """It ended with `diverged`, at each start; now it waits, and goes on when what it computes is right."""
    kept, is_wrong = shared(), [True]

    def wrong(tables: Mapping[str, list[Row]]) -> Sequence[Row]:
        found = VIEWS["revenue"].function(tables)
        return [{**row, "amount": row["amount"] + 1} for row in found] if is_wrong[0] else found

    first = replica(kept)
    first.push("orders", [order(1)])
    first.commit()
    made = SmallEngine([ORDERS, NOTES], [replace(VIEWS["revenue"], function=wrong), VIEWS["counts"]])
    second = replica(kept, made)
    for _ in range(2):
        with pytest.raises(Recomputing, match="revenue"):
            second.advance()
    first.push("orders", [order(2)])
    assert first.commit() == 2
    is_wrong[0] = False
    while second.time < first.time:
        with suppress(Recomputing):
            second.advance()
    for p in (first, second):
        check(p, "revenue", "counts")
    second.close()
    first.close()


@pytest.mark.parametrize("is_open", [False, True])
def test_x7_a_follower_that_cannot_compute_a_view_of_its_peers(is_open: bool) -> None:
    """While it opens, and when the view joins. It ended with `view_failed`."""
    kept, is_failing = shared(), [False]

    def failing(tables: Mapping[str, list[Row]]) -> Sequence[Row]:
        return [{"id": 1 // 0, "share": 1}] if is_failing[0] else VIEWS["share"].function(tables)

    first = replica(kept, engine("revenue", "share"))
    first.push("orders", [order(1)])
    first.commit()
    made = SmallEngine([ORDERS, NOTES], [VIEWS["revenue"], replace(VIEWS["share"], function=failing)])
    is_failing[0] = not is_open
    second = replica(kept, made)
    if is_open:
        caught_up(first, second)
        for amount in (0, 5):  # the view leaves, and joins
            first.push("orders", [order(2, amount)])
            first.commit()
        first.advance()
        is_failing[0] = True
    with pytest.raises(Recomputing, match="ZeroDivisionError"):
        advance_all(second)
    assert first.definition.away("failed") == []
    is_failing[0] = False
    first.push("orders", [order(3)])
    first.commit()
    while second.time < first.time:
        with suppress(Recomputing):
            second.advance()
    for p in (first, second):
        check(p, "revenue", "share")
    second.close()
    first.close()
