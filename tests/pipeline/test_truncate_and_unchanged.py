"""Input of sources beside rows: a truncate of a table, and values that are unchanged."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.state.table_deltas import ERRORS
from evertide.sources.contract import DELETE, OP, SAME, TRUNCATE, UPSERT, Fault, Rows
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import (
    NOTES,
    ORDERS,
    ScriptedSource,
    crash,
    engine,
    open_pipeline,
    rows_of,
    storage,
    with_sources,
    without_shard,
)
from tests.pipeline.replica_kit import shared

Said = tuple[int, dict[str, Any], str | None]


def up(key: int, customer: str | None = "a", amount: int | None = 1, same: str | None = None) -> Said:
    return UPSERT, {"id": key, "customer": customer, "amount": amount}, same


def down(key: int) -> Said:
    return DELETE, {"id": key}, None


CUT: Said = (TRUNCATE, {}, None)


def make_batch(table: DeclaredTable, *several: Said, faults: tuple[Fault, ...] = ()) -> Rows:
    schema = pa.schema(
        [*(pa.field(each.name, each.type) for each in table.schema), (OP, pa.int8()), (SAME, pa.string())]
    )
    rows = [{**row, OP: op, SAME: same} for op, row, same in several]
    return Rows(table.name, pa.Table.from_pylist(rows, schema), faults)


def outcome(*transactions: list[Rows], table: DeclaredTable = ORDERS) -> tuple[list[tuple[Any, ...]], int]:
    """Return the table's rows after these batches, and the number of dead letters."""
    source = ScriptedSource("s", (table.name,))
    source.batches = [rows for several in transactions for rows in several]
    with with_sources(source), open_pipeline(storage(), engine(tables=(ORDERS, NOTES))) as p:
        for _ in source.batches:
            p.commit()
        assert rows_of(p, "counts")[0][0 if table is ORDERS else 1] == len(rows_of(p, table.name))
        return rows_of(p, table.name), len(rows_of(p, ERRORS))


def test_a_truncate_deletes_all_rows_and_earlier_input_of_the_transaction() -> None:
    """Without the cut, row 3 of the same transaction would stay; without the scan, rows 1 and 2 would."""
    first = make_batch(ORDERS, up(1), up(2))
    second = make_batch(ORDERS, up(3), CUT, up(4, "d", 4), up(1, "z", 9), down(2))
    assert outcome([first, second]) == ([(1, "z", 9), (4, "d", 4)], 0)
    assert outcome([first, make_batch(ORDERS, CUT)]) == ([], 0)
    assert outcome([first, make_batch(ORDERS, CUT, up(5), CUT)]) == ([], 0)


def test_a_truncate_empties_a_table_without_a_key() -> None:
    texts: list[Said] = [(UPSERT, {"text": text}, None) for text in ("a", "a", "b")]
    gone: Said = (DELETE, {"text": "a"}, None)
    first = make_batch(NOTES, *texts)
    assert outcome([first, make_batch(NOTES, texts[2], CUT, texts[0], texts[1], gone)], table=NOTES) == ([("a",)], 0)
    assert outcome([first, make_batch(NOTES, CUT)], table=NOTES) == ([], 0)


def without_deletes() -> SmallEngine:
    return engine("counts", tables=(ORDERS, without_shard(NOTES)))


def test_u6_deletes_that_a_table_cannot_apply_are_dead_letters() -> None:
    """Fails if they end the pipeline: they are bound, so that it would never open again."""
    kept, gone = shared(), (DELETE, {"text": "a"}, None)
    source = ScriptedSource("s", ("notes",), [make_batch(NOTES, (UPSERT, {"text": "a"}, None), gone, CUT)])
    source.batches += [make_batch(NOTES, gone), make_batch(NOTES, (UPSERT, {"text": "b"}, None))]
    with with_sources(source):
        p = open_pipeline(kept, without_deletes())
        for _ in source.batches:
            p.advance()
        crash(p)
        with open_pipeline(kept, without_deletes()) as p:  # replays them
            assert rows_of(p, "counts") == [(0, 2)]
            letters = p.view(ERRORS).to_pylist()
            assert [(one["table"], one["raw"]) for one in letters] == [
                *[("notes", '{"text": "a"}')] * 2,
                ("notes", '{"text": null}'),
            ]
            assert all("is not kept cannot apply deletes" in one["reason"] for one in letters)
            assert p.status().state == "running"


def test_a_pushed_delete_that_a_table_cannot_apply_is_refused() -> None:
    """Fails if it is bound."""
    with open_pipeline(storage(), without_deletes()) as p:
        p.push("notes", [{"text": "a"}])
        with pytest.raises(InvalidInput, match="is not kept cannot apply deletes"):
            p.push("notes", [{"text": "b"}], deletes=[{"text": "a"}])
        p.push("orders", [{"id": 1}])
        p.push("orders", deletes=[1])
        p.commit()
        assert (rows_of(p, "counts"), p.status().state) == ([(0, 1)], "running")


def test_u6_a_truncate_removes_dead_letters_of_keys() -> None:
    bad = Fault("orders", "here", 1, "why", "raw", pa.table({"id": [7]}))
    nameless = Fault("orders", "here", 2, "why", "raw")
    first = make_batch(ORDERS, up(1), faults=(bad, nameless))
    assert outcome([first])[1] == 2
    assert outcome([first, make_batch(ORDERS, CUT)])[1] == 1
    before_cut = make_batch(ORDERS, CUT, faults=(bad,))
    assert outcome([before_cut])[1] == 0


def test_unchanged_values_are_filled_in() -> None:
    """From the table, from earlier in the transaction, through several steps, and from another key."""
    first = make_batch(ORDERS, up(1, "ann", 1), up(2, "bob", 2))
    same = '["customer"]'
    moved = '{"moved":["customer"]}'
    assert outcome([first, make_batch(ORDERS, up(1, None, 10, same))])[0] == [(1, "ann", 10), (2, "bob", 2)]
    twice = make_batch(ORDERS, up(1, None, 10, same), up(1, None, 11, same), up(3, "cy", 3), up(3, None, 33, same))
    assert outcome([first, twice])[0] == [(1, "ann", 11), (2, "bob", 2), (3, "cy", 33)]
    away = make_batch(ORDERS, down(1), up(9, None, 1, moved), up(9, None, 2, same), down(9), up(8, None, 3, moved))
    assert outcome([first, away])[0] == [(2, "bob", 2), (8, "ann", 3)]
    swapped = make_batch(
        ORDERS, down(1), up(3, None, 1, moved), down(2), up(1, None, 2, moved), down(3), up(2, None, 1, moved)
    )
    assert outcome([first, swapped])[0] == [(1, "bob", 2), (2, "ann", 1)]


def test_u6_unchanged_values_of_a_missing_row_are_a_fault_of_the_key() -> None:
    """The missing values are not NULL silently. A whole row removes the fault."""
    same = '["customer"]'
    lost = make_batch(ORDERS, up(1, None, 10, same), up(2, "b", 2))
    assert outcome([lost]) == ([(2, "b", 2)], 1)
    assert outcome([lost, make_batch(ORDERS, up(1, "a", 1))]) == ([(1, "a", 1), (2, "b", 2)], 0)
    after_cut = make_batch(ORDERS, CUT, up(1, None, 10, same))
    assert outcome([make_batch(ORDERS, up(1)), after_cut]) == ([], 1)
    after_delete = make_batch(ORDERS, down(1), up(1, None, 10, same))
    assert outcome([make_batch(ORDERS, up(1)), after_delete]) == ([], 1)
