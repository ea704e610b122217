"""CHAR and VARCHAR columns wherever rows enter, in pipelines without Spark."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.names import ERRORS
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.reading.query import EngineChoice, Question
from evertide.pipeline.state.table_input import HashedBatch, gather_input
from evertide.rows.char_types import add_char_types
from evertide.server.query.duck import Duck, DuckDeclined
from evertide.server.query.duck_query import answer_with_duckdb
from evertide.settings import Settings
from evertide.sources.contract import SAME, Fault
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import ScriptedSource, batch, crash, open_pipeline, rows_of, storage, with_sources
from tests.server.kit import served

PLAIN = pa.schema([pa.field("k", pa.string(), nullable=False), ("v", pa.string()), ("c", pa.string())])
DECLARED = {"k": '"char(3)"', "v": '"varchar(2)"', "c": '"char(2)"'}
CODES = DeclaredTable(
    "codes", add_char_types(PLAIN, DECLARED, {"k": "char(3)", "c": "char(2)"}), key=("k",), where="shop.sql:1"
)
TOO_LONG = "the text has 3 characters, and VARCHAR(2) holds at most 2"


def engine(table: DeclaredTable = CODES) -> SmallEngine:
    return SmallEngine([table], [])


def keyed(*keys: str) -> pa.Table:
    return pa.table({"k": [*keys]})


def letters(p: Pipeline) -> list[tuple[Any, ...]]:
    """Key, place, line and reason of the dead letters."""
    rows = p.view(ERRORS).to_arrow().to_pylist()
    return sorted(((row["key"], row["place"], row["line"], row["reason"]) for row in rows), key=repr)


def test_pushed_keys_that_differ_in_spaces_at_their_end_are_one_key() -> None:
    with open_pipeline(storage(), engine()) as p:
        p.push("codes", [{"k": "a", "v": "x"}, {"k": "b ", "v": "x   ", "c": ""}, {"k": "a    ", "v": "y"}])
        p.commit()
        assert rows_of(p, "codes") == [("a  ", "y", None), ("b  ", "x ", "  ")]
        p.push("codes", deletes=["a"])
        p.push("codes", pa.table({"k": ["c", "b"]}), deletes=[{"k": "b     "}])
        p.commit()
        assert rows_of(p, "codes") == [("b  ", None, None), ("c  ", None, None)]


@pytest.mark.parametrize(
    ("rows", "deletes", "where", "why"),
    [
        ([{"k": "a"}, {"k": "b", "v": "abc"}], (), "row 2, column 'v'", TOO_LONG),
        (pa.table({"k": ["abcd"]}), (), "row 1, column 'k'", "4 characters, and CHAR(3) holds at most 3"),
        ((), ["abcd"], "delete 1, column 'k'", "4 characters, and CHAR(3) holds at most 3"),
        ([{"k": "a", "c": "😀😀😀"}], (), "row 1, column 'c'", "3 characters, and CHAR(2) holds at most 2"),
    ],
)
def test_a_push_with_a_text_that_is_too_long_is_refused(rows: Any, deletes: Any, where: str, why: str) -> None:
    with open_pipeline(storage(), engine()) as p:
        with pytest.raises(InvalidInput) as caught:
            p.push("codes", rows, deletes=deletes)
        assert caught.value.where == f"table 'codes', {where}"
        assert why in caught.value.why
        assert p.commit() == 0
        assert rows_of(p, "codes") == []


def test_a_default_must_fit() -> None:
    with open_pipeline(storage(), engine(replace(CODES, defaults={"v": "'y  '", "c": "'z'"}))) as p:
        p.push("codes", [{"k": "a"}])
        p.commit()
        assert rows_of(p, "codes") == [("a  ", "y ", "z ")]
    with open_pipeline(storage(), engine(replace(CODES, defaults={"v": "'abc'"}))) as p:
        with pytest.raises(InvalidInput, match=re.escape(f"DEFAULT 'abc': {TOO_LONG}")) as caught:
            p.push("codes", [{"k": "a"}])
        assert caught.value.where == "shop.sql:1, table 'codes', column 'v'"


def test_rows_of_a_source_that_does_not_know_lengths() -> None:
    """Whatever a source offers is padded and checked before keys are grouped."""
    source = ScriptedSource("s", ("codes",))
    first = [{"k": "a", "v": "1"}, {"k": "b", "v": "1 "}, {"k": "c", "v": "1"}, {"k": "d", "v": "1"}]
    source.batches.append(batch(CODES, [*first, {"k": "a ", "v": "2     ", "c": "z"}]))
    second = [{"k": "b  ", "v": "abc"}, {"k": "abcd", "v": "1"}]
    source.batches.append(batch(CODES, second, deletes=[{"k": "c"}, {"k": "abcde"}, {"k": "e", "v": "long"}]))
    faults = [Fault("codes", "here", 7, "why", "raw", key) for key in (keyed("d"), keyed("long!"))]
    source.batches.append(batch(CODES, [], faults))
    with with_sources(source), open_pipeline(storage(), engine()) as p:
        p.commit()
        assert rows_of(p, "codes") == [
            ("a  ", "2 ", "z "),
            ("b  ", "1 ", None),
            ("c  ", "1", None),
            ("d  ", "1", None),
        ]
        p.commit()
        assert rows_of(p, "codes") == [("a  ", "2 ", "z "), ("d  ", "1", None)]
        long_key = "column 'k': the text has {} characters, and CHAR(3) holds at most 3"
        assert {letter[1:] for letter in letters(p)} == {
            ("s", 1, f"column 'v': {TOO_LONG}"),
            ("s", 2, long_key.format(4)),
            ("s", 4, long_key.format(5)),
        }
        p.commit()
        assert rows_of(p, "codes") == [("a  ", "2 ", "z ")]
        assert len(letters(p)) == 5


def test_a_row_that_differs_only_in_padding_is_no_change() -> None:
    source = ScriptedSource("s", ("codes",))
    source.batches += [batch(CODES, [{"k": "a", "v": "1", "c": text}]) for text in ("x", "x ")]
    store = storage()
    with with_sources(source):
        with open_pipeline(store, engine()) as p:
            p.commit()
            time = p.commit()
            assert p.view("codes").changes(time - 1).num_rows == 0
            crash(p)
        with open_pipeline(store, engine()) as p:
            assert rows_of(p, "codes") == [("a  ", "1", "x ")]
            assert p.status().state == "running"


def test_the_hashes_of_rows_as_given_are_used_only_if_the_rows_are_stored_so() -> None:
    """Otherwise the recorded digests would not be those of the stored rows."""
    padded = gather_input(CODES, [("s", HashedBatch(batch(CODES, [{"k": "a  ", "v": "1", "c": "x "}])))])
    assert padded.hashes is not None
    given = gather_input(CODES, [("s", HashedBatch(batch(CODES, [{"k": "a  ", "v": "1", "c": "x"}])))])
    assert given.rows.to_pylist() == padded.rows.to_pylist()
    assert given.hashes is None


def test_an_upsert_that_keeps_a_value_finds_the_padded_key() -> None:
    source = ScriptedSource("s", ("codes",))
    source.batches.append(batch(CODES, [{"k": "a", "v": "1", "c": "x"}]))
    kept = batch(CODES, [{"k": "a ", "v": "2"}])
    source.batches.append(replace(kept, rows=kept.rows.append_column(SAME, pa.array(['["c"]']))))
    with with_sources(source), open_pipeline(storage(), engine()) as p:
        p.commit()
        p.commit()
        assert rows_of(p, "codes") == [("a  ", "2", "x ")]


def test_a_delete_without_a_key_finds_the_padded_row() -> None:
    table = replace(CODES, key=())
    with open_pipeline(storage(), engine(table)) as p:
        p.push("codes", [{"k": "a", "v": "1", "c": "x"}, {"k": "a", "v": "1", "c": "x "}])
        p.commit()
        p.push("codes", deletes=[{"k": "a    ", "v": "1", "c": "x"}])
        p.commit()
        assert rows_of(p, "codes") == [("a  ", "1", "x ")]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_file_with_a_text_that_is_too_long(tmp_path: Path, form: str) -> None:
    """The dead letter names the line of the file. The row that had the key before is gone."""
    table = replace(CODES, connector=form, options={"path": str(tmp_path / "in")})
    (tmp_path / "in").mkdir()

    def write(name: str, *rows: tuple[str, str]) -> None:
        lines = [f"{k},{v}" for k, v in rows] if form == "csv" else [f'{{"k": "{k}", "v": "{v}"}}' for k, v in rows]
        text = "\n".join([*(["k,v"] if form == "csv" else []), *lines, ""])
        (tmp_path / "in" / name).write_text(text)

    write("1." + form, ("a", "1"), ("b", "1"))
    with open_pipeline(storage(), engine(table)) as p:
        p.run(until_idle=True)
        assert rows_of(p, "codes") == [("a  ", "1", None), ("b  ", "1", None)]
        write("2." + form, ("a ", "abc"), ("abcd", "1"), ("b  ", "2"))
        p.run(until_idle=True)
        assert rows_of(p, "codes") == [("b  ", "2", None)]
        first = 2 if form == "csv" else 1
        found = [(Path(place).name, line, reason) for _, place, line, reason in letters(p)]
        assert sorted(found) == [
            (f"2.{form}", first, f"column 'v': {TOO_LONG}"),
            (f"2.{form}", first + 1, "column 'k': the text has 4 characters, and CHAR(3) holds at most 3"),
        ]


def test_generated_texts_that_are_too_long() -> None:
    options = {"rows": "3", "columns.v.length": "5", "columns.c.length": "1"}
    with open_pipeline(storage(), engine(replace(CODES, connector="datagen", options=options))) as p:
        p.run(until_idle=True)
        assert rows_of(p, "codes") == []
        assert len(letters(p)) == 3
    options = {"rows": "3", "columns.v.length": "2", "columns.c.length": "1", "columns.k.length": "2"}
    with open_pipeline(storage(), engine(replace(CODES, connector="datagen", options=options))) as p:
        p.run(until_idle=True)
        assert {tuple(map(len, row)) for row in rows_of(p, "codes")} <= {(3, 2, 2)}


@pytest.mark.parametrize("declared", ['"varchar(3)"', '"varchar(1)"', '"char(2)"', ""])
def test_the_length_of_a_stored_column_cannot_change(declared: str) -> None:
    store = storage()
    with open_pipeline(store, engine()) as p:
        p.push("codes", [{"k": "a"}])
        p.commit()
    changed = replace(CODES, schema=add_char_types(PLAIN, {**DECLARED, "v": declared}, {}))
    name = declared.strip('"').upper() or "STRING"
    with (
        pytest.raises(InvalidInput, match=rf"column v was v VARCHAR\(2\) and is now v {name.replace('(', '.')[:-1]}"),
        open_pipeline(store, engine(changed)),
    ):
        pass
    with open_pipeline(store, engine()) as p:
        assert rows_of(p, "codes") == [("a  ", None, None)]


def test_a_new_column_may_be_char_and_a_string_cannot_become_one() -> None:
    store = storage()
    with open_pipeline(store, engine(replace(CODES, schema=PLAIN))) as p:
        p.push("codes", [{"k": "a"}])
        p.commit()
    with pytest.raises(InvalidInput, match="column k was k STRING NOT NULL and is now k CHAR"):
        open_pipeline(store, engine())
    added = add_char_types(pa.schema([*PLAIN, ("n", pa.string())]), {"n": '"char(2)"'}, {})
    for rows in ([{"k": "b", "n": "x"}], [{"k": "a", "n": "y"}]):
        with open_pipeline(store, engine(replace(CODES, schema=added))) as p:
            p.push("codes", rows)
            p.commit()
    with open_pipeline(store, engine(replace(CODES, schema=added))) as p:
        assert rows_of(p, "codes") == [("a", None, None, "y "), ("b", None, None, "x ")]
    with pytest.raises(InvalidInput, match=r"column n was n CHAR\(2\) and is now n STRING"):
        open_pipeline(store, engine(replace(CODES, schema=pa.schema([*PLAIN, ("n", pa.string())]))))


def test_duckdb_leaves_char_columns_to_spark_unless_it_is_named() -> None:
    """DuckDB would compare them without padding, unlike a view. VARCHAR columns are compared alike."""
    duck = Duck(Settings())
    varchar = DeclaredTable("names", add_char_types(pa.schema([("v", pa.string())]), {"v": '"varchar(2)"'}, {}))
    with open_pipeline(storage(), SmallEngine([CODES, varchar], [])) as p:
        p.push("codes", [{"k": "a"}])
        p.push("names", [{"v": "a"}])
        p.commit()
        asked = Question("SELECT k FROM codes WHERE k = 'a'", engine=EngineChoice.auto)
        with pytest.raises(DuckDeclined, match="column 'k' of 'codes' is CHAR"):
            answer_with_duckdb(p.collections, asked, duck)
        assert answer_with_duckdb(p.collections, replace(asked, engine=EngineChoice.duckdb), duck).rows.num_rows == 0
        other = Question("SELECT v FROM names WHERE v = 'a'", engine=EngineChoice.auto)
        assert answer_with_duckdb(p.collections, other, duck).rows.to_pylist() == [{"v": "a"}]


def test_collections_show_the_declared_types() -> None:
    with open_pipeline(storage(), engine()) as p, served(p) as client:
        columns = client.get("/v1/tables/codes").body["columns"]
        assert [column["type"] for column in columns] == ["CHAR(3)", "VARCHAR(2)", "CHAR(2)"]
