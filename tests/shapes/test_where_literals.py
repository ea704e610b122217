"""Every literal that is accepted is accepted by PostgreSQL too, as the same value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertide.pgexpr.literals import InvalidLiteral, read_uuid, read_value
from evertide.pgexpr.types.sqltypes import TYPE_NAMES, SqlType
from evertide.pgexpr.types.value_text import write_value
from tests.servers.postgres import PostgresServer

MANY = settings(max_examples=100, deadline=None, derandomize=True)


@pytest.fixture(scope="module")
def server(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'; SET IntervalStyle = 'iso_8601'; SET extra_float_digits = 1")
        yield connection


def theirs(server: psycopg.Connection[Any], text: str, kind: str) -> str | None:
    try:
        row = server.execute(f"SELECT (%s::{kind})::text", [text]).fetchone()
    except psycopg.DataError:
        return None
    return None if row is None else str(row[0])


def ours(text: str, kind: SqlType) -> str | None:
    try:
        return write_value(read_value(text, kind), kind)
    except InvalidLiteral:
        return None


def pieces(*choices: str | st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Concatenate one value of each choice; a plain text may be left out."""
    parts = [st.sampled_from(["", each]) if isinstance(each, str) else each for each in choices]
    return st.tuples(*parts).map("".join)


def numbers(least: int, most: int, width: int = 1) -> st.SearchStrategy[str]:
    return st.integers(least, most).map(lambda number: f"{number:0{width}}")


FRACTIONS = st.sampled_from(["", "", ".5", ".000001", ".999999", "."])
CLOCKS = pieces(
    numbers(0, 24, 2), st.just(":"), numbers(0, 60, 2), st.sampled_from(["", ":00", ":59", ":60"]), FRACTIONS
)
ZONES = st.sampled_from(["", "", "Z", "+00", "-08", "+05:30", " +0545", "UTC", "z", "+15:59:59", "+16"])
DATES = pieces(
    st.sampled_from(["2024", "1900", "0001", "0000", "4713", "294276", "5874897", "2023", "9999"]),
    st.just("-"),
    numbers(0, 13, 2) | numbers(1, 12),
    st.just("-"),
    numbers(0, 32, 2) | numbers(1, 31),
)
MOMENTS = pieces(
    " ",
    DATES,
    st.just("") | pieces(st.sampled_from(["T", " ", "  ", "t"]), CLOCKS, ZONES),
    st.sampled_from(["", "", " BC", " ad"]),
)
SIGNS = st.sampled_from(["", "", "-", "+"])
UNITS = st.sampled_from(
    [
        *("us", "microseconds", "ms", "s", "sec", "seconds", "m", "min", "minutes", "h", "hours", "d", "day", "days"),
        *("w", "week", "mon", "mons", "month", "months", "y", "year", "yrs"),
    ]
)
PARTS = pieces(SIGNS, numbers(0, 40), st.sampled_from(["", "", ".5", ".25"]), " ", UNITS, st.just(" "))
ISO = pieces(
    st.just("P"),
    *(st.just("") | pieces(SIGNS, numbers(0, 30), st.just(unit)) for unit in "YMD"),
    st.just("")
    | pieces(st.just("T"), pieces(SIGNS, numbers(0, 90), st.sampled_from("HMS")), st.sampled_from(["", "3.5S"])),
)
SPANS = (
    pieces(
        st.lists(PARTS, max_size=3).map("".join), st.just("") | pieces(SIGNS, CLOCKS), st.sampled_from(["", "", " ago"])
    )
    | ISO
)
DIGITS = pieces(" ", SIGNS, numbers(0, 10**20), FRACTIONS, st.sampled_from(["", "", "e3", "E-3", "e400", "e-400", "x"]))
WORDS = st.sampled_from(["NaN", "inf", "-Infinity", "infinity", "nan", "", " ", "1e", ".", "-", "+.5", "5.", "-0"])
TRUTH = st.sampled_from(
    [*("t", "tr", "true", "yes", "y", "on", "1", "TRUE", " t "), *("f", "fa", "false", "no", "off", "of", "o", "2", "")]
)
ARRAYS = pieces(" ", st.just("{"), st.text(st.sampled_from('{},"\\ aNULl1'), max_size=10), st.just("}") | st.just(""))
LISTS = pieces(st.just("{"), st.lists(DIGITS | st.just("NULL"), max_size=4).map(",".join), st.just("}"))
BYTES = pieces("\\x", st.text(st.sampled_from("0aFf g\\"), max_size=6))

READ: list[tuple[str, st.SearchStrategy[str]]] = [
    *((kind, MOMENTS) for kind in ("date", "timestamp", "timestamptz")),
    ("time", CLOCKS),
    ("interval", SPANS),
    *((kind, DIGITS | WORDS) for kind in ("int2", "int4", "int8", "numeric", "float4", "float8")),
    ("bool", TRUTH),
    ("text[]", ARRAYS),
    ("int4[]", LISTS | ARRAYS),
    ("numeric[]", LISTS),
    ("bytea", BYTES),
]


@pytest.mark.parametrize(("kind", "texts"), READ, ids=[kind for kind, _ in READ])
def test_accepted_literals_have_the_value_of_postgresql(
    server: psycopg.Connection[Any], kind: str, texts: st.SearchStrategy[str]
) -> None:
    wanted = TYPE_NAMES[kind.removesuffix("[]")]
    wanted = wanted.array if kind.endswith("[]") else wanted
    read = []

    @MANY
    @given(texts)
    def check(text: str) -> None:
        found = ours(text, wanted)
        if found is not None:
            assert found == theirs(server, text, kind), repr(text)
            read.append(text)

    check()
    assert len(read) >= 5, "hardly any text is accepted"


@MANY
@given(
    st.text(st.sampled_from("0123456789abcdefABCDEF"), min_size=32, max_size=32),
    st.sets(st.sampled_from([4, 8, 12, 16, 20, 24, 28, 5])),
    st.booleans(),
)
def test_uuids(server: psycopg.Connection[Any], digits: str, hyphens: set[int], braces: bool) -> None:
    text = "".join(("-" if at in hyphens else "") + digit for at, digit in enumerate(digits))
    text = f"{{{text}}}" if braces else text
    try:
        found = read_uuid(text)
    except InvalidLiteral:
        found = None
    assert found == theirs(server, text, "uuid")
