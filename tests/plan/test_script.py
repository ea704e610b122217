"""How a script is split into statements."""

from __future__ import annotations

import pytest

from evertide.errors import InvalidInput
from evertide.plan.program.script import StatementText, split_script


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
        ("-- first\nSELECT 1;\n-- second\nSELECT 2", [("-- first\nSELECT 1", 1), ("-- second\nSELECT 2", 3)]),
        ("SELECT 'a\nb;';\nSELECT 2", [("SELECT 'a\nb;'", 1), ("SELECT 2", 3)]),
    ],
)
def test_a_script_is_split_at_semicolons_only(script: str, pieces: list[tuple[str, int]]) -> None:
    assert split_script(script, "shop.sql") == [StatementText(text, line) for text, line in pieces]


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("SELECT 1;\nSELECT 'a", "the quote '"),
        ("\nSELECT `a;", "the quote `"),
        ("SELECT 1;\n/* a /* */", "the comment /*"),
    ],
)
def test_an_unclosed_construct_is_named_with_its_line(script: str, what: str) -> None:
    with pytest.raises(InvalidInput, match=r"shop\.sql, line 2") as refused:
        split_script(script, "shop.sql")
    assert refused.value.why == f"{what} is not closed"
