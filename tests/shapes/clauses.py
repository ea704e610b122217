"""A table of awkward values, in Arrow and in PostgreSQL, and random where clauses over it."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from hypothesis import strategies as st

from evertide.pgexpr.types.texts import describe_column, write_column
from tests.servers.postgres import PostgresServer

UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("y", pa.int8()),
        ("s", pa.int16()),
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("n", pa.decimal128(20, 4)),
        ("w", pa.decimal128(38, 10)),
        ("r", pa.float32()),
        ("f", pa.float64()),
        ("b", pa.bool_()),
        ("t", pa.string()),
        ("Name", pa.string()),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us")),
        ("tz", UTC),
        ("tm", pa.time64("ns")),
        ("iv", pa.duration("us")),
        ("x", pa.binary()),
        ("ia", pa.list_(pa.int32())),
        ("la", pa.list_(pa.int64())),
        ("ta", pa.list_(pa.string())),
        ("na", pa.list_(pa.decimal128(10, 2))),
        ("fa", pa.list_(pa.float64())),
        ("da", pa.list_(pa.date32())),
        ("mm", pa.list_(pa.list_(pa.int32()))),
    ]
)
_VALUES: dict[str, list[Any]] = {
    "y": [0, 1, -1, 127, -128, None, 3],
    "s": [0, 1, -1, 32767, -32768, None, 7],
    "i": [0, 1, 2, -7, 2147483647, -2147483648, None],
    "l": [0, 3, -5, 2**63 - 1, -(2**63), None, 9007199254740993],
    "n": [Decimal(each) for each in ("0.0000", "1.5000", "-2.2500", "3.3333", "1234567890.1234")] + [None],
    "w": [Decimal(each) for each in ("0.0000000000", "1.0000000001", "-99999999.5000000000", "3.0000000000")] + [None],
    "r": [0.0, -0.0, 1.5, 0.1, math.nan, math.inf, 3.4e38, 1e-45, None],
    "f": [0.0, -1.5, 0.1, math.nan, math.inf, -math.inf, 1.7e308, 5e-324, None, 3.0],
    "b": [True, False, None],
    "t": [
        "",
        "abc",
        "ABC",
        "a%c",
        "a_c",
        "ab\\c",
        "Ärger",
        "ärger",
        "b\nc",
        "zß",
        "5",
        " 7 ",
        "1e3",
        "true",
        None,
        "😀é",
        "x y",
    ],
    "Name": ["abc", "b", None, "Ä", "%"],
    "d": [
        dt.date(1970, 1, 1),
        dt.date(2024, 2, 29),
        dt.date(1, 1, 1),
        dt.date(9999, 12, 31),
        None,
        dt.date(2026, 1, 31),
    ],
    "ts": [
        None if text is None else np.datetime64(text, "us")
        for text in (
            *("2024-02-29T12:00", "0001-01-01", "2026-01-31T23:59:59.999999", None),
            *("2024-03-31T02:30", "2024-10-27T02:30", "1970-01-01"),
        )
    ],
    "tz": [
        *(dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC), dt.datetime(1960, 1, 1, 0, 0, 0, 500000, tzinfo=dt.UTC), None),
        *(dt.datetime(2024, 10, 27, 0, 30, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, tzinfo=dt.UTC)),
    ],
    "tm": [dt.time(0), dt.time(23, 59, 59, 999999), dt.time(12, 30), None],
    "iv": [dt.timedelta(0), dt.timedelta(days=1), dt.timedelta(hours=-36), dt.timedelta(days=40, microseconds=1), None],
    "x": [b"", b"\x00", b"\xff\x01", b"abc", None],
    "ia": [[], [1], [1, 2], [2, None], [1, 2, 3], None, [2147483647, 0]],
    "la": [[], [3], [None], None, [1, 2**62]],
    "ta": [[], ["abc"], ["a b", None], ["", "NULL", '"'], None, ["Ä", "abc"]],
    "na": [[], [Decimal("1.50")], [None, Decimal("-2.25")], None],
    "fa": [[math.nan], [0.0, 1.5], None, []],
    "da": [[dt.date(2024, 2, 29)], [], None],
    "mm": [[[1, 2], [3, 4]], [[1, 2]], [], None],
}
COUNT = 51


def table() -> pa.Table:
    """Cycle lists of different lengths, so that many pairs of values occur."""
    columns: dict[str, list[Any]] = {"id": list(range(COUNT))}
    columns |= {name: [values[at % len(values)] for at in range(COUNT)] for name, values in _VALUES.items()}
    return pa.table(columns, schema=SCHEMA)


ROWS = table()


def quote(name: str) -> str:
    return '"' + name + '"'


def pg_type(field: Any) -> str:
    described = describe_column(field)
    return str(described["type"] + "[]" * described.get("dims", 0))


@contextmanager
def oracle(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a database that orders by code points and supports the case of all letters."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS clauses")
        connection.execute("CREATE DATABASE clauses TEMPLATE template0 LC_COLLATE 'C.utf8' LC_CTYPE 'C.utf8'")
    with psycopg.connect(server.dsn, dbname="clauses", autocommit=True) as connection:
        _load(connection)
        yield connection


def _load(connection: psycopg.Connection[Any]) -> None:
    """Create the table `rows`, and `verdicts(clause)`, which evaluates row by row."""
    connection.execute("SET TimeZone = 'UTC'; SET IntervalStyle = 'iso_8601'; SET extra_float_digits = 1")
    declared = ", ".join(f"{quote(field.name)} {pg_type(field)}" for field in SCHEMA)
    connection.execute(f"CREATE TEMP TABLE rows ({declared})")
    values = ", ".join(f"%s::{pg_type(field)}" for field in SCHEMA)
    columns = [write_column(column) for column in ROWS.columns]
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO rows VALUES ({values})", list(zip(*columns, strict=True)))
    connection.execute(
        """CREATE FUNCTION pg_temp.verdicts(clause text) RETURNS TABLE (id int8, verdict bool, failed text)
        LANGUAGE plpgsql AS $$
        BEGIN
            FOR id IN SELECT rows.id FROM rows LOOP
                BEGIN
                    failed := NULL;
                    EXECUTE format('SELECT (%s) FROM rows WHERE id = $1', clause) INTO verdict USING id;
                EXCEPTION WHEN OTHERS THEN
                    failed := SQLSTATE;
                END;
                RETURN NEXT;
            END LOOP;
        END $$"""
    )


# Clauses


def _of(*choices: str) -> st.SearchStrategy[str]:
    return st.sampled_from(choices)


def _infix(operators: st.SearchStrategy[str], left: Any, right: Any) -> st.SearchStrategy[str]:
    return st.builds(lambda name, one, other: f"({one} {name} {other})", operators, left, right)


COMPARISONS = _of("=", "<>", "<", ">", "<=", ">=", "!=")
INTEGERS = _of("y", "s", "i", "l", "id", "0", "1", "-1", "7", "2147483648", "32767", "9007199254740993", "'3'::int2")
EXACT = INTEGERS | _of(
    "n", "w", "1.5", "-2.25", "3.3333333333", "0.1", "1e3", "'3.50'::numeric", "99999999999999999999"
)
FLOATS = _of("r", "f", "'NaN'::float8", "'-Infinity'::float8", "'0.1'::float4", "1e2::float8")
SUMS = _of("+", "-", "*", "/")
WHOLE = st.recursive(
    INTEGERS,
    lambda inner: (
        _infix(SUMS | _of("&", "|", "#"), inner, inner)
        | st.builds(lambda sign, one: f"({sign} {one})", _of("-", "@", "~", "+"), inner)
        | st.builds(lambda one, kind: f"({one})::{kind}", inner, _of("int2", "int4", "bigint"))
    ),
    max_leaves=4,
)
NUMBERS = st.recursive(
    EXACT | FLOATS | WHOLE,
    lambda inner: (
        _infix(SUMS, inner, inner)
        | st.builds(lambda sign, one: f"({sign} {one})", _of("-", "@", "|/"), inner)
        | st.builds(
            lambda one, kind: f"CAST({one} AS {kind})",
            inner,
            _of("int4", "int8", "numeric", "real", "double precision", "numeric(12,2)"),
        )
        | st.builds(
            lambda name, args: f"{name}({', '.join(args)})",
            _of("coalesce", "greatest", "LEAST"),
            st.lists(inner, min_size=1, max_size=3),
        )
    ),
    max_leaves=4,
)
TEXTS = st.recursive(
    _of(
        "t",
        '"Name"',
        "'abc'",
        "'Ä'",
        "''",
        "'%'",
        "'a''b'",
        "i::text",
        "b::text",
        "d::text",
        "n::text",
        "f::text",
    ),
    lambda inner: (
        _infix(_of("||"), _of("t", "'x'::text"), inner)
        | st.builds(lambda name, one: f"{name}({one})", _of("lower", "UPPER"), inner)
    ),
    max_leaves=3,
)
PATTERNS = _of(
    "'%'", "'a%'", "'%c'", "'a_c'", "'a\\%c'", "'%B%'", "'Ä%'", "'__'", "t", "'%a%c%'", "''", "'%\\\\%'", "lower('A%')"
)
SPANS = _of(
    *("iv", "interval '1 day'", "interval '1 mon'", "interval '-1 year 2 mons 3 days 04:05:06.7'", "'PT36H'::interval"),
    *(
        "(ts - ts)",
        "justify_hours(iv)",
        "justify_days(iv * 1)".replace(" * 1", ""),
        "justify_interval(iv)",
        "(tm - time '01:00')",
    ),
    *("(- iv)", "(iv + interval '90 minutes')", "interval '1.5 days'", "interval '2 weeks ago'", "tm::interval"),
)
DATES = _of("d", "date '2024-02-29'", "(d + 1)", "(d - 31)", "(s + d)", "ts::date", "tz::date", "'0044-03-15 BC'::date")
MOMENTS = st.recursive(
    DATES
    | _of(
        "ts",
        "tz",
        "timestamp '2024-02-29 12:00'",
        "'2024-02-29T12:00:00+02:00'::timestamptz",
        "(d + tm)",
        "d::timestamptz",
    )
    | _of("timezone('Europe/Berlin', ts)", "(tz AT TIME ZONE 'America/New_York')", "(ts AT TIME ZONE 'UTC')"),
    lambda inner: _infix(_of("+", "-"), inner, SPANS),
    max_leaves=2,
)
CLOCKS = _of("tm", "time '12:30'", "(tm + interval '13 hours')", "(tm - iv)", "ts::time", "'24:00:00'::time")
ARRAYS = {
    "int4": _of(
        "ia",
        "'{1,2}'::int4[]",
        "ARRAY[1, NULL]",
        "(ia || 1)",
        "(2 || ia)",
        "ia || ia",
        "mm",
        "array_cat(ia, mm)",
        "(ia || NULL)",
    ),
    "int8": _of("la", "ARRAY[3::int8]", "(ia || 3::int8)", "ia::int8[]", "ARRAY[l, i]"),
    "text": _of("ta", "ARRAY['abc', t]", "'{\"a b\",NULL,x}'::text[]", "array_append(ta, 'q')", "array_prepend(t, ta)"),
    "numeric": _of("na", "ARRAY[1.5, 2]", "ARRAY[n, i]"),
    "float8": _of("fa", "ARRAY['NaN'::float8]", "ARRAY[f, 1]"),
    "date": _of("da", "ARRAY[d]", "'{2024-02-29}'::date[]"),
}
ELEMENTS = {"int4": WHOLE, "int8": WHOLE, "text": TEXTS, "numeric": EXACT, "float8": NUMBERS, "date": DATES}
CONSTANTS = {
    "WHOLE": _of("1", "2", "'3'", "NULL", "2147483648", "1.5", "0"),
    "TEXTS": _of("'abc'", "'b'", "NULL", "''", "'Ärger'"),
    "DATES": _of("'2024-02-29'", "NULL", "date '1970-01-01'"),
    "FLOATS": _of("0.1", "1.5", "'NaN'", "3", "NULL"),
}


def _tests(name: str, values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Tests on values of comparable types."""
    listed = st.lists(values | CONSTANTS.get(name, values), min_size=1, max_size=4).map(", ".join)
    return (
        _infix(COMPARISONS, values, values)
        | _infix(_of("IS DISTINCT FROM", "IS NOT DISTINCT FROM"), values, values)
        | st.builds(lambda one, word, items: f"{one} {word} ({items})", values, _of("IN", "not in"), listed)
        | st.builds(
            lambda one, word, low, high: f"{one} {word} {low} AND {high}",
            values,
            _of("BETWEEN", "NOT BETWEEN", "BETWEEN SYMMETRIC"),
            values,
            values,
        )
        | st.builds(lambda one, word: f"{one} IS {word}", values, _of("NULL", "NOT NULL"))
    )


def _array_tests(kind: str) -> st.SearchStrategy[str]:
    arrays, values = ARRAYS[kind], ELEMENTS[kind]
    return (
        _infix(_of("@>", "<@", "&&"), arrays, arrays)
        | _infix(COMPARISONS, arrays, arrays)
        | st.builds(
            lambda one, name, word, array: f"{one} {name} {word} ({array})",
            values,
            COMPARISONS,
            _of("ANY", "ALL", "some"),
            arrays,
        )
        | st.builds(lambda array, number: f"array_ndims({array}) = {number}", arrays, _of("1", "2"))
        | st.builds(lambda array: f"coalesce({array}) IS NULL", arrays)
    )


LEAVES = st.one_of(
    _tests("WHOLE", WHOLE),
    _tests("NUMBERS", NUMBERS),
    _tests("FLOATS", FLOATS),
    _tests("TEXTS", TEXTS),
    _tests("DATES", DATES),
    _tests("MOMENTS", MOMENTS),
    _tests("CLOCKS", CLOCKS),
    _tests("SPANS", SPANS),
    _tests("BOOLS", _of("b", "true", "(i = 1)", "(t LIKE 'a%')")),
    _tests("BYTES", _of("x", "'\\x00'::bytea", "'\\xFF01'::bytea")),
    *(_array_tests(kind) for kind in ARRAYS),
    st.builds(
        lambda text, word, pattern: f"{text} {word} {pattern}",
        TEXTS,
        _of("LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE", "~~", "~~*", "!~~", "!~~*"),
        PATTERNS,
    ),
    st.builds(lambda word, array: f"t {word} ({array})", _of("LIKE ANY", "NOT LIKE ALL", "ILIKE ALL"), ARRAYS["text"]),
    _of(
        "t LIKE 'a!%c' ESCAPE '!'",
        "b",
        "i::bool",
        "b::int4 = 1",
        "t::int4 = 5",
        "t::float8 > 1",
        "t::bool",
        "like(t, 'a%')",
    ),
    _of(
        "f ^ 2 > 1",
        "i ^ 0.5::float8 > 1",
        "x || 1 IS NULL".replace("x", "t"),
        "true",
        "NULL",
        "'t'",
        "l = '3'",
        "n = '1.5'",
    ),
)
CLAUSES = st.recursive(
    LEAVES,
    lambda inner: (
        _infix(_of("AND", "OR"), inner, inner)
        | st.builds(lambda one: f"NOT ({one})", inner)
        | st.builds(
            lambda one, word: f"(({one}) IS {word})",
            inner,
            _of("TRUE", "NOT TRUE", "FALSE", "NOT FALSE", "UNKNOWN", "NOT UNKNOWN"),
        )
    ),
    max_leaves=4,
)
