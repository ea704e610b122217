"""Accumulators against a model with fractions: any order, any split, with retractions."""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evertide.errors import InvalidInput, StateInconsistent
from evertide.flow.aggregates.accumulators import Accumulator, Accumulators, make_accumulator
from evertide.flow.aggregates.limbs import GroupedRows
from evertide.plan.algebra.nodes import EvalMode
from tests.kit.arrow import values

EXAMPLES = settings(max_examples=12, deadline=None)
GROUPS = 3
DOUBLE, LONG = pa.float64(), pa.int64()
MICROSECONDS = pa.duration("us")

Change = tuple[int, int, tuple[Any, ...]]
"""Group, diff, arguments."""

ADDED = [
    *(pa.int8(), pa.int16(), pa.int32(), LONG, pa.float32(), DOUBLE, MICROSECONDS),
    *(pa.decimal128(12, 2), pa.decimal128(18, 0), pa.decimal128(19, 19), pa.decimal128(28, 3), pa.decimal128(38, 10)),
]
OVERFLOWING = [LONG, pa.decimal128(38, 10), MICROSECONDS]
SINGLE = ["StddevSamp", "StddevPop", "VarianceSamp", "VariancePop", "RegrReplacement", "Skewness", "Kurtosis"]
PAIRED = ["CovPopulation", "CovSample", "RegrSXY", "Corr", "RegrR2", "RegrSlope", "RegrIntercept"]

CASES: list[tuple[str, tuple[Any, ...], EvalMode]] = [
    ("Count", (), EvalMode.ANSI),
    ("Count", (LONG, pa.string()), EvalMode.ANSI),
    *((function, (kind,), EvalMode.ANSI) for function in ("Sum", "Average") for kind in ADDED),
    *((function, (kind,), EvalMode.TRY) for function in ("Sum", "Average") for kind in OVERFLOWING),
    *(("Sum", (kind,), EvalMode.LEGACY) for kind in OVERFLOWING),
    *(("BitXorAgg", (kind,), EvalMode.ANSI) for kind in (pa.int8(), LONG)),
    *((function, (DOUBLE,), EvalMode.ANSI) for function in SINGLE),
    *((function, (DOUBLE, DOUBLE), EvalMode.ANSI) for function in PAIRED),
]


def accumulator_of(function: str, types: Sequence[Any], mode: EvalMode = EvalMode.ANSI) -> Accumulator:
    found = make_accumulator(function, types, mode)
    assert found is not None
    return found


def partial(function: Accumulator, types: Sequence[Any], changes: Sequence[Change], mask: Any = None) -> list[Any]:
    args = [pa.array([args[at] for _, _, args in changes], kind) for at, kind in enumerate(types)]
    return function.accumulate(args, as_rows(changes), mask)


def as_rows(changes: Sequence[Change]) -> GroupedRows:
    diffs, groups = (np.array([change[at] for change in changes], np.int64) for at in (1, 0))
    return GroupedRows(diffs, groups, GROUPS)


def where(group: int) -> str:
    return f"view v, group {group}"


def contents(types: Sequence[Any]) -> st.SearchStrategy[list[Change]]:
    diffs = st.one_of(st.just(1), st.integers(1, 5), st.integers(1, 2**40))
    row = st.tuples(st.integers(0, GROUPS - 1), diffs, st.tuples(*(values(kind) for kind in types)))
    return st.lists(row, max_size=12)


def is_same(left: Any, right: Any) -> bool:
    """Bitwise equality, but all NaN are equal."""
    if isinstance(left, float) and isinstance(right, float):
        return struct.pack("<d", left) == struct.pack("<d", right) or (math.isnan(left) and math.isnan(right))
    return bool(left == right and (left is None) == (right is None))


# The model: from one group's rows without NULL, as (args, diff), to the values of its buffer.


def nearest(number: Fraction) -> float:
    try:
        return number.numerator / number.denominator
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def real_sum(numbers: list[tuple[float, int]]) -> float:
    special = {value for value, _ in numbers if not math.isfinite(value)}
    if special:
        return sum(special)
    return nearest(sum((Fraction(value) * diff for value, diff in numbers), Fraction(0)))


def whole(value: Any) -> int:
    """The integer of a long, of a decimal without its scale, of a duration."""
    if not isinstance(value, Decimal):
        return int(value)
    return int("".join(map(str, value.as_tuple().digits))) * (-1 if value.is_signed() else 1)


def model_sum(function: str, kind: Any, mode: EvalMode, rows: list[tuple[tuple[Any, ...], int]]) -> list[Any]:
    count = sum(diff for _, diff in rows)
    if pa.types.is_floating(kind) or (function == "Average" and pa.types.is_integer(kind)):
        total: Any = real_sum([(float(args[0]), diff) for args, diff in rows])
        return [total, count] if function == "Average" else [total if rows else None]
    exact = sum(whole(args[0]) * diff for args, diff in rows)
    limit = 10 ** min(38, kind.precision + 10) if pa.types.is_decimal(kind) else 2**63
    if not (-limit < exact < limit or exact == -(2**63) == -limit):
        if mode is EvalMode.ANSI or (mode is EvalMode.LEGACY and kind == MICROSECONDS):
            raise OverflowError
        exact = None if mode is EvalMode.TRY or kind != LONG else (exact + 2**63) % 2**64 - 2**63  # type: ignore[assignment]
    if function == "Average":
        return [exact, count]
    has_flag = mode is EvalMode.TRY or pa.types.is_decimal(kind)
    return [exact, not rows] if has_flag else [exact if rows else None]


def distances(rows: list[tuple[tuple[Any, ...], int]], *columns: int) -> float:
    """The sum of the products of the columns' distances from their averages; NaN if any value is not finite."""
    if any(not math.isfinite(args[at]) for args, _ in rows for at in columns):
        return math.nan
    count = sum(diff for _, diff in rows)
    averages = {at: sum((Fraction(args[at]) * diff for args, diff in rows), Fraction(0)) / count for at in columns}
    total = Fraction(0)
    for args, diff in rows:
        term = Fraction(diff)
        for at in columns:
            term *= Fraction(args[at]) - averages[at]
        total += term
    return nearest(total)


def average(rows: list[tuple[tuple[Any, ...], int]], at: int) -> float:
    if any(not math.isfinite(args[at]) for args, _ in rows):
        return math.nan
    total = sum((Fraction(args[at]) * diff for args, diff in rows), Fraction(0))
    return nearest(total / sum(diff for _, diff in rows))


def model_buffer(
    function: str, types: Sequence[Any], mode: EvalMode, rows: list[tuple[tuple[Any, ...], int]]
) -> list[Any]:
    if function == "Count":
        return [sum(diff for _, diff in rows)]
    if function in ("Sum", "Average"):
        return model_sum(function, types[0], mode, rows)
    if function == "BitXorAgg":
        found = 0
        for args, diff in rows:
            found ^= args[0] if diff % 2 else 0
        return [found if rows else None]
    return model_moments(function, rows) if rows else [0.0] * len(accumulator_of(function, types).buffer)


def model_moments(function: str, rows: list[tuple[tuple[Any, ...], int]]) -> list[Any]:
    count = float(sum(diff for _, diff in rows))
    if function in SINGLE:
        order = {"Skewness": 3, "Kurtosis": 4}.get(function, 2)
        return [count, average(rows, 0), *(distances(rows, *[0] * power) for power in range(2, order + 1))]
    x, y = (1, 0) if function in ("RegrSlope", "RegrIntercept") else (0, 1)
    covariance = [count, average(rows, x), average(rows, y), distances(rows, x, y)]
    if function in ("Corr", "RegrR2"):
        return [*covariance, distances(rows, x, x), distances(rows, y, y)]
    return [*covariance, count, average(rows, x), distances(rows, x, x)] if x == 1 else covariance


def plain(column: Any) -> list[Any]:
    """Decimals and durations as their integers."""
    if pa.types.is_decimal(column.type):
        return [None if value is None else whole(value) for value in column.to_pylist()]
    return (column.cast(LONG) if pa.types.is_duration(column.type) else column).to_pylist()  # type: ignore[no-any-return]


def without_null(changes: Sequence[Change], group: int) -> list[tuple[tuple[Any, ...], int]]:
    return [(args, diff) for at, diff, args in changes if at == group and None not in args]


@EXAMPLES
@given(st.data())
@pytest.mark.parametrize(("function", "types", "mode"), CASES, ids=lambda each: str(each).replace("DataType", ""))
def test_finish_agrees_with_the_model(
    function: str, types: tuple[Any, ...], mode: EvalMode, data: st.DataObject
) -> None:
    changes = data.draw(contents(types))
    acc = accumulator_of(function, types, mode)
    state = partial(acc, types, changes)
    assert [column.type for column in state] == [field.type for field in acc.state]
    try:
        wanted = [model_buffer(function, types, mode, without_null(changes, group)) for group in range(GROUPS)]
    except OverflowError:
        with pytest.raises(InvalidInput, match="view v, group"):
            acc.finish(state, where)
        return
    found = acc.finish(state, where)
    assert [column.type for column in found] == [field.type for field in acc.buffer]
    for group, row in enumerate(zip(*(plain(column) for column in found), strict=True)):
        assert all(map(is_same, row, wanted[group])), (group, row, wanted[group])


@EXAMPLES
@given(st.data())
@pytest.mark.parametrize(("function", "types", "mode"), CASES, ids=lambda each: str(each).replace("DataType", ""))
def test_state_does_not_depend_on_order_split_or_retracted_rows(
    function: str, types: tuple[Any, ...], mode: EvalMode, data: st.DataObject
) -> None:
    """Added and retracted rows leave no bit; the other rows may arrive in any order and any number of deltas."""
    acc = accumulator_of(function, types, mode)
    kept, gone = data.draw(contents(types)), data.draw(contents(types))
    changes = [*kept, *gone, *((group, -diff, args) for group, diff, args in gone)]
    shuffled = data.draw(st.permutations(changes))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(changes)), max_size=3)))
    state = acc.make_zero(GROUPS)
    for start, end in zip([0, *cuts], [*cuts, len(changes)], strict=True):
        part = partial(acc, types, shuffled[start:end])
        state = acc.merge(part, state) if data.draw(st.booleans()) else acc.merge(state, part)
    assert state == partial(acc, types, kept)
    back = partial(acc, types, [(group, -diff, args) for group, diff, args in kept])
    assert acc.merge(state, back) == acc.make_zero(GROUPS) == partial(acc, types, [])


@EXAMPLES
@given(contents([DOUBLE, DOUBLE]), st.data())
def test_a_mask_excludes_rows(changes: list[Change], data: st.DataObject) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(changes), max_size=len(changes)))
    for function, types in (("Count", [DOUBLE, DOUBLE]), ("Sum", [DOUBLE]), ("Corr", [DOUBLE, DOUBLE])):
        acc = accumulator_of(function, types)
        kept = [change for change, let_in in zip(changes, mask, strict=True) if let_in]
        assert partial(acc, types, changes, np.array(mask, np.bool_)) == partial(acc, types, kept)


def test_values_under_null_are_ignored() -> None:
    garbage = pa.Array.from_buffers(DOUBLE, 2, [pa.py_buffer(b"\x01"), pa.py_buffer(np.array([1.5, np.nan]))])
    found = accumulator_of("Sum", [DOUBLE]).accumulate(
        [garbage], GroupedRows(np.ones(2, np.int64), np.zeros(2, np.int64), 1)
    )
    assert accumulator_of("Sum", [DOUBLE]).finish(found, where)[0].to_pylist() == [1.5]


def test_sum_of_negative_zeros_is_zero() -> None:
    acc = accumulator_of("Sum", [DOUBLE])
    found = acc.finish(partial(acc, [DOUBLE], [(0, 1, (-0.0,)), (0, 1, (-0.0,)), (1, 1, (None,))]), where)
    assert [is_same(a, b) for a, b in zip(found[0].to_pylist(), [0.0, None, None], strict=True)] == [True] * 3


def test_infinities_can_be_retracted() -> None:
    acc, inf = accumulator_of("Sum", [DOUBLE]), math.inf
    both = partial(
        acc, [DOUBLE], [(0, 1, (inf,)), (0, 1, (-inf,)), (1, 1, (-inf,)), (2, 1, (inf,)), (2, 1, (math.nan,))]
    )
    assert [str(value) for value in acc.finish(both, where)[0].to_pylist()] == ["nan", "-inf", "nan"]
    less = acc.merge(both, partial(acc, [DOUBLE], [(0, -1, (inf,)), (1, -1, (-inf,)), (2, -1, (math.nan,))]))
    assert acc.finish(less, where)[0].to_pylist() == [-inf, None, inf]


@pytest.mark.parametrize(
    ("kind", "value", "names"),
    [(LONG, 2**62, "int64"), (pa.decimal128(38, 2), Decimal(6 * 10**35), "38, 2"), (MICROSECONDS, 2**62, "duration")],
    ids=str,
)
def test_overflow_names_the_group_and_can_be_retracted(kind: Any, value: Any, names: str) -> None:
    acc = accumulator_of("Sum", [kind])
    state = partial(acc, [kind], [(0, 1, (value,)), (1, 2, (value,))])
    with pytest.raises(InvalidInput, match=names) as raised:
        acc.finish(state, where)
    assert raised.value.where == "view v, group 1"
    less = acc.merge(state, partial(acc, [kind], [(1, -1, (value,))]))
    assert (
        plain(acc.finish(less, where)[0])[:2] == [whole(acc_value := value) * 10 ** (2 if names == "38, 2" else 0)] * 2
    )
    assert acc_value == value


def test_impossible_counts_are_errors() -> None:
    acc = accumulator_of("Count", [])
    taken_back = partial(acc, [], [(0, 1, ()), (2, -1, ())])
    with pytest.raises(StateInconsistent, match="more were removed than were added") as raised:
        acc.finish(taken_back, where)
    assert raised.value.where == "view v, group 2"
    with pytest.raises(InvalidInput, match=str(2**64)):
        acc.finish(partial(acc, [], [(1, 2**62, ())] * 4), where)


@pytest.mark.parametrize(
    ("function", "types"),
    [
        *(("Max", [LONG]), ("First", [LONG]), ("BitXorAgg", [DOUBLE]), ("StddevSamp", [LONG]), ("Corr", [DOUBLE])),
        *(("Sum", [kind]) for kind in (pa.string(), pa.uint64(), pa.bool_(), pa.duration("ns"))),
        *(("Sum", []), ("Sum", [LONG, LONG])),
    ],
)
def test_other_functions_have_no_accumulator(function: str, types: list[Any]) -> None:
    assert make_accumulator(function, types) is None


def test_several_accumulators_share_a_delta() -> None:
    functions = (
        accumulator_of("Sum", [LONG]),
        accumulator_of("RegrSlope", [DOUBLE, DOUBLE]),
        accumulator_of("Count", []),
    )
    both: Accumulators = pickle.loads(pickle.dumps(Accumulators(functions)))
    longs, x, y = pa.array([1, None, 3]), pa.array([1.0, 2.0, 3.0]), pa.array([2.0, 4.0, 9.0])
    rows = GroupedRows(np.array([1, 2, 1]), np.array([0, 0, 1]), GROUPS)
    state = both.accumulate([[longs], [y, x], []], rows, [None, None, np.array([True, False, True])])
    assert state.schema.names == [f"s{at}" for at in range(state.num_columns)]
    assert both.find_present(state).tolist() == [True, True, False]
    stored = pa.table(
        [pa.chunked_array([c[:1], c[1:]]).cast(pa.large_binary()) for c in state.columns], state.schema.names
    )
    assert both.merge(stored, both.make_zero(GROUPS)) == state
    found = both.finish(both.merge(state, stored), where)
    assert found.schema.names == [f"b{at}" for at in range(9)]
    assert found.column(0).to_pylist() == [2, 6, None]
    assert found.column(1).to_pylist() == [6.0, 2.0, 0.0]
    assert found.column(8).to_pylist() == [2, 2, 0]
    negated = GroupedRows(-rows.diffs, rows.groups, GROUPS)
    back = both.accumulate([[longs], [y, x], []], negated, [None, None, np.array([True, False, True])])
    assert both.merge(state, back) == both.make_zero(GROUPS)
