"""The option `where` selects the rows that Spark selects."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from evertide.datasource.condition import make_mask, parse_conditions
from evertide.errors import InvalidInput
from tests.datasource.kit import content

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("Name", pa.string()),
        ("weight", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("ok", pa.bool_()),
        ("from", pa.int64()),
        ("tags", pa.list_(pa.string())),
    ]
)
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
ROWS = pa.table(
    {
        "id": [-1, 0, 1, 2, 3, None],
        "Name": ["ann", "Bob", "it's", "Zoë", "", None],
        "weight": [float("nan"), -0.0, 0.0, 1.5, float("-inf"), None],
        "price": [Decimal("0.00"), Decimal("1.50"), Decimal("-1.50"), None, Decimal("99999999.99"), Decimal("1.51")],
        "day": [date(1969, 12, 31), date(2026, 11, 15), None, date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31)],
        "at": [NOON, None, NOON.replace(microsecond=1), NOON.replace(year=1960), NOON, NOON],
        "local": [None, *(NOON.replace(tzinfo=None, hour=hour) for hour in range(5))],
        "ok": [True, False, None, True, False, None],
        "from": [1, 2, 3, 4, 5, 6],
        "tags": [None, [], ["x"], None, None, None],
    },
    schema=SCHEMA,
)
CONDITIONS = [
    "id = 1",
    "ID >= 0 and id < 3",
    "id > -1",
    "id BETWEEN 0 AND 2",
    "id IN (1, 3, 7)",
    "id IS NULL",
    "id IS NOT NULL AND name = 'it''s'",
    "name > 'ann'",
    "name <= 'Zoë'",
    "`Name` = ''",
    "weight > 1.5",
    "weight >= 0",
    "weight = 0.0",
    "weight < 0",
    "weight <= 1e3",
    "price = 1.5",
    "price > -1.50 AND price < 1.51",
    "day < DATE '1970-01-01'",
    "day = DATE '2026-11-15'",
    "at > TIMESTAMP '2026-11-15 12:00:00'",
    "at <= TIMESTAMP '2026-11-15T13:00:00+01:00'",
    "ok = TRUE",
    "ok = false",
    "`from` > 3",
    "tags IS NOT NULL",
    "(id = 1) AND (`id` = 1 AND id > +0)",
]


@pytest.mark.parametrize("text", CONDITIONS)
def test_a_condition_selects_the_same_rows_as_in_spark(spark: SparkSession, text: str) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        expected = spark.createDataFrame(ROWS).where(text).select("from").toArrow().to_pylist()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    found = ROWS.filter(make_mask(ROWS, parse_conditions(text, SCHEMA))).select(["from"]).to_pylist()
    assert content(found) == content(expected)


def test_without_a_condition_all_rows_are_read() -> None:
    assert parse_conditions("", SCHEMA) == ()
    assert make_mask(ROWS, ()) is None


REFUSED = {
    "nothing = 1": "character 1: the collection has no column 'nothing'; it has id, Name, weight",
    "id = 1 OR id = 2": "character 8: 'OR': expected conditions with =",
    "id": "character 1: 'id': expected conditions with =, <, <=, >, >=, BETWEEN, IN or IS [NOT] NULL, joined by AND",
    "id = ": "the end: expected a value here",
    "id = 1.5": "character 6: '1.5' is not a value of column 'id', which is int32",
    "id = -1.5": "character 7: '1.5' is not a value of column 'id', which is int32",
    "id = 3000000000": "'3000000000' is not a value of column 'id'",
    "id = 'one'": "\"'one'\" is not a value of column 'id'",
    "id = NULL": "'NULL' is not a value of column 'id'",
    "id = local": "'local' is not a value of column 'id'",
    "id = 1 + 1": "'+' is not a value of column 'id'",
    "price = 1.505": "'1.505' is not a value of column 'price'",
    "name = 5": "'5' is not a value of column 'Name'",
    "day = DATE '2026-13-01'": "\"'2026-13-01'\" is not a value of column 'day'",
    "local = TIMESTAMP '2026-11-15T12:00:00Z'": "is not a value of column 'local'",
    "tags = 'x'": "is not a value of column 'tags'",
    "id IN 1": "'1': expected '('",
    "id IS 5": "'5': IS is followed by NULL",
    "id IS TRUE": "'IS': expected conditions with",
    "id IN (1, 'x')": "\"'x'\" is not a value of column 'id'",
    "id NOT IN (1)": "expected conditions with",
    "id <> 1": "'<>': expected conditions with",
    "id BETWEEN SYMMETRIC 2 AND 1": "expected conditions with",
    "id = 1 AND": "the end: expected a value here",
    "id ~ 1": "'~': this operator is not supported",
    "upper(name) = 'X'": "'upper': a condition must start with a column",
    "1 = id": "'1': a condition must start with a column",
    "from > 3": "'from': expected a value here",
    'name = "ann"': "'\"' is not valid here",
}


@pytest.mark.parametrize("text", REFUSED)
def test_an_unsupported_condition_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_conditions(text, SCHEMA)
    assert REFUSED[text] in caught.value.why
    assert caught.value.where == f"option where={text!r}"
