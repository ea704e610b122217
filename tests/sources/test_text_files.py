"""CSV and JSON lines: rows of every type are read exactly; a bad record is a fault with its line, and no other row is
lost.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertide.errors import InvalidInput, SourceFailed
from evertide.sources.contract import OP, Fault, Limit
from evertide.sources.values.rows import convert_push
from tests.sources.kit import (
    LIMIT,
    batches,
    every_kind,
    faults_in,
    key_of,
    open_source,
    put,
    require_offer,
    rows_in,
    table,
    written_rows,
)


def plain(value: Any) -> Any:
    """The value in JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, timedelta):
        span = abs(value)
        clock = datetime.min.replace(tzinfo=UTC) + timedelta(seconds=span.seconds, microseconds=span.microseconds)
        return f"{'-' if value < timedelta(0) else ''}{span.days} {clock.time().isoformat()}"
    if isinstance(value, Decimal | date | time):
        return str(value)
    if isinstance(value, list):
        return [plain(one) for one in value]
    return {name: plain(one) for name, one in value.items()} if isinstance(value, dict) else value


def field(value: Any) -> str:
    """The value in CSV: always quoted, unless it is NULL."""
    if value is None:
        return ""
    found = plain(value)
    text = found if isinstance(found, str) else json.dumps(found)
    return '"' + text.replace('"', '""') + '"'


def as_csv(rows: list[dict[str, Any]], names: list[str], end: str, delimiter: str) -> bytes:
    lines = [delimiter.join(names), *(delimiter.join(field(row[name]) for name in names) for row in rows)]
    return "".join(line + end for line in lines).encode()


def same_rows(base: Path, rows: list[dict[str, Any]], connector: str, limit: Limit, **options: str) -> None:
    every = table("every", connector, every_kind(), ["number"], path="in", settle_ms="0", **options)
    source = open_source(base, every)
    offer = require_offer(source, limit=limit)
    assert faults_in(source, offer) == []
    assert repr(rows_in(source, offer)) == repr(convert_push(every, rows).rows.to_pylist())


@settings(max_examples=40, deadline=None)
@given(
    rows=written_rows(), end=st.sampled_from(["\n", "\r\n"]), delimiter=st.sampled_from(",;\t"), most=st.integers(1, 5)
)
def test_csv_of_every_type_is_read_exactly(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], end: str, delimiter: str, most: int
) -> None:
    base = tmp_path_factory.mktemp("csv")
    put(base / "in/x.csv", as_csv(rows, every_kind().names, end, delimiter))
    same_rows(base, rows, "csv", Limit(most, 1 << 30), delimiter=delimiter)


@settings(max_examples=40, deadline=None)
@given(rows=written_rows(), most=st.integers(1, 5))
def test_json_of_every_type_is_read_exactly(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], most: int
) -> None:
    base = tmp_path_factory.mktemp("json")
    put(base / "in/x.json", "".join(json.dumps(plain(row)) + "\n" for row in rows) or "\n")
    same_rows(base, rows, "json", Limit(most, 1 << 30))


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text('a",\n\r é', max_size=6), min_size=1, max_size=5))
def test_csv_written_by_python_is_read_exactly(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    base, text = tmp_path_factory.mktemp("python"), io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_STRINGS if hasattr(csv, "QUOTE_STRINGS") else csv.QUOTE_NONNUMERIC)
    writer.writerows([["id", "name", "amount"], *([at, one, 1] for at, one in enumerate(texts))])
    put(base / "in/x.csv", text.getvalue())
    source = open_source(base, table(connector="csv", path="in", settle_ms="0"))
    assert [row["name"] for row in rows_in(source, require_offer(source))] == texts


CSV_WITH_FAULTS = b"""id,name,amount
1,a,1.5
2,b
3,"two
lines",abc
4,c,4,5
x,d,1
5,\xff,1
6,"e"f,1
7,"g
,h,1

8,i,8
"""
JSON_WITH_FAULTS = b"""{"id": 1, "name": "a"}
{"id": 2, "name": 5}
{"id": 3, "nmae": "c"}
[4]
{"id": 5,
{"id": 6, "name": "\xff"}
{"name": "g"}

{"id": 8, "amount": 8.10}
"""


def describe_fault(fault: Fault) -> tuple[int, str, dict[str, object] | None, int]:
    return fault.line, fault.reason, key_of(fault), fault.after


@pytest.mark.parametrize("most", [1, 2, 100])
def test_u6_bad_records_of_csv_are_faults_with_their_line_and_the_others_are_read(tmp_path: Path, most: int) -> None:
    """The key of a bad row is reported if it can be read, as the key's old row must be deleted."""
    put(tmp_path / "in/x.csv", CSV_WITH_FAULTS)
    source = open_source(tmp_path, table(connector="csv", path="in/", settle_ms="0"))
    offer = require_offer(source, limit=Limit(most, 1 << 30))
    assert [row["id"] for row in rows_in(source, offer)] == [1, 8]
    found = faults_in(source, offer)
    assert [(fault.line, fault.reason.partition(":")[0]) for fault in found] == [
        (3, "the record has 2 fields, expected 3"),
        (4, "column 'amount'"),
        (6, "the record has 4 fields, expected 3"),
        (7, "column 'id'"),
        (8, "the record is not UTF-8"),
        (9, "text between a closing quote and the next delimiter"),
        (10, "a quote is not closed"),
        (11, "column 'id'"),
    ]
    assert {fault.line: key_of(fault) for fault in found if fault.key} == {4: {"id": 3}}
    assert {(fault.table, fault.place) for fault in found} == {("orders", "in/x.csv")}
    assert found[4].raw == "5,\\xff,1"
    if most == 100:
        assert {fault.after for fault in found} == {1}, "all are between the two valid rows"


@pytest.mark.parametrize("most", [1, 100])
def test_u6_bad_lines_of_json_are_faults_too(tmp_path: Path, most: int) -> None:
    put(tmp_path / "in/x.json", JSON_WITH_FAULTS)
    source = open_source(tmp_path, table(connector="json", path="in", settle_ms="0"))
    offer = require_offer(source, limit=Limit(most, 1 << 30))
    assert [(row["id"], row["amount"]) for row in rows_in(source, offer)] == [(1, None), (8, Decimal("8.10"))]
    found = faults_in(source, offer)
    assert [(fault.line, key_of(fault)) for fault in found] == [
        (2, {"id": 2}),
        (3, {"id": 3}),
        (4, None),
        (5, None),
        (6, None),
        (7, None),
    ]
    assert found[0].reason == "column 'name': 5 is not a STRING: expected a text"
    assert found[1].reason == "the table has no column 'nmae'"
    assert found[3].reason.startswith("the line is not JSON")


def test_u5_changes_of_a_key_stay_in_order_with_faults_between_them(tmp_path: Path) -> None:
    put(tmp_path / "in/x.csv", "op,id,name\nI,1,a\nU,1,b\nU,1\nD,1,\nx,1,c\ndelete,9,\nU,,d\nU,1,e\n")
    source = open_source(tmp_path, table(connector="csv", path="in", settle_ms="0", op_column="op"))
    (batch,) = batches(source, require_offer(source))
    assert [(row["id"], row["name"], row[OP]) for row in batch.rows.to_pylist()] == [
        (1, "a", 0),
        (1, "b", 0),
        (1, None, 1),
        (9, None, 1),
        (1, "e", 0),
    ]
    assert [describe_fault(fault) for fault in batch.faults] == [
        (4, "the record has 2 fields, expected 3", None, 2),
        (6, "'x' is not an operation: expected I, U or D (insert, update, delete)", {"id": 1}, 3),
        (8, "column 'id': NULL is not allowed: the column is in the key", None, 4),
    ]


def test_a_delete_of_json_needs_the_key_only(tmp_path: Path) -> None:
    put(tmp_path / "in/x.json", '{"op": "D", "id": 1, "amount": "rubbish"}\n{"id": 2}\n{"op": "I", "id": 3}\n')
    source = open_source(tmp_path, table(connector="json", path="in", settle_ms="0", op_column="op"))
    offer = require_offer(source)
    assert [(row["id"], row["amount"], row[OP]) for row in rows_in(source, offer)] == [(1, None, 1), (3, None, 0)]
    assert [key_of(fault) for fault in faults_in(source, offer)] == [{"id": 2}]


def test_columns_of_csv_are_found_by_name_or_by_position(tmp_path: Path) -> None:
    put(tmp_path / "named/x.csv", "AMOUNT,extra,id\n1,x,5\n")
    put(tmp_path / "bare/x.csv", "5,x,NULL\n")
    named = open_source(tmp_path, table(connector="csv", path="named", settle_ms="0", ignore_extra="true"))
    bare = open_source(tmp_path, table(connector="csv", path="bare", settle_ms="0", header="false", null_value="NULL"))
    assert rows_in(named, require_offer(named)) == [{"id": 5, "name": None, "amount": Decimal(1), OP: 0}]
    assert rows_in(bare, require_offer(bare)) == [{"id": 5, "name": "x", "amount": None, OP: 0}]


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("id,name,extra", "the table has no column 'extra'"),
        ("name,amount", "the file has no column 'id', which is NOT NULL in the table"),
        ("id,ID", "the file has the column 'ID' twice"),
        ('id,"name', "line 1 should have the column names, but cannot be read: a quote is not closed"),
    ],
)
def test_a_header_that_does_not_match_stops_the_source(tmp_path: Path, header: str, why: str) -> None:
    put(tmp_path / "in/x.csv", f"{header}\n1,2,3\n")
    source = open_source(tmp_path, table(connector="csv", path="in", settle_ms="0"))
    with pytest.raises(SourceFailed) as failed:
        source.offer(source.start, LIMIT)
    assert why in failed.value.why


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_huge_file_is_never_in_memory_as_a_whole(tmp_path: Path, kind: str) -> None:
    """300,000 rows: only one block is in memory, for any size of the file and of its fragments."""
    count = 300_000
    lines = {"csv": '{0},"name {0}",1.5\n', "json": '{{"id":{0},"name":"name {0}"}}\n'}
    header = "id,name,amount\n" if kind == "csv" else ""
    put(tmp_path / "in/x", header + "".join(lines[kind].format(at) for at in range(count)))
    source = open_source(tmp_path, table(connector=kind, path="in", settle_ms="0"))
    for limit, fragments in ((count, 1), (70_000, 5)):
        offer = require_offer(source, limit=Limit(limit, 1 << 40))
        assert (len(offer.fragments), offer.rows) == (fragments, count)
        before, most, expected = pa.total_allocated_bytes(), 0, 0
        for batch in batches(source, offer):
            assert batch.rows.column("id")[0].as_py() == expected
            expected += batch.rows.num_rows
            most = max(most, pa.total_allocated_bytes() - before)
            assert batch.rows.num_rows <= 240_000
        assert expected == count
        assert most < 40 << 20


def test_invalid_options_are_refused(tmp_path: Path) -> None:
    for options, why in (
        ({"delimiter": ";;"}, "the option 'delimiter' is ';;'"),
        ({"delimiter": '"'}, "not a quote or line end"),
        ({"header": "maybe"}, "expected one of 'true', 'false'"),
        ({"settle_ms": "-1"}, "expected a whole number of at least 0"),
        ({"heder": "true"}, "connector 'csv' has no option 'heder'; did you mean 'header'?"),
        ({"path": "s3://bucket/x"}, "expected a local directory or file"),
        ({"path": ""}, "the option 'path' is missing"),
    ):
        with pytest.raises(InvalidInput) as refused:
            open_source(tmp_path, table(connector="csv", **{"path": "in", **options}))
        assert why in refused.value.why
        assert refused.value.where == "shop.sql, line 7, table 'orders'"
