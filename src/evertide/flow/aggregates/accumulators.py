"""Accumulators: exact aggregate functions to which rows can be added and from which they can be removed.

An accumulator has *state* columns per group. A delta is summed per group (`accumulate`) and added to it (`merge`);
a removed row is added with a negative diff. `finish` converts the state to the buffer of Spark's aggregate function,
from which Spark's `evaluateExpression` computes the result.

1. State is a sum of exact numbers (`evertide.flow.aggregates.exact`). So it depends
   neither on the order of rows, nor on how a delta is split or where it is summed; an insertion and its retraction
   leave the bytes of zero.
2. Only `finish` rounds, checks for overflow and returns NULL: a sum may be out of range for a while.
3. The values are those that Spark adds: avg of a bigint sums doubles, a float is summed as a double.

Where a double in Spark's buffer depends on the order of rows, the one here is nearest to the exact value. Spark
computes the result from it in doubles: an average is the rounded sum, divided, and rounded again.

NaN and infinities are counted separately, since nothing can be subtracted from them: a NaN, or infinities of both
signs, make a sum NaN; a value that is not finite makes the central moments of its argument NaN.

Buffers, by name, of Spark 4.3:

    Count                                                count
    Sum of integers, durations, float, double            sum, NULL if nothing was added
    Sum of decimals, and under TRY of integers and the   sum, isEmpty
    like
    Average                                              sum, count
    BitXorAgg                                            bit_xor, NULL if nothing was added
    variance and stddev, skewness, kurtosis              n, avg, m2, then m3, then m4
    covariance and RegrSXY, Corr and RegrR2              n, xAvg, yAvg, ck, then xMk, yMk
    RegrSlope, RegrIntercept                             n, xAvg, yAvg, ck of (x, y), then n, avg, m2 of x
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from evertide.flow.aggregates.accumulator import Accumulator, DescribeGroup, find_nonzero
from evertide.flow.aggregates.limbs import GroupedRows
from evertide.flow.aggregates.moments import CoMoments, Moments
from evertide.flow.aggregates.sums import ExactSum, Layout, Overflow, RealSum, RowCount, ValueCount, Xor
from evertide.plan.algebra.nodes import EvalMode
from evertide.rows.columns import Bools

__all__ = ["Accumulator", "Accumulators", "make_accumulator"]

_DECIMAL_DIGITS_MAX = 38
_SUM_DIGITS_MORE = 10
_OVERFLOWS = {EvalMode.ANSI: Overflow.RAISES, EvalMode.TRY: Overflow.IS_NULL, EvalMode.LEGACY: Overflow.WRAPS}

_ORDERS = {
    **dict.fromkeys(("StddevSamp", "StddevPop", "VarianceSamp", "VariancePop", "RegrReplacement"), 2),
    "Skewness": 3,
    "Kurtosis": 4,
}

_COVARIANCE = ("n", "xAvg", "yAvg", "ck")
_CORRELATION = (*_COVARIANCE, "xMk", "yMk")
_REGRESSION = (*_COVARIANCE, "n", "avg", "m2")
_PAIRS = {
    **dict.fromkeys(("CovPopulation", "CovSample", "RegrSXY"), _COVARIANCE),
    **dict.fromkeys(("Corr", "RegrR2"), _CORRELATION),
    **dict.fromkeys(("RegrSlope", "RegrIntercept"), _REGRESSION),
}


def make_accumulator(function: str, types: Sequence[Any], mode: EvalMode = EvalMode.ANSI) -> Accumulator | None:
    """The accumulator of an aggregate function, by its class name in Catalyst and the types of its arguments.

    None if there is none: then the groups that a delta touches are recomputed.
    """
    if function == "Count":
        return ValueCount(function)
    if function in _ORDERS and _are_doubles(types, 1):
        return Moments(function, _ORDERS[function])
    if function in _PAIRS and _are_doubles(types, 2):
        # SQL names the dependent variable first: of regr_slope(y, x), x is the second argument.
        return CoMoments(function, _PAIRS[function], is_swapped=_PAIRS[function] is _REGRESSION)
    if function == "BitXorAgg" and len(types) == 1 and pa.types.is_signed_integer(types[0]):
        return Xor(function, types[0])
    return _make_sum(function, types[0], mode) if function in ("Sum", "Average") and len(types) == 1 else None


def _are_doubles(types: Sequence[Any], count: int) -> bool:
    return len(types) == count and all(pa.types.is_float64(kind) for kind in types)


def _make_sum(function: str, kind: Any, mode: EvalMode) -> Accumulator | None:
    averages = function == "Average"
    is_long = pa.types.is_signed_integer(kind)
    if pa.types.is_float64(kind) or pa.types.is_float32(kind) or (averages and is_long):
        return RealSum(function, Layout.SUM_COUNT if averages else Layout.SUM)
    if is_long:
        overflow = _OVERFLOWS[mode]
        return ExactSum(function, pa.int64(), Layout.SUM_IS_EMPTY if mode is EvalMode.TRY else Layout.SUM, overflow)
    if pa.types.is_decimal128(kind):
        result = pa.decimal128(min(_DECIMAL_DIGITS_MAX, kind.precision + _SUM_DIGITS_MORE), kind.scale)
        overflow = Overflow.RAISES if mode is EvalMode.ANSI else Overflow.IS_NULL
        return ExactSum(function, result, Layout.SUM_COUNT if averages else Layout.SUM_IS_EMPTY, overflow)
    if kind == pa.duration("us"):
        # Intervals have no LEGACY mode: out of range is an error, except with TRY.
        overflow = Overflow.IS_NULL if mode is EvalMode.TRY else Overflow.RAISES
        single = Layout.SUM_IS_EMPTY if mode is EvalMode.TRY else Layout.SUM
        return ExactSum(function, kind, Layout.SUM_COUNT if averages else single, overflow)
    return None


@dataclass(frozen=True)
class Accumulators:
    """The number of rows, and all aggregate functions of an aggregate.

    Columns are named by position, `s0`, `s1`, ... in the state and `b0`, `b1`, ... in the buffer, since names of
    functions' fields may repeat.
    """

    functions: tuple[Accumulator, ...]

    @cached_property
    def _all(self) -> tuple[Accumulator, ...]:
        return RowCount(), *self.functions

    @cached_property
    def state(self) -> Any:
        return _name_by_position("s", [field for each in self._all for field in each.state])

    @cached_property
    def buffer(self) -> Any:
        return _name_by_position("b", [field for each in self._all for field in each.buffer])

    def accumulate(
        self, args: Sequence[Sequence[Any]], rows: GroupedRows, masks: Sequence[Bools | None] | None = None
    ) -> Any:
        """The state of each group over these rows only, from the arguments and the mask of each function."""
        filters = masks or [None] * len(self.functions)
        found = RowCount().accumulate((), rows)
        for each, own, mask in zip(self.functions, args, filters, strict=True):
            found += each.accumulate(own, rows, mask)
        return self._make_state(found)

    def merge(self, left: Any, right: Any) -> Any:
        """Add two states with the same groups in the same order."""
        pairs = zip(self._all, self._split_state(left), self._split_state(right), strict=True)
        return self._make_state([merged for each, one, other in pairs for merged in each.merge(one, other)])

    def make_zero(self, count: int) -> Any:
        """The state of groups without rows."""
        return self._make_state([found for each in self._all for found in each.make_zero(count)])

    def finish(self, state: Any, where: DescribeGroup) -> Any:
        """The buffers of all functions, for groups with rows, or for the one group of an aggregate without keys."""
        pairs = zip(self._all, self._split_state(state), strict=True)
        found = [finished for each, own in pairs for finished in each.finish(own, where)]
        return pa.Table.from_arrays(found, schema=self.buffer)

    def find_present(self, state: Any) -> Bools:
        """Which groups have rows; others do not exist, unless the aggregate has no keys."""
        return find_nonzero(state.column(0))

    def _make_state(self, found: Sequence[Any]) -> Any:
        return pa.Table.from_arrays(list(found), schema=self.state)

    def _split_state(self, state: Any) -> list[list[Any]]:
        """The columns of each function."""
        columns = iter(state.columns)
        return [[next(columns) for _ in each.state] for each in self._all]


def _name_by_position(prefix: str, fields: Sequence[Any]) -> Any:
    return pa.schema([field.with_name(f"{prefix}{at}") for at, field in enumerate(fields)])
