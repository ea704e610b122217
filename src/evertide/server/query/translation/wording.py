"""`check_wording`: refuses texts that the parsers of DuckDB and Spark could read differently.

DuckDB parses the query, and Spark may read the same text in another way: `"x"` is a name to one and a text to the
other, a backslash is a letter or an escape, `1L` is a number or a number with an alias. So the text is checked before
DuckDB's tree is used:

1. The text consists of words, plain names in backticks, numbers, texts in single quotes, and the signs in `_TOKEN`. Any
   other character (double quotes, backslashes, comments, braces, letters beyond ASCII outside of texts) is refused.
2. A text occurs only where a value may occur: not after another text, nor after a word that would turn it into a type
   or an escape.
3. No word that is a keyword to only one of the parsers occurs anywhere (`_KEYWORDS`).
"""

from __future__ import annotations

import re

from evertide.server.query.duck import DuckDeclined

__all__ = ["check_wording"]

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+)|(?P<text>'[^'\\]*(?:''[^'\\]*)*')|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<name>`[A-Za-z0-9_ -]+`)"
    r"|(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?![A-Za-z0-9_.])"
    r"|(?P<sign>\|\||::|<>|!=|<=|>=|==|[(),.*+/%=<>?;-])"
)
_KEYWORDS = frozenset(
    (
        *("anti", "any", "asof", "bool", "cluster", "collate", "cube", "distribute", "div", "escape", "exclude"),
        *("fetch", "for", "glob", "grouping", "identifier", "ignore", "ilike", "int1", "int2", "int4", "int8"),
        *("interval", "isnull", "lambda", "lateral", "match_recognize", "materialized", "minus", "natural", "nearest"),
        *("notnull", "ordinality", "over", "pivot", "positional", "precision", "qualify", "recursive", "reduce"),
        *("regexp", "rename", "replace", "respect", "rlike", "rollup", "semi", "setminus", "sets", "signed", "similar"),
        *("some", "sort", "stream", "table", "tablesample", "transform", "try_cast", "unknown", "unpivot", "values"),
        *("watermark", "window", "within"),
    )
)
_BEFORE_TEXT = frozenset(
    (
        *("and", "between", "by", "case", "date", "distinct", "else", "from", "having", "in", "like", "not", "on"),
        *("or", "select", "then", "timestamp", "when", "where"),
    )
)
_BEGINS = frozenset(("select", "with", "("))
_NONE = ("sign", "")
_RUNS = frozenset(("name", "number", "text", "word"))
"""Two adjacent tokens of these kinds need a space between them."""


def check_wording(sql: str) -> None:
    """Raise `DuckDeclined` if the parsers could read the text differently."""
    tokens = _split_tokens(sql)
    if not tokens or tokens[0][1] not in _BEGINS:
        raise _make_refusal("the query does not begin with SELECT or WITH")
    for before, token, after in zip((_NONE, *tokens), tokens, (*tokens[1:], _NONE), strict=False):
        _check(before, token, after)


def _split_tokens(sql: str) -> list[tuple[str, str]]:
    """Kind and text of each token, with words in lower case."""
    found: list[tuple[str, str]] = []
    at, last = 0, ""
    while at < len(sql):
        match = _TOKEN.match(sql, at)
        if match is None or match.lastgroup is None:
            raise _make_refusal(f"{sql[at : at + 10]!r} has two readings")
        kind, text, at = match.lastgroup, match.group(), match.end()
        if last in _RUNS and kind in _RUNS:
            raise _make_refusal(f"there is no space before {text!r}")
        if kind != "space":
            found.append((kind, text.lower() if kind == "word" else text))
        last = kind
    return found


def _check(before: tuple[str, str], token: tuple[str, str], after: tuple[str, str]) -> None:
    kind, text = token
    if kind == "word" and text in _KEYWORDS:
        raise _make_refusal(f"{text.upper()} is a keyword to one of them")
    if kind == "text" and before[0] != "sign" and (before[0] != "word" or before[1] not in _BEFORE_TEXT):
        raise _make_refusal(f"a text follows {before[1]!r}")
    if text == "from" and before[1] in ("(", ","):
        raise _make_refusal("FROM does not follow a SELECT list")
    if text in (",", "(") and after[1] == ")":
        raise _make_refusal(f"nothing follows {text!r}")
    if text == ";" and after is not _NONE:
        raise _make_refusal("more text follows the semicolon")
    if (text, after[1]) in (("-", "-"), ("/", "*"), ("-", ">"), ("=", ">"), ("<=", ">")):
        raise _make_refusal(f"'{text}{after[1]}' has two readings")


def _make_refusal(why: str) -> DuckDeclined:
    return DuckDeclined(where="query", why=f"DuckDB and Spark may parse the query differently: {why}")
