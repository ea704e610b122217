"""Misspelled columns and functions of a query are refused before an engine starts, and nothing else is."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from evertide.server.query.duck import Duck, DuckDeclined, Parsed
from evertide.server.query.name_check import check_columns, check_functions
from evertide.settings import Settings
from tests.server.translated_queries import DASHBOARD, UNSURE

ORDERS = pa.schema(
    [("id", pa.int64()), ("customer", pa.string()), ("at", pa.timestamp("us")), ("s", pa.struct([("f", pa.int64())]))]
)
ONE = pa.schema([(name, pa.int64()) for name in ("id", *"xnimwdfbl", "ts", "nt", "da", "st", "bi")])


def check(sql: str, **schemas: pa.Schema) -> None:
    def check_parsed(parsed: Parsed) -> None:
        check_functions(parsed)
        check_columns(parsed, schemas)

    Duck(Settings()).parse(sql, check_parsed)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT custmer FROM orders", "no column 'custmer' in 'orders'; did you mean 'customer'?"),
        ("SELECT count(*) AS n FROM orders WHERE custmer = 'a'", "did you mean 'customer'?"),
        ("SELECT date_format(aat, 'yyyy') AS y FROM orders", "no column 'aat' in 'orders'; did you mean 'at'?"),
        ("SELECT zzz FROM orders", "no column 'zzz' in 'orders'; the columns are at, customer, id, s"),
        ("SELECT x.id FROM orders", "no column 'x' in 'orders'"),
        ("SELECT o.custmer FROM orders AS O", "no column 'custmer' in 'orders'; did you mean 'customer'?"),
        ("SELECT 1 FROM orders o JOIN orders p ON o.id = p.idd", "no column 'idd' in 'orders'; did you mean 'id'?"),
        ("SELECT summ(id) FROM orders", "no function 'summ'; did you mean 'sum'?"),
        ("SELECT * FROM orders WHERE Uper (customer) = 'A'", "no function 'uper'; did you mean 'upper'?"),
        ("SELECT list_sum(id) FROM orders", "no function 'list_sum'"),
    ],
)
def test_a_misspelled_name_is_refused(sql: str, why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check(sql, orders=ORDERS)
    assert not isinstance(refused.value, DuckDeclined)
    assert why in refused.value.why


def test_the_first_misspelled_column_is_the_one_that_is_located() -> None:
    """Fails if DuckDB's positions, which count bytes, are taken for those of characters."""
    with pytest.raises(InvalidInput) as refused:
        check("SELECT 'ä😀',\n 'ß', custmer, idd FROM orders", orders=ORDERS)
    assert refused.value.where == "query:2:7"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT CUSTOMER AS c, c AS d FROM orders o WHERE o.s.f > 1 ORDER BY d",
        "SELECT current_date, user FROM orders",
        "SELECT t.n FROM (SELECT count(*) AS n FROM orders) t",
        "SELECT a FROM (SELECT id, customer FROM orders) AS t(a, b)",
        "SELECT col1 FROM (VALUES (1, 2)) AS t",
        'SELECT "a text" FROM orders',
        "SELECT s.f FROM orders AS s",
        "SELECT o.n FROM orders o, (SELECT 1 AS n) o",
        "SELECT orders.n FROM (WITH orders AS (SELECT 1 AS n) SELECT * FROM orders) CROSS JOIN orders",
        "SELECT o.a FROM orders AS o(a, b, c, d)",
        "SELECT TRY_CAST(id AS STRING), trim(BOTH 'x' FROM customer) FROM orders",
        "SELECT customer LIKE 'a%', -id, id IN (1), extract(year FROM now()), position('a' IN customer) FROM orders",
    ],
)
def test_names_that_something_may_have_are_not_refused(sql: str) -> None:
    check(sql, orders=ORDERS)


@pytest.mark.parametrize("sql", [each for each in (*DASHBOARD, *UNSURE) if each != "SELECT a.id FROM one"])
def test_queries_of_spark_are_not_refused(sql: str) -> None:
    with suppress(DuckDeclined):  # for another reason
        check(sql, one=ONE, two=ONE, none=ONE)
