"""Texts of CHAR and VARCHAR columns, nested ones included. `tests/pipeline/test_char_types.py` compares with Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from evertide.rows.char_types import (
    add_char_types,
    contains_char_type,
    fit_char_types,
    has_collated_char_type,
    list_compared_types,
    read_declared_type,
    remove_char_types,
    replace_char_types,
)
from evertide.sources.values.kinds import name_column_type

LIST = {"type": "array", "elementType": "char(3)", "containsNull": True}
MAP = {"type": "map", "keyType": "char(2)", "valueType": "varchar(1)", "valueContainsNull": True}
STRUCT = {
    "type": "struct",
    "fields": [
        {"name": "x", "type": "char(2)", "nullable": False, "metadata": {"comment": "char(9)"}},
        {"name": "y", "type": {**LIST, "elementType": "varchar(2)"}, "nullable": True, "metadata": {}},
        {"name": "char(2)", "type": "integer", "nullable": True, "metadata": {}},
    ],
}
STRUCT_TYPE = pa.struct(
    [pa.field("x", pa.string(), nullable=False), ("y", pa.list_(pa.string())), ("char(2)", pa.int32())]
)
TOO_LONG = "the text has {} characters, and {} holds at most {}"


def fit(array: Any, declared: Any) -> tuple[list[Any], dict[int, str]]:
    fitted, misfits = fit_char_types(array, declared)
    fitted.validate(full=True)
    assert fitted.type == array.type
    return fitted.to_pylist(), misfits


def test_a_char_is_padded_and_loses_surplus_spaces() -> None:
    given = pa.array(["a", "abcd", "abc  ", "😀é", None, "", "     ", "a\t "])
    padded = ["a  ", None, "abc", "😀é ", None, "   ", "   ", "a\t "]
    assert fit(given, "char(3)") == (padded, {1: TOO_LONG.format(4, "CHAR(3)", 3)})


def test_a_varchar_loses_only_the_spaces_that_exceed_its_length() -> None:
    given = pa.array(["a ", "abc\t", "ab   ", "😀é😀  ", None, "", "     "])
    cut = ["a ", None, "ab ", "😀é😀", None, "", "   "]
    assert fit(given, "varchar(3)") == (cut, {1: TOO_LONG.format(4, "VARCHAR(3)", 3)})


@pytest.mark.parametrize("declared", ["char(3)", "varchar(3)", "string", "integer", {**LIST, "elementType": "string"}])
def test_values_that_fit_are_the_same_array(declared: Any) -> None:
    """So that their hashes are not computed again."""
    given = pa.array([["abc"]]) if isinstance(declared, dict) else pa.array(["abc", None, "x y"])
    assert fit_char_types(given, declared)[0] is given


def test_bytes_that_are_not_utf8_have_no_length() -> None:
    given = pa.array([b"a", b"\xff", None, b"abcd  "]).view(pa.string())
    found, misfits = fit(given, "char(4)")
    assert found == ["a   ", None, None, "abcd"]
    assert misfits == {1: "the text is not valid UTF-8, so its length for CHAR(4) is not known"}


def test_lists() -> None:
    given = pa.array([["?"], ["a", "abc"], None, ["abcd"], [], [None, "x  "]], pa.list_(pa.string()))[1:]
    assert fit(given, LIST) == ([["a  ", "abc"], None, None, [], [None, "x  "]], {2: TOO_LONG.format(4, "CHAR(3)", 3)})


def test_a_map_whose_keys_become_equal_does_not_fit() -> None:
    rows = [[("a", "1")], [("a", "x"), ("a ", "y")], None, [("abc", "1")], [("b", "x  ")], [("c", "12")]]
    found, misfits = fit(pa.array(rows, pa.map_(pa.string(), pa.string())), MAP)
    assert found == [[("a ", "1")], None, None, None, [("b ", "x")], None]
    assert sorted(misfits) == [1, 3, 5]
    assert "the key 'a ' of the map is repeated" in misfits[1]


def test_structs() -> None:
    rows = [
        {"x": "a", "y": ["b"], "char(2)": 1},
        None,
        {"x": "abc", "y": [], "char(2)": 1},
        {"x": "q", "y": ["ab  ", None], "char(2)": None},
        {"x": "ab", "y": ["abc"], "char(2)": 3},
    ]
    expected = [{**rows[0], "x": "a "}, None, None, {**rows[3], "x": "q ", "y": ["ab", None]}, None]  # type: ignore[dict-item]
    for lower in range(5):
        found, misfits = fit(pa.array(rows, STRUCT_TYPE)[lower:], STRUCT)
        assert found == expected[lower:]
        assert sorted(misfits) == [at - lower for at in (2, 4) if at >= lower]


def test_what_a_null_covers_does_not_count() -> None:
    inside = pa.array(["abcd", "ab"])
    hidden = pa.StructArray.from_arrays([inside], ["x"], mask=pa.array([True, False]))
    declared = {"type": "struct", "fields": [{"name": "x", "type": "char(3)"}]}
    assert fit(hidden, declared) == ([None, {"x": "ab "}], {})
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), inside, mask=pa.array([True, False]))
    assert fit(lists, LIST) == ([None, ["ab "]], {})


def test_padding_to_more_than_an_array_holds_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="2 GiB once they are padded"):
        fit_char_types(pa.array(["a", "b", "c"]), "char(1000000000)")


def test_the_types_of_a_column() -> None:
    field = pa.field("s", STRUCT_TYPE)
    schema = add_char_types(
        pa.schema([field, ("n", pa.int32())]), {"s": json.dumps(STRUCT)}, {"s": "struct<x:char(2)>"}
    )
    assert read_declared_type(schema.field("s")) == STRUCT
    assert name_column_type(schema.field("s")) == "STRUCT<x: CHAR(2), y: ARRAY<VARCHAR(2)>, char(2): INT>"
    assert (read_declared_type(schema.field("n")), name_column_type(schema.field("n"))) == (None, "INT")
    assert list_compared_types(schema) == {"s": "struct<x:char(2)>"}
    assert not list_compared_types(remove_char_types(schema))
    plain = replace_char_types(STRUCT)
    assert (plain["fields"][0]["type"], plain["fields"][0]["metadata"]) == ("string", {"comment": "char(9)"})
    assert (contains_char_type(STRUCT), contains_char_type(plain)) == (True, False)
    assert has_collated_char_type({**LIST, "elementType": "char(3) collate UTF8_LCASE"})
    assert not has_collated_char_type(STRUCT)
