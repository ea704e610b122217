"""The public API of a pipeline: push, commit, read; and refused calls."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from evertide.errors import Closed, Conflict, InvalidInput, NotAllowedNow, Unavailable
from evertide.pipeline.reading.reader import StorageReader
from evertide.pipeline.state.table_deltas import ERRORS
from evertide.store.open import Storage
from evertide.store.writers import read_registrations
from tests.kit.faulty import Fault, Faults, FaultyBlob, FaultyMeta
from tests.kit.runtime import ManualRuntime
from tests.pipeline.kit import ORDERS, SETTINGS, Row, engine, open_pipeline, rows_of, storage


def order(number: int, customer: str | None = "ann", amount: int | None = 10) -> Row:
    return {"id": number, "customer": customer, "amount": amount}


def test_a_new_pipeline_has_the_views_of_empty_tables() -> None:
    with open_pipeline(storage()) as p:
        assert p.time == 0
        assert rows_of(p, "counts") == [(0, 0)]
        assert rows_of(p, "revenue") == []


def test_a_transaction_shows_in_all_views_at_once_and_at_its_time() -> None:
    with open_pipeline(storage()) as p:
        p.push("orders", [order(1), order(2, "bob", 5)])
        p.push("notes", pa.table({"text": ["hello"]}))
        assert rows_of(p, "counts") == [(0, 0)]
        first = p.commit()
        p.push("orders", [order(1, "ann", 30)], deletes=[2])
        second = p.commit()
        assert (first, second) == (1, 2)
        assert rows_of(p, "counts") == [(1, 1)]
        assert rows_of(p, "revenue") == [("ann", 30)]
        assert p.view("revenue").as_of(first).to_pylist() == [
            {"customer": "ann", "amount": 10},
            {"customer": "bob", "amount": 5},
        ]
        assert p.view("counts").as_of(first).to_pylist() == [{"orders": 2, "notes": 1}]


def test_changes_are_read_transaction_by_transaction() -> None:
    with open_pipeline(storage()) as p:
        p.push("orders", [order(1)])
        first = p.commit()
        p.push("orders", [order(1, "ann", 11)])
        p.commit()
        found = [(row["amount"], row["__time"], row["__diff"]) for row in p.view("revenue").changes(first).to_pylist()]
        assert found == [(10, 2, -1), (11, 2, 1)]
        assert p.view("revenue").changes(p.time).num_rows == 0


def test_a_commit_without_pushes_makes_no_transaction() -> None:
    with open_pipeline(storage()) as p:
        assert p.commit() == 0
        p.push("orders", [])
        assert p.commit() == 0


def test_u5_the_last_change_of_a_key_wins_and_deletes_of_unknown_keys_are_ignored() -> None:
    """Without choosing the last row of each key, the table would hold two rows for key 1."""
    with open_pipeline(storage()) as p:
        p.push("orders", [order(1), order(2)])
        p.push("orders", [order(1, "bob", 7)], deletes=[2, 99])
        p.push("orders", [order(3)])
        p.push("orders", deletes=[3])
        p.push("orders", [order(3, None, None)])
        p.commit()
        assert rows_of(p, "orders") == [(1, "bob", 7), (3, None, None)]
        p.push("orders", deletes=[1])
        p.push("orders", [order(1, "eve", 1)])
        p.commit()
        assert rows_of(p, "orders") == [(1, "eve", 1), (3, None, None)]


def test_a_table_without_a_key_is_a_multiset() -> None:
    with open_pipeline(storage()) as p:
        p.push("notes", [{"text": "a"}, {"text": "a"}, {"text": None}])
        p.commit()
        p.push("notes", deletes=[{"text": "a"}, {"text": "b"}])
        p.commit()
        assert rows_of(p, "notes") == [("a",), (None,)]
        p.push("notes", [{"text": "b"}], deletes=[{"text": "b"}, {"text": "b"}, {"text": "a"}, {"text": "a"}])
        p.commit()
        assert rows_of(p, "notes") == [("b",), (None,)]  # deletes of a push apply before its rows


def test_a_transaction_over_several_tables_is_all_or_nothing() -> None:
    with open_pipeline(storage()) as p:
        with suppress(ZeroDivisionError), p.transaction() as failing:
            failing.push("orders", [order(1)])
            failing.push("notes", [{"text": str(1 // 0)}])
        with p.transaction() as kept:
            kept.push("orders", [order(2)])
            kept.push("notes", [{"text": "x"}])
        p.commit()
        assert rows_of(p, "counts") == [(1, 1)]
        p.push("orders", [order(3)])
        p.abort()
        assert p.commit() == 1


def test_j10_a_repeated_push_of_a_producer_is_applied_once() -> None:
    """Also after a restart: the producers' sequence numbers are part of the position. Otherwise `notes` would hold the
    order twice."""
    kept = storage()
    with open_pipeline(kept) as p:
        for _ in range(2):
            with p.transaction("till-1", 1) as pushed:
                pushed.push("notes", [{"text": "sold"}])
            p.commit()
    with open_pipeline(kept) as p:
        for sequence in (1, 2, 2):
            with p.transaction("till-1", sequence) as pushed:
                pushed.push("notes", [{"text": f"sold {sequence}"}])
            p.commit()
        assert rows_of(p, "notes") == [("sold 2",), ("sold",)]


@pytest.mark.parametrize(
    ("table", "rows", "why"),
    [
        ("order", [order(1)], "rows can be pushed only to"),
        ("orders", [{"id": 1, "customers": "x"}], "customers"),
        ("orders", [order(1), {"customer": "x"}], "id"),
        ("orders", [{"id": "one", "customer": "x", "amount": 1}], "one"),
        ("orders", [{"id": 1, "customer": "x", "amount": 2**63}], "amount"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_change_nothing(table: str, rows: list[Row], why: str) -> None:
    with open_pipeline(storage()) as p:
        with pytest.raises(InvalidInput, match=why):
            p.push(table, rows)
        assert p.commit() == 0


def test_readers_know_the_views_that_are_not_materialized() -> None:
    """Fails if only the process that runs the pipeline knows them, or if a script without them leaves them there."""
    kept, plain = storage(), replace(engine(), plain_views=("Big",))
    for declared, why in (
        (plain, "the view is not materialized"),
        (engine(), "no such collection"),
        (plain, "the view"),
    ):
        with open_pipeline(kept, declared) as p:
            with pytest.raises(InvalidInput, match=why):
                p.view("big")
            generation = p.definition.generation
            reader = StorageReader(kept, runtime=ManualRuntime(), settings=SETTINGS)
            with pytest.raises(InvalidInput, match=why):
                reader.collections.view("BIG")
        with open_pipeline(kept, declared) as p:
            assert p.definition.generation == generation, "the same script must change nothing"


def test_unknown_collections_and_times_are_refused() -> None:
    with open_pipeline(storage()) as p:
        with pytest.raises(InvalidInput, match="no such collection; it has counts, evertide_errors, notes, orders"):
            p.view("nothing")
        with pytest.raises(InvalidInput, match="no such collection; did you mean 'revenue'"):
            p.view("revenues")
        with pytest.raises(InvalidInput, match="time 7 is not committed yet"):
            p.view("revenue").as_of(7).to_arrow()
        assert p.view("REVENUE").name == "revenue"
        assert rows_of(p, ERRORS) == []


def test_a_second_pipeline_on_the_same_storage_is_refused_and_the_owner_named() -> None:
    kept = storage()
    with open_pipeline(kept), pytest.raises(Conflict, match="runs the pipeline"):
        open_pipeline(kept)
    open_pipeline(kept).close()


def test_a_paused_pipeline_refuses_transactions() -> None:
    with open_pipeline(storage()) as p:
        p.pause()
        p.push("orders", [order(1)])
        with pytest.raises(NotAllowedNow, match="paused"):
            p.commit()
        assert p.status().state == "paused"
        p.resume()
        assert p.commit() == 1


def test_calls_on_a_closed_pipeline_are_refused() -> None:
    p = open_pipeline(storage())
    p.close()
    p.close()
    with pytest.raises(Closed, match="closed"):
        p.push("orders", [order(1)])


def test_large_pushes_are_staged_in_fragments() -> None:
    with open_pipeline(storage(), engine("counts")) as p:
        rows = pa.table({"text": ["x" * 1000] * 9_000})
        with p.transaction() as pushed:
            for _ in range(3):
                pushed.push("notes", rows)
            assert len(pushed.fragments) >= 2
        p.commit()
        assert rows_of(p, "counts") == [(0, 27_000)]
        assert ORDERS.name in p.definition.tables


def test_a_pipeline_whose_close_failed_can_be_opened_again_at_once() -> None:
    """The registration stays, and its process is alive: this one. Seen to fail: `Conflict`."""
    below, outcome = storage(), [Fault.DONE]
    faults = Faults(lambda *_: outcome[0], lambda *_: outcome[0])
    seen = Storage(FaultyBlob(below.blob, faults), FaultyMeta(below.meta, faults), "memory")
    first = open_pipeline(seen)
    first.push("orders", [{"id": 1, "customer": "ann", "amount": 5}])
    first.commit()
    outcome[0] = Fault.REFUSED
    with suppress(Unavailable):
        first.close()
    outcome[0] = Fault.DONE
    assert [one.writer for one in read_registrations(below.meta).values()] == [first._writer.id]
    with open_pipeline(seen) as second:
        assert rows_of(second, "orders") == [(1, "ann", 5)]


def test_x26_a_registration_of_unknown_outcome_does_not_block_its_own_process() -> None:
    """The first attempt registers and its answer is lost; the second registers under another id. The first id stays in
    storage, with a process that is alive: this one. Without the safeguard: `Conflict`."""
    below = storage()
    lost = [Fault.DONE_LOST]

    def choose(_operation: str, key: str) -> Fault:
        return lost.pop() if lost and key.startswith("writer/") else Fault.DONE

    faults = Faults(choose, lambda *_: Fault.DONE)
    seen = Storage(below.blob, FaultyMeta(below.meta, faults), "memory")
    with open_pipeline(seen) as first:
        known = read_registrations(below.meta)
        assert len(known) == 2
        assert first._writer.id in known
    with open_pipeline(seen):
        pass
