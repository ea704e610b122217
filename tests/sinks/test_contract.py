"""The promises of all sinks that store their number, checked for each of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from evertide.errors import SinkFailed
from evertide.rows.changes import consolidate_delta
from tests.sinks.kit import changes, declare, prepare, row, split_into_pieces

CONNECTORS = ["delta", "files"]


def rows(path: Path, connector: str) -> int:
    if connector == "delta":
        return int(DeltaTable(path / "target").to_pyarrow_table().num_rows)
    return sum(pq.read_metadata(each).num_rows for each in (path / "target").glob("*.parquet"))


@pytest.mark.parametrize("connector", CONNECTORS)
def test_j7_a_number_that_the_target_has_is_skipped(tmp_path: Path, connector: str) -> None:
    """By its number alone, also after the sink was reopened. A second write would double the row."""
    opener = prepare(declare(tmp_path, connector)).open
    sink = opener("token")
    assert sink.last() is None
    sink.write(3, changes((row(1), 1)))
    sink.write(3, changes((row(1), 1)))
    assert sink.last() == 3
    again = opener("token")
    assert again.last() == 3
    again.write(2, changes((row(2), 1)))
    again.write(3, changes((row(1), 1)))
    assert rows(tmp_path, connector) == 1
    again.write(7, changes((row(2), 1)))  # gaps are transactions without changes
    assert again.last() == 7
    assert rows(tmp_path, connector) == 2


@pytest.mark.parametrize("connector", CONNECTORS)
def test_the_target_of_another_sink_is_refused(tmp_path: Path, connector: str) -> None:
    """Its numbers belong to another history: continuing would skip new transactions, or add to old content."""
    ready = prepare(declare(tmp_path, connector))
    ready.probe()
    ready.open("token").write(3, changes((row(1), 1)))
    with pytest.raises(SinkFailed, match=r"of another sink|did not create"):
        ready.probe()
    with pytest.raises(SinkFailed, match=r"of another sink|did not create"):
        ready.open("another")
    assert rows(tmp_path, connector) == 1


@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_failed_write_can_be_repeated(tmp_path: Path, connector: str) -> None:
    opener = prepare(declare(tmp_path, connector)).open
    sink = opener("token")
    sink.write(0, changes((row(1), 1)))
    away = tmp_path / "elsewhere"
    (tmp_path / "target").rename(away)
    with pytest.raises(SinkFailed):
        sink.write(1, changes((row(2), 1)))
    away.rename(tmp_path / "target")
    sink = opener("token")
    assert sink.last() == 0
    sink.write(1, changes((row(2), 1)))
    assert rows(tmp_path, connector) == 2


def test_files_hold_a_large_transaction_piece_by_piece_in_one_file(tmp_path: Path) -> None:
    given = changes(*((row(number), 1 + number % 3) for number in range(50)))
    sink = prepare(declare(tmp_path, "files")).open("token")
    sink.write(3, split_into_pieces(given, 8))
    [path] = (tmp_path / "target").glob("*.parquet")
    found = pq.read_table(path)
    assert found["__time"].unique().to_pylist() == [3]
    assert consolidate_delta(found.drop_columns(["__time"]).cast(given.schema)) == given


def test_files_are_a_log_of_changes(tmp_path: Path) -> None:
    sink = prepare(declare(tmp_path, "files")).open("token")
    assert sink.keeps_number
    sink.write(0, changes((row(1), 2), (row(None), 1)))
    sink.write(12, changes((row(1), -1)))
    names = sorted(each.name for each in (tmp_path / "target").glob("*.parquet"))
    assert names == [f"{0:020d}.parquet", f"{12:020d}.parquet"]
    found = pq.read_table(tmp_path / "target" / names[1])
    assert found.schema.names[-2:] == ["__time", "__diff"]
    assert found.to_pylist() == [{**row(1), "__time": 12, "__diff": -1}]
    whole = pq.read_table(tmp_path / "target")
    assert whole.num_rows == 3  # a reader of the directory ignores the mark
    assert pa.compute.sum(whole["__diff"]).as_py() == 2


def test_files_that_were_read_may_be_deleted(tmp_path: Path) -> None:
    """The sink then has no number, and does not claim to remember one: the number comes from the storage's record."""
    opener = prepare(declare(tmp_path, "files")).open
    opener("token").write(5, changes((row(1), 1)))
    (tmp_path / "target" / f"{5:020d}.parquet").unlink()
    sink = opener("token")
    assert (sink.last(), sink.keeps_number) == (None, False)


def test_a_damaged_mark_fails_the_sink(tmp_path: Path) -> None:
    opener = prepare(declare(tmp_path, "files")).open
    opener("token")
    (tmp_path / "target" / "_evertide.json").write_text("{")
    with pytest.raises(SinkFailed, match=r"_evertide.json cannot be read"):
        opener("token")
