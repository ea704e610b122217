"""J12: a row makes a view fail. The other views continue, its last good content stays readable, and it recovers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace

import pytest

from evertide.errors import Damaged, InvalidInput, NotAllowedNow
from evertide.pipeline.backfill.backfill import Backfill
from evertide.pipeline.definition import AwayReason
from evertide.pipeline.pipeline import Pipeline
from evertide.settings import Settings
from tests.pipeline.kit import Row, crash, engine, open_pipeline, rows_of, shares, storage
from tests.pipeline.test_threads import wait_until

VIEWS = ("revenue", "share")


def order(number: int, amount: int) -> Row:
    return {"id": number, "customer": "ann", "amount": amount}


def test_j12_one_view_fails_and_recovers_when_the_row_is_corrected() -> None:
    """If the view did not leave its cohort, it would stop all others; without the retry it would never recover."""
    with open_pipeline(storage(), engine(*VIEWS)) as p:
        p.push("orders", [order(1, 50)])
        p.commit()
        p.push("orders", [order(2, 0), order(3, 4)])
        failed = p.commit()
        assert rows_of(p, "revenue") == [("ann", 54)]
        assert rows_of(p, "share") == [(1, 2)]
        assert p.collections.read_tables_at(["orders", "share"], None)[1]["orders"].num_rows == 1, (
            "both are read at one time"
        )
        with pytest.raises(InvalidInput, match="is not committed yet"):
            p.collections.read_tables_at(["orders", "share"], failed)  # the view has no content there
        [status] = [one for one in p.status().collections if one.name == "share"]
        assert (status.state, status.upper) == ("failed", failed)
        assert "ZeroDivisionError" in status.why
        assert "'id': 2" in status.why
        p.push("notes", [{"text": "nothing to do with it"}])
        p.commit()
        assert rows_of(p, "share") == [(1, 2)]
        p.push("orders", [order(2, 10)])
        p.commit()
        assert rows_of(p, "share") == [(1, 2), (2, 10), (3, 25)]
        assert all(one.state == "running" for one in p.status().collections)


def find_failure(p: Pipeline) -> AwayReason:
    away = p.definition.views["share"].away
    assert away is not None
    assert away.state == "failed"
    return away


def test_a_view_that_fails_again_at_every_retry_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Fails if a retry logs the failure that the log already has, or if nothing says that the view recovered."""
    with open_pipeline(storage(), engine(*VIEWS)) as p:
        p.push("orders", [order(1, 0)])
        p.commit()
        since_s = find_failure(p).since_s
        for number in range(2, 12):
            p.push("orders", [order(number, 5)])
            p.commit()
        assert find_failure(p).time == 11
        assert find_failure(p).since_s == since_s, "a retry does not change it"
        warned = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
        assert [message.split(":")[0] for message in warned] == ["view share"]
        p.push("orders", [order(1, 4)])
        p.commit()
        assert rows_of(p, "share")[0] == (1, 25)
        warned = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
        assert [message.partition(";")[0] for message in warned[1:]] == ["view share is running again"]


def test_j12_a_failed_view_stays_failed_across_restarts() -> None:
    kept = storage()
    with open_pipeline(kept, engine(*VIEWS)) as p:
        p.push("orders", [order(1, 50)])
        p.commit()
        p.push("orders", [order(2, 0)])
        p.commit()
        crash(p)
    with open_pipeline(kept, engine(*VIEWS)) as p:
        assert rows_of(p, "share") == [(1, 2)]
        assert p.view("share").time == 1
        p.push("orders", deletes=[2])
        p.commit()
        assert rows_of(p, "share") == [(1, 2)]
        assert p.view("share").time == p.time
        crash(p)
    with open_pipeline(kept, engine(*VIEWS)) as p:
        p.push("orders", [order(3, 100)])
        p.commit()
        assert rows_of(p, "share") == [(1, 2), (3, 1)]


def test_j12_a_view_that_fails_when_it_is_added_does_not_stop_the_others() -> None:
    kept = storage()
    with open_pipeline(kept, engine("revenue")) as p:
        p.push("orders", [order(1, 0)])
        p.commit()
    with open_pipeline(kept, engine(*VIEWS)) as p:
        assert rows_of(p, "revenue") == [("ann", 0)]
        with pytest.raises(NotAllowedNow, match="ZeroDivisionError"):
            p.view("share").to_arrow()
        p.push("orders", [order(1, 20)])
        p.commit()
        assert rows_of(p, "share") == [(1, 5)]


def test_a_failed_view_is_retried_once_per_request() -> None:
    with open_pipeline(storage(), engine(*VIEWS), settings=Settings(retry_view_s=1e9)) as p:
        p.push("orders", [order(1, 0)])
        p.commit()
        p.push("orders", [order(2, 0)])
        p.commit()  # the first attempt, which fails
        p.push("orders", [order(1, 1), order(2, 2)])
        p.commit()
        assert rows_of(p, "share") == []
        p.retry("share")
        assert rows_of(p, "share") == [(1, 100), (2, 50)]
        with pytest.raises(NotAllowedNow, match="only a failed view can be retried; failed views: none"):
            p.retry("share")
        with pytest.raises(InvalidInput, match="no such view; "):
            p.retry("shares")


def test_a_retry_of_a_view_does_not_delay_commits() -> None:
    """If the view were recomputed in the transaction's thread, the second commit and this test would wait for ever."""
    begun, go_on = threading.Event(), threading.Event()
    here = threading.get_ident()

    def slow(tables: Mapping[str, list[Row]]) -> list[Row]:
        if threading.get_ident() != here:
            begun.set()
            assert go_on.wait(60)
        return shares(tables)

    made = engine("revenue", "share")
    made.small_views = [made.small_views[0], replace(made.small_views[1], function=slow)]
    with open_pipeline(storage(), made, threads=True) as p:
        p.push("orders", [order(1, 0)])
        p.commit()
        p.push("orders", [order(1, 5)])
        p.commit()
        assert begun.wait(60)
        p.push("orders", [order(2, 10)])
        p.commit()
        assert rows_of(p, "revenue") == [("ann", 15)]
        assert rows_of(p, "share") == []
        go_on.set()
        p.wait_until_hydrated()
        assert rows_of(p, "share") == [(1, 20), (2, 10)]


def test_j12_a_view_that_fails_repeatedly_leaves_no_shards_open() -> None:
    """The view has a new shard each time that it recovers. Seen to fail: the process kept all of them in memory."""
    with open_pipeline(storage(), engine(*VIEWS)) as p:
        p.push("orders", [order(1, 50)])
        p.commit()
        shards = set()
        for amount in (0, 1, 0, 2, 0, 3):
            p.push("orders", [order(2, amount)])
            p.commit()
            p.advance()
            shards.add(p.definition.views["share"].shard)
        assert rows_of(p, "share") == [(1, 2), (2, 33)]
        assert len(shards) == 4
        assert set(p._runner.members._open) == set(p._runner.members.collections.values())


def test_j12_a_backfill_that_fails_repeatedly_leaves_no_shards_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards of the backfill are finalized and released, although no generation changes."""
    with open_pipeline(storage(), engine(*VIEWS)) as p:
        p.push("orders", [order(1, 50), order(2, 0)])
        p.commit()
        with monkeypatch.context() as patched:

            def damaged(_: Backfill) -> bool:
                raise Damaged(path="a part", why="unreadable")

            patched.setattr(Backfill, "_join", damaged)
            for amount in (1, 2, 3):
                p.push("orders", [order(2, amount)])
                with pytest.raises(Damaged):
                    p.retry("share")
                p.commit()
        assert set(p._runner.members._open) == set(p._runner.members.collections.values())


def test_a_view_that_is_retried_on_request_and_by_itself_at_once_is_computed_once() -> None:
    """Otherwise it would be in two cohorts, which every checkpoint would store."""
    with open_pipeline(storage(), engine(*VIEWS), threads=True) as p:
        p.push("orders", [order(1, 0)])
        p.commit()
        scheduler = p._leader_tasks.backfills
        with scheduler._one:
            p.push("orders", [order(1, 5)])  # a backfill is due, and its thread waits
            p.commit()
            wait_until(lambda: scheduler._thread is not None)
            p.retry("share")
        scheduler.wait()
        assert [name for cohort in p._runner.machine.cohorts for name in cohort.views].count("share") == 1
        p.push("orders", [order(1, 10)])
        p.commit()
        assert rows_of(p, "share") == [(1, 10)]
