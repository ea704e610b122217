"""Every operator, as small views over three tables, equal to Spark's own results after random transactions.

The views are in `views`, a script per kind of operator; each script is one circuit. A query that cannot be maintained
is refused at creation, by name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.functions import arrow_udf, udf

from evertide.errors import InvalidInput
from evertide.flow import Circuit
from evertide.plan.fragment import fragment
from evertide.plan.script import catalog
from tests.flow.checked import TABLES, Views, check, read_views, views_of
from tests.soak.rounds import Soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPTS = ("joins", "aggregates", "windows", "sets", "values", "order", "odd", "choices")

REFUSED = {
    "SELECT a, now() AS z FROM r": "now()",
    "SELECT a FROM r WHERE current_date() > DATE'2020-01-01'": "current_date()",
    "SELECT a, localtimestamp() AS z FROM r": "localtimestamp()",
    "SELECT a, unix_timestamp() AS z FROM r": "current_timestamp()",
    "SELECT a, current_user() AS z FROM r": "current_user()",
    "SELECT a, current_database() AS z FROM r": "current_database()",
    "SELECT a, current_catalog() AS z FROM r": "current_catalog()",
    "SELECT a, rand() AS z FROM r": "rand()",
    "SELECT a, rand(1) AS z FROM r": "rand(1)",
    "SELECT a, randstr(3) AS z FROM r": "randstr(3)",
    "SELECT a, uuid() AS z FROM r": "uuid()",
    "SELECT k, shuffle(w) AS z FROM t": "shuffle(t.w)",
    "SELECT a, monotonically_increasing_id() AS z FROM r": "monotonically_increasing_id()",
    "SELECT a, spark_partition_id() AS z FROM r": "SPARK_PARTITION_ID()",
    "SELECT a, input_file_name() AS z FROM r": "input_file_name()",
    "SELECT a, reflect('java.util.UUID', 'randomUUID') AS z FROM r": "reflect(",
    "SELECT b, max(rand()) AS z FROM r GROUP BY b": "rand()",
    "SELECT a FROM r WHERE a IN (SELECT id FROM s WHERE rand() < 0.5)": "rand()",
    "SELECT a FROM r LIMIT 3": "LIMIT",
    "SELECT s.id FROM s JOIN (SELECT a FROM r LIMIT 3) q ON q.a = s.id": "LIMIT",
    "SELECT a FROM r SORT BY a LIMIT 2": "LIMIT",
    "SELECT a FROM r OFFSET 2": "OFFSET",
    "SELECT id FROM s WHERE EXISTS (SELECT 1 FROM (SELECT a FROM r LIMIT 3) q WHERE q.a = s.id)": "LIMIT",
    "SELECT id FROM s WHERE EXISTS (SELECT 1 FROM r OFFSET 3)": "OFFSET",
    "SELECT count(*) AS z FROM r LIMIT 0": "LIMIT",
    "SELECT count(*) AS z FROM r GROUP BY a LIMIT 1": "LIMIT",
    "SELECT id FROM s WHERE id IN (SELECT a FROM r WHERE r.b = s.b LIMIT 3)": "LIMIT",
    "SELECT id, (SELECT max(a) FROM r WHERE r.b = q.b) AS z FROM (SELECT id, b FROM s ORDER BY id) q LIMIT 3": "LIMIT",
    "SELECT id, b IN (SELECT a FROM r) AS z FROM (SELECT id, b FROM s ORDER BY id) q OFFSET 3": "LIMIT",
    "SELECT a FROM r TABLESAMPLE (10 PERCENT)": "TABLESAMPLE",
    "SELECT * FROM nowhere": "nowhere",
    "SELECT missing FROM r": "missing",
    "SELECT a, b AS a FROM r": "'a'",
    "SELECT no_function(a) AS z FROM r": "no_function",
    "SELECT id, make_ym_interval(1, 2) AS z FROM s": "view 'refused', column 'z': type \"interval year to month\"",
    "SELECT named_struct('f', a, 'f', b) AS z FROM r": "column 'z': the type has a struct with two fields named 'f'",
    "SELECT named_struct('f', a, 'F', b) AS z FROM r": "two fields named 'f'",
    "SELECT array(map(a, struct(1, array(named_struct('f', a, 'f', b))))) AS z FROM r": "two fields named 'f'",
    "SELECT map(named_struct('f', a, 'f', b), 1) AS z FROM r": "two fields named 'f'",
    "SELECT r.b, collect_list(struct(r.b, s.b)) AS z FROM r JOIN s ON r.a = s.id GROUP BY r.b": "two fields named 'b'",
    "SELECT id, make_interval(1, 2, 3) AS z FROM s": "interval",
    "SELECT k, m FROM t ORDER BY k LIMIT 2": "'m'",
    "SELECT k, m, row_number() OVER (ORDER BY v) AS rn FROM t": "'m'",
    "SELECT DISTINCT m FROM t": "MAP",
    "SELECT try_parse_json(j) AS z, count(*) AS n FROM t GROUP BY 1": "VARIANT",
    "SELECT approx_top_k_combine(q) AS z FROM (SELECT approx_top_k_accumulate(c) AS q FROM r)": "approx_top_k",
    "SELECT b, listagg(DISTINCT c, '-') WITHIN GROUP (ORDER BY c) AS z, count(DISTINCT a) AS n FROM r GROUP BY b": (
        "view 'refused': Spark's optimizer fails on this query; split it"
    ),
    "WITH w AS (SELECT a AS c0 FROM r) SELECT q.c0, session_window.end AS z FROM (SELECT * FROM w) AS q "
    "GROUP BY q.c0, session_window(CAST(NULL AS TIMESTAMP), '4 seconds')": "Spark's analyzer fails on this query",
    "SELECT c COLLATE UTF8_LCASE AS z, count(*) AS n FROM r GROUP BY 1": "UTF8_LCASE",
    "SELECT count(DISTINCT c COLLATE UTF8_LCASE) AS z FROM r": "UTF8_LCASE",
    "SELECT DISTINCT c COLLATE UTF8_LCASE AS z FROM r": "UTF8_LCASE",
    "SELECT a, row_number() OVER (PARTITION BY c COLLATE UTF8_LCASE ORDER BY a) AS z FROM r": "UTF8_LCASE",
    "SELECT a, aes_encrypt(c, 'abcdefghijklmnop') AS z FROM r": "aes_encrypt",
    "SELECT v, first(m) AS z FROM t GROUP BY v": "MAP",
    "SELECT v, collect_list(m) AS z FROM t GROUP BY v": "MAP",
    "SELECT a, current_time() AS z FROM r": "current_time",
}
"""By query: what the refusal names."""

OF_ORDER = {
    "approx_top_k": "approx_top_k(c, 2)",
    "approx_top_k_accumulate": "approx_top_k_accumulate(c, 5)",
    "collect_union": "collect_union(array(a))",
    "histogram_numeric": "histogram_numeric(a, 3)",
    "hll_sketch_agg": "hll_sketch_agg(a)",
    "kll_sketch_agg_bigint": "kll_sketch_agg_bigint(a)",
    "kll_sketch_agg_double": "kll_sketch_agg_double(x)",
    "kll_sketch_agg_float": "kll_sketch_agg_float(CAST(x AS FLOAT))",
    "measure": "measure(a)",
    "theta_sketch_agg": "theta_sketch_agg(a)",
    "tuple_sketch_agg_double": "tuple_sketch_agg_double(a, x)",
    "tuple_sketch_agg_integer": "tuple_sketch_agg_integer(a, CAST(b AS INT))",
    "hll_union_agg": "hll_union_agg(CAST(c AS BINARY))",
    **{
        f"{kind}_agg{of}": f"{kind}_agg{of}(CAST(c AS BINARY))"
        for kind, ofs in {
            "kll_merge": ("_bigint", "_double", "_float"),
            "theta_union": ("",),
            "theta_intersection": ("",),
            "tuple_union": ("_double", "_integer"),
            "tuple_intersection": ("_double", "_integer"),
        }.items()
        for of in ofs
    },
}
"""Functions of groups whose result may depend on the order of rows."""


def check_script(spark: SparkSession, script: str, seed: int, transactions: int, spark_every: int) -> None:
    check(spark, views_of(spark, script), seed, transactions, spark_every=spark_every)


@pytest.mark.timeout(900)  # hundreds of small Spark jobs, on a machine that may be loaded
@pytest.mark.parametrize("script", SCRIPTS)
def test_views_are_maintained(spark: SparkSession, script: str) -> None:
    check_script(spark, script, seed=SCRIPTS.index(script) + 1, transactions=5, spark_every=3)


@pytest.mark.timeout(600)
def test_v4_subqueries_are_maintained_in_every_clause(spark: SparkSession) -> None:
    check_script(spark, "subqueries", seed=1, transactions=5, spark_every=3)


def test_functions_of_the_session_are_maintained(spark: SparkSession) -> None:
    """In Python and over Arrow. The oracle, in a session of its own, runs equivalent queries without them."""
    spark.udf.register("plus_one", udf(lambda a: None if a is None else a + 1, "BIGINT", useArrow=False))
    spark.udf.register("plus_two", arrow_plus_two())
    check(
        spark,
        Views(
            queries={
                "shown": "SELECT a, plus_one(a) AS y, plus_two(a) AS z FROM r WHERE plus_one(b) > 1",
                "grouped": "SELECT plus_one(a) AS y, count(*) AS n, max(plus_two(b)) AS m FROM r GROUP BY plus_one(a)",
                "joined": "SELECT r.a, s.id FROM r LEFT JOIN s ON plus_one(r.a) = s.id AND plus_two(r.b) > s.b",
                "above_top": "SELECT plus_one(id) AS y, plus_two(b) AS z FROM (FROM s ORDER BY id DESC LIMIT 2)",
                "below_top": "SELECT plus_one(id) AS y, plus_two(b) AS z FROM (FROM s ORDER BY id DESC) LIMIT 2",
                "in_order": "SELECT id FROM s ORDER BY plus_one(id) DESC, plus_two(b) LIMIT 2 OFFSET 1",
            },
            told={
                "shown": "SELECT a, a + 1 AS y, a + 2 AS z FROM r WHERE b + 1 > 1",
                "grouped": "SELECT a + 1 AS y, count(*) AS n, max(b + 2) AS m FROM r GROUP BY a + 1",
                "joined": "SELECT r.a, s.id FROM r LEFT JOIN s ON r.a + 1 = s.id AND r.b + 2 > s.b",
                "above_top": "SELECT id + 1 AS y, b + 2 AS z FROM s ORDER BY id DESC LIMIT 2",
                "below_top": "SELECT id + 1 AS y, b + 2 AS z FROM s ORDER BY id DESC LIMIT 2",
                "in_order": "SELECT id FROM s ORDER BY id DESC LIMIT 2 OFFSET 1",
            },
        ),
        seed=4,
        count=4,
    )


def test_a_limit_whose_order_the_optimizer_moves_away_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a rule of Spark's optimizer does that Evertide excludes. Other rows would be selected otherwise."""
    monkeypatch.delitem(catalog.SETTINGS, "spark.sql.optimizer.excludedRules")
    query = "SELECT id, (SELECT max(k) FROM t WHERE v = q.b) AS z FROM (SELECT id, b FROM s ORDER BY id DESC LIMIT 2) q"
    with pytest.raises(InvalidInput, match="put Join between a LIMIT or OFFSET and its ORDER BY"):
        Circuit(spark, f"{TABLES}CREATE MATERIALIZED VIEW x AS {query}")


SAME_NAMES = {
    "distinct_pairs": "SELECT count(*) AS n FROM (SELECT DISTINCT named_struct('f', a, 'f', b, 'F', c) AS z FROM r)",
    "counted": "SELECT r.b, count(DISTINCT struct(r.b, s.b)) AS n FROM r JOIN s ON r.a = s.id GROUP BY r.b",
    "collected": "SELECT r.b, size(collect_set(array(struct(r.b, s.b)))) AS n FROM r JOIN s ON r.a = s.id GROUP BY r.b",
    "greatest": "SELECT b, max_by(a, named_struct('f', c, 'f', a)) AS m FROM r GROUP BY b",
    "joined": "SELECT r.a, s.id FROM r JOIN s ON struct(r.a, r.a) = struct(s.id, s.id)",
    "numbered": "SELECT a, b, rank() OVER (PARTITION BY named_struct('f', a, 'f', b) ORDER BY c) AS n FROM r",
    "first_ones": "SELECT a, b FROM (SELECT a, b, named_struct('f', b, 'f', a) AS z FROM r ORDER BY z LIMIT 2)",
}


@pytest.mark.parametrize("rows_small_max", [16_384, 0])
def test_structs_with_two_fields_of_one_name_are_maintained_inside_a_query(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, rows_small_max: int
) -> None:
    """They are in the keys and the state of operators. As columns of a view they are refused."""
    monkeypatch.setattr(fragment, "ROWS_SMALL_MAX", rows_small_max)
    check(spark, Views(SAME_NAMES), seed=5, count=4, spark_every=2)


def arrow_plus_two() -> Any:
    def plus_two(a: pa.Array) -> pa.Array:
        return pc.add(a, 2)

    plus_two.__annotations__ = {
        "a": pa.Array,
        "return": pa.Array,
    }  # as types: Spark does not evaluate annotations that are strings
    return arrow_udf(plus_two, "BIGINT")


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_views_are_maintained_in_the_soak(spark: SparkSession, soak: Soak) -> None:
    def run_round(seed: int) -> str:
        script = SCRIPTS[seed % len(SCRIPTS)]
        check_script(spark, script, seed, transactions=25, spark_every=1)
        return script

    soak.rounds("operators", run_round)


@pytest.mark.parametrize("query", REFUSED)
def test_a_query_that_cannot_be_maintained_is_refused_by_name(spark: SparkSession, query: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(REFUSED[query])):
        Circuit(spark, f"{TABLES} CREATE MATERIALIZED VIEW refused AS {query};")


def test_a_table_with_two_fields_of_one_name_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match="table 'q', column 'p': the type has a struct with two fields named 'f'"):
        Circuit(spark, "CREATE TABLE q (k INT, p ARRAY<STRUCT<f: INT, g: INT, F: INT>>);")


@pytest.mark.parametrize("function", OF_ORDER)
def test_a_function_that_depends_on_order_is_refused_by_name(spark: SparkSession, function: str) -> None:
    query = f"SELECT b, {OF_ORDER[function]} AS z FROM r GROUP BY b"
    with pytest.raises(InvalidInput, match=function):
        Circuit(spark, f"{TABLES} CREATE MATERIALIZED VIEW refused AS {query};")


def test_every_aggregate_function_is_tested_or_refused(spark: SparkSession) -> None:
    """Each aggregate function of Spark is in a view above, or refused."""
    scripts = " ".join([*map(read_views, SCRIPTS), *REFUSED])
    names = spark._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier
    catalog = spark._jsparkSession.sessionState().catalog()
    left_out = []
    for [name] in spark.sql("SHOW FUNCTIONS").collect():
        if not name.isidentifier() or catalog.lookupFunctionInfo(names(name)).getGroup() != "agg_funcs":
            continue
        if name not in OF_ORDER and not re.search(rf"\b{name}\(", scripts):
            left_out.append(name)
    assert left_out == []
