"""V7: rows with texts that are not valid UTF-8, by HTTP and as shapes."""

from __future__ import annotations

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evertide.client import Client as PythonClient
from evertide.errors import InvalidInput
from evertide.pgexpr.types.texts import write_column as postgres_texts
from evertide.pipeline.engine import DeclaredTable
from evertide.rows.utf8 import convert_texts_to_bytes
from evertide.server.query.duck import Duck, DuckDeclined
from evertide.settings import Settings
from evertide.sources.values.columns import from_arrow
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import open_pipeline, storage
from tests.server.kit import served
from tests.shapes.kit import Follower, shop

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string()), ("l", pa.list_(pa.string()))])
BAD = b"\xff\xfe\x80abc"
SHOWN = "\ufffd\ufffd\ufffdabc"


def write_column(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary()).view(pa.string())


def rows(*values: bytes) -> pa.Table:
    lists = pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), write_column(*values))
    return pa.Table.from_arrays([pa.array(range(len(values))), write_column(*values), lists], schema=SCHEMA)


def engine() -> SmallEngine:
    keyed = DeclaredTable("byname", pa.schema([pa.field("s", pa.string(), nullable=False)]), key=("s",))
    return SmallEngine(
        [DeclaredTable("t", SCHEMA, key=("id",)), keyed, DeclaredTable("bare", pa.schema([("s", pa.string())]))], []
    )


def test_v7_rows_and_changes() -> None:
    """Arrow and Parquet have the bytes, texts have U+FFFD. Fails with status 500 in JSON, lines and CSV."""
    with open_pipeline(storage(), engine()) as p, served(p) as client:
        p.push("t", rows(BAD, b"ok"))
        p.commit()
        assert client.get("/v1/tables/t/rows").body["rows"] == [[0, SHOWN, [SHOWN]], [1, "ok", ["ok"]]]
        lines = client.raw("GET", "/v1/tables/t/rows?format=ndjson").content.splitlines()
        assert json.loads(lines[0]) == {"id": 0, "s": SHOWN, "l": [SHOWN]}
        assert SHOWN in client.raw("GET", "/v1/tables/t/rows?format=csv").content.decode()
        parquet = client.raw("GET", "/v1/tables/t/rows?format=parquet").content
        assert pq.read_table(io.BytesIO(parquet))["s"].cast(pa.binary()).to_pylist() == [BAD, b"ok"]
        changes = client.raw("GET", "/v1/tables/t/changes?since=-1").content.splitlines()
        assert {json.loads(line)["row"]["s"] for line in changes[:-1]} == {SHOWN, "ok"}
        with PythonClient(f"http://{client.host}:{client.port}") as python:
            assert python.rows("t")["s"].cast(pa.binary()).to_pylist() == [BAD, b"ok"]


def test_v7_a_shape_has_every_row() -> None:
    """Two rows without a key differ only in bytes that a text does not show: both arrive, and one leaves."""
    with shop(made=engine()) as served_shop:
        p = served_shop.pipeline
        p.push("bare", pa.table({"s": write_column(BAD, b"ok")}))
        p.push("byname", pa.table({"s": write_column(b"\xff")}))
        p.commit()
        followers = {name: Follower(served_shop, {"table": name}).caught_up() for name in ("bare", "byname")}
        p.push("bare", pa.table({"s": write_column(b"\xfe\xfe\x80abc", b"\xef\xbf\xbd")}))
        p.push("byname", pa.table({"s": write_column(b"\xfe", b"\xef\xbf\xbd")}))
        p.commit()
        assert followers["bare"].caught_up().content() == [("ok",), ("\ufffd",), (SHOWN,), (SHOWN,)]
        assert followers["byname"].caught_up().content() == [("\ufffd",)] * 3
        p.push("byname", deletes=pa.table({"s": write_column(b"\xff")}))
        p.commit()
        assert followers["byname"].caught_up().rows == Follower(served_shop, {"table": "byname"}).caught_up().rows
        assert len(followers["byname"].rows) == 2


@pytest.mark.parametrize("where", ["s = 'ok'", "lower(s) = 'ok'", "s LIKE 'o%'", "s || 'x' = 'okx'", "'ok' = ANY (l)"])
def test_v7_a_clause_reads_such_texts(where: str) -> None:
    """Fails if the clause's functions meet invalid UTF-8, in the snapshot or in the log."""
    with shop(made=engine()) as served_shop:
        served_shop.pipeline.push("t", rows(BAD, b"ok"))
        served_shop.pipeline.commit()
        follower = Follower(served_shop, {"table": "t", "where": where}).caught_up()
        assert follower.content("s") == [("ok",)]
        served_shop.pipeline.push("t", rows(b"ok", BAD))
        served_shop.pipeline.commit()
        assert follower.caught_up().content("id", "s") == [("0", "ok")]


def test_v7_duckdb_leaves_such_rows_to_spark() -> None:
    """A function that met them would make DuckDB refuse all later queries."""
    duck = Duck(Settings())
    with pytest.raises(DuckDeclined, match="'t' has a text that is not valid UTF-8"):
        duck.answer("SELECT upper(s) FROM t", {"t": rows(BAD)}, [], 10)
    assert duck.answer("SELECT upper(s) AS s FROM t", {"t": rows(b"a")}, [], 10)[0].to_pylist() == [{"s": "A"}]


def test_v7_pushed_rows_keep_their_bytes_or_are_refused() -> None:
    """Arrow holds any bytes. JSON, and a conversion to another type, do not: other keys or values would result."""
    point = pa.struct([pa.field("a", pa.string()), pa.field("b", pa.int64(), nullable=False)])
    table = DeclaredTable("t", pa.schema([pa.field("id", pa.int64(), nullable=False), ("p", point)]), key=("id",))
    other = pa.StructArray.from_arrays([write_column(BAD), pa.array([1], pa.int32())], ["a", "b"])
    with open_pipeline(storage(), SmallEngine([table], [])) as p, served(p) as client:
        with (
            PythonClient(f"http://{client.host}:{client.port}") as python,
            pytest.raises(InvalidInput, match="not valid UTF-8"),
        ):
            python.push("t", [], deletes=pa.table({"id": write_column(b"\xff")}))
        with pytest.raises(InvalidInput, match="row 1, column 'p': the text is not valid UTF-8"):
            p.push("t", pa.table({"id": [3], "p": other}))
        with pytest.raises(InvalidInput, match="\ufffd"):
            p.push("t", pa.table({"id": write_column(b"4\xff")}))
    found = from_arrow(pa.StructArray.from_arrays([write_column(BAD, b"a"), pa.array([1, None])], ["a", "b"]), point)
    assert [*found.misfits] == [1]
    assert convert_texts_to_bytes(pa.table({"p": found.array})).to_pylist() == [{"p": {"a": BAD, "b": 1}}, {"p": None}]


def test_v7_a_map_whose_keys_become_equal_is_a_list_of_pairs() -> None:
    """In the jsonb of a shape; as an object it would lose an entry."""
    maps = pa.MapArray.from_arrays([0, 2, 3], write_column(b"\xff", b"\xfe", b"k"), pa.array([1, 2, 3]))
    assert postgres_texts(maps) == ['[["\ufffd",1],["\ufffd",2]]', '{"k":3}']
