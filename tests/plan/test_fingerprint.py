"""Fingerprints: the same in every process, and different for every change that could change a row."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from evertide.errors import InvalidInput
from evertide.plan.algebra.nodes import Function, walk
from evertide.plan.catalyst.python_function import describe_function
from evertide.plan.catalyst.result_settings import RESULT_PREFIX, RESULT_SETTINGS, read_result_settings
from evertide.plan.program.fingerprint import Fingerprints
from evertide.plan.program.program import Program
from tests.plan.fingerprinted import QUERIES, TABLES, fingerprints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent
PAIRS = ("array(a, b)", "array(a + b)")
VARIANTS = (("DATE '2020-01-01'", "'2020-01-01'"), ("1", "1.0"), ("1.0D", "1.0F"), ("X'41'", "'QQ=='"))
"""Values of different types that are the same JSON."""


@pytest.fixture(scope="module")
def here(spark: SparkSession) -> dict[str, str]:
    return fingerprints(spark)


def test_another_process_computes_the_same_fingerprints(here: dict[str, str], tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.plan.fingerprinted", str(tmp_path)]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True, timeout=280)
    there = json.loads(done.stdout.splitlines()[-1])
    assert there == here
    assert len(set(here.values())) == len(here), "all views differ"
    assert all(len(found) == 32 and int(found, 16) >= 0 for found in here.values())


def test_sparks_counters_do_not_affect_fingerprints(spark: SparkSession, here: dict[str, str]) -> None:
    """Above all the lists of DISTINCT arguments, which Spark numbers at random."""
    names = ["distincts", "cubed", "lambdas", "by_expression"]
    for round_ in range(4):
        for rows in range(7 * round_):
            spark.range(rows)
        again = fingerprints(spark, names)
        assert {name: again[name] for name in names} == {name: here[name] for name in names}


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("inner_", "select r.a,\n r.c /* what */, s.e from r inner join s on r.b = s.b -- by b"),
        ("self_join", "SELECT one.a, two.a AS ya FROM r AS one JOIN r AS two ON one.b = two.b AND one.a < two.a"),
        ("lambdas", "SELECT transform(w, o -> o + k) AS q, aggregate(w, 0, (p, q) -> p + q) AS su FROM t"),
        ("by_expression", "SELECT a % 2 AS p, c || 'x' AS q, count(*) AS n FROM r GROUP BY 1, 2"),
    ],
)
def test_equivalent_texts_have_the_same_fingerprint(
    spark: SparkSession, here: dict[str, str], name: str, query: str
) -> None:
    assert fingerprints(spark, [name], changed={name: query})[name] == here[name]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("moved", "b, a", "a, b"),
        ("moved", "a FROM r", "a AS z FROM r"),
        ("computed", "a + b", "a - b"),
        ("computed", "a + b", "try_add(a, b)"),
        ("computed", "try_cast(c AS INT)", "CAST(c AS INT)"),
        ("computed", "AS INT", "AS BIGINT"),
        ("inner_", "JOIN", "LEFT JOIN"),
        ("inner_", "r.b = s.b", "r.b <=> s.b"),
        ("inner_", "r.b = s.b", "r.a = s.b"),
        ("residual", "<", "<="),
        ("sums", "sum(d)", "avg(d)"),
        ("sums", "sum(d)", "sum(d) FILTER (WHERE a > 1)"),
        ("extremes", "collect_set", "collect_list"),
        ("distincts", "a > 2", "a > 3"),
        ("distincts", "sum(DISTINCT a + 1)", "sum(DISTINCT a + 2)"),
        ("numbered", "ORDER BY ts)", "ORDER BY ts DESC)"),
        ("numbered", "lag(id)", "lag(id, 2)"),
        ("numbered", "b + 1", "b + 2"),
        ("top", "LIMIT 3", "LIMIT 4"),
        ("top", "DESC", "DESC NULLS FIRST"),
        ("exploded", "OUTER", ""),
        ("tumbling", "10 seconds", "20 seconds"),
        ("sessions", "5 seconds", "6 seconds"),
        ("lambdas", "y + k", "y + v"),
        ("lambdas", "acc + z", "acc + acc"),
        ("literals", "X'0aff'", "X'0afe'"),
        ("literals", "array(1, 2)", "array(1, 3)"),
        ("literals", "X'01'", "X'02'"),
        ("in_set", "13", "14"),
        ("constants", "'two'", "'three'"),
        ("parsed", "FAILFAST", "PERMISSIVE"),
        ("pivoted", "'y'", "'z'"),
    ],
)
def test_a_change_that_could_change_a_row_changes_the_fingerprint(
    spark: SparkSession, here: dict[str, str], name: str, before: str, after: str
) -> None:
    assert before in QUERIES[name]
    found = fingerprints(spark, [name], changed={name: QUERIES[name].replace(before, after)})
    assert found[name] != here[name]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(
            (f"SELECT a, e, {n} FROM {source} GROUP BY a, e", f"SELECT b AS a, e, {n} FROM {source} GROUP BY b, e")
            for n, source in (("count(*) AS n", f"r LATERAL VIEW explode({pair}) AS e") for pair in PAIRS)
        ),
        *(
            (f"SELECT CAST({one} AS VARIANT) AS v, a FROM r", f"SELECT CAST({other} AS VARIANT) AS v, a FROM r")
            for one, other in VARIANTS
        ),
        *(
            (f"SELECT array({one}::VARIANT) AS v FROM r", f"SELECT array({other}::VARIANT) AS v FROM r")
            for one, other in VARIANTS
        ),
        *(
            (
                f"SELECT a, v FROM r JOIN VALUES ({one}::VARIANT) AS x(v)",
                f"SELECT a, v FROM r JOIN VALUES ({other}::VARIANT) AS x(v)",
            )
            for one, other in VARIANTS
        ),
    ],
)
def test_v8_facts_outside_of_expressions_change_the_fingerprint(spark: SparkSession, one: str, other: str) -> None:
    """The columns that a Generate passes on, and the types of values in variants."""
    found = fingerprints(spark, ["one", "same", "other"], changed={"one": one, "same": one, "other": other})
    assert found["one"] == found["same"] != found["other"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("c STRING", "c STRING NOT NULL"),
        ("c STRING", "c STRING COLLATE UTF8_LCASE"),
        ("DECIMAL(10, 2)", "DECIMAL(11, 2)"),
        ("a BIGINT", "a INT"),
        ("x DOUBLE", "x DOUBLE, y INT"),
        ("a BIGINT, b BIGINT", "b BIGINT, a BIGINT"),
        ("x DOUBLE)", "x DOUBLE, PRIMARY KEY (a))"),
        ("CREATE TABLE r", "CREATE TABLE q"),
    ],
)
def test_the_definition_of_a_table_changes_the_fingerprint(
    spark: SparkSession, here: dict[str, str], before: str, after: str
) -> None:
    query = QUERIES["moved"].replace(" r", " q") if " q" in after else QUERIES["moved"]
    found = fingerprints(spark, ["moved"], tables=TABLES.replace(before, after, 1), changed={"moved": query})
    assert found["moved"] != here["moved"]


def test_the_fingerprint_of_a_view_includes_the_views_that_it_reads(spark: SparkSession, here: dict[str, str]) -> None:
    changed = {"sums": QUERIES["sums"].replace("sum(d)", "sum(d + 1)")}
    found = fingerprints(spark, ["sums", "over_view"], changed=changed)
    assert found["over_view"] != here["over_view"], "although its columns have the same names and types"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.sql.session.timeZone", "Asia/Tokyo"),
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.legacy.timeParserPolicy", "LEGACY"),
    ],
)
def test_settings_change_all_fingerprints(spark: SparkSession, setting: str, value: str) -> None:
    program = Program(spark, f"{TABLES} CREATE MATERIALIZED VIEW v AS SELECT a FROM r")
    before = Fingerprints(program)
    program.catalog.session.conf.set(setting, value)
    after = Fingerprints(program)
    assert after.pipeline != before.pipeline
    assert after.views["v"] != before.views["v"]
    assert all(after.nodes[id(node)] != before.nodes[id(node)] for node in walk(program.views["v"]))


def test_settings_exist_in_spark_and_defaults_do_not_count(spark: SparkSession) -> None:
    session = spark.newSession()
    assert all(session.conf.get(name) is not None for name in RESULT_SETTINGS)
    before = read_result_settings(session)
    assert not any(name.startswith(RESULT_PREFIX) for name in before)
    session.conf.set("spark.sql.legacy.timeParserPolicy", "CORRECTED")
    assert read_result_settings(session) == before


def test_operators_and_pipelines_have_fingerprints(spark: SparkSession) -> None:
    script = f"{TABLES} CREATE MATERIALIZED VIEW v AS SELECT x.a FROM r x JOIN r y ON x.b = y.b"
    program = Program(spark, script)
    found = Fingerprints(program)
    operators = list(walk(program.views["v"]))
    assert all(len(found.nodes[id(node)]) == 32 for node in operators)
    scans = [found.nodes[id(node)] for node in operators if node.kind == "Scan"]
    assert len(scans) == 2
    assert len(set(scans)) == 1, "the same table has the same fingerprint"
    assert Fingerprints(Program(spark, script)).pipeline == found.pipeline
    assert Fingerprints(Program(spark, script + "; CREATE TABLE z (i INT)")).pipeline != found.pipeline


def test_all_of_a_function_is_hashed() -> None:
    """A new field needs an entry in `evertide.plan.program.fingerprint` that says how it counts."""
    fields = {field.name for field in dataclasses.fields(Function)}
    assert fields == {"name", "arguments", "condition", "mode", "buffer"}


def make_function(limit: int, default: int = 1) -> Callable[[int], int]:
    def function(value: int) -> int:
        """Says something."""
        return min(value, limit) + default

    return function


def test_the_fingerprint_of_a_python_function_is_that_of_its_code() -> None:
    def fingerprint_of(function: Any) -> str:
        return repr(describe_function(function, "here"))

    names: dict[str, Any] = {}
    source = "import math\ndef f(x):\n    {}return math.floor(x) + g(x)\ndef g(x):\n    return {}\n"
    exec(source.format("'A docstring.'\n    ", "x + 1"), names)
    others: dict[str, Any] = {}
    exec("\n\n" + source.format("", "x + 1"), others)
    assert fingerprint_of(names["f"]) == fingerprint_of(others["f"])
    exec(source.format("", "x + 2"), others)
    assert fingerprint_of(names["f"]) != fingerprint_of(others["f"]), (
        "the fingerprint includes the functions that it calls"
    )

    assert fingerprint_of(make_function(1)) == fingerprint_of(make_function(1))
    assert fingerprint_of(make_function(1)) != fingerprint_of(make_function(2))
    assert fingerprint_of(make_function(1)) != fingerprint_of(make_function(1, default=2))
    assert fingerprint_of(lambda: "a") != fingerprint_of(lambda: "b")
    assert fingerprint_of(lambda x: x in {"a", "b"}) == fingerprint_of(lambda x: x in {"b", "a"})
    assert fingerprint_of(json.dumps) == fingerprint_of(json.dumps)

    def endless(n: int) -> int:
        return endless(n - 1)

    assert fingerprint_of(endless)
    with pytest.raises(InvalidInput, match="cannot be pickled"):
        fingerprint_of(lambda rows=(row for row in [1]): rows)


def test_the_length_by_which_a_column_is_compared_changes_the_fingerprint(spark: SparkSession) -> None:
    """The optimizer makes one plan of both queries, but only the first column is CHAR for queries over the view."""
    table = "CREATE TABLE t (c {} NOT NULL); CREATE MATERIALIZED VIEW v AS SELECT {} AS c FROM t"
    prints = [
        Fingerprints(Program(spark, table.format(kind, column))).views["v"]
        for kind in ("CHAR(3)", "VARCHAR(3)", "STRING")
        for column in ("c", "coalesce(c, 'x')")
    ]
    assert prints[0] not in prints[1:]
    assert len({*prints[1:]}) == 1
    whole = {Fingerprints(Program(spark, table.format(kind, "c"))).pipeline for kind in ("VARCHAR(3)", "VARCHAR(4)")}
    assert len(whole) == 2


@pytest.mark.parametrize("setting", ["charAsVarchar", "legacy.charVarcharAsString", "preserveCharVarcharTypeInfo"])
def test_a_setting_that_changes_what_char_means_is_refused(spark: SparkSession, setting: str) -> None:
    session = spark.newSession()
    session.conf.set(f"spark.sql.{setting}", "true")
    with pytest.raises(InvalidInput, match=f"not supported while spark.sql.{setting} is true"):
        Program(session, "CREATE TABLE t (c VARCHAR(3))")
    Program(session, "CREATE TABLE t (c STRING)")
