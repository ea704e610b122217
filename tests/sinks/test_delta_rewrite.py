"""Large transactions with removed rows, which the Delta sink writes by replacing files."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs

from evertide.errors import SinkFailed
from evertide.rows.changes import consolidate_delta
from evertide.sinks import delta, delta_files, delta_rewrite
from tests.cli.kit import ROOT
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

KEYS = pytest.mark.parametrize("key", [(), ("id",)], ids=["multiset", "key"])


def read_table(path: Path) -> pa.Table:
    return DeltaTable(path / "target").to_pyarrow_table()


def list_files(path: Path) -> set[str]:
    return {str(each.relative_to(path)) for each in (path / "target").rglob("*") if each.is_file()}


def list_live(path: Path) -> set[str]:
    """The files of the table, from the log itself."""
    live: set[str] = set()
    for log in sorted((path / "target" / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        added = {each["add"]["path"] for each in actions if "add" in each}
        removed = {each["remove"]["path"] for each in actions if "remove" in each}
        assert not added & removed
        assert removed <= live
        live = (live - removed) | added
    return live


def write_files(sink: Any, *groups: list[Row]) -> None:
    """One file for each group."""
    for time, group in enumerate(groups):
        sink.write(time, changes(*((one, 1) for one in group)))


@KEYS
@pytest.mark.parametrize("seed", range(4))
def test_the_table_has_the_content_of_the_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: tuple[str, ...], seed: int
) -> None:
    """Large and small transactions, of a table of several files that others compact and that gets a new column. Slices,
    batches and the filter are so small that each has several rows, or wrong ones."""
    monkeypatch.setattr(delta_files, "_BATCH_ROWS", 3)
    monkeypatch.setattr(delta_rewrite, "_MATCHED_ROWS", 3)
    monkeypatch.setattr(delta_rewrite, "_SLICES", 2)
    monkeypatch.setattr(delta_rewrite, "_MARKED_SLICES", 4)
    monkeypatch.setattr(delta_rewrite, "_FILTER_BITS", 16)
    random, content = np.random.default_rng(seed), changes()
    sink = prepare(declare(tmp_path, "delta", key=key)).open("token")
    for time in range(30):
        change = next_changes(content, random, is_keyed=bool(key))
        if change.num_rows == 0:
            continue
        sink.write(time, change if random.random() < 0.3 else split_into_pieces(change, 4, key))
        content = consolidate_delta(pa.concat_tables([content, change]))
        assert has_content(read_table(tmp_path), content), time
        assert DeltaTable(tmp_path / "target").transaction_version("token") == time
        if random.random() < 0.2:
            DeltaTable(tmp_path / "target").optimize.compact()
    list_live(tmp_path)


def test_only_rows_of_null_are_removed(tmp_path: Path) -> None:
    """Files that have no NULL are excluded; one has nothing else."""
    sink = prepare(declare(tmp_path, "delta")).open("token")
    write_files(sink, [row(None)], [row(1), row(None)], [row(2)])
    before = list_live(tmp_path)
    sink.write(3, split_into_pieces(changes((row(None), -2)), 4))
    assert has_content(read_table(tmp_path), changes((row(1), 1), (row(2), 1)))
    assert len(before & list_live(tmp_path)) == 1


@pytest.mark.parametrize("batch_rows", [1, 65_536])
def test_n_of_m_copies_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int) -> None:
    """The copies are in several files and batches; 0.0 and -0.0 differ, any NaN equals any NaN."""
    monkeypatch.setattr(delta_files, "_BATCH_ROWS", batch_rows)
    monkeypatch.setattr(delta_rewrite, "_MATCHED_ROWS", batch_rows)
    sink = prepare(declare(tmp_path, "delta")).open("token")
    values = [0.0, -0.0, float("nan"), None]
    content = changes()
    for time in range(3):
        added = changes(*((row(1, ratio=value), 3) for value in values), (row(None), 2))
        sink.write(time, added)
        content = pa.concat_tables([content, added])
    removed = changes((row(1, ratio=-0.0), -5), (row(1, ratio=float("nan")), -9), (row(None), -1), (row(2), 4))
    sink.write(3, split_into_pieces(removed, 4))
    assert has_content(read_table(tmp_path), consolidate_delta(pa.concat_tables([content, removed])))


def test_another_reader_sees_the_same_rows_and_one_commit(tmp_path: Path) -> None:
    """DuckDB reads the files that the log names: the statistics and the files are those of the Delta package."""
    sink = prepare(declare(tmp_path, "delta", key=("id",))).open("token")
    write_files(sink, [row(number) for number in range(10)])
    change = changes(*((row(number), -1) for number in range(0, 10, 2)), (row(0, "z"), 1), (row(70), 1))
    sink.write(4, split_into_pieces(change, 4, ("id",)))
    files = [str(tmp_path / "target" / name) for name in list_live(tmp_path)]
    found = duckdb.read_parquet(files).order("id").project("id, name").fetchall()
    assert found == [(0, "z"), *((number, "a") for number in range(1, 10, 2)), (70, "a")]
    table = DeltaTable(tmp_path / "target")
    assert [each["operation"] for each in table.history()] == ["WRITE", "WRITE", "CREATE TABLE"]
    [statistics] = pa.table(table.get_add_actions(flatten=True)).select(["num_records", "min.id", "max.id"]).to_pylist()
    assert statistics == {"num_records": 7, "min.id": 0, "max.id": 70}


@KEYS
def test_files_without_removed_rows_are_left_alone(tmp_path: Path, key: tuple[str, ...]) -> None:
    """Those that the statistics exclude are not even read: here they are away. One that lacks the rows is read."""
    sink = prepare(declare(tmp_path, "delta", key=key)).open("token")
    groups = [[row(number) for number in range(start, start + 10)] for start in range(0, 50, 10)]
    write_files(sink, *groups, [row(-5), row(99)])
    before = list_live(tmp_path)
    target = DeltaTable(tmp_path / "target")
    far = [Path(uri) for number in (0, 30, 40) for uri in target.file_uris(file_pruning_predicate=f"id = {number}")]
    far = [path for path in far if pq.read_metadata(path).num_rows == 10]
    assert len(far) == 3
    for path in far:
        path.rename(f"{path}.away")
    sink.write(9, split_into_pieces(changes((row(25), -1), (row(15), -1), (row(15, "new"), 1)), 4, key))
    for path in far:
        Path(f"{path}.away").rename(path)
    after = list_live(tmp_path)
    assert len(before - after) == 2
    assert len(after - before) == 1
    content = changes(*((one, 1) for group in groups for one in group), (row(-5), 1), (row(99), 1))
    change = changes((row(25), -1), (row(15), -1), (row(15, "new"), 1))
    assert has_content(read_table(tmp_path), consolidate_delta(pa.concat_tables([content, change])))


@KEYS
def test_files_without_statistics_are_read(tmp_path: Path, key: tuple[str, ...]) -> None:
    """Otherwise rows to remove would seem to be missing. The Delta package excludes such files."""
    sink = prepare(declare(tmp_path, "delta", key=key)).open("token")
    DeltaTable(tmp_path / "target").alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "0"})
    sink = prepare(declare(tmp_path, "delta", key=key)).open("token")
    write_files(sink, [row(1), row(2), row(3)])
    [file] = pa.table(DeltaTable(tmp_path / "target").get_add_actions()).to_pylist()
    assert not (file.get("min") or {}).get("id")
    sink.write(1, split_into_pieces(changes((row(1), -1), (row(2), -1)), 4, key))
    assert read_table(tmp_path)["id"].to_pylist() == [3]


@KEYS
def test_a_transaction_may_remove_all_rows_or_none(tmp_path: Path, key: tuple[str, ...]) -> None:
    sink = prepare(declare(tmp_path, "delta", key=key)).open("token")
    added = changes(*((row(number), 1) for number in range(8)))
    mixed = split_into_pieces(added, 4, key)
    mixed.is_addition = False
    sink.write(0, mixed)
    assert has_content(read_table(tmp_path), added)
    removed = changes(*((row(number), -1) for number in range(8)))
    sink.write(1, split_into_pieces(removed, 4, key))
    assert read_table(tmp_path).num_rows == 0
    assert list_live(tmp_path) == set()
    assert sink.last() == 1


@KEYS
def test_a_table_that_another_writer_changed_fails_the_sink(tmp_path: Path, key: tuple[str, ...]) -> None:
    """Nothing is written, so that retries do not fill the disk."""
    sink = prepare(declare(tmp_path, "delta", key=key)).open("token")
    write_files(sink, [row(number) for number in range(8)])
    DeltaTable(tmp_path / "target").delete("id = 1 OR id = 2")
    before = list_files(tmp_path)
    change = changes(*((row(number), -1) for number in range(5)), (row(50), 1))
    with pytest.raises(SinkFailed, match="2 rows to be removed are not in the table: another writer changed it"):
        sink.write(1, split_into_pieces(change, 4, key))
    assert list_files(tmp_path) == before
    assert sink.last() == 0


def test_a_column_that_was_added_later_is_null_in_older_files(tmp_path: Path) -> None:
    narrow = prepare(declare(tmp_path, "delta")).open("token")
    write_files(narrow, [row(1), row(2), row(3)])
    wider = SCHEMA.append(pa.field("more", pa.string()))
    sink = prepare(declare(tmp_path, "delta", schema=wider)).open("token")
    sink.write(1, changes(({**row(4), "more": "x"}, 2), schema=wider))
    change = changes(
        ({**row(1), "more": None}, -1),
        ({**row(4), "more": "x"}, -1),
        ({**row(2), "more": None}, -1),
        ({**row(2), "more": "y"}, 1),
        schema=wider,
    )
    sink.write(2, split_into_pieces(change, 4))
    found = sorted((one["id"], one["more"]) for one in read_table(tmp_path).to_pylist())
    assert found == [(2, "y"), (3, None), (4, "x")]


@pytest.mark.parametrize("pieces", [1, 4])
def test_copies_in_files_without_statistics_of_a_new_column_are_counted(tmp_path: Path, pieces: int) -> None:
    """Seen to fail: the dataset of the Delta package excludes such a file, and both copies were lost."""
    narrow = pa.schema([pa.field("f", pa.float64())])
    wide = narrow.append(pa.field("n", pa.int64()))
    sink = prepare(declare(tmp_path, "delta", schema=narrow)).open("token")
    sink.write(0, changes(({"f": 1.0}, 1), ({"f": 2.0}, 1), schema=narrow))
    sink = prepare(declare(tmp_path, "delta", schema=wide)).open("token")
    sink.write(1, changes(({"f": 1.0, "n": None}, 1), ({"f": 1.0, "n": 3}, 1), schema=wide))
    removed = changes(({"f": 1.0, "n": None}, -1), schema=wide)
    sink.write(2, removed if pieces == 1 else split_into_pieces(removed, pieces))
    found = sorted(map(str, read_table(tmp_path).to_pylist()))
    assert found == ["{'f': 1.0, 'n': 3}", "{'f': 1.0, 'n': None}", "{'f': 2.0, 'n': None}"]


def test_v7_texts_of_different_pieces_that_become_equal_are_counted(tmp_path: Path) -> None:
    sink = prepare(declare(tmp_path, "delta", schema=TEXTS)).open("token")
    texts = [bytes([255 - number]) for number in range(16)]
    sink.write(0, text_changes(*((1, text, 2) for text in texts), (1, b"a", 1)))
    change = text_changes(*((1, text, -1) for text in texts[:12]), (1, b"\x80", 1), (1, b"a", -1))
    sink.write(1, split_into_pieces(change, 8))
    assert read_table(tmp_path).to_pylist() == [{"id": 1, "s": "\ufffd"}] * (32 - 12 + 1)


def test_i9_an_earlier_process_of_the_sink_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both compared the number, and found it missing; then the other one committed."""
    opener = prepare(declare(tmp_path, "delta")).open
    late, sink = opener("token"), opener("token")
    write_files(sink, [row(1), row(2)], [row(3)])
    late.last()
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "update_incremental", lambda _: None)
        late = opener("token")
        sink.write(2, changes((row(4), 1)))
        with pytest.raises(SinkFailed, match="another process changed the table during the write"):
            late.write(2, split_into_pieces(changes((row(1), -1), (row(5), 1)), 4))
    late.write(2, split_into_pieces(changes((row(1), -1), (row(5), 1)), 4))
    assert sorted(read_table(tmp_path)["id"].to_pylist()) == [1, 2, 3, 4]


def test_maintenance_during_the_write_fails_it_and_a_retry_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail: the Delta package accepts the commit, and rows 1 and 2 are in the compacted file as well."""
    sink = prepare(declare(tmp_path, "delta")).open("token")
    write_files(sink, [row(1), row(2)], [row(3)])
    change = split_into_pieces(changes((row(1), -1), (row(5), 1)), 4)
    copy = fs.copy_files

    def compact(*args: Any, **kwargs: Any) -> None:
        copy(*args, **kwargs)
        DeltaTable(tmp_path / "target").optimize.compact()

    with monkeypatch.context() as patch:
        patch.setattr(fs, "copy_files", compact)
        with pytest.raises(SinkFailed, match="another process changed the table during the write"):
            sink.write(2, change)
    sink.write(2, change)
    assert sorted(read_table(tmp_path)["id"].to_pylist()) == [2, 3, 5]


def test_the_log_file_of_the_own_commit_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process committed after it, so it is not the newest."""
    sink = prepare(declare(tmp_path, "delta")).open("token")
    write_files(sink, [row(1), row(2)])
    commit = DeltaTable.create_write_transaction
    synced: list[Path] = []

    def append(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        commit(self, *args, **kwargs)
        write_deltalake(tmp_path / "target", pa.Table.from_pylist([row(7)], SCHEMA), mode="append")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", append)
    monkeypatch.setattr(delta, "_sync_path", synced.append)
    sink.write(2, split_into_pieces(changes((row(1), -1), (row(5), 1)), 4))
    assert sorted(read_table(tmp_path)["id"].to_pylist()) == [2, 5, 7]
    assert f"{2:020d}.json" in {path.name for path in synced}
    sink.write(3, changes((row(2), -1)))
    assert sorted(read_table(tmp_path)["id"].to_pylist()) == [5, 7]


def test_opening_syncs_the_commit_of_a_process_that_ended_before_it_could(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction is skipped from then on, so a power cut must not undo it."""
    sink = prepare(declare(tmp_path, "delta")).open("token")
    with monkeypatch.context() as patch:
        patch.setattr(delta, "_sync_path", lambda _: None)  # the process is killed after the commit
        sink.write(1, split_into_pieces(changes((row(1), 1), (row(2), 1)), 2))
    synced: list[str] = []
    monkeypatch.setattr(delta, "_sync_path", lambda path: synced.append(path.name))
    again = prepare(declare(tmp_path, "delta")).open("token")
    assert again.last() == 1
    assert f"{1:020d}.json" in synced
    assert any(name.endswith(".parquet") for name in synced)


def test_a_power_cut_never_leaves_a_commit_without_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and their names are synced before the commit, and the log after it."""
    sink = prepare(declare(tmp_path, "delta")).open("token")
    write_files(sink, [row(1), row(2)])
    before = list_live(tmp_path)
    events: list[str] = []
    commit = DeltaTable.create_write_transaction

    def watch(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        events.append("commit")
        commit(self, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", watch)
    monkeypatch.setattr(delta, "_sync_path", lambda path: events.append(path.name))
    sink.write(1, split_into_pieces(changes((row(1), -1), (row(5), 1)), 4))
    [new] = list_live(tmp_path) - before
    at = events.index("commit")
    assert events[:at] == [new, "target"]
    assert events[-2:] == [f"{2:020d}.json", "_delta_log"]


CRASH = """
import os, sys
from pathlib import Path
from deltalake import DeltaTable
from pyarrow import fs
from tests.sinks.test_delta_rewrite import large_change
from tests.sinks.kit import declare, prepare
place, point = Path(sys.argv[1]), sys.argv[2]
owner, name = {"copy": (fs, "copy_files"), "commit": (DeltaTable, "create_write_transaction")}[point.split()[1]]
call = getattr(owner, name)
def crash(*args, **kwargs):
    if point.startswith("after"):
        call(*args, **kwargs)
    os._exit(9)
setattr(owner, name, crash)
prepare(declare(place, "delta")).open("token").write(1, large_change())
"""


def large_change() -> Any:
    return split_into_pieces(changes((row(1), -1), (row(2), -2), (row(5), 1)), 4)


@pytest.mark.parametrize("point", ["before copy", "after copy", "before commit", "after commit"])
def test_j7_a_process_that_is_killed_writes_the_transaction_once(tmp_path: Path, point: str) -> None:
    opener = prepare(declare(tmp_path, "delta")).open
    opener("token").write(0, changes((row(1), 1), (row(2), 3), (row(3), 1)))
    before = read_table(tmp_path)
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    command = [sys.executable, "-c", CRASH, str(tmp_path), point]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 9, done.stderr
    is_committed = point == "after commit"
    assert (read_table(tmp_path) == before) is not is_committed
    sink = opener("token")
    assert sink.last() == (1 if is_committed else 0)
    sink.write(1, large_change())
    assert has_content(read_table(tmp_path), changes((row(2), 1), (row(3), 1), (row(5), 1)))
    assert len(DeltaTable(tmp_path / "target").history()) == 3


def _refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("name", ["TemporaryFile", "TemporaryDirectory"])
def test_x12_a_large_removal_waits_for_room_in_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sink = prepare(declare(tmp_path, "delta")).open("token")
    write_files(sink, [row(1), row(2)])
    before, change = list_files(tmp_path), split_into_pieces(changes((row(1), -1), (row(5), 1)), 4)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, name, _refuse)
        with pytest.raises(SinkFailed, match=r"temporary files in .* cannot be written or read: .*No space left"):
            sink.write(1, change)
    assert list_files(tmp_path) == before
    sink.write(1, change)
    assert sorted(read_table(tmp_path)["id"].to_pylist()) == [2, 5]


def test_x12_the_writer_of_temporary_files_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = prepare(declare(tmp_path, "delta")).open("token")
    write_files(sink, [row(1), row(2)])
    with monkeypatch.context() as patch:
        patch.setattr(delta_rewrite, "write_deltalake", _refuse)
        with pytest.raises(SinkFailed, match=r"temporary files in .* cannot be written or read: .*No space left"):
            sink.write(1, split_into_pieces(changes((row(1), -1), (row(5), 1)), 4))


@pytest.mark.parametrize("fails", ["copy", "sync"])
def test_a_full_target_keeps_no_files_of_a_failed_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Otherwise each retry would leave one more copy of the rows."""
    sink = prepare(declare(tmp_path, "delta")).open("token")
    write_files(sink, [row(1), row(2)])
    before, change = list_files(tmp_path), split_into_pieces(changes((row(1), -1), (row(5), 1)), 4)
    copy: Callable[..., None] = fs.copy_files

    def fill(*args: Any, **kwargs: Any) -> None:
        copy(*args, **kwargs)
        _refuse()

    with monkeypatch.context() as patch:
        if fails == "copy":
            patch.setattr(fs, "copy_files", fill)
        else:
            patch.setattr(delta, "_sync_path", _refuse)
        with pytest.raises(SinkFailed, match=r"target: OSError: .*No space left"):
            sink.write(1, change)
    assert list_files(tmp_path) == before
    sink.write(1, change)
    assert sorted(read_table(tmp_path)["id"].to_pylist()) == [2, 5]


def test_a_failure_after_the_commit_was_tried_deletes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit may have succeeded: its files must stay."""
    sink = prepare(declare(tmp_path, "delta")).open("token")
    write_files(sink, [row(1), row(2)])
    commit = DeltaTable.create_write_transaction

    def lose(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        commit(self, *args, **kwargs)
        raise OSError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", lose)
        with pytest.raises(SinkFailed, match="the answer is lost"):
            sink.write(1, large_removal := split_into_pieces(changes((row(1), -1), (row(5), 1)), 4))
    sink.write(1, large_removal)
    assert sorted(read_table(tmp_path)["id"].to_pylist()) == [2, 5]
