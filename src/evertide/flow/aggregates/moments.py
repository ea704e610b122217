"""Accumulators of moments: variance, standard deviation, skewness, kurtosis, covariance, correlation, regression.

The state has exact sums of powers and products of the arguments. The buffer has sums of powers of distances from the
average, which are rational functions of those: with n values, s1 their sum, s2 that of their squares, and so on,

    m2 = s2 - s1^2 / n
    m3 = s3 - 3 s1 s2 / n + 2 s1^3 / n^2
    m4 = s4 - 4 s1 s3 / n + 6 s1^2 s2 / n^2 - 3 s1^4 / n^3
    ck = sxy - sx sy / n

In doubles, these differences would lose all digits; here each is computed exactly and rounded once.

A row with an argument that is not finite is counted, and is left out of the sums of that argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.flow.aggregates import exact
from evertide.flow.aggregates.accumulator import (
    Accumulator,
    DescribeGroup,
    decode_counts,
    make_exact_field,
    select_contributing,
    to_doubles,
    to_state_column,
)
from evertide.flow.aggregates.exact import Doubles, divide
from evertide.flow.aggregates.limbs import GroupedRows, sum_products
from evertide.rows.columns import Bools

_NAN = float("nan")


@dataclass(frozen=True)
class Moments(Accumulator):
    """Moments up to `order`: 2, 3 or 4."""

    order: int

    @cached_property
    def state(self) -> tuple[Any, ...]:
        return tuple(make_exact_field(name) for name in ("count", "not_finite", *(f"s{at}" for at in self._powers)))

    @cached_property
    def buffer(self) -> tuple[Any, ...]:
        return _make_double_fields("n", "avg", *(f"m{at}" for at in self._powers[1:]))

    @property
    def _powers(self) -> range:
        return range(1, self.order + 1)

    def accumulate(self, args: Sequence[Any], rows: GroupedRows, mask: Bools | None = None) -> list[Any]:
        (array,), rows, kept = select_contributing(args, rows, mask)
        values, not_finite = _replace_non_finite(to_doubles(array)[kept], rows)
        return [rows.tally, not_finite, *(sum_products([values] * power, rows) for power in self._powers)]

    def finish(self, state: Sequence[Any], where: DescribeGroup) -> list[Any]:
        held = decode_counts(state[0], where)
        broken = decode_counts(state[1], where) > 0
        sums = [exact.to_integers(to_state_column(found)) for found in state[2:]]
        found = np.zeros((self.order, len(held)))
        for group in np.flatnonzero(held):
            found[:, group] = (
                _NAN if broken[group] else self._compute_central(int(held[group]), [s[group] for s in sums])
            )
        return [pa.array(values) for values in (held.astype(np.float64), *found)]

    def _compute_central(self, n: int, sums: Sequence[tuple[int, int]]) -> list[float]:
        """avg, m2, m3, m4 as far as they are wanted; all sums as integers of one unit, that of s1."""
        unit, (s1, s2, s3, s4, *_) = _align([*zip(sums, self._powers, strict=True)])
        found = [divide(s1, n, unit), divide(n * s2 - s1**2, n, 2 * unit)]
        if self.order >= 3:
            found.append(divide(n**2 * s3 - 3 * n * s1 * s2 + 2 * s1**3, n**2, 3 * unit))
        if self.order >= 4:
            fourth = n**3 * s4 - 4 * n**2 * s1 * s3 + 6 * n * s1**2 * s2 - 3 * s1**4
            found.append(divide(fourth, n**3, 4 * unit))
        return found


@dataclass(frozen=True)
class CoMoments(Accumulator):
    """Moments of two arguments: x and y, or y and x if `is_swapped`. `names` are the buffer's fields."""

    names: tuple[str, ...]
    is_swapped: bool = False

    @cached_property
    def state(self) -> tuple[Any, ...]:
        squares = [name for name, held in (("sxx", self._xx), ("syy", self._yy)) if held]
        return tuple(
            make_exact_field(name) for name in ("count", "x_not_finite", "y_not_finite", "sx", "sy", "sxy", *squares)
        )

    @cached_property
    def buffer(self) -> tuple[Any, ...]:
        return _make_double_fields(*self.names)

    @property
    def _xx(self) -> bool:
        return "xMk" in self.names or "m2" in self.names

    @property
    def _yy(self) -> bool:
        return "yMk" in self.names

    def accumulate(self, args: Sequence[Any], rows: GroupedRows, mask: Bools | None = None) -> list[Any]:
        arrays, rows, kept = select_contributing(args, rows, mask)
        first, second = (_replace_non_finite(to_doubles(array)[kept], rows) for array in arrays)
        (x, x_broken), (y, y_broken) = (second, first) if self.is_swapped else (first, second)
        products = [[x], [y], [x, y], *([[x, x]] if self._xx else []), *([[y, y]] if self._yy else [])]
        return [rows.tally, x_broken, y_broken, *(sum_products(factors, rows) for factors in products)]

    def finish(self, state: Sequence[Any], where: DescribeGroup) -> list[Any]:
        held = decode_counts(state[0], where)
        x_broken, y_broken = (decode_counts(found, where) > 0 for found in state[1:3])
        sums = [exact.to_integers(to_state_column(found)) for found in state[3:]]
        found = np.zeros((len(self.names), len(held)))
        for group in np.flatnonzero(held):
            values = self._compute_values(int(held[group]), [s[group] for s in sums])
            if x_broken[group]:
                values |= dict.fromkeys(("xAvg", "avg", "ck", "xMk", "m2"), _NAN)
            if y_broken[group]:
                values |= dict.fromkeys(("yAvg", "ck", "yMk"), _NAN)
            found[:, group] = [values[name] for name in self.names]
        return [pa.array(values) for values in found]

    def _compute_values(self, n: int, sums: Sequence[tuple[int, int]]) -> dict[str, float]:
        """Values by field of the buffer. Sums of squares of x, and then of y, may be missing."""
        unit, (sx, sy, sxy, sxx, syy, *_) = _align([*zip(sums, (1, 1, 2, 2, 2), strict=False)])
        x_spread, y_spread = divide(n * sxx - sx**2, n, 2 * unit), divide(n * syy - sy**2, n, 2 * unit)
        x_average = divide(sx, n, unit)
        return {
            "n": float(n),
            "xAvg": x_average,
            "yAvg": divide(sy, n, unit),
            "ck": divide(n * sxy - sx * sy, n, 2 * unit),
            "xMk": x_spread,
            "yMk": y_spread,
            "avg": x_average,
            "m2": x_spread,
        }


def _make_double_fields(*names: str) -> tuple[Any, ...]:
    return tuple(pa.field(name, pa.float64(), nullable=False) for name in names)


def _replace_non_finite(values: Doubles, rows: GroupedRows) -> tuple[Doubles, Any]:
    """The values with 0 for those that are not finite, and how many those are per group."""
    broken = ~np.isfinite(values)
    if not broken.any():
        return values, exact.make_zeros(rows.count)
    return np.where(broken, 0.0, values), rows.take(broken).tally


def _align(sums: Sequence[tuple[tuple[int, int], int]]) -> tuple[int, list[int]]:
    """Numbers, each with its power, as integers times 2^(power * unit); and zeros, for those that are not kept."""
    unit = min((exponent // power for (integer, exponent), power in sums if integer), default=0)
    return unit, [
        *(integer << (exponent - power * unit) if integer else 0 for (integer, exponent), power in sums),
        0,
        0,
        0,
    ]
