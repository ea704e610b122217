"""CHAR and VARCHAR columns of real pipelines, compared with Spark over Parquet tables of the same declaration.

The reference writes the rows as they were pushed, so that Spark itself pads and cuts them, and runs the same queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import evertide as et
from evertide.errors import InvalidInput
from evertide.pipeline.reading.query import Question
from evertide.pipeline.reading.reader import StorageReader
from evertide.plan.catalyst.session import open_session
from evertide.rows.char_types import fit_char_types
from evertide.server.query.spark_query import SparkQueryEngine
from tests.kit.runtime import RandomStream
from tests.pipeline.kit import crash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
Row = dict[str, Any]

COLUMNS = {
    "a": "k CHAR(3) NOT NULL, n INT, c CHAR(5), v VARCHAR(4)",
    "b": "c CHAR(3), d CHAR(5), v VARCHAR(3), s STRING, n INT",
    "o": "id INT NOT NULL, a ARRAY<CHAR(2)>, m MAP<CHAR(2), VARCHAR(2)>, t STRUCT<x: CHAR(2), y: INT>",
}
KEYS = {"a": "k", "o": "id"}
LENGTHS = {"a": {"k": 3, "c": 5, "v": -4}, "b": {"c": 3, "d": 5, "v": -3}, "o": {}}
"""Of CHAR columns; of VARCHAR columns, negative."""
VIEWS = {
    "equal": "SELECT k, c FROM a WHERE c = 'ab'",
    "equal_long": "SELECT k FROM a WHERE 'ab       ' = c",
    "less": "SELECT k, c FROM a WHERE c < 'b' AND k >= 'a'",
    "listed": "SELECT k FROM a WHERE c IN ('a', 'b ', 'abcdefgh', NULL) OR k IN ('😀')",
    "unlisted": "SELECT k FROM a WHERE c NOT IN ('a', 'ab')",
    "alike": "SELECT k, c LIKE 'a' AS whole, c LIKE 'a%' AS start, v LIKE 'a' AS other FROM a",
    "char_join": "SELECT a.k, b.d, b.n FROM a JOIN b ON a.k = b.d",
    "varchar_join": "SELECT a.k, b.n FROM a JOIN b ON a.k = b.v",
    "outer_join": "SELECT a.k, b.c, b.s FROM a LEFT JOIN b ON b.c = a.c",
    "full_join": "SELECT a.k, b.c FROM a FULL JOIN b ON b.c = a.c AND b.c < 'b'",
    "grouped": "SELECT c, count(*) AS n, max(v) AS m, min(k) AS l FROM a GROUP BY c",
    "having_char": "SELECT c, count(*) AS n FROM b GROUP BY c HAVING c = 'a'",
    "uniq": "SELECT DISTINCT c, v FROM b",
    "both": "SELECT * FROM (SELECT c FROM b UNION ALL SELECT d FROM b) WHERE c = 'a'",
    "texts": "SELECT k, length(c) AS lc, length(v) AS lv, concat(c, '|', v) AS x, upper(c) AS u FROM a",
    "compared": "SELECT k, c = v AS e, c <=> v AS f, v = 'ab' AS g, c = 'ab' AS h, k = c AS i, k <> c AS j FROM a",
    "existing": "SELECT k FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.d = a.k)",
    "within": "SELECT k FROM a WHERE c IN (SELECT d FROM b)",
    "within_shorter": "SELECT k FROM a WHERE c IN (SELECT c FROM b)",
    "scalar": "SELECT k, (SELECT max(n) FROM b WHERE b.c = a.k) AS m FROM a",
    "chosen": "SELECT k, CASE WHEN c = 'a' THEN 1 WHEN v = 'a' THEN 2 END AS x FROM a",
    "extreme": "SELECT max(c) AS x, min(d) AS y, max(v) AS z FROM b",
    "ranked": "SELECT k, row_number() OVER (PARTITION BY c ORDER BY k) AS r FROM a",
    "cut": "SELECT k, CAST(c AS VARCHAR(2)) AS w, CAST(v AS CHAR(9)) AS x FROM a",
    "folded": "SELECT n FROM b WHERE c = lower(s) AND s = 'A'",
    "nested": "SELECT id, a, map_entries(m) AS e, t.x, t.x = 'a' AS y, array_contains(a, 'b') AS z FROM o",
    "nested_equal": "SELECT id, a = array('a') AS f, a = array('a ') AS g, t.x < 'b' AS h FROM o",
    "over_equal": "SELECT k FROM equal WHERE c = 'ab'",
    "over_grouped": "SELECT c, n FROM grouped WHERE c IN ('ab', 'a')",
    "over_both": "SELECT c FROM both WHERE c = 'a'",
}
LATER = {
    "added": "SELECT x.c, y.d FROM b x JOIN b y ON x.c = y.d WHERE y.c > 'a'",
    "over_less": "SELECT count(*) AS n FROM less WHERE c = 'a'",
}
QUERIED = ("equal", "listed", "char_join", "over_grouped", "over_both")
NEVER = {"folded", "within_shorter"}
"""Spark does not pad the comparison with a function, nor with the column of a subquery."""
TEXTS = ("", "a", "a", "a", "a", "b", "A", "ab", "ab", "é", "😀", "😀", "a😀", "abc", "b c", "\t")


def write_script(views: Mapping[str, str]) -> str:
    key = {name: f", PRIMARY KEY ({column})" for name, column in KEYS.items()}
    tables = [f"CREATE TABLE {name} ({columns}{key.get(name, '')});" for name, columns in COLUMNS.items()]
    return "\n".join([*tables, *(f"CREATE MATERIALIZED VIEW {name} AS {query};" for name, query in views.items())])


def store(text: str | None, length: int) -> str | None:
    """The text as a CHAR, or as a VARCHAR if the length is negative."""
    return text if text is None else text[: abs(length)].ljust(max(length, 0))


def store_row(table: str, row: Row) -> Row:
    return row | {column: store(row[column], length) for column, length in LENGTHS[table].items()}


class Tables:
    """The rows as they were pushed, and Spark's answers over them."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.rows: dict[str, list[Row]] = {name: [] for name in COLUMNS}
        self.answered: set[str] = set()
        """The queries that had a row."""
        self._session = spark.newSession()
        self._session.conf.set("spark.sql.shuffle.partitions", "1")
        self._session.sql(f"CREATE DATABASE chars LOCATION '{path}'")
        self._session.sql("USE chars")
        for name, columns in COLUMNS.items():
            self._session.sql(f"CREATE TABLE {name} ({columns}) USING parquet")

    def upsert(self, table: str, row: Row) -> None:
        if table in KEYS:
            self.delete(table, row)
        self.rows[table].append(row)

    def delete(self, table: str, row: Row) -> None:
        """Delete the row of the key, or one row with the same stored values."""
        columns = [KEYS[table]] if table in KEYS else [*row]
        wanted = [store_row(table, row)[column] for column in columns]
        stored = [[store_row(table, each)[column] for column in columns] for each in self.rows[table]]
        if wanted in stored:
            del self.rows[table][stored.index(wanted)]

    def answer(self, queries: Mapping[str, str]) -> dict[str, list[str]]:
        for name, rows in self.rows.items():
            columns = self._session.table(name).columns
            schema = self._session.table(name).schema
            frame = self._session.createDataFrame([tuple(row[column] for column in columns) for row in rows], schema)
            frame.write.insertInto(name, overwrite=True)
        found = {}
        for name, query in queries.items():
            answer = self._session.sql(query)
            answer.createOrReplaceTempView(name)
            found[name] = sorted(repr(row.asDict(recursive=True)) for row in answer.collect())
        self.answered |= {name for name, rows in found.items() if rows}
        return found

    def close(self) -> None:
        self._session.sql("DROP DATABASE chars CASCADE")


@contextmanager
def reference(spark: SparkSession, path: Path) -> Iterator[Tables]:
    tables = Tables(spark, path)
    try:
        yield tables
    finally:
        tables.close()


def pick(random: RandomStream, choices: Sequence[T]) -> T:
    return choices[random.below(len(choices))]


def unless_refused(write: Callable[[], T]) -> T | None:
    """None if Spark refuses to write the values."""
    try:
        return write()
    except PySparkException as error:
        if not any(condition in str(error) for condition in ("EXCEED_LIMIT_LENGTH", "DUPLICATED_MAP_KEY")):
            raise
        return None


class Draw:
    def __init__(self, random: RandomStream) -> None:
        self.random = random

    def text(self, length: int) -> str | None:
        """A text that fits, perhaps only without spaces at its end."""
        if not self.random.below(8):
            return None
        text = pick(self.random, [each for each in TEXTS if len(each) <= abs(length)])
        return text + " " * self.random.below(abs(length) + 3)

    def key(self, length: int) -> str:
        return self.text(length) or "a"

    def row(self, table: str) -> Row:
        random = self.random
        number = random.below(4) or None
        if table == "a":
            return {"k": self.key(3), "n": number, "c": self.text(5), "v": self.text(4)}
        if table == "b":
            texts = {"c": self.text(3), "d": self.text(5), "v": self.text(3)}
            return {**texts, "s": pick(random, ["a", "A", "a ", None]), "n": number}
        array = None if not random.below(4) else [self.text(2) for _ in range(random.below(3))]
        entries = None if not random.below(4) else {pick(random, ["k", "k ", "kk"]): self.text(2)}
        struct = None if not random.below(4) else {"x": self.text(2), "y": number}
        return {"id": random.below(6), "a": array, "m": entries, "t": struct}


def change(p: et.Pipeline, tables: Tables, draw: Draw) -> None:
    for table in COLUMNS:
        rows = [draw.row(table) for _ in range(draw.random.below(12))]
        known = tables.rows[table]
        deletes = [pick(draw.random, known) for _ in range(draw.random.below(3))] if known else []
        deletes = [*{repr(row): row for row in deletes}.values()]
        for row in deletes:
            tables.delete(table, row)
        for row in rows:
            tables.upsert(table, row)
        spaced = [{**row, "k": row["k"] + " "} if "k" in row else row for row in deletes]
        p.push(table, rows, deletes=[{KEYS[table]: row[KEYS[table]]} for row in spaced] if table in KEYS else spaced)
    p.commit()


def check(p: et.Pipeline, tables: Tables, views: Mapping[str, str]) -> None:
    stored = {f"stored_{name}": f"SELECT * FROM {name}" for name in COLUMNS}
    expected = tables.answer({**stored, **views})
    for name, rows in expected.items():
        found = p.view(name.removeprefix("stored_")).to_spark().collect()
        assert sorted(repr(row.asDict(recursive=True)) for row in found) == rows, name


@pytest.mark.parametrize("seed", [1, 2])
def test_views_over_char_columns_are_those_of_spark(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Random rows, over restarts and a change of the script. Also queries, which must answer as a view would."""
    draw = Draw(RandomStream(seed))
    storage = tmp_path / "s.evertide"
    with reference(spark, tmp_path / "tables") as tables:
        with et.Pipeline.open(write_script(VIEWS), storage, spark=spark) as p:
            for _ in range(3):
                change(p, tables, draw)
                check(p, tables, VIEWS)
            crash(p)
        views = {**VIEWS, **LATER}
        with et.Pipeline.open(write_script(views), storage, spark=spark) as p:
            assert p.wait_until_hydrated(120)
            check(p, tables, views)
            for _ in range(2):
                change(p, tables, draw)
            check(p, tables, views)
            expected = tables.answer(views)
            for name, query in views.items():
                asked = [repr(row.asDict(recursive=True)) for row in p.sql(query).to_spark().collect()]
                assert sorted(asked) == expected[name], name
        check_query_engine(spark, storage, {name: views[name] for name in QUERIED}, expected)
        assert views.keys() - tables.answered == NEVER


def check_query_engine(
    spark: SparkSession, storage: Path, queries: Mapping[str, str], expected: Mapping[str, list[str]]
) -> None:
    """The engine of query processes, which reads the collections from storage."""
    reader = StorageReader.open(storage)
    try:
        asked = SparkQueryEngine(reader, open_session(spark), {"storage": str(storage), "lease_s": "60"})
        for name, query in queries.items():
            assert sorted(map(repr, asked.answer(Question(query)).rows.to_pylist())) == expected[name], name
    finally:
        reader.close()


def test_texts_are_stored_as_spark_stores_them(spark: SparkSession) -> None:
    """Compared with the functions that Spark calls when it writes a table."""
    jvm: Any = spark._jvm
    functions = jvm.org.apache.spark.sql.catalyst.util.CharVarcharCodegenUtils
    random = RandomStream(3)
    texts = ["".join(pick(random, ("a", "é", "😀", "\t", " ", " ", "")) for _ in range(7)) for _ in range(300)]
    for length in (0, 1, 3, 5):
        for kind, check in (
            ("char", functions.charTypeWriteSideCheck),
            ("varchar", functions.varcharTypeWriteSideCheck),
        ):
            fitted, misfits = fit_char_types(pa.array([*texts, None]), f"{kind}({length})")
            for at, text in enumerate(texts):
                written = jvm.org.apache.spark.unsafe.types.UTF8String.fromString(text)
                expected = unless_refused(lambda: check(written, length).toString())  # noqa: B023 - called at once
                assert (fitted[at].as_py(), at in misfits) == (expected, expected is None), (kind, length, text)
            assert fitted[len(texts)].as_py() is None


def test_nested_texts_are_stored_as_spark_stores_them(spark: SparkSession, tmp_path: Path) -> None:
    values: list[Row] = [
        {"a": ["x", "ab  ", None], "m": {"k": "v    "}, "t": {"x": "a", "y": 1}},
        {"a": [], "m": {"k": None, "j  ": ""}, "t": {"x": None, "y": None}},
        {"a": ["x", "abc"], "m": None, "t": None},
        {"a": None, "m": {"k": "abc"}, "t": None},
        {"a": None, "m": {"abc": "v"}, "t": None},
        {"a": None, "m": {"k": "1", "k ": "2"}, "t": None},
        {"a": None, "m": None, "t": {"x": "abc", "y": 1}},
    ]
    refused = 0
    with (
        reference(spark, tmp_path / "tables") as tables,
        et.Pipeline.open(write_script({}), tmp_path / "s.evertide", spark=spark) as p,
    ):
        for at, value in enumerate(values):
            row = {"id": at, **value}
            tables.rows["o"] = [row]
            answer = unless_refused(lambda: tables.answer({"o_now": "SELECT * FROM o"}))
            if answer is None:
                refused += 1
                with pytest.raises(InvalidInput, match=f"table 'o', row 1, column '{'amt'[(at > 2) + (at > 5)]}'"):
                    p.push("o", [row])
                continue
            p.push("o", [row])
            p.commit()
            stored = p.sql(f"SELECT * FROM o WHERE id = {at}").to_spark().collect()
            assert [repr(each.asDict(recursive=True)) for each in stored] == answer["o_now"]
    assert refused == 5
