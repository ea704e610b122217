"""Accumulators against Spark itself: its aggregation buffers by name and type, and its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from evertide.flow.aggregates.accumulators import make_accumulator
from evertide.flow.aggregates.limbs import GroupedRows
from evertide.plan.algebra.nodes import EvalMode
from evertide.plan.catalyst.walk import get_kind, read_list, walk_expressions, walk_nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS: list[tuple[str, str, Any]] = [
    ("k", "INT", pa.int32()),
    ("b", "TINYINT", pa.int8()),
    ("h", "SMALLINT", pa.int16()),
    ("i", "INT", pa.int32()),
    ("l", "BIGINT", pa.int64()),
    ("f", "FLOAT", pa.float32()),
    ("d", "DOUBLE", pa.float64()),
    ("e", "DOUBLE", pa.float64()),
    ("m", "DECIMAL(12, 2)", pa.decimal128(12, 2)),
    ("w", "DECIMAL(38, 10)", pa.decimal128(38, 10)),
    ("t", "INTERVAL DAY TO SECOND", pa.duration("us")),
]
TYPES = {name: arrow for name, _, arrow in COLUMNS}
ADDED = "bhilfdmwt"
ASKED: dict[EvalMode, list[str]] = {
    EvalMode.ANSI: [
        *(f"{name}({column})" for name in ("count", "sum", "avg") for column in ADDED),
        *(f"{name}(l)" for name in ("stddev", "stddev_pop", "var_samp", "var_pop", "skewness", "kurtosis")),
        *(f"{name}(d, e)" for name in ("corr", "covar_pop", "covar_samp", "count", "regr_sxy", "regr_sxx", "regr_syy")),
        *(f"{name}(d, e)" for name in ("regr_slope", "regr_intercept", "regr_r2", "regr_avgx", "regr_avgy")),
        *(f"bit_xor({column})" for column in "bhil"),
        *("sum(CAST(m AS DECIMAL(5, 2)))", "avg(CAST(m AS DECIMAL(5, 2)))", "count(*)", "count_if(d > 1)"),
    ],
    EvalMode.TRY: [f"{name}({column})" for name in ("try_sum", "try_avg") for column in ADDED],
    EvalMode.LEGACY: [f"{name}({column})" for name in ("sum", "avg") for column in ADDED],
}


@pytest.fixture
def ansi_again(spark: SparkSession) -> Iterator[None]:
    yield
    spark.conf.unset("spark.sql.ansi.enabled")


def aggregate_functions(spark: SparkSession, asked: list[str]) -> list[Any]:
    schema = ", ".join(f"{name} {declared}" for name, declared, _ in COLUMNS)
    spark.createDataFrame(spark.sparkContext.emptyRDD(), schema).createOrReplaceTempView("accumulated")
    plan = spark.sql(f"SELECT {', '.join(asked)} FROM accumulated")._jdf.queryExecution().optimizedPlan()
    return [
        found.aggregateFunction()
        for node in walk_nodes(plan)
        for found in walk_expressions(node)
        if get_kind(found) == "AggregateExpression"
    ]


def arrow_type(expression: Any) -> Any:
    from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415 - costs a second, and most tests need no Spark
    from pyspark.sql.types import _parse_datatype_json_string  # noqa: PLC0415

    return to_arrow_type(_parse_datatype_json_string(expression.dataType().json()))


@pytest.mark.usefixtures("ansi_again")
@pytest.mark.parametrize("mode", list(ASKED))
def test_buffers_equal_sparks(spark: SparkSession, mode: EvalMode) -> None:
    spark.conf.set("spark.sql.ansi.enabled", str(mode is not EvalMode.LEGACY).lower())
    functions = aggregate_functions(spark, ASKED[mode])
    assert len(functions) == len(ASKED[mode])
    for sql, function in zip(ASKED[mode], functions, strict=True):
        acc = make_accumulator(get_kind(function), [arrow_type(arg) for arg in read_list(function.children())], mode)
        assert acc is not None, (sql, get_kind(function))
        wanted = [pa.field(a.name(), arrow_type(a), a.nullable()) for a in read_list(function.aggBufferAttributes())]
        assert list(acc.buffer) == wanted, sql


def _divide(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def _r2(ck: float, xx: float, yy: float) -> float | None:
    if yy == 0:
        return None
    return 1.0 if xx == 0 else (ck / math.sqrt(xx * yy)) ** 2


Evaluated = Callable[..., Any]
RESULTS: dict[str, tuple[str, str, Evaluated]] = {
    "count(d)": ("Count", "d", lambda count: count),
    "sum(l)": ("Sum", "l", lambda total: total),
    "sum(d)": ("Sum", "d", lambda total: total),
    "sum(f)": ("Sum", "f", lambda total: total),
    "sum(m)": ("Sum", "m", lambda total, empty: None if empty else total),
    "sum(t)": ("Sum", "t", lambda total: total),
    "avg(l)": ("Average", "l", _divide),
    "avg(d)": ("Average", "d", _divide),
    "bit_xor(b)": ("BitXorAgg", "b", lambda found: found),
    "var_pop(d)": ("VariancePop", "d", lambda n, _, m2: _divide(m2, n)),
    "var_samp(d)": ("VarianceSamp", "d", lambda n, _, m2: _divide(m2, n - 1) if n else None),
    "skewness(d)": ("Skewness", "d", lambda n, _, m2, m3: _divide(math.sqrt(n) * m3, math.sqrt(m2**3))),
    "kurtosis(d)": ("Kurtosis", "d", lambda n, _, m2, m3, m4: n * m4 / (m2 * m2) - 3.0 if m2 else None),
    "covar_pop(d, e)": ("CovPopulation", "de", lambda n, x, y, ck: _divide(ck, n)),
    "regr_sxy(d, e)": ("RegrSXY", "de", lambda n, x, y, ck: ck if n else None),
    "corr(d, e)": ("Corr", "de", lambda n, x, y, ck, xx, yy: _divide(ck, math.sqrt(xx * yy))),
    "regr_r2(d, e)": ("RegrR2", "de", lambda n, x, y, ck, xx, yy: _r2(ck, xx, yy)),
    "regr_slope(d, e)": ("RegrSlope", "de", lambda n, x, y, ck, n2, avg, m2: _divide(ck, m2)),
    "regr_intercept(d, e)": (
        "RegrIntercept",
        "de",
        lambda n, x, y, ck, n2, avg, m2: y - ck / m2 * x if m2 else None,
    ),
}


def close(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-12) or (math.isnan(left) and math.isnan(right))
    return bool(left == right)


def test_results_equal_sparks(spark: SparkSession) -> None:
    """Over values whose sums Spark hardly rounds, with NULL, NaN and infinities in groups of their own."""
    chosen = np.random.default_rng(7)
    rows, nan, infinity = 60, 4, 5
    groups = np.sort(chosen.integers(0, 4, rows))
    groups[-4:] = [nan, nan, infinity, infinity]
    doubles = chosen.integers(-50, 50, (2, rows)) / 4
    doubles[0, -4:] = [math.nan, 1.0, math.inf, 2.0]
    empty = groups == 3
    table = pa.table(
        {
            "k": pa.array(groups, pa.int32()),
            "b": pa.array(chosen.integers(-128, 128, rows), pa.int8(), mask=empty),
            "l": pa.array(chosen.integers(-(2**40), 2**40, rows), mask=empty),
            "f": pa.array(doubles[1].astype(np.float32), mask=empty),
            "d": pa.array(doubles[0], mask=empty | (chosen.random(rows) < 0.2)),
            "e": pa.array(doubles[1], mask=chosen.random(rows) < 0.2),
            "m": pa.array(chosen.integers(-(10**6), 10**6, rows), mask=empty)
            .cast(pa.decimal128(19, 0))
            .cast(TYPES["m"]),
            "t": pa.array(chosen.integers(-(10**12), 10**12, rows), mask=empty).cast(TYPES["t"]),
        }
    )
    query = f"SELECT k, {', '.join(RESULTS)} FROM {{of}} GROUP BY k ORDER BY k"
    wanted = spark.sql(query, of=spark.createDataFrame(table)).collect()
    delta = GroupedRows(np.ones(rows, np.int64), groups, int(groups.max()) + 1)
    for at, (sql, (function, columns, evaluated)) in enumerate(RESULTS.items(), 1):
        acc = make_accumulator(function, [TYPES[column] for column in columns])
        assert acc is not None
        state = acc.accumulate([table.column(column) for column in columns], delta)
        buffer = [column.to_pylist() for column in acc.finish(state, str)]
        for group, row in zip(wanted, zip(*buffer, strict=True), strict=True):
            assert close(evaluated(*row), group[at]), (sql, group[0], row, group[at])
