"""Texts and type names of columns, compared with PostgreSQL's own output."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from evertide.errors import InvalidInput
from evertide.pgexpr.types.calendar import count_days, find_date
from evertide.pgexpr.types.texts import describe_column, write_column
from tests.servers.postgres import PostgresServer

FEW = settings(max_examples=40, deadline=None, derandomize=True)
INT64 = st.integers(-(2**63), 2**63 - 1)
DAY_MOST = 106_000_000
"""The limit of a timestamp: the year 292,000."""
DAY_LEAST = -2_440_000


@pytest.fixture(scope="module")
def server(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'; SET IntervalStyle = 'iso_8601'; SET bytea_output = 'hex'")
        yield connection


def read_texts(server: psycopg.Connection[Any], expression: str, values: Sequence[Any]) -> list[str | None]:
    """Each value as the server writes it; `%s` in the expression is a value."""
    with server.cursor(binary=False) as cursor:
        cursor.executemany(f"SELECT ({expression})::text", [(value,) for value in values], returning=True)
        found = []
        while True:
            row = cursor.fetchone()
            found.append(None if row is None else row[0])
            if not cursor.nextset():
                return found


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values | st.none(), min_size=1, max_size=12)


@FEW
@given(some(st.integers(-(2**31), 2**31 - 1)), some(INT64), some(st.booleans()))
def test_integers_and_booleans(
    server: psycopg.Connection[Any], ints: list[int], longs: list[int], truths: list[bool]
) -> None:
    assert write_column(pa.array(ints, pa.int32())) == read_texts(server, "%s::int4", ints)
    assert write_column(pa.chunked_array([longs, longs], pa.int64())) == 2 * read_texts(server, "%s::int8", longs)
    assert write_column(pa.array(truths, pa.bool_())) == read_texts(server, "%s::bool", truths)


@settings(FEW, max_examples=120)
@given(some(st.floats() | st.integers(-(2**70), 2**70).map(float)), some(st.floats(width=32)))
def test_floats(server: psycopg.Connection[Any], doubles: list[float | None], singles: list[float | None]) -> None:
    assert write_column(pa.array(doubles, pa.float64())) == read_texts(server, "%b::float8", doubles)
    assert write_column(pa.array(singles, pa.float32())) == read_texts(server, "(%b::float8)::float4", singles)


HALFWAY_8 = [
    9007199254740993.0,
    2.0**60,
    2.0**77,
    9e15,
    1e15,
    1e14,
    123456789012345680.0,
    5e-324,
    2**-1074.0 * 3,
    1e22,
    1e23,
]
HALFWAY_4 = [
    2.0**24 + 2,
    2.0**25,
    33554436.0,
    1e6,
    1e5,
    999999.0,
    8388608.5,
    4194304.25,
    2.0**31,
    9.5e8,
    67108872.0,
    1.1754944e-38,
]


def test_floats_with_a_shorter_text_between_them(server: psycopg.Connection[Any]) -> None:
    """PostgreSQL does not write a decimal exactly halfway between two floats, even if it is the shortest."""
    doubles = HALFWAY_8 + [float(2**53 + 2 * step) * scale for step in range(0, 400, 7) for scale in (1, 8, 64)]
    singles = HALFWAY_4 + [
        float(2**24 + 2 * step) * scale for step in range(0, 400, 3) for scale in (1, 0.5, 0.25, 4, 64)
    ]
    assert write_column(pa.array(doubles, pa.float64())) == read_texts(server, "%b::float8", doubles)
    assert write_column(pa.array(singles, pa.float32())) == read_texts(server, "(%b::float8)::float4", singles)


@FEW
@given(some(st.integers(-(10**38) + 1, 10**38 - 1)))
@pytest.mark.parametrize(("precision", "scale"), [(38, 10), (38, 4), (38, 0)])
def test_decimals(server: psycopg.Connection[Any], precision: int, scale: int, numbers: list[int | None]) -> None:
    cut = [None if number is None else Decimal(f"{number}e-{scale}") for number in numbers]
    kind = pa.decimal128(precision, scale)
    assert write_column(pa.array(cut, kind)) == read_texts(server, f"%s::numeric({precision}, {scale})", cut)


@FEW
@given(some(st.text(st.characters(exclude_characters="\0", codec="utf-8"))), some(st.binary()))
def test_texts_and_bytes(server: psycopg.Connection[Any], strings: list[str], bytes_: list[bytes]) -> None:
    assert write_column(pa.array(strings, pa.string())) == strings
    assert write_column(pa.array(strings, pa.string()).dictionary_encode()) == strings
    assert write_column(pa.array(bytes_, pa.binary())) == read_texts(server, "%b::bytea", bytes_)


@FEW
@given(some(st.integers(DAY_LEAST, DAY_MOST)), some(st.integers(-800_000, 2_900_000)))
def test_dates(server: psycopg.Connection[Any], far: list[int | None], near: list[int | None]) -> None:
    for days in (far, near):
        column = pa.array(days, pa.int32()).cast(pa.date32())
        assert write_column(column) == read_texts(server, "date '1970-01-01' + %s::int4", days)
    for day in far:
        assert day is None or count_days(*find_date(day)) == day


MOMENT = "timestamp '1970-01-01' + %s::int4 * interval '1 day' + %s * interval '1 microsecond'"


@FEW
@given(
    st.lists(st.tuples(st.integers(DAY_LEAST, DAY_MOST), st.integers(0, 86_400_000_000 - 1)), min_size=1, max_size=8)
)
@pytest.mark.parametrize("near", [False, True])
def test_timestamps(server: psycopg.Connection[Any], near: bool, moments: list[tuple[int, int]]) -> None:
    moments = [
        (day % 3_000_000 - 700_000 if near else day, clock // 1000 * 1000 if near else clock) for day, clock in moments
    ]
    numbers = pa.array([day * 86_400_000_000 + clock for day, clock in moments] + [None], pa.int64())
    expected = [
        server.execute(
            f"SELECT m::text, (m AT TIME ZONE 'UTC')::text FROM (SELECT {MOMENT} AS m) x",
            [day, clock],
        ).fetchone()
        for day, clock in moments
    ]
    assert write_column(numbers.cast(pa.timestamp("us"))) == [row and row[0] for row in expected] + [None]
    assert write_column(numbers.cast(pa.timestamp("us", "UTC"))) == [row and row[1] for row in expected] + [None]


@FEW
@given(some(st.times()), some(st.timedeltas(timedelta(days=-999_999), timedelta(days=999_999))))
def test_times_and_intervals(server: psycopg.Connection[Any], times: list[time], spans: list[timedelta | None]) -> None:
    """Whole days are counted as days, with the sign of the interval."""
    assert write_column(pa.array(times, pa.time64("ns"))) == read_texts(server, "%s::time", times)
    made = [None if span is None else _spoken(span // timedelta(microseconds=1)) for span in spans]
    assert write_column(pa.array(spans, pa.duration("us"))) == read_texts(server, "%s::interval", made)


def _spoken(micros: int) -> str:
    days, rest = divmod(abs(micros), 86_400_000_000)
    sign = "-" if micros < 0 else ""
    return f"{sign}{days} days {sign}{rest} microseconds"


ELEMENTS = {
    "int4": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "text": (pa.string(), st.text(st.sampled_from("ab ,{}\"\\'\tnulNUL\n"), max_size=5)),
    "bool": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates()),
    "bytea": (pa.binary(), st.binary(max_size=4)),
    "numeric": (pa.decimal128(10, 2), st.decimals(-999, 999, places=2)),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_arrays(server: psycopg.Connection[Any], name: str) -> None:
    kind, elements = ELEMENTS[name]

    @FEW
    @given(st.lists(st.lists(elements | st.none(), max_size=4) | st.none(), min_size=1, max_size=6))
    def check(rows: list[Any]) -> None:
        assert write_column(pa.array(rows, pa.list_(kind))) == read_texts(server, f"%s::{name}[]", rows)
        square = [None if row is None else [row, row[::-1]] for row in rows if row != []]
        assert write_column(pa.array(square, pa.list_(pa.list_(kind)))) == (
            read_texts(server, f"%s::{name}[]", square) if square else []
        )

    check()


def test_arrays_that_postgresql_does_not_support() -> None:
    rows = [[[1], [2, 3], None], [[], []]]
    assert write_column(pa.array(rows, pa.list_(pa.list_(pa.int32())))) == ["{{1},{2,3},NULL}", "{{},{}}"]


def test_sliced_columns_are_written_correctly() -> None:
    lists = pa.array([[1], None, [2, 3], [4]])
    assert write_column(lists.slice(1, 2)) == [None, "{2,3}"]
    assert write_column(pa.array([{"a": 1}, None, {"a": 2}]).slice(1)) == [None, '{"a":2}']
    maps = pa.array([[(5, 1)], None, [(6, None)]], pa.map_(pa.int32(), pa.int32()))
    assert write_column(maps.slice(1)) == [None, '{"6":null}']


def test_structs_and_maps_are_compact_json(server: psycopg.Connection[Any]) -> None:
    kind = pa.struct(
        [
            ("i", pa.int64()),
            ("n", pa.decimal128(10, 3)),
            ("f", pa.float64()),
            ("b", pa.bool_()),
            ("s", pa.string()),
            ("d", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("x", pa.binary()),
            ("l", pa.list_(pa.int32())),
            ("m", pa.map_(pa.string(), pa.struct([("k", pa.string())]))),
        ]
    )
    row = {
        "i": 2**62,
        "n": Decimal("1.500"),
        "f": math.nan,
        "b": True,
        "s": 'a"\\\n\x01ä',
        "d": date(2026, 1, 31),
        "at": datetime(2026, 1, 31, 10, 20, 30, 500000, tzinfo=UTC),
        "x": b"\x01",
        "l": [1, None],
        "m": [("ü", {"k": None})],
    }
    (found,) = write_column(pa.array([row], kind))
    assert found == (
        '{"i":4611686018427387904,"n":1.500,"f":"NaN","b":true,"s":"a\\"\\\\\\n\\u0001ä","d":"2026-01-31",'
        '"at":"2026-01-31T10:20:30.5+00:00","x":"\\\\x01","l":[1,null],"m":{"ü":{"k":null}}}'
    )
    (same,) = read_texts(server, "%s::jsonb -> 'm'", [found])
    assert same == '{"ü": {"k": null}}'
    assert write_column(pa.array([None, {}], pa.struct([]))) == [None, "{}"]


def test_variants_are_json() -> None:
    value = VariantVal.parseJson('{"a":[1,2.5,"x",null]}')
    fields = [pa.field("value", pa.binary(), nullable=False)]
    fields.append(pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}))
    column = pa.array([{"value": bytes(value.value), "metadata": bytes(value.metadata)}, None], pa.struct(fields))
    assert write_column(column) == ['{"a":[1,2.5,"x",null]}', None]
    assert describe_column(pa.field("v", column.type)) == {"type": "jsonb"}


TYPES: list[tuple[Any, dict[str, Any]]] = [
    (pa.int8(), {"type": "int2"}),
    (pa.int16(), {"type": "int2"}),
    (pa.int32(), {"type": "int4"}),
    (pa.int64(), {"type": "int8"}),
    (pa.float32(), {"type": "float4"}),
    (pa.float64(), {"type": "float8"}),
    (pa.decimal128(20, 4), {"type": "numeric", "precision": 20, "scale": 4}),
    (pa.bool_(), {"type": "bool"}),
    (pa.string(), {"type": "text"}),
    (pa.large_string(), {"type": "text"}),
    (pa.dictionary(pa.int32(), pa.string()), {"type": "text"}),
    (pa.binary(), {"type": "bytea"}),
    (pa.date32(), {"type": "date"}),
    (pa.time64("ns"), {"type": "time"}),
    (pa.timestamp("us"), {"type": "timestamp"}),
    (pa.timestamp("us", "UTC"), {"type": "timestamptz"}),
    (pa.duration("us"), {"type": "interval"}),
    (pa.struct([("a", pa.int32())]), {"type": "jsonb"}),
    (pa.map_(pa.string(), pa.int32()), {"type": "jsonb"}),
    (pa.list_(pa.int32()), {"type": "int4", "dims": 1}),
    (pa.list_(pa.list_(pa.decimal128(5, 2))), {"type": "numeric", "dims": 2, "precision": 5, "scale": 2}),
    (pa.list_(pa.struct([("a", pa.int32())])), {"type": "jsonb", "dims": 1}),
]


@pytest.mark.parametrize(("kind", "described"), TYPES, ids=str)
def test_types(kind: Any, described: dict[str, Any]) -> None:
    assert describe_column(pa.field("c", kind)) == described
    assert describe_column(pa.field("c", kind, nullable=False)) == described | {"not_null": True}
    assert write_column(pa.nulls(2, kind)) == [None, None]
    assert write_column(pa.chunked_array([], kind)) == []


def test_a_column_of_type_null() -> None:
    assert describe_column(pa.field("c", pa.null())) == {"type": "text"}
    assert write_column(pa.nulls(2)) == [None, None]


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(InvalidInput, match="month_day_nano_interval"):
        describe_column(pa.field("c", pa.month_day_nano_interval()))
