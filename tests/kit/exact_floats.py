"""An oracle for floating sums, averages and moments: their exact values, rounded once.

Spark rounds after each addition, in the order in which it meets the rows. Where terms cancel, any tolerance relative to
the result is wrong: it fails for Spark's error, or hides ours. So Spark evaluates the query except for these functions.
Beside each of them it collects the arguments of each group, and this module computes the function from them with
`Fraction`. Two checks follow:

1. Spark's own result is as close to the exact one as the number and the size of the arguments allow. This fails if this
   module has another notion of the function than Spark.
2. The view has the exact result, with no tolerance (`drive(..., relative=0)`).

As in Spark, the buffer of a function consists of doubles, from which its result is computed in doubles. Exact are the
values in the buffer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.kit.compare import Differs
from tests.kit.oracle import Reference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Sequence[Sequence[float]]

_EPSILON = 2.0**-53
_SMALLEST = 2.0**-1074
_COLLECTED = "_arguments"
_ITEM = re.compile(
    r"(?P<function>\w+)\((?P<distinct>DISTINCT )?(?P<arguments>.*?)\)(?P<filter> FILTER \(.*\))? AS (?P<name>\w+)"
)


class ExactReference(Reference):
    """A reference whose `by_spark` has the exact values in DOUBLE columns of the functions in `_RESULTS`.

    `queries` are those of the views, whose schemas are `views`.
    """

    def __init__(
        self,
        spark: SparkSession,
        schemas: Mapping[str, pa.Schema],
        queries: Mapping[str, str],
        views: Mapping[str, pa.Schema],
    ) -> None:
        super().__init__(spark, schemas)
        self._columns = {query: find_columns(query, views[name]) for name, query in queries.items()}

    def by_spark(self, query: str) -> pa.Table:
        columns = self._columns[query]
        found = super().by_spark(_collect_arguments(query, columns))
        for column in columns:
            by_spark = found.column(column.name).to_pylist()
            arguments = found.column(column.name + _COLLECTED).to_pylist()
            exact = [column.compute(rows, value) for rows, value in zip(arguments, by_spark, strict=True)]
            at = found.schema.get_field_index(column.name)
            found = found.set_column(at, column.name, pa.array(exact, pa.float64()))
        return found.drop_columns([column.name + _COLLECTED for column in columns])


@dataclass(frozen=True, slots=True)
class ExactColumn:
    """An item of a SELECT list. The expression `collect` lists its arguments, each as a DOUBLE."""

    name: str
    item: str
    function: str
    collect: str

    def compute(self, arguments: Sequence[Sequence[float | None]], by_spark: float | None) -> float | None:
        """The exact result; `Differs` if Spark's is not a rounding of it."""
        rows: Rows = [row for row in arguments if None not in row]  # type: ignore[misc]
        result = _compute_result(self.function, rows)
        if not _may_be_rounded(self.function, rows, result, by_spark):
            why = f"Spark returns {by_spark!r}, but the exact result is {result!r}, of the arguments {rows[:50]!r}"
            raise Differs(self.item, why)
        return result


def find_columns(query: str, schema: pa.Schema) -> list[ExactColumn]:
    """The items of the SELECT list of a query that are computed exactly."""
    items = (_ITEM.fullmatch(item) for item in _split_items(query[len("SELECT ") : _find_from(query)]))
    return [
        ExactColumn(item["name"], item[0], item["function"], _make_collection(item))
        for item in items
        if item and item["function"] in _RESULTS and pa.types.is_float64(schema.field(item["name"]).type)
    ]


def _split_items(text: str) -> list[str]:
    """The parts between commas outside of parentheses."""
    depth = begin = 0
    items = []
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0 and char == ",":
            items.append(text[begin:at].strip())
            begin = at + 1
    return [*items, text[begin:].strip()]


def _find_from(query: str) -> int:
    """The position of the FROM outside of parentheses."""
    places = (found.start() for found in re.finditer(" FROM ", query))
    return next(at for at in places if query.count("(", 0, at) == query.count(")", 0, at))


def _make_collection(item: re.Match[str]) -> str:
    doubles = ", ".join(f"CAST({argument} AS DOUBLE)" for argument in _split_items(item["arguments"]))
    return f"collect_list({item['distinct'] or ''}array({doubles})){item['filter'] or ''}"


def _collect_arguments(query: str, columns: Sequence[ExactColumn]) -> str:
    end = _find_from(query)
    return query[:end] + "".join(f", {each.collect} AS {each.name}{_COLLECTED}" for each in columns) + query[end:]


# Results, from the number of rows and the doubles in the buffer of a function.


def _divide(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


_RESULTS: Mapping[str, Callable[..., float | None]] = {
    "sum": lambda _, total: total,
    "avg": lambda count, total: total / count,
    "try_avg": lambda count, total: total / count,
    "var_pop": lambda count, xx: xx / count,
    "stddev": lambda count, xx: math.sqrt(xx / (count - 1)) if count > 1 else None,
    "covar_pop": lambda count, xy: xy / count,
    "corr": lambda count, xy, xx, yy: _divide(xy, math.sqrt(xx * yy)) if count > 1 else None,
    "regr_slope": lambda count, xy, xx: _divide(xy, xx) if count > 1 else None,
}
_MOMENTS: Mapping[str, Sequence[tuple[int, int]]] = {
    "var_pop": ((0, 0),),
    "stddev": ((0, 0),),
    "covar_pop": ((0, 1),),
    "corr": ((0, 1), (0, 0), (1, 1)),
    "regr_slope": ((0, 1), (1, 1)),
}
"""The buffer, for functions other than sums and averages: sums of products of the distances of two arguments, given by
position, from their averages. SQL names the dependent variable of `regr_slope` first."""


def _compute_result(function: str, rows: Rows) -> float | None:
    return _RESULTS[function](len(rows), *_compute_buffer(function, rows)) if rows else None


def _compute_buffer(function: str, rows: Rows) -> list[float]:
    if function not in _MOMENTS:
        return [_add_up([value for (value,) in rows])]
    return [_add_up_products(rows, *pair) for pair in _MOMENTS[function]]


def _add_up(values: Sequence[float]) -> float:
    not_finite = {value for value in values if not math.isfinite(value)}
    return sum(not_finite) if not_finite else _round(sum(map(Fraction, values), Fraction(0)))


def _add_up_products(rows: Rows, left: int, right: int) -> float:
    if not all(math.isfinite(row[at]) for row in rows for at in (left, right)):
        return math.nan
    distances = []
    for at in (left, right):
        values = [Fraction(row[at]) for row in rows]
        average = sum(values, Fraction(0)) / len(values)
        distances.append([value - average for value in values])
    return _round(sum((x * y for x, y in zip(*distances, strict=True)), Fraction(0)))


def _round(number: Fraction) -> float:
    try:
        return number.numerator / number.denominator
    except OverflowError:
        return math.inf if number > 0 else -math.inf


# What Spark's result may be: the results of all buffers as close to the exact one as Spark's additions guarantee.


def _may_be_rounded(function: str, rows: Rows, exact: float | None, by_spark: float | None) -> bool:
    if exact is None or by_spark is None:
        return exact is by_spark
    if math.isnan(exact) and function in _MOMENTS:
        return not math.isfinite(by_spark)  # infinite or NaN, depending on the order of rows
    if not math.isfinite(exact):
        return exact == by_spark or (math.isnan(exact) and math.isnan(by_spark))
    bounds = []
    for at, value in enumerate(_compute_buffer(function, rows)):
        error = _bound_error(function, rows, at)
        is_square = function in _MOMENTS and len(set(_MOMENTS[function][at])) == 1
        bounds.append((max(value - error, 0.0) if is_square else value - error, value + error))
    results = [_RESULTS[function](len(rows), *buffer) for buffer in product(*bounds)]
    possible = [result for result in results if result is not None]
    if len(possible) < len(results):
        return True  # of a divisor that may be zero, Spark has no correct digit
    slack = 8 * _EPSILON * max(map(abs, possible))
    return min(possible) - slack <= by_spark <= max(possible) + slack


def _bound_error(function: str, rows: Rows, at: int) -> float:
    """How far Spark's value in the buffer may be from the exact one: each addition rounds to 53 bits.

    A sum of products adds up distances from an average that is itself rounded. So its error is proportional to the
    size of one argument times the spread of the other.
    """
    count = len(rows)
    if function not in _MOMENTS:
        return count * _EPSILON * sum(abs(value) for (value,) in rows)
    x, y = ([row[column] for row in rows] for column in _MOMENTS[function][at])
    x_size, y_size = max(map(abs, x)), max(map(abs, y))
    rounded = (max(x) - min(x)) * y_size + (max(y) - min(y)) * x_size + count * _EPSILON * x_size * y_size
    return 8 * count * (count * _EPSILON * rounded + (1 + x_size + y_size) * _SMALLEST)
