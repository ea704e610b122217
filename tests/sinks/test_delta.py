"""The Delta sink, on real tables: they have the content of the collection after every transaction."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from evertide.errors import InvalidInput, SinkFailed
from evertide.rows.changes import consolidate_delta
from tests.sinks.kit import (
    SCHEMA,
    TEXTS,
    Row,
    changes,
    declare,
    has_content,
    next_changes,
    prepare,
    row,
    split_into_pieces,
    text_changes,
)


def table(path: Path) -> pa.Table:
    return DeltaTable(path / "target").to_pyarrow_table()


@pytest.mark.parametrize("key", [(), ("id",)], ids=["multiset", "key"])
@pytest.mark.parametrize(("seed", "pieces"), [(0, 1), (1, 1), (2, 1), (3, 1), (0, 4), (1, 2)])
def test_the_table_has_the_content_of_the_collection(
    tmp_path: Path, key: tuple[str, ...], seed: int, pieces: int
) -> None:
    """Inserts, deletes, updates, duplicates, NULLs, NaN and -0.0, in all types; the sink is reopened now and then."""
    random, content = np.random.default_rng(seed), changes()
    opener = prepare(declare(tmp_path, "delta", key=key)).open
    sink = opener("token")
    for time in range(0, 30, 3):
        delta = next_changes(content, random, is_keyed=bool(key))
        if delta.num_rows == 0:
            continue
        sink.write(time, delta if pieces == 1 else split_into_pieces(delta, pieces, key))
        content = consolidate_delta(pa.concat_tables([content, delta]))
        assert has_content(table(tmp_path), content), time
        assert DeltaTable(tmp_path / "target").transaction_version("token") == time
        if random.random() < 0.3:
            sink.close()
            sink = opener("token")
            assert sink.last() == time


def test_v5_a_null_struct_with_a_not_null_field_is_removed(tmp_path: Path) -> None:
    """One of two equal rows: the sink reads the table back, and Arrow's own cast refuses such rows."""
    point = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("point", point)])
    sink = prepare(declare(tmp_path, "delta", schema=schema)).open("token")
    rows: list[Row] = [{"id": 1, "point": None}, {"id": 1, "point": {"x": 1}}]
    sink.write(0, changes(*((one, 2) for one in rows), schema=schema))
    sink.write(1, changes(*((one, -1) for one in rows), schema=schema))
    assert sorted(table(tmp_path).to_pylist(), key=str) == sorted(rows, key=str)


def test_each_transaction_is_one_commit(tmp_path: Path) -> None:
    """An update made of a delete and an append would show a table without the row in between."""
    sink = prepare(declare(tmp_path, "delta")).open("token")
    sink.write(0, changes((row(1), 2), (row(2), 1)))
    sink.write(4, changes((row(1), -1), (row(2), -1), (row(3), 1)))
    assert [each["operation"] for each in DeltaTable(tmp_path / "target").history()] == [
        "MERGE",
        "WRITE",
        "CREATE TABLE",
    ]


def test_i9_a_predecessor_that_resumes_late_changes_nothing(tmp_path: Path) -> None:
    """Without the number in the commit, the row would be written twice."""
    opener = prepare(declare(tmp_path, "delta")).open
    late, sink = opener("token"), opener("token")
    sink.write(0, changes((row(1), 1)))
    sink.write(1, changes((row(1), 1)))
    late.write(1, changes((row(1), 1)))
    late.write(0, changes((row(1), 1)))
    assert table(tmp_path).num_rows == 2


def test_two_sinks_that_write_at_the_same_time_write_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both compared the number, and found it missing: the table's own log accepts one of the commits."""
    opener = prepare(declare(tmp_path, "delta")).open
    late, sink = opener("token"), opener("token")
    sink.write(0, changes((row(1), 1)))
    monkeypatch.setattr(DeltaTable, "update_incremental", lambda _: None)
    with pytest.raises(SinkFailed, match="Concurrent transaction"):
        late.write(0, changes((row(1), 1)))
    assert table(tmp_path).num_rows == 1


def test_a_table_that_the_sink_did_not_create_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "target", pa.table({"id": [1]}))
    ready = prepare(declare(tmp_path, "delta"))
    with pytest.raises(SinkFailed, match="this sink did not create"):
        ready.probe()
    with pytest.raises(SinkFailed, match="this sink did not create"):
        ready.open("token")
    assert table(tmp_path).to_pydict() == {"id": [1]}


def test_a_table_that_another_writer_changed_fails_the_sink(tmp_path: Path) -> None:
    """A row to delete must exist: a row with a negative count would make the table differ for ever."""
    sink = prepare(declare(tmp_path, "delta")).open("token")
    sink.write(0, changes((row(1), 1), (row(2), 1)))
    DeltaTable(tmp_path / "target").delete("id = 1")
    with pytest.raises(SinkFailed, match="another writer changed it"):
        sink.write(1, changes((row(1), -1)))
    assert sink.last() == 0


def test_maintenance_by_others_does_not_affect_the_sink(tmp_path: Path) -> None:
    sink = prepare(declare(tmp_path, "delta")).open("token")
    for time in range(3):
        sink.write(time, changes((row(time), 1)))
    other = DeltaTable(tmp_path / "target")
    other.optimize.compact()
    other.create_checkpoint()
    sink.write(3, changes((row(0), -1)))
    assert has_content(table(tmp_path), changes((row(1), 1), (row(2), 1)))
    assert prepare(declare(tmp_path, "delta")).open("token").last() == 3


def test_a_key_that_is_not_unique_is_an_error(tmp_path: Path) -> None:
    sink = prepare(declare(tmp_path, "delta", key=("name",))).open("token")
    with pytest.raises(SinkFailed, match=r"the key \(name\) has several rows"):
        sink.write(0, changes((row(1), 1), (row(2), 1)))
    sink.write(0, changes((row(1), 1)))
    with pytest.raises(SinkFailed, match=r"the key \(name\) has several rows"):
        sink.write(1, changes((row(1), -1), (row(3), 1), (row(4), 1)))
    assert table(tmp_path).num_rows == 1


def test_a_new_column_is_added_and_other_changes_are_refused(tmp_path: Path) -> None:
    sink = prepare(declare(tmp_path, "delta")).open("token")
    sink.write(0, changes((row(1), 1)))
    wider = SCHEMA.append(pa.field("more", pa.string()))
    sink = prepare(declare(tmp_path, "delta", schema=wider)).open("token")
    assert sink.last() == 0
    sink.write(1, changes(({**row(2), "more": "x"}, 1), ({**row(1), "more": None}, -1), schema=wider))
    assert table(tmp_path).to_pylist()[0]["more"] == "x"
    with pytest.raises(SinkFailed, match="no longer match the table"):
        prepare(declare(tmp_path, "delta", schema=SCHEMA.remove(0))).open("token")


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (pa.field("a b", pa.int64()), "a Delta table cannot have a column named"),
        (pa.field("a", pa.list_(pa.time64("us"))), "which a Delta table cannot store"),
    ],
)
def test_unsupported_columns_are_refused(tmp_path: Path, field: pa.Field, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"shop.sql, line 3.*{why}"):
        prepare(declare(tmp_path, "delta", schema=pa.schema([field])))


def test_a_missing_location_is_refused(tmp_path: Path) -> None:
    """An unmounted disk is not taken for a new location."""
    ready = prepare(declare(tmp_path, "delta", options={"path": "gone/target"}))
    with pytest.raises(SinkFailed, match="the parent directory does not exist"):
        ready.open("token")
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("key", [(), ("id",)], ids=["multiset", "key"])
def test_v7_texts_are_valid_utf8(tmp_path: Path, key: tuple[str, ...]) -> None:
    """The Delta writer could not read other texts again, so every later delete would fail."""
    sink = prepare(declare(tmp_path, "delta", schema=TEXTS, key=key)).open("token")
    sink.write(0, text_changes((1, b"\xff", 1), (2, b"\xfe", 1), (3, b"a", 1)))
    if not key:
        sink.write(1, text_changes((2, b"\xff", 2), (2, b"\xfd", 1)))
        sink.write(2, text_changes((2, b"\xff", -2), (2, b"\xfd", -1)))
    sink.write(3, text_changes((1, b"\xff", -1), (2, b"\xfe", -1), (2, b"\xfd", 1)))
    assert sorted(map(tuple, (one.values() for one in table(tmp_path).to_pylist()))) == [(2, "\ufffd"), (3, "a")]


def test_v7_keys_that_could_become_equal_are_refused(tmp_path: Path) -> None:
    sink = prepare(declare(tmp_path, "delta", schema=TEXTS, key=("s",))).open("token")
    with pytest.raises(SinkFailed, match="key column 's' has a text that is not valid UTF-8"):
        sink.write(0, text_changes((1, b"\xff", 1)))


def test_x12_a_large_transaction_waits_for_room_in_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail: the error named the target, which has room, and not the temporary directory."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    sink = prepare(declare(tmp_path, "delta", schema=TEXTS)).open("token")
    rows = split_into_pieces(text_changes((1, b"a", 1), (2, b"b", 1)), 2)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "TemporaryFile", refuse)
        with pytest.raises(SinkFailed, match=r"temporary files in .* cannot be written or read: .*No space left"):
            sink.write(0, rows)
    sink.write(0, rows)
    assert table(tmp_path).num_rows == 2
