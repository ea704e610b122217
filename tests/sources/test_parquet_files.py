"""Parquet: row groups are fragments; columns that do not match stall the source, rows that do not fit are faults."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from evertide.errors import SourceChanged, SourceFailed
from evertide.sources.contract import OP, Limit, Source
from evertide.sources.values.rows import convert_push
from tests.sources.kit import (
    LIMIT,
    batches,
    every_kind,
    faults_in,
    ids,
    key_of,
    open_source,
    put,
    require_offer,
    rows_in,
    table,
    written_rows,
)


def write(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    os.utime(path, ns=(10**9, 10**9))
    return path


def orders(base: Path, **options: str) -> Source:
    return open_source(base, table("orders", "parquet", path="in", settle_ms="0", **options))


def test_row_groups_are_fragments_and_columns_are_found_by_name(tmp_path: Path) -> None:
    numbers = pa.array(range(10), pa.int32())
    write(tmp_path / "in/x.parquet", {"NAME": ["a"] * 10, "id": numbers}, row_group_size=2)
    source = orders(tmp_path)
    offer = require_offer(source, limit=Limit(rows=4, bytes=1 << 30))
    assert [batch.rows.num_rows for batch in batches(source, offer)] == [4, 4, 2]
    assert offer.rows == 10
    assert rows_in(source, offer)[9] == {"id": 9, "name": "a", "amount": None, OP: 0}
    assert source.offer(offer.after, LIMIT) is None


@settings(max_examples=30, deadline=None)
@given(rows=written_rows())
def test_rows_of_every_type_are_read_exactly(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    base = tmp_path_factory.mktemp("parquet")
    kept = pa.schema([field for field in every_kind() if field.name not in {"span", "clock"}])
    every = table("every", "parquet", kept, ["number"], path="in", settle_ms="0")
    expected = convert_push(every, [{name: row[name] for name in kept.names} for row in rows]).rows
    (base / "in").mkdir()
    pq.write_table(expected.drop_columns([OP]), base / "in/x.parquet")
    source = open_source(base, every)
    offer = require_offer(source)
    assert repr(rows_in(source, offer)) == repr(expected.to_pylist())
    assert faults_in(source, offer) == []


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"id": [1], "name": [5]}, "column 'name' of the file is BIGINT, expected STRING"),
        ({"id": [1.5]}, "column 'id' of the file is DOUBLE, expected BIGINT"),
        (
            {"id": [1], "amount": [Decimal("1.234")]},
            "column 'amount' of the file is DECIMAL(4, 3), expected DECIMAL(10, 2)",
        ),
        (
            {"id": [1], "extra": [1]},
            "the table has no column 'extra'; declare it, or set the option ignore_extra",
        ),
        ({"name": ["x"]}, "the file has no column 'id', which is NOT NULL in the table"),
    ],
)
def test_a_schema_that_does_not_match_stops_the_source(tmp_path: Path, columns: dict[str, Any], why: str) -> None:
    path = write(tmp_path / "in/x.parquet", columns)
    source = orders(tmp_path)
    with pytest.raises(SourceFailed) as failed:
        source.offer(source.start, LIMIT)
    assert why in failed.value.why
    assert failed.value.where == f"{path}, table 'orders'"


def test_extra_columns_may_be_ignored(tmp_path: Path) -> None:
    write(tmp_path / "in/x.parquet", {"extra": [[1]], "id": [1], "op": ["D"]})
    source = orders(tmp_path, ignore_extra="true", op_column="op")
    assert rows_in(source, require_offer(source)) == [{"id": 1, "name": None, "amount": None, OP: 1}]


def test_a_row_that_does_not_fit_is_a_fault_with_its_number(tmp_path: Path) -> None:
    write(tmp_path / "in/x.parquet", {"id": [1, None, 3, 4], "op": ["I", "I", "?", "U"]}, row_group_size=1)
    source = orders(tmp_path, op_column="op")
    offer = require_offer(source, limit=Limit(2, 1 << 30))
    assert ids(source, offer) == [1, 4]
    found = [(fault.place, fault.line, key_of(fault), fault.after) for fault in faults_in(source, offer)]
    assert found == [("in/x.parquet", 2, None, 1), ("in/x.parquet", 3, {"id": 3}, 0)]


def test_j4_every_fragment_of_a_rewritten_file_is_source_changed(tmp_path: Path) -> None:
    path = write(tmp_path / "in/x.parquet", {"id": [1, 2]}, row_group_size=1)
    source = orders(tmp_path)
    offer = require_offer(source, limit=Limit(1, 1 << 30))
    assert ids(source, offer) == [1, 2]
    write(path, {"id": [1, 3]}, row_group_size=1)
    for fragment in offer.fragments:
        with pytest.raises(SourceChanged, match=r"expected .* bytes with the checksum"):
            list(source.read(fragment))


def test_a_file_that_is_not_parquet_stalls_the_source(tmp_path: Path) -> None:
    put(tmp_path / "in/x.parquet", "id,name\n1,x\n")
    source = orders(tmp_path)
    with pytest.raises(SourceFailed, match="the file cannot be read as Parquet"):
        source.offer(source.start, LIMIT)
