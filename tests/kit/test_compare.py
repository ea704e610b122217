"""The comparison of collections: what it accepts, what it detects, and what it reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.compare import Differs, compare


def rows(name: Sequence[str], value: Sequence[float | None], kind: Any = None) -> pa.Table:
    return pa.table({"name": pa.array(name, pa.string()), "value": pa.array(value, kind or pa.float64())})


SMALL = rows(["a", "b", "b"], [1.0, 2.0, 3.0])


def test_the_order_of_rows_does_not_matter() -> None:
    compare(SMALL, SMALL.take([2, 0, 1]))


@pytest.mark.parametrize(
    ("found", "missing", "surplus"),
    [
        pytest.param(SMALL.slice(0, 2), 1, 0, id="a row is missing"),
        pytest.param(pa.concat_tables([SMALL, SMALL.slice(0, 1)]), 0, 1, id="a row is there twice"),
        pytest.param(rows(["a", "b", "b"], [1.0, 2.0, 3.1]), 1, 1, id="a float is wrong"),
        pytest.param(rows(["a", "b", "b"], [1.0, 2.0, 3.0 + 1e-7]), 1, 1, id="a float is a little wrong"),
        pytest.param(rows(["a", "b", "b"], [1.0, 2.0, math.nan]), 1, 1, id="NaN for a number"),
        pytest.param(rows(["a", "b", "b"], [1.0, 2.0, None]), 1, 1, id="NULL for a number"),
        pytest.param(rows(["a", "b", "b"], [1.0, 2.0, 2.0]), 1, 1, id="another count"),
        pytest.param(rows(["a", "b", "c"], [1.0, 2.0, 3.0]), 1, 1, id="another string"),
        pytest.param(SMALL.slice(0, 0), 3, 0, id="nothing"),
    ],
)
def test_differences_are_detected_and_reported(found: pa.Table, missing: int, surplus: int) -> None:
    with pytest.raises(Differs, match=f"view v: {missing} rows missing, {surplus} too many") as differs:
        compare(found, SMALL, where="view v")
    assert (len(differs.value.missing), len(differs.value.surplus)) == (missing, surplus)
    assert str(differs.value).count("missing: {") == missing
    assert str(differs.value).count("too many: {") == surplus


def test_only_a_few_rows_are_reported() -> None:
    with pytest.raises(Differs, match="100 rows missing, 0 too many; 0 found") as differs:
        compare(rows([], []), rows(["a"] * 100, [1.0] * 100))
    assert len(differs.value.missing) == 5


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e300, None])
def test_a_float_equals_itself(value: float | None) -> None:
    compare(rows(["a"], [value]), rows(["a"], [value]))


def test_floats_may_differ_within_the_tolerance_only() -> None:
    compare(rows(["a"], [0.1 + 0.2]), rows(["a"], [0.3]))
    compare(rows(["a"], [0.0]), rows(["a"], [-0.0]))
    with pytest.raises(Differs):
        compare(rows(["a"], [1e-17]), rows(["a"], [0.0]))
    compare(rows(["a"], [1e-17]), rows(["a"], [0.0]), absolute=1e-15)


def test_rows_are_matched_not_sorted() -> None:
    """Sorted by the first float, the rows of the two sides are in different orders: line by line they differ."""
    tiny = 1e-14
    found = pa.table({"x": [1.0, 1.0 + tiny], "y": [5.0, 9.0]})
    expected = pa.table({"x": [1.0 + tiny, 1.0], "y": [5.0, 9.0]})
    compare(found, expected)
    with pytest.raises(Differs, match="1 rows missing, 1 too many"):
        compare(found, pa.table({"x": [1.0, 1.0], "y": [5.0, 5.0]}))


def test_a_match_is_changed_if_that_matches_both_rows() -> None:
    """The first row is close to both, the second to one only, which the first must not take."""
    found = pa.table({"x": [1.0, 1.0 + 1.5e-9]})
    expected = pa.table({"x": [1.0 + 0.9e-9, 1.0 - 0.9e-9]})
    compare(found, expected)


def test_floats_within_lists_structs_and_maps() -> None:
    def nested(value: float) -> pa.Table:
        kind = pa.struct([("l", pa.list_(pa.float64())), ("m", pa.map_(pa.string(), pa.float64())), ("n", pa.int64())])
        return pa.table({"s": pa.array([{"l": [value, None], "m": [("k", value)], "n": 1}], kind)})

    compare(nested(0.1 + 0.2), nested(0.3))
    with pytest.raises(Differs):
        compare(nested(0.31), nested(0.3))


def test_columns_and_types_must_agree() -> None:
    with pytest.raises(Differs, match=r"the columns are \['name', 'value'\], but must be \['name'\]"):
        compare(SMALL, SMALL.select(["name"]))
    with pytest.raises(Differs, match="'value' has the type int64, but must be double"):
        compare(rows(["a"], [1], pa.int64()), rows(["a"], [1.0]))


def test_physical_forms_of_one_type_are_equal() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    one = pa.table({"s": pa.array(["a"]).dictionary_encode(), "t": pa.array([at], pa.timestamp("us", "UTC"))})
    other = pa.table({"s": pa.array(["a"], pa.large_string()), "t": pa.array([at], pa.timestamp("us", "Asia/Tokyo"))})
    compare(one, other)


def test_another_engines_types_are_compared_by_value() -> None:
    def one(value: Any, kind: Any) -> pa.Table:
        return pa.table({"v": pa.array([value], kind)})

    compare(one(7, pa.int64()), one(Decimal(7), pa.decimal128(38, 0)), exact_types=False)
    compare(one(Decimal("0.333333"), pa.decimal128(19, 6)), one(1 / 3, pa.float64()), exact_types=False)
    with pytest.raises(Differs):
        compare(one(7, pa.int64()), one(Decimal(8), pa.decimal128(38, 0)), exact_types=False)
    with pytest.raises(Differs):
        compare(one(Decimal("0.333353"), pa.decimal128(19, 6)), one(1 / 3, pa.float64()), exact_types=False)
    with pytest.raises(Differs, match="cannot be compared"):
        compare(one(7, pa.int64()), one("seven", pa.string()), exact_types=False)
