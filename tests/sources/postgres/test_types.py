"""Every common type, from the snapshot and from the stream alike; a value that does not fit is a fault of its
key (U6).
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from evertide.pipeline.names import ERRORS
from evertide.rows.char_types import add_char_types
from tests.sources.postgres.kit import ID, Feeding, table
from tests.sources.postgres.server import Database

TYPES: list[tuple[str, Any, list[tuple[str, Any]]]] = [
    ("smallint", pa.int16(), [("-32768", -32768), ("NULL", None)]),
    ("integer", pa.int64(), [("2147483647", 2147483647)]),
    ("bigint", pa.int64(), [("-9223372036854775808", -(2**63))]),
    ("bigint", pa.decimal128(20, 0), [("9223372036854775807", Decimal(2**63 - 1))]),
    ("numeric(12, 3)", pa.decimal128(12, 3), [("1234.5", Decimal("1234.500")), ("-0.001", Decimal("-0.001"))]),
    ("numeric", pa.float64(), [("'NaN'", math.nan), ("'Infinity'", math.inf), ("0.1", 0.1)]),
    ("numeric", pa.int32(), [("5.00", 5)]),
    ("real", pa.float32(), [("1.5", 1.5), ("'NaN'", math.nan), ("'-Infinity'", -math.inf)]),
    ("double precision", pa.float64(), [("1e300", 1e300), ("0.1", 0.1), ("'Infinity'", math.inf)]),
    ("boolean", pa.bool_(), [("true", True), ("false", False), ("NULL", None)]),
    (
        "text",
        pa.string(),
        [("''", ""), ("'NULL'", "NULL"), ("E'a\\tb\\n\"c\", \\\\.d'", 'a\tb\n"c", \\.d'), ("'ü€𝄞'", "ü€𝄞")],
    ),
    ("text", pa.string(), [(r"'\N'", r"\N"), (r"'\.'", r"\."), ("NULL", None), ("' x '", " x ")]),
    ("varchar(5)", pa.string(), [("'abc'", "abc")]),
    ("char(5)", pa.string(), [("'abc'", "abc  ")]),
    ("bytea", pa.binary(), [(r"'\x00ff5c'", b"\x00\xff\\"), ("''", b"")]),
    ("date", pa.date32(), [("'2026-02-28'", date(2026, 2, 28)), ("'0001-01-01'", date(1, 1, 1))]),
    ("time", pa.time64("ns"), [("'10:20:30.123456'", time(10, 20, 30, 123456))]),
    ("timestamp", pa.timestamp("us"), [("'2026-01-31 10:20:30.5'", datetime(2026, 1, 31, 10, 20, 30, 500000))]),  # noqa: DTZ001
    (
        "timestamptz",
        pa.timestamp("us", "UTC"),
        [("'2026-01-31 10:20:30+02'", datetime(2026, 1, 31, 8, 20, 30, tzinfo=UTC))],
    ),
    ("json", pa.string(), [("'{\"a\":  1}'", '{"a":  1}')]),
    ("jsonb", pa.string(), [("'{\"a\":  1}'", '{"a": 1}')]),
    ("uuid", pa.string(), [("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")]),
    ("mood", pa.string(), [("'happy'", "happy")]),
    ("positive", pa.int32(), [("7", 7)]),
    ("interval", pa.string(), [("'1 day 02:03:04'", "1 day 02:03:04")]),
    ("inet", pa.string(), [("'10.0.0.1/8'", "10.0.0.1/8")]),
    ("integer[]", pa.list_(pa.int32()), [("'{1,NULL,3}'", [1, None, 3]), ("'{}'", []), ("'[0:1]={5,6}'", [5, 6])]),
    ("integer[]", pa.list_(pa.list_(pa.int64())), [("'{{1,2},{3,4}}'", [[1, 2], [3, 4]])]),
    (
        "text[]",
        pa.list_(pa.string()),
        [("ARRAY['a,b', 'NULL', NULL, '', E'q\"\\\\']", ["a,b", "NULL", None, "", 'q"\\'])],
    ),
    ("bool[]", pa.list_(pa.bool_()), [("'{t,f}'", [True, False])]),
    (
        "timestamptz[]",
        pa.list_(pa.timestamp("us", "UTC")),
        [("ARRAY['2026-01-01Z'::timestamptz]", [datetime(2026, 1, 1, tzinfo=UTC)])],
    ),
    ("mood[]", pa.list_(pa.string()), [("'{happy,sad}'", ["happy", "sad"])]),
    ("integer[]", pa.string(), [("'{1,2}'", "{1,2}")]),
]


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right) and type(left) is type(right)


def test_all_types_from_snapshot_and_stream(db: Database) -> None:
    """The server's own settings do not matter: here they are unusual ones."""
    db.run("CREATE TYPE mood AS ENUM ('sad', 'happy')", "CREATE DOMAIN positive AS int CHECK (value > 0)")
    for setting in (
        "datestyle = 'SQL, DMY'",
        "timezone = 'Asia/Tokyo'",
        "bytea_output = 'escape'",
        "extra_float_digits = -5",
    ):
        db.run(f"ALTER DATABASE {db.name} SET {setting}")
    columns = ", ".join(f"c{at} {name}" for at, (name, _, _) in enumerate(TYPES))
    db.run(f"CREATE TABLE orders (id bigint PRIMARY KEY, {columns})")

    def insert(first: int) -> None:
        for row in range(4):
            values = ", ".join(each[row][0] if row < len(each) else "NULL" for _, _, each in TYPES)
            db.run(f"INSERT INTO orders VALUES ({first + row}, {values})")

    insert(0)
    schema = pa.schema([ID, *(pa.field(f"c{at}", kind) for at, (_, kind, _) in enumerate(TYPES))])
    with Feeding(db, table(db, schema)) as f:
        f.until(lambda: len(f.rows()) == 4)
        insert(10)
        f.until(lambda: len(f.rows()) == 8)
        assert f.letters() == []
        found = {row["id"]: row for row in f.pipeline.view("orders").to_arrow().to_pylist()}
        for number, row in found.items():
            for at, (name, _, each) in enumerate(TYPES):
                expected = each[number % 10][1] if number % 10 < len(each) else None
                assert _same(row[f"c{at}"], expected), (name, row[f"c{at}"], expected)


@pytest.mark.parametrize(
    ("upstream", "kind", "word"),
    [
        ("text", pa.int64(), "text"),
        ("timestamp", pa.timestamp("us", "UTC"), "timestamp without time zone"),
        ("json", pa.list_(pa.string()), "json"),
        ("double precision", pa.decimal128(10, 2), "double precision"),
        ("text[]", pa.list_(pa.int32()), "text[]"),
        ("integer", pa.bool_(), "integer"),
    ],
)
def test_a_type_that_does_not_fit_is_refused_before_anything_starts(
    db: Database, upstream: str, kind: Any, word: str
) -> None:
    db.run(f"CREATE TABLE orders (id bigint PRIMARY KEY, c {upstream})")
    with pytest.raises(InvalidInput, match="cannot hold") as caught:
        Feeding(db, table(db, pa.schema([ID, ("c", kind)])))
    assert word in caught.value.why
    assert caught.value.where == "shop.sql:1, table 'orders'"


FAULTY = pa.schema(
    [ID, ("amount", pa.int8()), ("price", pa.decimal128(6, 2)), pa.field("day", pa.date32(), nullable=False)]
)


def test_u6_a_value_that_does_not_fit_is_an_error_of_its_key(db: Database) -> None:
    """The old row is deleted, a dead letter gives the reason, and a valid value retracts the letter; the source
    continues, also after a crash.
    """
    db.run("CREATE TABLE orders (id bigint PRIMARY KEY, amount int, price numeric, day date)")
    db.run("INSERT INTO orders VALUES (1, 1, 1, '2026-01-01'), (2, 300, 1, '2026-01-01'), (3, 3, 'NaN', '2026-01-01')")
    with Feeding(db, table(db, FAULTY)) as f:
        f.until(lambda: len(f.letters()) == 2)
        assert [row[0] for row in f.rows()] == [1]
        assert [letter[1] for letter in f.letters()] == ['{"id": 2}', '{"id": 3}']
        assert "300 is not a TINYINT" in f.letters()[0][2].replace("'", "")
        db.run("UPDATE orders SET day = 'infinity' WHERE id = 1", "UPDATE orders SET amount = 2 WHERE id = 2")
        f.until(lambda: [row[0] for row in f.rows()] == [2])
        assert [letter[1] for letter in f.letters()] == ['{"id": 1}', '{"id": 3}']
        f.restart()
        db.run("DELETE FROM orders WHERE id = 3", "UPDATE orders SET day = NULL WHERE id = 1")
        f.until(lambda: len(f.letters()) == 1 and "NULL" in f.letters()[0][2])
        with db.connection.transaction():
            db.run("UPDATE orders SET amount = 1000", "UPDATE orders SET amount = 10, day = '2026-05-05'")
        f.until_equal("SELECT id, amount, price, day FROM orders")
        assert f.letters() == []


def test_u6_truncate_retracts_the_dead_letters(db: Database) -> None:
    db.run("CREATE TABLE orders (id bigint PRIMARY KEY, amount int, price numeric, day date)")
    db.run("INSERT INTO orders VALUES (1, 300, 1, '2026-01-01')")
    with Feeding(db, table(db, FAULTY)) as f:
        f.until(lambda: len(f.letters()) == 1)
        db.run("TRUNCATE orders")
        f.until(lambda: f.letters() == [])


def test_u6_a_missing_large_value_of_a_row_that_did_not_fit_is_a_fault(db: Database) -> None:
    """An update does not send the body, and it is not stored: the row did not fit before. The result is a fault, not
    NULL.
    """
    db.run("CREATE TABLE orders (id bigint PRIMARY KEY, amount int, body text)")
    db.run("ALTER TABLE orders ALTER body SET STORAGE EXTERNAL")
    db.run("INSERT INTO orders SELECT 1, 300, string_agg(md5(i::text), '') FROM generate_series(1, 200) i")
    with Feeding(db, table(db, pa.schema([ID, ("amount", pa.int8()), ("body", pa.string())]))) as f:
        f.until(lambda: len(f.letters()) == 1)
        db.run("UPDATE orders SET amount = 3")
        f.until(lambda: "has no earlier row with this key" in f.letters()[0][2])
        assert f.rows() == []
        db.run("UPDATE orders SET body = 'short'")
        f.until_equal("SELECT id, amount, body FROM orders")
        assert f.letters() == []


def test_texts_of_char_and_varchar_columns(db: Database) -> None:
    """Keys that differ in spaces at their end are one key. The fault of a text that is too long names its place."""
    db.run("CREATE TABLE orders (id text PRIMARY KEY, c text)", "INSERT INTO orders VALUES ('a', 'x'), ('b', 'xyz')")
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), ("c", pa.string())])
    declared = add_char_types(schema, {"id": '"char(3)"', "c": '"varchar(2)"'}, {})
    with Feeding(db, table(db, declared)) as f:
        f.until(lambda: f.rows() == [("a  ", "x")])
        f.until(lambda: len(f.letters()) == 1)
        db.run("UPDATE orders SET c = 'y   ' WHERE id = 'b'", "INSERT INTO orders VALUES ('long', 'x')")
        f.until(lambda: f.rows() == [("a  ", "x"), ("b  ", "y ")] and len(f.letters()) == 1)
        db.run("UPDATE orders SET id = 'b ' WHERE id = 'b'", "DELETE FROM orders WHERE id = 'a'")
        f.until(lambda: f.rows() == [("b  ", "y ")])
        db.run("UPDATE orders SET c = 'xyz'")
        f.until(lambda: f.rows() == [])
        why = "the text has {} characters, and {} holds at most {}"
        places = {row["place"].partition(",")[0] for row in f.pipeline.view(ERRORS).to_pylist()}
        assert places == {"public.orders"}
        assert {letter[2] for letter in f.letters()} == {
            f"column 'id': {why.format(4, 'CHAR(3)', 3)}",
            f"column 'c': {why.format(3, 'VARCHAR(2)', 2)}",
        }
