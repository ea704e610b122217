"""How a script is split into statements."""

from __future__ import annotations

import pytest

from evertide.errors import InvalidInput
from evertide.plan.script.statement_splitter import split_script


@pytest.mark.parametrize(
    ("script", "pieces"),
    [
        ("", []),
        (" ;; -- nothing\n; /* at ; all */ ", []),
        ("SELECT 1", [("SELECT 1", 1)]),
        ("SELECT 1;\n\nSELECT 2;", [("SELECT 1", 1), ("SELECT 2", 3)]),
        ("SELECT ';' , \";\" , `;`; SELECT 2", [("SELECT ';' , \";\" , `;`", 1), ("SELECT 2", 1)]),
        (r"SELECT 'it\';s'; SELECT 2", [(r"SELECT 'it\';s'", 1), ("SELECT 2", 1)]),
        ("SELECT 'it'';s'; SELECT 2", [("SELECT 'it'';s'", 1), ("SELECT 2", 1)]),
        (r"SELECT r'\'; SELECT 2", [(r"SELECT r'\'", 1), ("SELECT 2", 1)]),
        ("SELECT `a``;b`; SELECT 2", [("SELECT `a``;b`", 1), ("SELECT 2", 1)]),
        ("SELECT 1 -- one ; still\n+ 1; SELECT 2", [("SELECT 1 -- one ; still\n+ 1", 1), ("SELECT 2", 2)]),
        ("SELECT /* a ; /* b */ ; */ 1; SELECT 2", [("SELECT /* a ; /* b */ ; */ 1", 1), ("SELECT 2", 1)]),
        ("-- first\nSELECT 1;\n-- second\nSELECT 2", [("SELECT 1", 2), ("SELECT 2", 4)]),
        ("SELECT 'a\nb;';\nSELECT 2", [("SELECT 'a\nb;'", 1), ("SELECT 2", 3)]),
    ],
)
def test_a_script_is_split_at_semicolons_only(script: str, pieces: list[tuple[str, int]]) -> None:
    assert [(each.text, each.line) for each in split_script(script, "shop.sql")] == pieces


def test_a_place_in_a_statement_is_a_position_in_the_script() -> None:
    script = "-- orders\nSELECT 1;  SELECT a,\n  'ü', b"
    first, second = split_script(script, "shop.sql")
    assert (first.where, second.where) == ("shop.sql:2:1", "shop.sql:2:12")
    assert second.locate(second.text.index("a")) == "shop.sql:2:19"
    assert second.locate(second.text.index("b")) == "shop.sql:3:8"


@pytest.mark.parametrize(
    ("script", "column", "what"),
    [
        ("SELECT 1;\nSELECT 'a", 8, "the quote '"),
        ("\nSELECT `a;", 8, "the quote `"),
        ("SELECT 1;\n/* a /* */", 1, "the comment /*"),
    ],
)
def test_an_unclosed_construct_is_named_with_its_position(script: str, column: int, what: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        split_script(script, "shop.sql")
    assert refused.value.where == f"shop.sql:2:{column}"
    assert refused.value.why == f"{what} is not closed"
