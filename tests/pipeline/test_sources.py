"""Input from sources: dead letters, sources that fail or change, and acknowledgements."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from evertide.errors import Diverged, SourceChanged, SourceFailed
from evertide.pipeline.state.table_deltas import ERRORS
from evertide.sources.contract import Fault
from tests.pipeline.kit import (
    NOTES,
    ORDERS,
    Row,
    ScriptedSource,
    batch,
    crash,
    engine,
    open_pipeline,
    rows_of,
    storage,
    with_sources,
    without_shard,
)


def order(number: int | None, amount: int = 10) -> Row:
    return {"id": number, "customer": "ann", "amount": amount}


def fault(number: int | None, after: int = 0, line: int = 1) -> Fault:
    key = None if number is None else pa.table({"id": [number]})
    return Fault("orders", "orders.csv", line, "amount: 'ten' is no number", f"{number},ann,ten", key, after)


def letters(p: object) -> list[tuple[object, ...]]:
    return [(row[1], row[4], row[5]) for row in rows_of(p, ERRORS)]  # type: ignore[arg-type]


def test_u6_a_value_that_cannot_be_read_is_an_error_of_its_key() -> None:
    """The old row is deleted, and the dead letter stays until a good value arrives. Otherwise a wrong row would be
    served."""
    source = ScriptedSource("orders", ("orders",))
    with with_sources(source), open_pipeline(storage()) as p:
        source.batches.append(batch(ORDERS, [order(1), order(2)]))
        p.commit()
        source.batches.append(batch(ORDERS, [order(3)], [fault(1), fault(None, line=7)]))
        p.commit()
        assert [row[0] for row in rows_of(p, "orders")] == [2, 3]
        assert letters(p) == [('{"id": 1}', 1, "amount: 'ten' is no number"), (None, 7, "amount: 'ten' is no number")]
        source.batches.append(batch(ORDERS, [order(1, 5)]))
        p.commit()
        assert [row[0] for row in rows_of(p, "orders")] == [1, 2, 3]
        assert letters(p) == [(None, 7, "amount: 'ten' is no number")]
        source.batches.append(batch(ORDERS, [], [fault(2)]))
        p.commit()
        source.batches.append(batch(ORDERS, [], deletes=[{"id": 2}]))
        p.commit()
        assert [row[0] for row in rows_of(p, "orders")] == [1, 3]
        assert len(letters(p)) == 1


@pytest.mark.parametrize(("after", "is_there"), [(0, True), (1, False)])
def test_u6_the_last_of_a_fault_and_a_good_row_wins(after: int, is_there: bool) -> None:
    source = ScriptedSource("orders", ("orders",), [batch(ORDERS, [order(1, 7)], [fault(1, after)])])
    with with_sources(source), open_pipeline(storage()) as p:
        p.commit()
        assert rows_of(p, "orders") == ([(1, "ann", 7)] if is_there else [])
        assert len(letters(p)) == (0 if is_there else 1)


def test_a_null_in_a_not_null_column_is_a_dead_letter_for_every_source() -> None:
    source = ScriptedSource("orders", ("orders",), [batch(ORDERS, [order(1), order(None), order(2)])])
    with with_sources(source), open_pipeline(storage()) as p:
        p.commit()
        assert [row[0] for row in rows_of(p, "orders")] == [1, 2]
        [(key, line, why)] = letters(p)
        assert (key, line) == (None, 2)
        assert "'id' is NULL" in str(why)


def test_a_failing_source_stalls_and_the_others_continue() -> None:
    source = ScriptedSource("orders", ("orders",), [batch(ORDERS, [order(1)])])
    source.error = SourceFailed(source="orders", where="/data/orders", why="permission denied")
    with with_sources(source), open_pipeline(storage()) as p:
        p.push("notes", [{"text": "x"}])
        assert p.commit() == 1
        status = p.status()
        assert status.state == "stalled"
        assert "permission denied" in status.why
        assert [one.state for one in status.sources] == ["running", "stalled"]
        source.error = None
        assert p.commit() == 2
        assert p.status().state == "running"
        assert rows_of(p, "counts") == [(1, 1)]


def test_i10_a_source_gets_acknowledgements_up_to_what_the_shards_hold() -> None:
    source = ScriptedSource("orders", ("orders",), [batch(ORDERS, [order(1)]), batch(ORDERS, [order(2)])])
    with with_sources(source), open_pipeline(storage()) as p:
        p.commit()
        assert source.acknowledged == ["1"]
        p.commit()
        assert source.acknowledged == ["1", "2"]


def test_j4_a_table_with_a_shard_ignores_a_changed_source() -> None:
    source = ScriptedSource("orders", ("orders",), [batch(ORDERS, [order(1)]), batch(ORDERS, [order(2)])])
    kept = storage()
    with with_sources(source):
        p = open_pipeline(kept)
        p.commit()
        p.commit()
        crash(p)
        source.batches[0] = batch(ORDERS, [order(99)])
        with open_pipeline(kept) as p:
            assert [row[0] for row in rows_of(p, "orders")] == [1, 2]
            assert rows_of(p, "revenue") == [("ann", 20)]


def test_j4_a_table_without_a_shard_diverges_with_its_source() -> None:
    """The digest of the source's input detects it. Without it the view would silently be of other rows."""
    source = ScriptedSource("orders", ("orders",), [batch(ORDERS, [order(1)]), batch(ORDERS, [order(2)])])
    kept, made = storage(), engine("revenue", tables=(without_shard(ORDERS), NOTES))
    with with_sources(source):
        p = open_pipeline(kept, made)
        p.commit()
        p.commit()
        crash(p)
        source.batches[1] = batch(ORDERS, [order(3)])
        with pytest.raises(Diverged, match="source 'orders'") as found:
            open_pipeline(kept, made)
        assert found.value.time == 2
        source.batches[1] = batch(ORDERS, [order(2)])
        with open_pipeline(kept, made) as p:
            assert rows_of(p, "revenue") == [("ann", 20)]


def test_j4_a_source_in_the_journal_that_the_script_lacks_is_reported() -> None:
    source = ScriptedSource("orders", ("orders",), [batch(ORDERS, [order(1)])])
    kept = storage()
    with with_sources(source):
        p = open_pipeline(kept)
        inputs, _ = p._input_reader.read(p.definition)
        p._runner.bind(inputs)
        crash(p)
    with with_sources(), pytest.raises(SourceChanged, match="'orders'"):
        open_pipeline(kept)
    other = replace(source, name="elsewhere")
    with with_sources(other), pytest.raises(SourceChanged, match="'orders'"):
        open_pipeline(kept)
    with with_sources(source), open_pipeline(kept) as p:
        assert rows_of(p, "revenue") == [("ann", 10)]


def test_a_source_may_be_added_or_dropped_between_transactions() -> None:
    source = ScriptedSource("orders", ("orders",), [batch(ORDERS, [order(1)])])
    kept = storage()
    with with_sources(source), open_pipeline(kept) as p:
        p.commit()
    with with_sources(), open_pipeline(kept) as p:
        p.push("orders", [order(2)])
        p.commit()
        assert rows_of(p, "counts") == [(2, 0)]
