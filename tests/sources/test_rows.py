"""Pushed rows: all of them, or none and the position of the first that does not fit."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from evertide.errors import InvalidInput
from evertide.sources.contract import OP
from evertide.sources.values.rows import convert_push
from evertide.sources.values.values import convert_value
from tests.sources.kit import ORDERS, every_kind, table, written_rows


def test_rows_have_the_tables_columns_and_an_operation() -> None:
    found = convert_push(table(), [{"id": 1, "amount": "2.50"}, {"ID": 2, "name": "x"}], [7, {"id": 8}])
    assert found.table == "orders"
    assert found.rows.schema.names == ["id", "name", "amount", OP]
    assert all(field.nullable for field in found.rows.schema)
    assert found.rows.schema.field(OP).type == pa.int8()
    assert [tuple(row.values()) for row in found.rows.to_pylist()] == [
        (7, None, None, 1),
        (8, None, None, 1),
        (1, None, Decimal("2.50"), 0),
        (2, "x", None, 0),
    ]


def test_u5_one_key_several_times_keeps_the_order_it_was_pushed_in() -> None:
    """The last one wins, so the order must be kept; deletes of the same push come first."""
    found = convert_push(table(), [{"id": 1, "name": "a"}, {"id": 2}, {"id": 1, "name": "b"}], [1, 1])
    assert [(row["id"], row["name"], row[OP]) for row in found.rows.to_pylist()] == [
        (1, None, 1),
        (1, None, 1),
        (1, "a", 0),
        (2, None, 0),
        (1, "b", 0),
    ]


def test_an_empty_push_is_an_empty_table() -> None:
    assert convert_push(table()).rows.schema == convert_push(table(), [{"id": 1}]).rows.schema
    assert convert_push(table(), ORDERS.empty_table(), []).rows.num_rows == 0


def test_a_table_without_a_key_deletes_whole_rows() -> None:
    found = convert_push(table(key=()), [], [{"id": 1, "name": "a"}])
    assert found.rows.to_pylist() == [{"id": 1, "name": "a", "amount": None, OP: 1}]


def test_a_missing_column_is_its_default_and_null_is_null() -> None:
    orders = replace(table(), defaults={"name": "'it''s'", "amount": "1.5"})
    found = convert_push(orders, [{"id": 1}, {"id": 2, "name": None}, {"id": 3, "amount": 2}], [9]).rows
    assert found.column("name").to_pylist() == [None, "it's", None, "it's"]
    assert found.column("amount").to_pylist() == [None, Decimal("1.5"), Decimal("1.5"), Decimal(2)]
    with pytest.raises(InvalidInput, match=r"DEFAULT upper\('a'\) is not a constant"):
        convert_push(replace(table(), defaults={"name": "upper('a')"}), [{"id": 1}])


def test_arrow_of_the_right_types_is_not_copied() -> None:
    given = pa.table({"id": [1, 2], "name": ["a", None], "amount": pa.array([Decimal(1), None], pa.decimal128(10, 2))})
    found = convert_push(table(), given).rows
    for name in given.schema.names:
        before, after = given.column(name).chunk(0).buffers(), found.column(name).chunk(0).buffers()
        assert before[-1].address == after[-1].address, "the buffers were copied"
    batch = pa.record_batch({"NAME": ["x"], "id": pa.array([5], pa.int16())})
    assert convert_push(table(), batch, pa.table({"id": [1]})).rows.to_pylist() == [
        {"id": 1, "name": None, "amount": None, OP: 1},
        {"id": 5, "name": "x", "amount": None, OP: 0},
    ]


@pytest.mark.parametrize(
    ("rows", "deletes", "where", "why"),
    [
        ([{"id": 1}, {"idd": 2}], [], "table 'orders', row 2", "the table has no column 'idd'; it has 'id'"),
        ([{"id": 1, "ID": 2}], [], "table 'orders', row 1", "column 'id' is given twice"),
        ([{"name": "x"}], [], "table 'orders', row 1, column 'id'", "NULL is not allowed: the column is in the key"),
        (
            [{"id": 1}, {"id": "2"}],
            [],
            "table 'orders', row 2, column 'id'",
            "'2' is not a BIGINT: expected a whole num",
        ),
        ([{"id": 1, "amount": 0.005}], [], "table 'orders', row 1, column 'amount'", "0.005 is not a DECIMAL(10, 2)"),
        ([{"id": 1}, 5], [], "table 'orders', row 2", "5 is not a mapping"),
        ({"id": 1}, [], "table 'orders'", "is not a list of rows"),
        (
            [],
            [{"id": 1}, None],
            "table 'orders', delete 2, column 'id'",
            "NULL is not allowed: the column is in the key",
        ),
        ([], [{"name": "x"}], "table 'orders', delete 1, column 'id'", "NULL"),
        ([], 5, "table 'orders'", "5 is not a list of deletes"),
        (pa.table({"id": [1], "x": [1]}), [], "table 'orders'", "the table has no column 'x'"),
        (pa.table({"id": [1, 2], "name": [1, None]}), [], "table 'orders', row 1, column 'name'", "1 is not a STRING"),
    ],
)
def test_a_push_that_does_not_fit_is_refused_with_its_place(rows: Any, deletes: Any, where: str, why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        convert_push(table(), rows, deletes)
    assert refused.value.where == where
    assert why in refused.value.why


def test_not_null_is_enforced_for_columns_outside_the_key() -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    with pytest.raises(InvalidInput, match=r"row 2, column 'name'.*STRING NOT NULL"):
        convert_push(table(schema=schema), [{"id": 1, "name": "x"}, {"id": 2}])
    with pytest.raises(InvalidInput, match=r"column 'id'.*in the key"):
        convert_push(table(schema=schema), [{"id": None, "name": "x"}])
    assert convert_push(table(schema=schema), [], [1]).rows.num_rows == 1, "a delete needs only its key"


@settings(max_examples=40, deadline=None)
@given(written_rows())
def test_rows_of_every_type_are_converted_exactly(rows: list[dict[str, Any]]) -> None:
    schema = every_kind()
    every = table("every", schema=schema, key=["number"])
    found = convert_push(every, rows).rows
    found.validate(full=True)
    expected = pa.Table.from_pylist(
        [{n: convert_value(v, schema.field(n).type) for n, v in row.items()} for row in rows], schema
    )
    assert repr(found.drop_columns([OP]).to_pylist()) == repr(expected.to_pylist())
    assert repr(convert_push(every, expected).rows.to_pylist()) == repr(found.to_pylist()), "the same as from Arrow"
