"""Rows as data frames of pandas and polars, and back."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from evertide.errors import InvalidInput, SetupIncomplete
from evertide.rows.frames import from_frame, make_names_unique, to_pandas, to_polars

LARGE = 2**60 + 1
"""A float rounds it."""
ROWS = pa.table(
    {
        "i": pa.array([1, None, LARGE]),
        "u": pa.array([1, None, 255], pa.uint8()),
        "full": pa.array([1, 2, LARGE]),
        "b": [True, None, False],
        "f": pa.array([1.5, -0.0, None]),
        "s": ["a", None, "ü"],
        "n": pa.array([Decimal("1.20"), None, Decimal("-3.00")], pa.decimal128(10, 2)),
        "day": pa.array([date(2026, 1, 2), None, date(1, 1, 1)]),
        "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), None, datetime(1970, 1, 1, tzinfo=UTC)]),
        "list": pa.array([[1, None, LARGE], None, []], pa.list_(pa.int64())),
        "struct": pa.array([{"x": LARGE}, None, {"x": None}], pa.struct({"x": pa.int64()})),
        "bytes": pa.array([b"\xff", None, b""]),
    }
)


def test_no_value_is_rounded_in_pandas() -> None:
    frame = to_pandas(ROWS)
    assert [str(frame[name].dtype) for name in ("i", "u", "full", "b", "f")] == [
        "Int64", "UInt8", "int64", "boolean", "float64",
    ]  # fmt: skip
    for name in ROWS.schema.names:
        found = [None if _is_missing(one) else one for one in frame[name]]
        assert found == ROWS.column(name).to_pylist(), name


def _is_missing(value: Any) -> bool:
    return not isinstance(value, list | dict) and bool(pd.isna(value))


def test_polars_has_the_same_values() -> None:
    frame = to_polars(ROWS)
    for name in ROWS.schema.names:
        assert frame[name].to_list() == ROWS.column(name).to_pylist(), name


def test_values_that_a_library_lacks_are_texts() -> None:
    far = pa.table({"day": pa.array([5_000_000, None], pa.int32()).cast(pa.date32())})
    assert to_pandas(far)["day"].tolist() == ["+15659-07-15", None]
    text = pa.table({"s": pa.array([b"a\xff"]).view(pa.string())})
    assert to_pandas(text)["s"].tolist() == to_polars(text)["s"].to_list() == ["a�"]


def test_columns_of_one_name_are_kept() -> None:
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "a_2"])
    assert to_pandas(rows).columns.tolist() == ["a", "a", "a_2"]
    assert to_polars(rows).columns == ["a", "a_2", "a_2_2"] == make_names_unique(rows).schema.names


@pytest.mark.parametrize("name", [name for name in ROWS.schema.names if name not in ("list", "struct")])
def test_a_frame_becomes_the_rows_that_it_was_made_of(name: str) -> None:
    rows = ROWS.select([name])
    assert from_frame(to_pandas(rows), "").column(0).to_pylist() == rows.column(0).to_pylist()
    assert from_frame(to_polars(rows), "").column(0).to_pylist() == rows.column(0).to_pylist()
    assert from_frame(to_polars(rows).lazy(), "").column(0).to_pylist() == rows.column(0).to_pylist()


def test_values_of_mixed_types_go_on_as_python_values() -> None:
    frame = pd.DataFrame({"id": [1, 2, 3], "map": [{"a": 1}, [("a", 1)], None], "x": [1, "two", float("nan")]})
    assert from_frame(frame, "") == [
        {"id": 1, "map": {"a": 1}, "x": 1},
        {"id": 2, "map": [("a", 1)], "x": "two"},
        {"id": 3, "map": None, "x": None},
    ]


def test_a_named_index_is_a_column_and_a_numbering_is_not() -> None:
    frame = pd.DataFrame({"id": [7], "x": [1.5]})
    assert from_frame(frame, "").schema.names == ["id", "x"]
    assert from_frame(frame.set_index("id"), "").to_pylist() == [{"id": 7, "x": 1.5}]
    assert from_frame(pd.DataFrame({"x": [1]}, index=["row"]), "").schema.names == ["x"]


def test_other_values_are_left_to_the_caller() -> None:
    rows = [{"a": 1}]
    assert from_frame(rows, "") is rows
    assert from_frame(ROWS, "") is ROWS
    assert from_frame(pa.RecordBatch.from_pylist(rows), "").to_pylist() == rows
    assert from_frame(pl.DataFrame(rows), "").to_pylist() == rows
    with pytest.raises(InvalidInput, match="table 't': expected a DataFrame of pandas, not a Series"):
        from_frame(pd.Series([1]), "table 't'")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(SetupIncomplete, match=r"pip install 'evertide\[polars\]'"):
        to_polars(ROWS)
