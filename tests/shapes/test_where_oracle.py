"""Random clauses over awkward rows, compared with PostgreSQL's own result."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from evertide.errors import InvalidInput
from evertide.pgexpr.clause import Where, parse_where
from tests.servers.postgres import PostgresServer
from tests.shapes.clauses import CLAUSES, ROWS, SCHEMA, oracle

MANY = settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
MALFORMED = "42"
"""The class of errors that PostgreSQL finds in a clause before it sees a row."""
FAILING = ("out of range", "division by zero", "square root", "overflow")
"""Constants that fail are refused; PostgreSQL may find that it does not need them."""


@pytest.fixture(scope="module", name="oracle")
def _oracle(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with oracle(postgres_server) as connection:
        yield connection


def verdicts(oracle: psycopg.Connection[Any], clause: str) -> dict[int, bool | None] | str:
    """The result by row, without rows that PostgreSQL fails on; or why PostgreSQL refuses the clause."""
    try:
        found = oracle.execute(f"SELECT id, ({clause}) FROM rows").fetchall()
        return dict(found)
    except psycopg.Error as error:
        state = str(error.sqlstate)
        if state.startswith(MALFORMED):
            return str(error)
    rows = oracle.execute("SELECT id, verdict, failed FROM pg_temp.verdicts(%s)", [clause]).fetchall()
    return {number: verdict for number, verdict, failed in rows if failed is None}


def ours(clause: str) -> Where | InvalidInput:
    try:
        return parse_where(clause, {}, SCHEMA)
    except InvalidInput as error:
        return error


def check(oracle: psycopg.Connection[Any], clause: str) -> None:
    expected = verdicts(oracle, clause)
    found = ours(clause)
    if isinstance(found, InvalidInput):
        is_constant = any(word in found.why for word in FAILING)
        assert is_constant or not expected or isinstance(expected, str), f"refused: {clause}\n{found}\n{expected}"
        return
    assert not isinstance(expected, str), f"accepted: {clause}\n{found.canonical}\n{expected}"
    matching = found.matches(ROWS).to_pylist()
    differing = {number: verdict for number, verdict in expected.items() if matching[number] is not (verdict is True)}
    assert not differing, f"{clause}\n{found.canonical}\n{ROWS.slice(min(differing), 1).to_pylist()}\n{differing}"


@MANY
@given(CLAUSES)
def test_rows_match_as_in_postgresql(oracle: psycopg.Connection[Any], clause: str) -> None:
    """NOT also distinguishes false from NULL."""
    check(oracle, clause)
    check(oracle, f"NOT ({clause})")


@settings(MANY, max_examples=100)
@given(CLAUSES)
def test_a_canonical_text_has_the_same_meaning(oracle: psycopg.Connection[Any], clause: str) -> None:
    found = ours(clause)
    if isinstance(found, Where):
        assert parse_where(found.canonical, {}, SCHEMA) == found
        check(oracle, found.canonical)


RULES = [
    *(
        "i / 2 = -3",
        "-7 / 2 = -3 AND i / -2 = 3",
        "i / 2 < 0",
        "l / 1000 = 9007199254740",
        "n / 3 = 0.5",
        "n / 7 < 0.2142857",
    ),
    *(
        "r = 0.1",
        "r = '0.1'",
        "r IN (0.1, 0.2)",
        "r IN (0.1)",
        "r + 1 > 2.4",
        "r = 0.1::float4",
        "f = 0.1",
        "i = 2.0",
        "l = 3.0",
    ),
    *(
        "l + 0.5 > 9007199254740992",
        "l::float8 = 9007199254740992",
        "f > 'Infinity'",
        "f < 'NaN'",
        "f <> 'NaN'",
        "r >= 'NaN'",
    ),
    *(
        "f IN ('NaN', 1)",
        "f BETWEEN 1 AND 'NaN'",
        "greatest(f, 1) = 'NaN'",
        "least(f, r) = 0",
        "fa = '{NaN}'",
        "'NaN' = ANY (fa)",
    ),
    *(
        "i IN (1, NULL)",
        "i NOT IN (1, NULL)",
        "i <> ALL ('{1,NULL}')",
        "i = ANY ('{}')",
        "NULL = ANY (ia)",
        "1 = ALL (ia)",
    ),
    *(
        "d + interval '1 mon' = '2024-03-29'",
        "d - interval '1 mon' = '2025-12-31'",
        "ts + interval '1 year' > '2025-02-28'",
    ),
    *("timezone('Europe/Berlin', ts) = '2024-03-31 01:30Z'", "timezone('Europe/Berlin', ts) = '2024-10-27 01:30Z'"),
    *(
        "tz AT TIME ZONE 'Europe/Berlin' = '2024-10-27 02:30'",
        "d = '2024-02-29'",
        "ts::date - d = 0",
        "d - 1 < '1970-01-01'",
    ),
    *(
        "upper(t) = 'Zß'",
        "upper(t) = 'ÄRGER'",
        "t ILIKE 'ÄRGER'",
        "t LIKE 'a\\_c'",
        "t LIKE '_\n_'",
        "t LIKE '%\\\\c'",
        "t > 'a'",
    ),
    *(
        "ia @> '{NULL}'",
        "ia && '{NULL,2}'",
        "'{}' <@ ia",
        "mm @> '{4}'",
        "mm = '{{1,2}}'",
        "ia < '{1,NULL}'",
        "ia || mm = mm",
    ),
    *("iv = interval '1 day'", "iv = '24 hours'", "justify_days(iv) = '1 mon 10 days 0.000001 sec'", "iv < '-1 day'"),
    *(
        "x > '\\x00'",
        "t || 1 = '51'",
        "1 || t = '15'",
        "t::int4 = 7",
        "t::float8 = 1000",
        "t::bool",
        "n::text = '1.5000'",
    ),
    *(
        "(b OR NULL) IS UNKNOWN",
        "(b AND NULL) IS FALSE",
        "b IS DISTINCT FROM NULL",
        "NULL IS NOT DISTINCT FROM i",
        "NOT NULL",
    ),
    *(
        "@ i = 7",
        "@ -7 + i = 14",
        "- 2 ^ 2 = i + 4",
        "2 + 3 * i = 5",
        "i & 3 = 1",
        "~ i = -1",
        "i # 1 = 0",
        "|/ f > 1",
        "1 = 1.0",
    ),
    *(
        "n < 'NaN'",
        "n < 'Infinity'",
        "w > '-Infinity'",
        "n < 1e90",
        "n < 1e60 AND w > -1e60",
        "n > 1e-100",
        "n < w",
        "n IS DISTINCT FROM 1.5",
        "w = 3",
        "w > 1.00000000005",
        "n * w > 0",
        "n - 1.5 = 0",
        "n::int4 = 2",
        "n::numeric(10, 1) = 3.3",
        "f::int4 = 2",
        "f::numeric = 0.1",
    ),
]
"""At least one clause for each rule of PostgreSQL that is easy to get wrong."""


@pytest.mark.parametrize("clause", RULES)
def test_a_rule_of_postgresql(oracle: psycopg.Connection[Any], clause: str) -> None:
    assert not isinstance(ours(clause), InvalidInput), ours(clause)
    check(oracle, clause)
    check(oracle, f"NOT ({clause})")


NUMERICS = st.builds(
    lambda number, places: f"{number}e-{places}",
    st.integers(-(10**12), 10**12) | st.integers(-99, 99) | st.integers(-(10**30), 10**30),
    st.integers(0, 20),
).map(lambda text: format(Decimal(text), "f"))


@settings(MANY, max_examples=150)
@given(NUMERICS, NUMERICS)
def test_quotients_have_as_many_digits_as_in_postgresql(
    oracle: psycopg.Connection[Any], above: str, below: str
) -> None:
    """Also products, sums and roundings."""
    assume(Decimal(below) != 0)
    for expression in (
        f"('{above}'::numeric / '{below}'::numeric)::text",
        f"('{above}'::numeric * '{below}'::numeric - '{below}'::numeric)::text",
        f"('{above}'::numeric::numeric(50, 3))::text",
        f"'{above}'::numeric::float8::numeric::text",
    ):
        row = oracle.execute(f"SELECT {expression}").fetchone()
        assert row is not None
        assert parse_where(f"{expression} = '{row[0]}'", {}, SCHEMA).canonical == "true", (expression, row)
