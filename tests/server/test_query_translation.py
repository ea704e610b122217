"""Queries that DuckDB may answer for Spark: random queries of every supported form in both engines, and known
differences.

Both get the same text. DuckDB runs the translation by `translate_query`; a query that fails there goes to Spark, and so
is no difference. All else must be the same: names, types, and every bit of every row.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from evertide.pipeline.reading.query import EngineChoice, Question
from evertide.server.query.duck import Duck, DuckDeclined
from evertide.server.query.duck_query import answer_with_duckdb
from evertide.server.query.translation import translate_query
from evertide.settings import Settings
from tests.pipeline.kit import open_pipeline, storage
from tests.server.translated_queries import DASHBOARD, DIFFERENT, FAILING, UNSURE, ZONED, Words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAN, INFINITY = float("nan"), float("inf")
LONGS = (-(1 << 63), (1 << 63) - 1, 0, 1, -1, 7, 1 << 53, (1 << 53) + 1, -40, 100)
DOUBLES = (0.0, -0.0, 1.5, -2.25, NAN, INFINITY, -INFINITY, 1e300, 5e-324, 0.1, 3.0, 100.0)
TEXTS = ("", "ann", "bob", "Ann", " a b ", "héé", "日本語", "😀x", "a%b", "a_b", "it's", "a\nb", "\\", "zz", "e\u0301")
DATES = (-800_000, -719_162, -141_418, -1, 0, 19_782, 2_932_896, 2_932_897)
"""Days: years before 1, 1, 1582, 1969, 1970, 2024, 9999, 10000."""
HOURS = (-69_120_000_000_000_001, -62_135_596_800_000_000, -1, 0, 1_709_209_815_123_456, 253_402_300_800_000_000)
"""Microseconds of the same years."""
CENTS = tuple(map(Decimal, ("0.00", "-0.01", "1.25", "99999999.99", "-99999999.99", "100.00", "2.50", "0.05")))
WIDE = tuple(map(Decimal, ("0.0000", "123456789012345678901234.5678", "-1.0000", "1.0001", "-0.0001", "2.5000")))
SCHEMA = pa.schema(
    [
        *(("id", pa.int64()), ("t", pa.int8()), ("s", pa.int16()), ("i", pa.int32()), ("l", pa.int64())),
        *(("n", pa.int64()), ("f", pa.float32()), ("d", pa.float64()), ("m", pa.decimal128(10, 2))),
        *(("w", pa.decimal128(28, 4)), ("x", pa.string()), ("y", pa.binary()), ("b", pa.bool_()), ("da", pa.date32())),
        *(("nt", pa.timestamp("us")), ("ts", pa.timestamp("us", "UTC"))),
    ]
)


def _table(seed: int, rows: int) -> pa.Table:
    rng = np.random.default_rng(seed)

    def some(values: Sequence[Any]) -> list[Any]:
        return [None if rng.random() < 0.15 else values[int(rng.integers(len(values)))] for _ in range(rows)]

    columns: dict[str, list[Any]] = {
        "id": list(range(rows)),
        "t": some((-128, 127, 0, 1, 2, 3)),
        "s": some((-32768, 32767, 0, 5, 6)),
        "i": some((-(1 << 31), (1 << 31) - 1, 0, 1, 2, 3, 4, 5)),
        "l": some(LONGS),
        "n": some(range(-3, 8)),
        "f": some(
            [float(np.float32(one)) if abs(one) < 1e30 else one for one in DOUBLES if one not in (1e300, 5e-324)]
        ),
        "d": some(DOUBLES),
        "m": some(CENTS),
        "w": some(WIDE),
        "x": some(TEXTS),
        "y": some((b"", b"\x00", b"\xff", b"ab", b"abc")),
        "b": some((True, False)),
        "da": some(DATES),
        "nt": some(HOURS),
        "ts": some([one + 7_200_000_000 for one in HOURS]),
    }
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in SCHEMA}, schema=SCHEMA)


TABLES = {"one": _table(1, 70), "two": _table(2, 25), "none": _table(3, 0)}
SCHEMAS = {name: rows.schema for name, rows in TABLES.items()}


@dataclass(frozen=True)
class Both:
    """The two engines over the same tables."""

    duck: Duck
    session: SparkSession

    def by_duckdb(self, sql: str, *parameters: Any) -> pa.Table:
        """Raise `DuckDeclined` if the query goes to Spark."""
        question = Question(sql, parameters=parameters)
        said = translate_query(question, self.duck.parse(sql).tree, SCHEMAS, self.duck.zone)
        return self.duck.answer(said.sql, TABLES, [], 1_000_000)[0]

    def is_asked(self, sql: str, *parameters: Any) -> bool:
        """Whether DuckDB runs the query."""
        try:
            translate_query(Question(sql, parameters=parameters), self.duck.parse(sql).tree, SCHEMAS, self.duck.zone)
        except DuckDeclined:
            return False
        return True

    def is_agreed(self, text: str) -> bool:
        return self.is_asked(f"SELECT {text} AS e FROM one")

    def by_spark(self, sql: str, *parameters: Any) -> pa.Table:
        frame = self.session.sql(sql, args=list(parameters)) if parameters else self.session.sql(sql)
        return frame.toArrow()

    def check(self, sql: str, *parameters: Any, is_ordered: bool = False) -> pa.Table:
        found = self.by_duckdb(sql, *parameters)
        compare(sql, found, self.by_spark(sql, *parameters), is_ordered=is_ordered)
        return found


def compare(sql: str, found: pa.Table, expected: pa.Table, *, is_ordered: bool = False) -> None:
    told = [(field.name, field.type) for field in found.schema]
    assert told == [(field.name, field.type) for field in expected.schema], sql
    if is_ordered:
        assert _rows(found) == _rows(expected), sql
    else:
        have, want = Counter(_rows(found)), Counter(_rows(expected))
        assert have == want, (sql, "only DuckDB", list(have - want)[:3], "only Spark", list(want - have)[:3])


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [[_exact(value) for value in _plain(column).to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True)) if columns else []


def _plain(column: Any) -> Any:
    """Convert days beyond the year 9999, which Python does not have."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column


def _exact(value: Any) -> Any:
    """NaN equals NaN, and 0.0 does not equal -0.0."""
    if isinstance(value, float):
        return "NaN" if value != value else struct.pack(">d", value)  # noqa: PLR0124
    return value


@pytest.fixture(scope="module")
def both(spark: SparkSession) -> Both:
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - pyspark

    session = spark.newSession()
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    for name, rows in TABLES.items():
        declared = from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True)
        session.createDataFrame(rows, declared).createOrReplaceTempView(name)
    return Both(Duck(Settings()), session)


SETTINGS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def test_random_expressions_have_the_same_result_in_both_engines(both: Both) -> None:
    """Hundreds of expressions over all types; those that DuckDB refuses or fails on are left out. Fails if, for
    example, the sum of two SMALLINTs has DuckDB's type, or a division by zero is not an error."""
    words = Words(np.random.default_rng(11))
    texts = list(dict.fromkeys(text for text in (words.expression() for _ in range(330)) if both.is_agreed(text)))
    taken = [text for at in range(0, len(texts), 50) for text in _computed(both, texts[at : at + 50])]
    assert len(taken) > 200
    for at in range(0, len(taken), 75):
        part = taken[at : at + 75]
        sql = _select(part)
        found, expected = both.by_duckdb(sql), both.by_spark(sql)
        for place, text in enumerate(part, 1):
            compare(text, found.select([0, place]), expected.select([0, place]))


def _select(texts: Sequence[str]) -> str:
    return f"SELECT id, {', '.join(f'{text} AS e{at}' for at, text in enumerate(texts))} FROM one"


def _computed(both: Both, texts: list[str]) -> list[str]:
    """Return the expressions that DuckDB computes without an error."""
    try:
        both.by_duckdb(_select(texts))
    except DuckDeclined:
        half = len(texts) // 2
        return [*_computed(both, texts[:half]), *_computed(both, texts[half:])] if half else []
    return texts


def test_random_queries_have_the_same_result_in_both_engines(both: Both) -> None:
    """Joins, groups, subqueries, WITH, set operations, order and limits, combined at random."""
    words = Words(np.random.default_rng(12))
    taken = 0
    for _ in range(40):
        query = words.query()
        try:
            found = both.by_duckdb(query.sql)
        except DuckDeclined:
            continue
        compare(query.sql, found, both.by_spark(query.sql), is_ordered=query.is_ordered)
        taken += 1
    assert taken > 30


@pytest.mark.parametrize("sql", DASHBOARD)
def test_typical_dashboard_queries_are_answered_by_duckdb(both: Both, sql: str) -> None:
    """Names and scopes are those of Spark. Fails if more queries go to Spark than before."""
    both.check(sql, is_ordered="ORDER BY" in sql)


def test_parameters_have_the_types_that_spark_gives_them(both: Both) -> None:
    values = [2, 1 << 40, 1.5, "it's a \\ and a ?", True]
    both.check("SELECT ? AS a, ? AS b, ? AS c, ? AS d, ? AS e, id FROM one ORDER BY id", *values, is_ordered=True)
    both.check("SELECT id FROM one WHERE n > ? AND x <> ? AND d < ? LIMIT 100", 1, "bob", 7.5)
    none: list[tuple[str, list[Any]]] = [("SELECT ? AS a", [None]), ("SELECT id FROM one", [1]), ("SELECT ? AS a", [])]
    for sql, given in (*none, ("SELECT ? AS a", [b""]), ("SELECT ? AS a", [INFINITY])):
        assert not both.is_asked(sql, *given)
    assert not both.is_asked("SELECT id FROM one WHERE x LIKE ?", "a\\_b"), "an escaped pattern goes to Spark"


def test_known_differences_go_to_spark(both: Both) -> None:
    """The first part shows that they do differ: in a value, or in its type."""
    expected = both.by_spark(f"SELECT {', '.join(f'{text} AS e{at}' for at, text in enumerate(DIFFERENT))}")
    for at, text in enumerate(DIFFERENT):
        own, _ = both.duck.answer(f"SELECT {text} AS e{at}", {}, [], 10)
        with pytest.raises(AssertionError):
            compare(text, own, expected.select([at]))
        assert not both.is_asked(f"SELECT {text} AS e"), text


@pytest.mark.parametrize("sql", UNSURE)
def test_queries_not_known_to_agree_go_to_spark(both: Both, sql: str) -> None:
    assert not both.is_asked(sql)


@pytest.mark.parametrize("sql", FAILING)
def test_rows_on_which_the_engines_differ_go_to_spark(both: Both, sql: str) -> None:
    """DuckDB runs the query, and fails. Fails without the guard of each function."""
    assert both.is_asked(sql)
    with pytest.raises(DuckDeclined):
        both.by_duckdb(sql)


def test_queries_that_depend_on_another_time_zone_go_to_spark(both: Both) -> None:
    """Hours of a timestamp, and the limits of a day, depend on the zone; a timestamp without a zone does not."""
    for sql in ZONED:
        tree = both.duck.parse(sql).tree
        assert translate_query(Question(sql), tree, SCHEMAS, "Etc/UTC")
        for zone in ("", "America/New_York"):
            with pytest.raises(DuckDeclined):
                translate_query(Question(sql), tree, SCHEMAS, zone)
    for sql in ("SELECT hour(nt) AS h, year(da) AS y FROM one", "SELECT max(ts) FROM one WHERE ts < ts"):
        assert translate_query(Question(sql), both.duck.parse(sql).tree, SCHEMAS, "America/New_York")


def test_an_unknown_field_is_refused(both: Both) -> None:
    """A later DuckDB may have more fields in a node than this one."""
    sql = "SELECT id FROM one WHERE n > 1"
    tree = both.duck.parse(sql).tree
    tree["node"]["where_clause"]["is_reversed"] = True
    with pytest.raises(DuckDeclined, match="is_reversed of COMPARE_GREATERTHAN"):
        translate_query(Question(sql), tree, SCHEMAS)


def test_a_query_that_names_duckdb_has_the_meaning_of_duckdb() -> None:
    """Without the name of an engine, a query has Spark's meaning: DuckDB declines, or gives Spark's result."""
    duck = Duck(Settings())
    with open_pipeline(storage()) as pipeline:
        asked = Question("SELECT CAST(1.5 AS INT) AS a", engine=EngineChoice.duckdb)
        assert answer_with_duckdb(pipeline.collections, asked, duck).rows.to_pylist() == [{"a": 2}]
        with pytest.raises(DuckDeclined):
            answer_with_duckdb(pipeline.collections, replace(asked, engine=EngineChoice.auto), duck)
        for engine, name in ((EngineChoice.duckdb, "count_star()"), (EngineChoice.auto, "count(1)")):
            found = answer_with_duckdb(
                pipeline.collections, Question("SELECT count(*) FROM orders", engine=engine), duck
            )
            assert found.rows.to_pylist() == [{name: 0}]
