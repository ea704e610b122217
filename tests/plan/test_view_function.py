"""Views written in Python, from declaration to deltas, and refused functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import DoubleType

from evertide.errors import InvalidInput
from evertide.flow import Circuit
from evertide.plan.program.program import Program
from evertide.plan.program.view_function import ViewFunction
from tests.kit.oracle import Reference, drive, read_types
from tests.kit.transactions import random_transactions

if TYPE_CHECKING:
    from collections.abc import Mapping

SCRIPT = """
CREATE TABLE bid (auction BIGINT NOT NULL, price BIGINT);
CREATE MATERIALIZED VIEW large AS SELECT * FROM bid WHERE price > 10;
"""
HERE = __file__


def double(price: int | None) -> int | None:
    return None if price is None else 2 * price


def declare(spark: SparkSession, function: Callable[..., Any], **facts: Any) -> Program:
    return Program(spark, SCRIPT, "shop.sql", functions=[ViewFunction("v", function, **facts)])


def delta(rows: list[tuple[int, int | None, int]]) -> Mapping[str, pa.Table]:
    schema = pa.schema(
        [
            pa.field("auction", pa.int64(), nullable=False),
            pa.field("price", pa.int64()),
            pa.field("__diff", pa.int64(), nullable=False),
        ]
    )
    return {"bid": pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)}


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_a_function_reads_tables_and_views_and_is_maintained(spark: SparkSession) -> None:
    def per_auction(session: SparkSession) -> DataFrame:
        return session.read.table("large").groupBy("auction").agg(F.sum("price").alias("total"))

    def rich(session: SparkSession) -> DataFrame:
        return session.table("per_auction").where("total > 20")

    functions = [ViewFunction("per_auction", per_auction), ViewFunction("rich", rich)]
    circuit = Circuit(spark, SCRIPT, functions=functions)
    assert list(circuit.views) == ["large", "per_auction", "rich"]
    circuit.step(delta([(1, 11, 1), (1, 5, 1), (2, 30, 1)]))
    found = circuit.step(delta([(1, 12, 1), (2, 30, -1)]))
    assert rows_of(found["per_auction"]) == [(1, 11, -1), (1, 23, 1), (2, 30, -1)]
    assert rows_of(found["rich"]) == [(1, 23, 1), (2, 30, -1)]


def test_a_function_without_parameters_finds_the_active_session(spark: SparkSession) -> None:
    before = SparkSession.getActiveSession()

    def v() -> DataFrame:
        return SparkSession.active().table("bid")

    assert declare(spark, v).views["v"].kind == "Scan"
    after = SparkSession.getActiveSession()
    assert (before is None) == (after is None)


def test_a_plain_view_is_inlined_into_its_readers(spark: SparkSession) -> None:
    cheap = ViewFunction("cheap", lambda session: session.table("bid").where("price < 5"), is_materialized=False)
    cheaper = ViewFunction("cheaper", lambda session: session.table("cheap").where("price < 3"))
    program = Program(spark, SCRIPT, functions=[cheap, cheaper])
    assert list(program.views) == ["large", "cheaper"]


def test_v2_limit_and_offset_of_a_frame_count_the_rows_below_them(spark: SparkSession) -> None:
    def v(session: SparkSession) -> DataFrame:
        return session.table("bid").orderBy("auction").limit(4).offset(2)

    circuit = Circuit(spark, SCRIPT, functions=[ViewFunction("v", v)])
    found = circuit.step(delta([(auction, 1, 1) for auction in range(1, 11)]))
    assert rows_of(found["v"]) == [(3, 1, 1), (4, 1, 1)]
    found = circuit.step(delta([(1, 1, -1)]))
    assert rows_of(found["v"]) == [(3, 1, -1), (5, 1, 1)]


def test_v1_rows_without_duplicates_are_rows_of_the_table(spark: SparkSession) -> None:
    """For any selected columns: two readers of the same frame see the same rows."""

    def v(session: SparkSession) -> DataFrame:
        return session.table("tagged").dropDuplicates(["k"])

    def halves(session: SparkSession) -> DataFrame:
        whole = session.table("tagged").dropDuplicates(["k"])
        return whole.select("k", "a").join(whole.select("k", "b"), "k")

    script = "CREATE TABLE tagged (k BIGINT, a BIGINT, b DOUBLE, c STRING COLLATE UTF8_LCASE);"
    circuit = Circuit(spark, script, functions=[ViewFunction("v", v), ViewFunction("halves", halves)])
    first = "QUALIFY row_number() OVER (PARTITION BY k ORDER BY a, b, c, CAST(c AS BINARY)) = 1"
    told = {"v": f"SELECT * FROM tagged {first}", "halves": f"SELECT k, a, b FROM tagged WHERE k IS NOT NULL {first}"}
    rows = random_transactions(circuit.tables, 1, count=8, rows_each=8, rows_huge=30)
    drive(circuit, Reference(spark, circuit.tables, types=read_types(circuit.program)), told, rows)


def test_python_functions_are_maps(spark: SparkSession) -> None:
    twice = F.udf(double, "long", useArrow=False)
    add_one = F.arrow_udf(lambda prices: pa.compute.add(prices, 1), "long")

    def v(session: SparkSession) -> DataFrame:
        bids = session.table("bid").where(twice("price") > 10)
        return bids.groupBy("auction").agg(F.sum(add_one(twice("price"))).alias("total"))

    circuit = Circuit(spark, SCRIPT, functions=[ViewFunction("v", v)])
    assert rows_of(circuit.step(delta([(1, 10, 1), (1, 5, 1), (1, None, 1), (2, 6, 2)]))["v"]) == [
        (1, 21, 1),
        (2, 26, 1),
    ]
    assert rows_of(circuit.step(delta([(1, 7, 1), (2, 6, -2)]))["v"]) == [(1, 21, -1), (1, 36, 1), (2, 26, -1)]


def shake(session: SparkSession) -> DataFrame:
    dice = F.udf(double, "long", useArrow=False).asNondeterministic()
    return session.table("bid").select(dice("price").alias("price"))


@F.arrow_udf(DoubleType())  # type: ignore[untyped-decorator]
def mean(prices: pa.Array) -> float:
    return float(pa.compute.mean(prices).as_py())


class Twice:
    def eval(self, price: int) -> Any:
        yield (price,)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (shake, "double(price) is not deterministic"),
        (lambda session: session.table("bid").groupBy("auction").agg(mean("price")), "mean aggregates rows in Python"),
        (
            lambda session: session.table("bid").select(mean("price").over(Window.partitionBy("auction"))),
            "mean aggregates rows in Python",
        ),
        (
            lambda session: session.table("bid").lateralJoin(
                F.udtf(Twice, returnType="p long", useArrow=False)(F.col("price").outer())
            ),
            "produces tables in Python",
        ),
        (lambda session: session.table("missing"), "no table or view 'missing'"),
        (lambda session: session.table("bid").select("missing"), "no column 'missing'"),
        (lambda session: session.table("bid").select("price", "price"), "two columns are named 'price'"),
        (lambda session: session.table("bid").sample(0.5), "TABLESAMPLE selects rows at random"),
        (
            lambda session: (
                session.table("bid").withColumn("m", F.create_map("price", "price")).dropDuplicates(["price"])
            ),
            "dropDuplicates has to order rows by 'm'",
        ),
        (
            lambda session: session.table("bid").where(session.table("bid").dropDuplicates(["price"]).exists()),
            "dropDuplicates is not supported in a subquery",
        ),
        (lambda session: session.table("bid").limit(3), "LIMIT and OFFSET without ORDER BY"),
        (lambda session: session.table("bid").withColumn("at", F.current_timestamp()), "current_timestamp()"),
        (lambda session: session.createDataFrame([(1,)], "a int"), "which is not a table or view of the pipeline"),
        (lambda session: session.newSession().range(3), "belongs to another session"),
        (lambda session: [session.table("bid")], "returns a list, but must return a DataFrame"),
        (lambda session: 1 // 0, "the function failed: ZeroDivisionError"),
    ],
)
def test_a_refusal_names_the_function(spark: SparkSession, function: Callable[..., Any], why: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        declare(spark, function)
    line = function.__code__.co_firstlineno
    assert refused.value.where == f"{HERE}:{line}, view 'v'"
    assert why in refused.value.why


def test_a_name_is_declared_once(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match=r"'Large' is already declared, at shop.sql:3"):
        Program(spark, SCRIPT, "shop.sql", functions=[ViewFunction("Large", lambda session: session.table("bid"))])
