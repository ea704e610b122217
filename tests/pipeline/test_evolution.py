"""Scripts change: new views are computed from the tables, unchanged ones continue, impossible changes are refused."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput, NotAllowedNow, TimeCompacted
from evertide.pipeline.definition import AwayReason
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.reading.stale import StaleViewWarning
from evertide.pipeline.state.hydration import make_view_record
from evertide.pipeline.state.table_deltas import ERRORS
from evertide.problem import ComponentState
from evertide.settings import Settings
from evertide.store.open import Storage
from tests.kit.small_engine import SmallEngine, SmallView
from tests.pipeline.kit import (
    NOTES,
    ORDERS,
    SETTINGS,
    VIEWS,
    Row,
    by_customer,
    crash,
    engine,
    open_pipeline,
    rows_of,
    storage,
    without_shard,
)

SCHEMA = ORDERS.schema


def order(number: int, amount: int = 10) -> Row:
    return {"id": number, "customer": "ann", "amount": amount}


def fill_storage(
    made: SmallEngine | None = None, settings: Settings = SETTINGS, kept: Storage | None = None
) -> Storage:
    kept = kept or storage()
    with open_pipeline(kept, made, settings=settings) as p:
        for number in range(1, 5):
            p.push("orders", [order(number, number)])
            p.push("notes", [{"text": "x"}])
            p.commit()
    return kept


def cohorts(p: Pipeline) -> list[set[str]]:
    return [set(cohort.views) for cohort in p._runner.machine.cohorts]


def test_x18_a_collection_is_not_read_as_empty_before_it_was_computed() -> None:
    """An added view and a table with a new column have a new shard, which would say that there was nothing before.
    Checkpoints keep the history of the other collections, which stays readable."""
    settings = replace(SETTINGS, checkpoints_kept=9)
    kept = fill_storage(settings=settings)
    wider = replace(ORDERS, schema=SCHEMA.append(pa.field("note", pa.string())))
    made = engine("revenue", "counts", "share", tables=(wider, NOTES))
    with open_pipeline(kept, made, settings=settings) as p:
        computed = p.time
        assert [len(p.view("notes").as_of(time).to_pylist()) for time in (computed - 1, computed)] == [3, 4]
        p.push("orders", [{**order(9, 9), "note": "n"}])
        p.commit()
        for name, rows in (("share", 4), ("orders", 4), ("revenue", 1)):
            assert len(p.view(name).as_of(computed).to_pylist()) == rows
            with pytest.raises(TimeCompacted, match=f"the earliest is {computed}"):
                p.view(name).as_of(computed - 1).to_pylist()
        assert len(p.view("counts").as_of(computed).to_pylist()) == 1
        with pytest.raises(TimeCompacted, match="the earliest is"):
            p.view("share").changes()
        assert p.view("share").changes(since=computed).num_rows == 1


@pytest.mark.parametrize("is_clean", [True, False])
def test_c8_an_added_view_is_computed_and_the_others_continue(is_clean: bool) -> None:
    """The other views keep their shards and their state; if they counted as new, all would be recomputed."""
    kept = fill_storage()
    with open_pipeline(kept) as p:
        shards = {name: view.shard for name, view in p.definition.views.items()}
        if not is_clean:
            p.push("orders", [order(9, 9)])
            p.commit()
            crash(p)
    with open_pipeline(kept, engine("revenue", "counts", "share")) as p:
        assert {name: p.definition.views[name].shard for name in shards} == shards
        assert cohorts(p) == [{"revenue", "counts"}, {"share"}]
        assert rows_of(p, "share")[:2] == [(1, 100), (2, 50)]
        p.push("orders", [order(1, 50)])
        p.commit()
        assert rows_of(p, "share")[0] == (1, 2)
        crash(p)
    with open_pipeline(kept, engine("revenue", "counts", "share")) as p:
        assert cohorts(p) == [{"revenue", "counts"}, {"share"}]
        assert rows_of(p, "share")[0] == (1, 2)
        assert rows_of(p, "counts")[0][0] == len(rows_of(p, "share"))


def test_c8_a_changed_view_is_recomputed_and_its_old_shard_ends() -> None:
    kept = fill_storage()
    with open_pipeline(kept) as p:
        old = p.definition.views["revenue"].shard
    changed = replace(VIEWS["revenue"], version=2, function=lambda _: [{"customer": "all", "amount": 1}])
    with open_pipeline(kept, SmallEngine([ORDERS, NOTES], [changed, VIEWS["counts"]])) as p:
        assert rows_of(p, "revenue") == [("all", 1)]
        assert rows_of(p, "counts") == [(4, 4)]
        assert p._runner.members.shard(old).log.read().state.finalized


def test_c8_a_dropped_view_that_is_declared_again_is_right() -> None:
    kept = fill_storage()
    with open_pipeline(kept, engine("counts")) as p:
        with pytest.raises(InvalidInput, match="no such collection"):
            p.view("revenue")
        p.push("orders", [order(1, 100)])
        p.commit()
    with open_pipeline(kept) as p:
        assert rows_of(p, "revenue") == [("ann", 109)]


def test_a_new_table_starts_empty_and_an_undeclared_table_keeps_its_rows() -> None:
    kept = fill_storage()
    extra = DeclaredTable("extra", pa.schema([("x", pa.int64())]))
    with open_pipeline(kept, engine("revenue", tables=(ORDERS, extra))) as p:
        p.push("extra", [{"x": 1}])
        p.commit()
        assert rows_of(p, "extra") == [(1,)]
        with pytest.raises(InvalidInput, match="notes"):
            p.push("notes", [{"text": "y"}])
        assert "notes" not in p.collections.names()
    with open_pipeline(kept) as p:
        assert rows_of(p, "notes") == [("x",)] * 4
        p.push("notes", [{"text": "y"}])
        p.commit()
        assert rows_of(p, "counts") == [(4, 5)]


def test_a_table_may_get_new_columns() -> None:
    """Existing rows have NULL in the new columns; rows are found by key as before."""
    kept = fill_storage()
    wide = replace(ORDERS, schema=pa.schema([*SCHEMA, ("note", pa.string())]))
    with open_pipeline(kept, engine(tables=(wide, NOTES))) as p:
        p.push("orders", [{**order(1, 7), "note": "new"}], deletes=[2])
        p.commit()
        assert rows_of(p, "orders") == [(1, "ann", 7, "new"), (3, "ann", 3, None), (4, "ann", 4, None)]
        assert rows_of(p, "revenue") == [("ann", 14)]
        crash(p)
    with open_pipeline(kept, engine(tables=(wide, NOTES))) as p:
        p.push("orders", deletes=[1])
        p.commit()
        assert rows_of(p, "revenue") == [("ann", 7)]


def test_x17_names_that_change_only_in_case_are_the_same_collections(tmp_path: Path) -> None:
    """Rows, dead letters, the list of files read, views and their shards: the storage's spelling stays in use."""
    options = {"path": str(tmp_path), "settle_ms": "0"}
    fed = replace(ORDERS, name="Orders", connector="csv", options=options)

    def respelled(table: str, view: str) -> SmallEngine:
        made = SmallView(view, VIEWS["revenue"].schema, (table,), lambda rows: by_customer({"orders": rows[table]}))
        return SmallEngine([replace(fed, name=table), NOTES], [made])

    (tmp_path / "a.csv").write_text("id,customer,amount\n1,ann,10\n2,bob,ten\n")
    kept = storage()
    with open_pipeline(kept, respelled("Orders", "Revenue")) as p:
        p.advance()
        p.advance()
        assert rows_of(p, "orders") == [(1, "ann", 10)]
        known = p.definition
    for name, other in (("ORDERS", "REVENUE"), ("orders", "revenue")):
        with open_pipeline(kept, respelled(name, other)) as p:
            assert p.definition == known
            assert rows_of(p, "orders") == [(1, "ann", 10)]
            assert rows_of(p, "revenue") == [("ann", 10)]
            assert p.view(ERRORS).to_arrow().num_rows == 1
            assert p.advance() is None
            crash(p)
    (tmp_path / "b.csv").write_text("id,customer,amount\n2,bob,2\n1,ann,1\n")
    with open_pipeline(kept, respelled("orders", "revenue")) as p:
        p.advance()
        p.advance()
        assert rows_of(p, "revenue") == [("ann", 1), ("bob", 2)]
        assert p.view(ERRORS).to_arrow().num_rows == 0


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (replace(ORDERS, key=()), "the key was"),
        (replace(ORDERS, schema=pa.schema([*SCHEMA, pa.field("n", pa.int64(), nullable=False)])), "NOT NULL"),
        (replace(ORDERS, schema=pa.schema([*SCHEMA][:2])), "column amount BIGINT is missing"),
        (
            replace(ORDERS, schema=SCHEMA.set(2, pa.field("amount", pa.int32()))),
            "column amount was amount BIGINT and is now amount INT",
        ),
        (
            replace(ORDERS, schema=SCHEMA.insert(1, pa.field("channel", pa.string()))),
            "column 2 was customer STRING and is now the new column channel STRING; add new columns after the last one",
        ),
        (
            replace(ORDERS, schema=pa.schema([SCHEMA[0], SCHEMA[2], SCHEMA[1]])),
            "the stored columns are in another order; keep the order id, customer, amount",
        ),
        (without_shard(ORDERS), "evertide.keep cannot change"),
    ],
)
def test_other_changes_are_refused_with_the_reason_and_change_nothing(table: DeclaredTable, why: str) -> None:
    kept = fill_storage()
    with pytest.raises(InvalidInput, match=why):
        open_pipeline(kept, engine(tables=(table, NOTES)))
    with open_pipeline(kept) as p:
        assert rows_of(p, "revenue") == [("ann", 10)]
        assert p.time == 4


def test_a_view_over_a_table_that_is_not_kept_cannot_be_added_later() -> None:
    unkept = (without_shard(ORDERS), NOTES)
    kept = storage()
    with open_pipeline(kept, engine("revenue", tables=unkept)) as p:
        p.push("orders", [order(1)])
        p.commit()
    with pytest.raises(InvalidInput, match="not kept"):
        open_pipeline(kept, engine("revenue", "share", tables=unkept))
    with open_pipeline(kept, engine("revenue", tables=unkept)) as p:
        assert rows_of(p, "revenue") == [("ann", 10)]


def test_a_view_is_computed_while_the_others_continue() -> None:
    """The view catches up with transactions that commit meanwhile, and joins without a gap."""
    kept = fill_storage()
    may_go_on, has_begun = threading.Event(), threading.Event()

    def slowly(tables: Mapping[str, list[Row]]) -> list[Row]:
        has_begun.set()
        may_go_on.wait(20)
        return list(VIEWS["share"].function(tables))

    slow = replace(VIEWS["share"], function=slowly)
    made = SmallEngine([ORDERS, NOTES], [VIEWS["revenue"], VIEWS["counts"], slow])
    with open_pipeline(kept, made, threads=True) as p:
        assert has_begun.wait(20)
        for number in range(5, 12):
            p.push("orders", [order(number, number)])
            p.commit()
        assert rows_of(p, "counts") == [(11, 4)]
        [status] = [one for one in p.status().collections if one.name == "share"]
        assert status.state == "hydrating"
        with pytest.raises(NotAllowedNow, match="hydrating"):
            p.view("share").to_arrow()
        may_go_on.set()
        assert p.wait_until_hydrated(20)
        assert rows_of(p, "share") == sorted([(number, 100 // number) for number in range(1, 12)], key=repr)
        p.push("orders", [order(1, 4)])
        p.commit()
        assert (1, 25) in rows_of(p, "share")
        found = p.view("share").changes(4).column("__time").to_pylist()
        assert sorted(set(found)) == [5, 6, 7, 8, 9, 10, 11, 12]


def test_a_backfill_that_a_crash_interrupted_restarts() -> None:
    kept = fill_storage()
    p = open_pipeline(kept, engine("revenue", "counts"))
    p._runner.change(
        views={
            **p.definition.views,
            "share": make_view_record(
                engine("share"), "share", "", AwayReason(ComponentState.HYDRATING, 3, "it is computed", 0.0)
            ),
        }
    )
    crash(p)
    with open_pipeline(kept, engine("revenue", "counts", "share")) as p:
        assert len(rows_of(p, "share")) == 4


@contextmanager
def redefined(kept: Storage, query: str) -> Iterator[tuple[Pipeline, threading.Event]]:
    """The pipeline with another `revenue`, which is computed once the event is set."""
    may_go_on = threading.Event()

    def compute(_: Mapping[str, list[Row]]) -> list[Row]:
        may_go_on.wait(20)
        return [{"customer": "all", "amount": 1}]

    changed = replace(VIEWS["revenue"], version=2, function=compute, query=query)
    try:
        with open_pipeline(kept, SmallEngine([ORDERS, NOTES], [changed, VIEWS["counts"]]), threads=True) as p:
            yield p, may_go_on
    finally:
        may_go_on.set()


def test_rows_of_the_old_query_are_not_read_under_the_new_one() -> None:
    """A view whose query changed is refused until it is computed; a reader that names a time gets the rows of then.

    Fails if the time of a view does not depend on `AwayReason.is_redefined`.
    """
    kept = fill_storage()
    with redefined(kept, "another query") as (p, may_go_on):
        with pytest.raises(NotAllowedNow, match=r"its query changed, and the view is hydrating; .* as of time 4"):
            p.view("revenue").to_pylist()
        with pytest.raises(NotAllowedNow, match="its query changed"):
            p.view("revenue").changes()
        with pytest.raises(NotAllowedNow, match="its query changed"):
            p.collections.read_tables_at(["orders", "revenue"], None)
        assert p.view("revenue").as_of(4).to_pylist() == [{"customer": "ann", "amount": 10}]
        assert p.view("counts").to_pylist() == [{"orders": 4, "notes": 4}]
        may_go_on.set()
        assert p.wait_until_hydrated(20)
        assert rows_of(p, "revenue") == [("all", 1)]


def test_a_view_that_is_recomputed_with_the_same_query_is_read_with_a_warning() -> None:
    """As after an upgrade, which may change the fingerprint of every view."""
    query = replace(VIEWS["revenue"], query="the query")
    kept = fill_storage(SmallEngine([ORDERS, NOTES], [query, VIEWS["counts"]]))
    with redefined(kept, "the query") as (p, may_go_on):
        with pytest.warns(StaleViewWarning, match="'revenue' is hydrating, and its content is that of transaction 4"):
            assert rows_of(p, "revenue") == [("ann", 10)]
        view = p.view("revenue")
        reads: list[Callable[[], object]] = [view.to_arrow, view.to_pylist, view.to_pandas, view.show]
        reads += [lambda: [*view.to_batches()], lambda: view.changes(since=3)]
        for read in reads:
            with pytest.warns(StaleViewWarning) as warned:
                read()
            assert {one.filename for one in warned} == {__file__}, "by default, Python shows a warning once per line"
        may_go_on.set()
        assert p.wait_until_hydrated(20)
        with warnings.catch_warnings(action="error"):
            assert rows_of(p, "revenue") == [("all", 1)]


def test_a_changed_query_that_fails_is_not_read_either() -> None:
    kept = fill_storage()
    failing = replace(VIEWS["revenue"], version=2, function=lambda _: [{"customer": "all", "amount": 1 // 0}])
    for _ in range(2):
        with open_pipeline(kept, SmallEngine([ORDERS, NOTES], [failing, VIEWS["counts"]])) as p:
            with pytest.raises(NotAllowedNow, match=r"its query changed, and the view is failed: .*zero"):
                p.view("revenue").to_pylist()
            assert p.view("revenue").as_of(4).to_pylist() == [{"customer": "ann", "amount": 10}]
