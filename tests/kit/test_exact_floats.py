"""The exact oracle for floats: it accepts each order of Spark's additions, and no other double than the nearest one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.kit.compare import Differs, compare
from tests.kit.exact_floats import ExactColumn, ExactReference, find_columns
from tests.kit.ledger import delta_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("x", pa.float64()), ("y", pa.float64())])
INF, NAN = math.inf, math.nan


def compute(function: str, rows: list[list[float | None]], by_spark: float | None) -> float | None:
    return ExactColumn("a", f"{function}(...)", function, "").compute(rows, by_spark)


@pytest.mark.parametrize(
    ("function", "rows", "possible", "exact", "impossible"),
    [
        ("sum", [[2.0**60], [0.1], [-(2.0**60)]], [0.0, 0.1], 0.1, [None, NAN, INF, 1000.0]),
        (
            "sum",
            [[0.1]] * 3 + [[-0.3]],
            [5.551115123125783e-17, 2.7755575615628914e-17],
            2.7755575615628914e-17,
            [1e-15],
        ),
        ("sum", [[INF], [1.0], [None]], [INF], INF, [NAN, 1.0, None]),
        ("sum", [[INF], [-INF]], [NAN], NAN, [INF, None]),
        ("sum", [[None]], [None], None, [0.0]),
        ("avg", [[1e17], [16777.216], [-1e17], [0.0]], [4194.304, 4196.0], 4194.304, [4264.0, 4124.0]),
        ("var_pop", [[1e8 + 1], [1e8], [1e8 - 1]], [2 / 3, 2 / 3 + 1e-9], 2 / 3, [-1e-300, 0.67, NAN]),
        ("stddev", [[1.0], [3.0]], [math.sqrt(2)], math.sqrt(2), [1.0, 2.0]),
        ("stddev", [[1.0]], [None], None, [0.0, NAN]),
        ("stddev", [[1.0], [NAN]], [NAN], NAN, [1.0, None]),
        ("covar_pop", [[2.0**31, 2.0**31], [0, 2.0**31], [2.0**31, 0], [0, 0]], [0.0, -64.0, 64.0], 0.0, [1e6, None]),
        ("covar_pop", [[0.0, 1.0], [INF, 2.0]], [INF, NAN], NAN, [1.0, None]),
        ("corr", [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]], [1.0, 1.0 - 2.0**-53], 1.0, [-1.0, 0.9]),
        ("corr", [[1.0, 2.0], [1.0, 4.0]], [None], None, [0.0, NAN]),
        ("corr", [[1.0, None], [None, 4.0], [3.0, 5.0]], [None], None, [0.0]),
        ("regr_slope", [[2.0, 1.0], [4.0, 2.0], [8.0, 4.0]], [2.0, 2.0 + 2.0**-51], 2.0, [0.5, None]),
    ],
)
def test_a_result_of_spark_is_a_rounding_of_the_exact_one(
    function: str,
    rows: list[list[float | None]],
    possible: list[float | None],
    exact: float | None,
    impossible: list[float | None],
) -> None:
    for by_spark in possible:
        assert repr(compute(function, rows, by_spark)) == repr(exact)
    for by_spark in impossible:
        with pytest.raises(Differs, match="the exact result is"):
            compute(function, rows, by_spark)


def test_double_columns_of_a_select_list_are_found() -> None:
    query = (
        "SELECT g, sum(x) AS s, corr(if(x > 0, x, y), y) FILTER (WHERE x IN (1, 2)) AS c,"
        " sum(DISTINCT CAST(y AS FLOAT)) AS d, min(x) AS m, sum(i) AS i FROM (SELECT sum(x) AS s FROM t) JOIN u"
    )
    doubles = [(name, pa.float64()) for name in "gscdm"]
    found = find_columns(query, pa.schema([*doubles, ("i", pa.int64())]))
    assert [(each.name, each.function, each.collect) for each in found] == [
        ("s", "sum", "collect_list(array(CAST(x AS DOUBLE)))"),
        (
            "c",
            "corr",
            "collect_list(array(CAST(if(x > 0, x, y) AS DOUBLE), CAST(y AS DOUBLE))) FILTER (WHERE x IN (1, 2))",
        ),
        ("d", "sum", "collect_list(DISTINCT array(CAST(CAST(y AS FLOAT) AS DOUBLE)))"),
    ]


QUERY = (
    "SELECT sum(x) AS s, avg(y) AS a, stddev(x) AS d, var_pop(y) AS v, covar_pop(x, y) AS c, corr(x, y) AS r,"
    " regr_slope(x, y) AS l, sum(DISTINCT x) FILTER (WHERE y > 0) AS f, max(x) AS m, count(*) AS n FROM t"
)


def test_an_error_of_one_unit_in_the_last_place_is_found(spark: SparkSession) -> None:
    """In doubles, the sum is 0.0, 0.3 or 0.6, depending on the order."""
    rows = pa.table([[0.3, 2.0**60, -(2.0**60), None, 0.3], [0.1, 7.0, -0.3, 1.0, 0.1]], SCHEMA)
    view = pa.schema([*((name, pa.float64()) for name in "sadvcrlfm"), pa.field("n", pa.int64(), nullable=False)])
    reference = ExactReference(spark, {"t": SCHEMA}, {"v": QUERY}, {"v": view})
    reference.apply({"t": delta_of(rows, 1)})
    found = reference.by_spark(QUERY)
    [values] = found.to_pylist()
    assert (values["s"], values["f"], values["m"], values["n"]) == (0.6, 2.0**60, 2.0**60, 5)
    compare(found, found.slice(0), relative=0.0)
    for name in "sadvcrlf":
        column = pa.array([math.nextafter(values[name], INF)])
        with pytest.raises(Differs):
            compare(found.set_column(found.schema.get_field_index(name), name, column), found, relative=0.0)


def test_spark_returns_a_covariance_of_infinity_that_depends_on_the_order(spark: SparkSession) -> None:
    finite, infinite = "(0D, 1D)", "(double('inf'), 2D)"
    by_spark = [
        spark.sql(
            f"SELECT covar_pop(x, y) AS c FROM (SELECT /*+ COALESCE(1) */ * FROM VALUES {', '.join(rows)} AS t(x, y))"
        ).first()
        for rows in ((finite, infinite), (infinite, finite))
    ]
    assert repr([row and row.c for row in by_spark]) == "[inf, nan]"
