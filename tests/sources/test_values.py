"""Values: exact or refused; the conversion of a column agrees with that of its values one by one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertide.plan.algebra.plan_columns import find_arrow_type
from evertide.sources.values.columns import from_arrow, from_texts, from_values, is_widened_by
from evertide.sources.values.values import Misfit, Number, convert_value, parse_value
from tests.sources.kit import KINDS, VALUES

PRICE = pa.decimal128(10, 2)
AT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (5, pa.int8(), 5),
        (5.0, pa.int64(), 5),
        (Decimal("5.00"), pa.int32(), 5),
        (np.int64(7), pa.int8(), 7),
        (Number("5e2"), pa.int64(), 500),
        (1 << 53, pa.float64(), float(1 << 53)),
        ((1 << 53) + 2, pa.float64(), float((1 << 53) + 2)),
        (0.1, pa.float32(), 0.1),
        ("-Infinity", pa.float64(), -math.inf),
        (Number("0.1"), pa.float64(), 0.1),
        ("12.30", PRICE, Decimal("12.30")),
        (12, PRICE, Decimal(12)),
        (0.1, PRICE, Decimal("0.1")),
        (Decimal("1E+3"), PRICE, Decimal("1E+3")),
        ("99999999.99", PRICE, Decimal("99999999.99")),
        ("2026-01-31", pa.date32(), date(2026, 1, 31)),
        (datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))), AT, datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("2026-01-31", AT, datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T10:20:30.123456700-0130", AT, None),
        ("2026-01-31T10:20:30.123456000-0130", AT, datetime(2026, 1, 31, 11, 50, 30, 123456, tzinfo=UTC)),
        ("2026-01-31 10:20", LOCAL, datetime(2026, 1, 31, 10, 20)),  # noqa: DTZ001
        ("2026-01-31 10:20:00Z", LOCAL, None),
        ("10:20:30.5", pa.time64("ns"), time(10, 20, 30, 500_000)),
        ("-1 02:03:04.5", pa.duration("us"), -timedelta(1, 4, 500_000, 0, 3, 2)),
        ("aGk=", pa.binary(), b"hi"),
        (b"\0\xff", pa.binary(), b"\0\xff"),
        ([1, None], pa.list_(pa.int64()), [1, None]),
        ({"1": "a"}, pa.map_(pa.int32(), pa.string()), [(1, "a")]),
        ({"a": 1}, pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1, "b": None}),
    ],
)
def test_values_that_fit_are_converted_exactly(value: Any, kind: Any, expected: Any) -> None:
    if expected is None:
        with pytest.raises(Misfit):
            convert_value(value, kind)
        return
    assert convert_value(value, kind) == expected
    pa.array([convert_value(value, kind)], kind).validate(full=True)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (128, pa.int8()),
        (1 << 63, pa.int64()),
        pytest.param(10**5000, pa.int64(), id="huge"),
        pytest.param(10**5000, PRICE, id="huge decimal"),
        pytest.param(10**5000, pa.float64(), id="huge double"),
        (1.5, pa.int64()),
        (math.nan, pa.int64()),
        (True, pa.int64()),
        ("5", pa.int64()),
        ((1 << 53) + 1, pa.float64()),
        ((1 << 24) + 1, pa.float32()),
        (1e39, pa.float32()),
        (Number("1e400"), pa.float64()),
        ("1.0", pa.float64()),
        (1, pa.bool_()),
        (5, pa.string()),
        pytest.param("\ud800", pa.string(), id="surrogate"),
        ("not base64!", pa.binary()),
        ("1.234", PRICE),
        ("100000000", PRICE),
        (math.inf, PRICE),
        (Decimal("NaN"), PRICE),
        ("1e999999999", PRICE),
        ("2026-02-30", pa.date32()),
        (datetime(2026, 1, 1, tzinfo=UTC), pa.date32()),
        (1_700_000_000, AT),
        ("2026-01-31 25:00:00", AT),
        ("yesterday", AT),
        ("٢٠٢٦-01-31", pa.date32()),
        ({"a": 1}, pa.list_(pa.int64())),
        ("abc", pa.list_(pa.string())),
        ([None], pa.list_(pa.field("element", pa.int64(), nullable=False))),
        ([("a", 1), ("a", 2)], pa.map_(pa.string(), pa.int64())),
        ({"c": 1}, pa.struct([("a", pa.int64())])),
        ({}, pa.struct([pa.field("a", pa.int64(), nullable=False)])),
    ],
)
def test_values_that_do_not_fit_are_refused(value: Any, kind: Any) -> None:
    with pytest.raises(Misfit):
        convert_value(value, kind)


def test_text_of_a_file_is_read_as_the_columns_type() -> None:
    assert [parse_value(text, pa.bool_()) for text in ("true", "F", "1", "no")] == [True, False, True, False]
    assert parse_value("+5", pa.int64()) == 5
    assert parse_value("1e3", pa.float64()) == 1000.0
    assert math.isnan(parse_value("NaN", pa.float32()))
    assert parse_value('{"a": [1.5]}', pa.map_(pa.string(), pa.list_(pa.float64()))) == [("a", [1.5])]
    for text, kind in [("0x10", pa.int64()), (" 5", pa.int64()), ("1_0", pa.float64()), ("{", pa.list_(pa.int64()))]:
        with pytest.raises(Misfit):
            parse_value(text, kind)


def test_a_single_is_rounded_once() -> None:
    """Through a DOUBLE it would be rounded to a tie, and the tie to the wrong side."""
    text = "1.000000178813934326171875000000000000000001"
    assert from_texts(pa.array([text]), pa.float32()).array.to_pylist() == [float(np.float32(1.0000002384185791))]


def test_spark_reads_a_converted_variant() -> None:
    from pyspark.sql.types import VariantVal  # noqa: PLC0415

    kind = find_arrow_type('"variant"')
    found = pa.array([convert_value(value, kind) for value in ({"b": [1, None], "a": "x"}, Number("1.50"), "t")], kind)
    read = [VariantVal(one["value"], one["metadata"]).toJson() for one in found.to_pylist()]
    assert read == ['{"a":"x","b":[1,null]}', "1.50", '"t"']
    with pytest.raises(Misfit, match="VARIANT"):
        convert_value(object(), kind)


@pytest.mark.parametrize("nest", [lambda inner: [inner], lambda inner: {"a": inner}], ids=["list", "object"])
def test_a_variant_has_a_fixed_number_of_levels(nest: Callable[[Any], Any]) -> None:
    """Fails if Python's recursion limit decides."""
    from pyspark.sql.types import VariantVal  # noqa: PLC0415

    kind = find_arrow_type('"variant"')
    value: Any = 1
    for _ in range(200):
        value = nest(value)
    made = convert_value(value, kind)
    assert json.loads(VariantVal(made["value"], made["metadata"]).toJson()) == value
    for _ in range(300):
        value = nest(value)
        with pytest.raises(Misfit, match="deeper than the 200 levels"):
            convert_value(value, kind)


def convert_one_by_one(values: list[Any], kind: Any, convert: Any) -> tuple[list[Any], set[int]]:
    made: list[Any] = []
    bad = set()
    for at, value in enumerate(values):
        try:
            made.append(None if value is None else convert(value, kind))
        except Misfit:
            made.append(None)
            bad.add(at)
    return pa.array(made, kind).to_pylist(), bad


def is_same(left: list[Any], right: list[Any]) -> bool:
    """Equal, with NaN equal to NaN."""
    return repr(left) == repr(right)


NUMBERS = st.from_regex(r"[+-]?[0-9]{1,21}(\.[0-9]{0,4})?([eE]-?[0-9]{1,3})?", fullmatch=True)
DATES = st.from_regex(r"0?[0-9]{3,4}-[01][0-9]-[0-3][0-9]([T ][0-2][0-9]:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,8})?)?Z?)?")
TEXTS = st.none() | NUMBERS | DATES | st.sampled_from(["true", "FALSE", "", "x", "NaN", "0x10", " 5", "inf"])


@pytest.mark.parametrize("name", [name for name in KINDS if name not in {"bytes", "text"}])
@settings(max_examples=20, deadline=None)
@given(texts=st.lists(TEXTS, max_size=8))
def test_a_column_of_texts_is_converted_like_its_texts(name: str, texts: list[str | None]) -> None:
    """Arrow's own cast reads 0x10 as 16 and accepts 1e2 as a decimal, among others."""
    column = from_texts(pa.array(texts, pa.string()), KINDS[name])
    expected, bad = convert_one_by_one(texts, KINDS[name], parse_value)
    assert is_same(column.array.to_pylist(), expected)
    assert set(column.misfits) == bad


@pytest.mark.parametrize("name", list(KINDS))
@settings(max_examples=20, deadline=None)
@given(given=st.data())
def test_a_column_of_values_is_converted_like_its_values(name: str, given: st.DataObject) -> None:
    mixed = st.none() | VALUES[name] | TEXTS | NUMBERS.map(Number) | st.integers() | st.floats()
    values = given.draw(st.lists(mixed, max_size=6))
    column = from_values(values, KINDS[name])
    expected, bad = convert_one_by_one(values, KINDS[name], convert_value)
    assert is_same(column.array.to_pylist(), expected)
    assert set(column.misfits) == bad


def test_texts_that_do_not_fit_are_found_among_many() -> None:
    texts = [f"2026-01-{at % 28 + 1:02d}" for at in range(5_000)]
    texts[77], texts[4_321] = "2026-02-30", "tomorrow"
    column = from_texts(pa.array(texts), pa.date32())
    assert set(column.misfits) == {77, 4_321}
    assert column.array.null_count == 2


@pytest.mark.parametrize(
    ("values", "kind", "bad"),
    [
        (pa.array([1, 300], pa.int64()), pa.int8(), {1}),
        (pa.array([1, 2**53 + 1]), pa.float64(), {1}),
        (pa.array([1.0, 1.5]), pa.int32(), {1}),
        (pa.array([1000, 1001], pa.timestamp("ns")), AT, {1}),
        (pa.array([Decimal("1.20"), Decimal("1.23")]), pa.decimal128(5, 1), {1}),
        (pa.array([0, None], pa.timestamp("s", "Europe/Berlin")), LOCAL, {0}),
        (pa.array(["2026-01-01", "x"]), pa.date32(), {1}),
        (pa.array(["1", None]), pa.int64(), {0}),
        (pa.array(["a", "b"]).dictionary_encode(), pa.string(), set()),
        (pa.array([[1], [None]]), pa.list_(pa.field("element", pa.int64(), nullable=False)), {1}),
        (pa.array([None, None]), pa.string(), set()),
    ],
)
def test_a_column_of_arrow_is_exact_too(values: Any, kind: Any, bad: set[int]) -> None:
    column = from_arrow(values, kind)
    assert set(column.misfits) == bad
    assert column.array.type == kind
    column.array.validate(full=True)


def test_types_that_widen_to_a_columns_type() -> None:
    assert is_widened_by(pa.int32(), pa.int64())
    assert is_widened_by(pa.large_string(), pa.string())
    assert is_widened_by(pa.timestamp("ns"), AT)
    assert is_widened_by(pa.decimal128(8, 2), PRICE)
    assert not is_widened_by(pa.int64(), pa.int32())
    assert not is_widened_by(pa.string(), pa.int64())
    assert not is_widened_by(pa.decimal128(10, 3), PRICE)
    assert not is_widened_by(AT, LOCAL)
