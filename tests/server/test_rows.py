"""Rows in every format and of every type, and changes between two times."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evertide.errors import Unavailable
from evertide.media import ARROW, PARQUET
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.reading import content
from evertide.rows.python_rows import _find_integer_type
from evertide.server.endpoints.formats import encode_rows
from evertide.settings import Settings
from evertide.shard.shard import Shard
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import open_pipeline, rows_of, storage
from tests.server.kit import Client, order, served, shop, until

ROWS = "/v1/tables/orders/rows"

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
TYPES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("t", pa.int8()),
        ("s", pa.int16()),
        ("i", pa.int32()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("x", pa.string()),
        ("y", pa.binary()),
        ("da", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("tn", pa.timestamp("us")),
        ("du", pa.duration("us")),
        ("ti", pa.time64("ns")),
        ("de", pa.decimal128(38, 18)),
        ("ar", pa.list_(pa.int32())),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("mi", pa.map_(pa.int32(), pa.string())),
        ("st", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
        ("v", VARIANT),
    ]
)
FULL = {
    "id": 1, "t": -128, "s": 5, "i": 2**31 - 1, "f": 1.5, "d": 0.1, "b": True, "x": 'a,"b"\nc', "y": "AP8=",
    "da": "2026-01-31", "ts": "2026-01-31T10:20:30.123456Z", "tn": "2026-01-31T10:20:30.5", "du": "-1 02:03:04.5",
    "ti": "10:20:30.5", "de": "12345678901234567890.123456789012345678", "ar": [1, None], "m": {"k": 1, "": None},
    "mi": [[1, "x"]], "st": {"a": 1, "b": ["", "z"]}, "v": {"q": [1, "2", None, {"z": 1.5}]},
}  # fmt: skip
SOME = [
    FULL,
    {"id": 2, "d": "NaN", "f": "-Infinity", "x": "", "y": "", "ar": [], "m": {}, "v": [1]},
    {"id": 3},
    {"id": 4, "x": " padded ", "d": -0.0, "de": "0", "b": False},
]


@pytest.mark.parametrize("form", ["json", "ndjson", "csv", "arrow", "parquet"])
def test_rows_of_an_answer_can_be_pushed_again_unchanged(form: str) -> None:
    """All types of Spark, NULL, NaN, -0.0, an empty text. Fails if CSV does not distinguish NULL and an empty text, or
    JSON rounds a decimal."""
    tables = DeclaredTable("types", TYPES, key=("id",)), DeclaredTable("copy", TYPES, key=("id",))
    with open_pipeline(storage(), SmallEngine(tables, [])) as p, served(p) as client:
        assert client.post("/v1/tables/types/rows", SOME).status == 200
        given = client.raw("GET", f"/v1/tables/types/rows?format={form}")
        assert (given.status, given.headers["evertide-time"]) == (200, "1")
        again = given.content
        if form == "json":
            told = json.loads(again)
            names = [column["name"] for column in told["columns"]]
            again = json.dumps([dict(zip(names, row, strict=True)) for row in told["rows"]]).encode()
        assert client.post("/v1/tables/copy/rows", again, {"Content-Type": given.media}).body["rows"] == len(SOME)
        assert repr(rows_of(p, "copy")) == repr(rows_of(p, "types"))
        keys = json.dumps([1, 2, 3]).encode()
        assert client.post("/v1/tables/copy/rows?deletes=true", keys).body["rows"] == 3
        assert [row[0] for row in rows_of(p, "copy")] == [4]


@pytest.mark.parametrize("media", [ARROW, PARQUET])
def test_v5_a_null_struct_with_a_not_null_field_is_encoded(media: str) -> None:
    """Arrow's own cast refuses such rows, even to their own type."""
    texts = pa.array([b"a", None])
    column = pa.StructArray.from_arrays([texts, texts], fields=list(VARIANT), mask=pa.array([False, True]))
    rows = pa.table({"v": column})
    file = pa.BufferReader(b"".join(encode_rows(media, rows.schema, [rows])))
    found = pa.ipc.open_stream(file).read_all() if media == ARROW else pq.read_table(file)
    assert found.to_pylist() == rows.to_pylist()


def test_the_header_accept_chooses_the_format_and_an_unknown_format_is_406() -> None:
    with shop() as (_, client):
        client.post(ROWS, [order(1)])
        for accept, media in [
            ("text/csv", "text/csv"),
            ("text/html, application/x-ndjson;q=0.5", "application/x-ndjson"),
            ("*/*", "application/json"),
            ("application/json;q=0.1, text/csv", "text/csv"),
        ]:
            assert client.raw("GET", ROWS, headers={"Accept": accept}).media == media
        for path, headers in [(ROWS, {"Accept": "image/png"}), (f"{ROWS}?format=xml", {}), (f"{ROWS}?format=dot", {})]:
            answer = client.ask("GET", path, headers=headers)
            assert (answer.status, answer.body["error_code"]) == (406, "not_acceptable")
            assert "text/csv" in answer.body["message"]


def test_some_columns_and_rows_at_an_earlier_time() -> None:
    with shop() as (_, client):
        client.post(ROWS, [order(number, "bob" if number % 2 else "ann", number) for number in range(1, 7)])
        client.post(ROWS, {"deletes": [1]})
        assert len(client.get(f"{ROWS}?as_of=1").body["rows"]) == 6
        assert client.get(f"{ROWS}?as_of=0").body["rows"] == []
        where = quote("customer = $1 AND amount > 2")
        found = client.get(f"{ROWS}?columns=AMOUNT,id&where={where}&params[1]=bob").body
        assert [column["name"] for column in found["columns"]] == ["amount", "id"]
        assert sorted(found["rows"]) == [[3, 3], [5, 5]]
        assert len(client.get(f"{ROWS}?limit=2").body["rows"]) == 2
        assert client.get(f"{ROWS}?limit=0").body["rows"] == []
        assert client.get("/v1/views/revenue/rows").body["rows"] == [["ann", 12], ["bob", 8]]


@pytest.mark.parametrize(
    ("query", "status", "why"),
    [
        ("as_of=9", 400, "the last time is 1"),
        ("as_of=-1", 400, ">= 0"),
        ("columns=nothing", 400, "collection 'orders' has no column 'nothing'"),
        ("where=amount", 400, "where"),
        ("where=pg_sleep(1)", 400, "pg_sleep"),
        ("params[1]=x", 400, "params need the parameter 'where'"),
        ("limit=many", 400, "limit"),
    ],
)
def test_invalid_requests_for_rows_are_refused(query: str, status: int, why: str) -> None:
    with shop() as (_, client):
        client.post(ROWS, [order(1)])
        answer = client.get(f"{ROWS}?{query}")
        assert answer.status == status
        assert why in str(answer.body)


def test_a_compacted_time_is_410_with_the_first_readable_time() -> None:
    with shop() as (p, client):
        for number in range(1, 5):
            client.post(ROWS, [order(number)])
            p.checkpoint()
        answer = client.get(f"{ROWS}?as_of=0")
        assert (answer.status, answer.body["error_code"], answer.body["since"]) == (410, "time_compacted", 3)


def test_a_large_collection_comes_in_groups_and_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts with and without retractions, read group by group. Fails if a group ignores deletes in another."""
    monkeypatch.setattr(content, "_WHOLE_BYTES", 1)
    monkeypatch.setattr(content, "_GROUP_BYTES", 2000)
    with shop(settings=Settings(inline_bytes_max=1, part_rows_max=50)) as (p, client):
        client.post(ROWS, [order(number, f"c{number % 7}", number) for number in range(400)])
        client.post(ROWS, [order(number, "changed", -number) for number in range(0, 40, 5)])
        client.post(ROWS, {"deletes": [*range(0, 40, 3)]})
        client.post("/v1/tables/notes/rows", [{"text": "again"}] * 30)
        client.post("/v1/tables/notes/rows", {"deletes": [{"text": "again"}] * 10})
        assert sorted(map(tuple, client.get(ROWS).body["rows"])) == sorted(rows_of(p, "orders"))
        assert client.get("/v1/tables/notes/rows").body["rows"] == [["again"]] * 20
        where = quote("amount < 0")
        lines = client.raw("GET", f"{ROWS}?columns=id&where={where}&format=ndjson").content.splitlines()
        expected = {row[0] for row in rows_of(p, "orders") if row[2] < 0}
        assert {json.loads(line)["id"] for line in lines} == expected
        assert not p.storage.meta.heads("lease/"), "leases are released"


def test_a_client_that_disconnects_leaves_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the stream is not closed with its connection."""
    monkeypatch.setattr(content, "_WHOLE_BYTES", 1)
    monkeypatch.setattr(content, "_GROUP_BYTES", 1)
    with shop(settings=Settings(inline_bytes_max=1, part_rows_max=2000)) as (p, client):
        wide = "x" * 1000
        client.post(ROWS, [order(number, f"{wide}{number}") for number in range(20_000)])
        gone = _begin_download(client, f"{ROWS}?format=ndjson")
        assert p.storage.meta.heads("lease/")
        gone.close()
        until(lambda: not p.storage.meta.heads("lease/"))


def _begin_download(client: Client, path: str) -> Any:
    import socket  # noqa: PLC0415 - only here

    connection = socket.create_connection((client.host, client.port))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {client.host}:{client.port}\r\n\r\n".encode())
    assert connection.recv(100).startswith(b"HTTP/1.1 200")
    return connection


def changes(client: Client, query: str) -> tuple[list[Any], int]:
    *told, end = (
        json.loads(line) for line in client.raw("GET", f"/v1/views/revenue/changes?{query}").content.splitlines()
    )
    return [(one["time"], one["diff"], one["row"]["amount"]) for one in told], end["complete"]


def test_changes_between_two_times_are_returned_and_waited_for() -> None:
    with shop() as (_, client), ThreadPoolExecutor(1) as threads:
        for amount in (10, 11, 12):
            client.post(ROWS, [order(1, amount=amount)])
        assert changes(client, "since=1") == ([(2, -1, 10), (2, 1, 11), (3, -1, 11), (3, 1, 12)], 3)
        assert changes(client, "since=1&until=2") == ([(2, -1, 10), (2, 1, 11)], 2)
        assert changes(client, "since=3") == ([], 3)
        assert changes(client, "since=3&wait_s=0.05") == ([], 3)
        waiting = threads.submit(changes, client, "since=3&wait_s=60")
        client.post(ROWS, [order(1, amount=13)])
        assert waiting.result() == ([(4, -1, 12), (4, 1, 13)], 4)
        raw = client.raw("GET", "/v1/tables/orders/changes?since=3&format=arrow")
        with pa.ipc.open_stream(raw.content) as stream:
            assert [(row["__time"], row["__diff"]) for row in stream.read_all().to_pylist()] == [(4, -1), (4, 1)]
        assert raw.headers["evertide-time"] == "4"


def test_an_outage_while_a_request_waits_for_changes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to fail: it was taken for a wait without a transaction, and the answer was an empty success."""

    def fail(*_: object) -> None:
        raise Unavailable(path="s", why="away")

    with shop() as (_, client):
        client.post(ROWS, [order(1)])
        monkeypatch.setattr(Shard, "wait_for_upper", fail)
        answer = client.get("/v1/views/revenue/changes?since=1&wait_s=0.05")
        assert (answer.status, answer.body["error_code"]) == (503, "unavailable")


@pytest.mark.parametrize("query", ["", "since=9", "since=2&until=1", "since=1&wait_s=61", "since=1&until=9"])
def test_invalid_requests_for_changes_are_refused(query: str) -> None:
    with shop() as (_, client):
        client.post(ROWS, [order(1)])
        client.post(ROWS, [order(2)])
        assert client.get(f"/v1/views/revenue/changes?{query}").body["error_code"] == "invalid_input"


def test_head_is_answered_by_the_headers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the server reads or waits for anything."""

    def unread(*_: object) -> None:
        raise AssertionError("a HEAD request read rows")

    with shop() as (_, client):
        client.post(ROWS, [order(1)])
        monkeypatch.setattr(content.CollectionContent, "tables", unread)
        monkeypatch.setattr(Shard, "wait_for_upper", unread)
        monkeypatch.setattr(Shard, "changes", unread)
        for path, media in [
            (f"{ROWS}?format=csv", "text/csv"),
            (ROWS, "application/json"),
            ("/v1/views/revenue/changes?since=1&wait_s=60", "application/x-ndjson"),
            ("/v1/views/revenue/changes?since=0", "application/x-ndjson"),
        ]:
            answer = client.raw("HEAD", path)
            assert (answer.status, answer.media, answer.headers["evertide-time"]) == (200, media, "1")
            assert "content-length" not in answer.headers
        assert client.raw("HEAD", f"{ROWS}?as_of=9").status == 400


FAR = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("da", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("tn", pa.timestamp("us")),
        ("st", pa.struct([("l", pa.list_(pa.date32()))])),
    ]
)
FAR_ROWS: list[list[Any]] = [
    [1, 2_932_897, 253_402_300_800_000_000, 253_402_300_800_000_001, {"l": [2_932_896, 2_932_897]}],
    [2, -719_163, -62_135_596_800_000_001, 2**63 - 1, {"l": [None]}],
    [3, 0, 0, None, None],
    [4, -719_529 - 365, None, -(2**63) + 1, {"l": []}],
]
FAR_TOLD = [
    [1, "+10000-01-01", "+10000-01-01T00:00:00+00:00", "+10000-01-01T00:00:00.000001"],
    [2, "0000-12-31", "0000-12-31T23:59:59.999999+00:00", "+294247-01-10T04:00:54.775807"],
    [3, "1970-01-01", "1970-01-01T00:00:00+00:00", None],
    [4, "-0002-12-31", None, "-290308-12-21T19:59:05.224193"],
]


def far_rows() -> pa.Table:
    """Return days as numbers, as Python cannot represent them."""
    columns = [pa.array([row[at] for row in FAR_ROWS], _find_integer_type(field.type)) for at, field in enumerate(FAR)]
    typed = [column.cast(field.type) for column, field in zip(columns, FAR, strict=True)]
    return pa.Table.from_arrays(typed, schema=FAR)


def test_days_beyond_the_range_of_python_are_written_as_by_spark() -> None:
    """Beyond year 9999 and before year 1, also inside of other types. Fails with an `OverflowError` if each is
    converted to a Python value."""
    with open_pipeline(storage(), SmallEngine([DeclaredTable("far", FAR, key=("id",))], [])) as p, served(p) as client:
        p.push("far", far_rows())
        p.commit()
        told = client.get("/v1/tables/far/rows").body["rows"]
        assert [row[:4] for row in sorted(told)] == FAR_TOLD
        assert [row[4] for row in sorted(told)][:2] == [{"l": ["9999-12-31", "+10000-01-01"]}, {"l": [None]}]
        lines = client.raw("GET", "/v1/tables/far/rows?format=csv&columns=da,ts").content.decode().splitlines()
        assert "+10000-01-01,+10000-01-01T00:00:00+00:00" in lines
        changed = client.raw("GET", "/v1/tables/far/changes?since=0").content.splitlines()
        assert {json.loads(line)["row"]["da"] for line in changed[:-1]} == {row[1] for row in FAR_TOLD}
