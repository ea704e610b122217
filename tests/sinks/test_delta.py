"""The Delta sink, on real tables: what they hold is what the collection holds, after every transaction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from evertide.errors import InvalidInput, SinkFailed
from evertide.rows.changes import net
from tests.sinks.kit import SCHEMA, changes, declared, in_pieces, next_changes, prepared, row, same


def table(path: Path) -> pa.Table:
    return DeltaTable(path / "target").to_pyarrow_table()


@pytest.mark.parametrize("key", [(), ("id",)], ids=["multiset", "key"])
@pytest.mark.parametrize(("seed", "pieces"), [(0, 1), (1, 1), (2, 1), (3, 1), (0, 4), (1, 2)])
def test_the_table_holds_what_the_collection_holds(
    tmp_path: Path, key: tuple[str, ...], seed: int, pieces: int
) -> None:
    """Inserts, deletes, updates, duplicates, NULLs, NaN and -0.0, in all types; opened anew now and then."""
    random, content = np.random.default_rng(seed), changes()
    opener = prepared(declared(tmp_path, "delta", key=key)).open
    sink = opener("token")
    for time in range(0, 30, 3):
        delta = next_changes(content, random, is_keyed=bool(key))
        if delta.num_rows == 0:
            continue
        sink.write(time, delta if pieces == 1 else in_pieces(delta, pieces, key))
        content = net(pa.concat_tables([content, delta]))
        assert same(table(tmp_path), content), time
        assert DeltaTable(tmp_path / "target").transaction_version("token") == time
        if random.random() < 0.3:
            sink.close()
            sink = opener("token")
            assert sink.last() == time


def test_each_transaction_is_one_commit(tmp_path: Path) -> None:
    """An update that were a delete and an append would show a table without the row in between."""
    sink = prepared(declared(tmp_path, "delta")).open("token")
    sink.write(0, changes((row(1), 2), (row(2), 1)))
    sink.write(4, changes((row(1), -1), (row(2), -1), (row(3), 1)))
    assert [each["operation"] for each in DeltaTable(tmp_path / "target").history()] == [
        "MERGE",
        "WRITE",
        "CREATE TABLE",
    ]


def test_i9_a_predecessor_that_wakes_late_changes_nothing(tmp_path: Path) -> None:
    """Without the number in the commit, the row would be there twice."""
    opener = prepared(declared(tmp_path, "delta")).open
    late, sink = opener("token"), opener("token")
    sink.write(0, changes((row(1), 1)))
    sink.write(1, changes((row(1), 1)))
    late.write(1, changes((row(1), 1)))
    late.write(0, changes((row(1), 1)))
    assert table(tmp_path).num_rows == 2


def test_two_at_the_same_instant_write_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have compared the number, and found it missing: the table's own log lets one through."""
    opener = prepared(declared(tmp_path, "delta")).open
    late, sink = opener("token"), opener("token")
    sink.write(0, changes((row(1), 1)))
    monkeypatch.setattr(DeltaTable, "update_incremental", lambda _: None)
    with pytest.raises(SinkFailed, match="Concurrent transaction"):
        late.write(0, changes((row(1), 1)))
    assert table(tmp_path).num_rows == 1


def test_a_table_that_the_sink_did_not_make_is_not_touched(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "target", pa.table({"id": [1]}))
    ready = prepared(declared(tmp_path, "delta"))
    with pytest.raises(SinkFailed, match="this sink did not create"):
        ready.probe()
    with pytest.raises(SinkFailed, match="this sink did not create"):
        ready.open("token")
    assert table(tmp_path).to_pydict() == {"id": [1]}


def test_a_table_that_others_changed_is_told(tmp_path: Path) -> None:
    """What is to be removed must be there: a count below zero would otherwise be a row too many for ever."""
    sink = prepared(declared(tmp_path, "delta")).open("token")
    sink.write(0, changes((row(1), 1), (row(2), 1)))
    DeltaTable(tmp_path / "target").delete("id = 1")
    with pytest.raises(SinkFailed, match="another writer changed it"):
        sink.write(1, changes((row(1), -1)))
    assert sink.last() == 0


def test_maintenance_by_others_does_no_harm(tmp_path: Path) -> None:
    sink = prepared(declared(tmp_path, "delta")).open("token")
    for time in range(3):
        sink.write(time, changes((row(time), 1)))
    other = DeltaTable(tmp_path / "target")
    other.optimize.compact()
    other.create_checkpoint()
    sink.write(3, changes((row(0), -1)))
    assert same(table(tmp_path), changes((row(1), 1), (row(2), 1)))
    assert prepared(declared(tmp_path, "delta")).open("token").last() == 3


def test_a_key_that_does_not_tell_rows_apart_is_an_error(tmp_path: Path) -> None:
    sink = prepared(declared(tmp_path, "delta", key=("name",))).open("token")
    with pytest.raises(SinkFailed, match=r"the key \(name\) has several rows"):
        sink.write(0, changes((row(1), 1), (row(2), 1)))
    sink.write(0, changes((row(1), 1)))
    with pytest.raises(SinkFailed, match=r"the key \(name\) has several rows"):
        sink.write(1, changes((row(1), -1), (row(3), 1), (row(4), 1)))
    assert table(tmp_path).num_rows == 1


def test_a_column_that_is_new_is_added_and_other_changes_are_refused(tmp_path: Path) -> None:
    sink = prepared(declared(tmp_path, "delta")).open("token")
    sink.write(0, changes((row(1), 1)))
    wider = SCHEMA.append(pa.field("more", pa.string()))
    sink = prepared(declared(tmp_path, "delta", schema=wider)).open("token")
    assert sink.last() == 0
    sink.write(1, changes(({**row(2), "more": "x"}, 1), ({**row(1), "more": None}, -1), schema=wider))
    assert table(tmp_path).to_pylist()[0]["more"] == "x"
    with pytest.raises(SinkFailed, match="no longer match the table"):
        prepared(declared(tmp_path, "delta", schema=SCHEMA.remove(0))).open("token")


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (pa.field("a b", pa.int64()), "a Delta table cannot have a column named"),
        (pa.field("a", pa.list_(pa.time64("us"))), "which a Delta table cannot store"),
    ],
)
def test_columns_that_a_delta_table_cannot_have(tmp_path: Path, field: pa.Field, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"shop.sql, line 3.*{why}"):
        prepared(declared(tmp_path, "delta", schema=pa.schema([field])))


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    """An unmounted disk is not taken for a place where nothing was written yet."""
    ready = prepared(declared(tmp_path, "delta", options={"path": "gone/target"}))
    with pytest.raises(SinkFailed, match="the parent directory does not exist"):
        ready.open("token")
    assert not (tmp_path / "gone").exists()
