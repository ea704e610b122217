"""J12: a row makes a view fail. The others go on, its last good content stays, and it comes back by itself."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

import pytest

from evertide.errors import Damaged, InvalidInput, NotAllowedNow
from evertide.pipeline.backfill.backfill import Backfill
from evertide.settings import Settings
from tests.pipeline.kit import Row, crash, engine, open_pipeline, rows_of, shares, storage

VIEWS = ("revenue", "share")


def order(number: int, amount: int) -> Row:
    return {"id": number, "customer": "ann", "amount": amount}


def test_j12_one_view_fails_and_recovers_when_the_row_is_corrected() -> None:
    """Without leaving its cohort, the view would stop everybody; without the retry it would stay behind for ever."""
    with open_pipeline(storage(), engine(*VIEWS)) as p:
        p.push("orders", [order(1, 50)])
        p.commit()
        p.push("orders", [order(2, 0), order(3, 4)])
        failed = p.commit()
        assert rows_of(p, "revenue") == [("ann", 54)]
        assert rows_of(p, "share") == [(1, 2)]
        assert p.collections.tables_at(["orders", "share"], None)["orders"].num_rows == 1, "both as of one time"
        with pytest.raises(InvalidInput, match="is not committed yet"):
            p.collections.tables_at(["orders", "share"], failed)  # one of then beside one of before
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


def test_j12_it_stays_failed_across_restarts_and_is_not_taken_for_new() -> None:
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


def test_j12_a_view_that_fails_when_it_is_added_does_not_keep_the_others_from_starting() -> None:
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


def test_a_view_is_tried_again_on_request_and_not_more_often_than_asked() -> None:
    with open_pipeline(storage(), engine(*VIEWS), settings=Settings(retry_view_s=1e9)) as p:
        p.push("orders", [order(1, 0)])
        p.commit()
        p.push("orders", [order(2, 0)])
        p.commit()  # the first try, which fails
        p.push("orders", [order(1, 1), order(2, 2)])
        p.commit()
        assert rows_of(p, "share") == []
        p.retry("share")
        assert rows_of(p, "share") == [(1, 100), (2, 50)]
        with pytest.raises(NotAllowedNow, match="only a failed view can be retried; failed views: none"):
            p.retry("share")
        with pytest.raises(InvalidInput, match="no such view"):
            p.retry("shares")


def test_a_view_that_is_tried_again_holds_up_nobody() -> None:
    """If it were computed in line, the second commit would wait for it, and this test for ever."""
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
        p.hydrated()
        assert rows_of(p, "share") == [(1, 20), (2, 10)]


def test_j12_a_view_that_fails_again_and_again_leaves_no_shards_open() -> None:
    """Each time that it comes back it has another shard. The process kept all of them in memory until it ended."""
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


def test_j12_a_backfill_that_fails_again_and_again_leaves_no_shards_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it made is finalized, and forgotten, although no generation changes."""
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
