"""`translate_query`: rewrites a query so that DuckDB returns the answer that Spark would, or refuses it.

The language is Spark's, and DuckDB differs from it in places. The number of rows decides which engine answers, so a
query must have the same answer in both:

1. Both parsers must read the text alike (`check_wording`).
2. DuckDB's tree of the query is read node by node, by Spark's rules for names, scopes and types, and written as new SQL
   (`queries`, `relations`, `expressions`, `functions`, `terms`). Those modules list each node, function and pair of
   types that is known to agree. A query that uses anything else is left to Spark.
3. The columns of the answer have Spark's names and types. An unnamed column that is more than a column or one aggregate
   of a column is left to Spark.
4. Where the engines agree for nearly all rows, the query fails in DuckDB for the other rows, and is left to Spark.

Two differences are accepted: which of the rows that the order does not distinguish LIMIT returns; and errors in values
that the answer does not need. DuckDB rewrites `-i = 1` to `i = -1`, and so does not notice that `-i` overflows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from evertide.pipeline.reading.query import Question
from evertide.server.query.duck import DuckDeclined
from evertide.server.query.translation.expressions import ExpressionTranslator
from evertide.server.query.translation.queries import QueryTranslator
from evertide.server.query.translation.terms import make_refusal

_UTC = frozenset(("UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT", "+00:00"))

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


def translate_query(
    question: Question, tree: Mapping[str, Any], schemas: Mapping[str, pa.Schema], zone: str = ""
) -> Question:
    """The query for DuckDB, without parameters; `DuckDeclined` if DuckDB is not known to agree with Spark.

    `tree` is DuckDB's tree of the statement, `schemas` has the collections that it reads, `zone` is the time zone of
    the session, if known."""
    check_wording(question.sql)
    if question.sql.count("?") < len(question.parameters):
        raise make_refusal("more parameters than question marks")
    try:
        translated = QueryTranslator(
            schemas, ExpressionTranslator(question.parameters, is_utc=zone in _UTC)
        ).translate_query(tree["node"])
    except DuckDeclined:
        raise
    except (LookupError, TypeError, ValueError, RecursionError) as error:  # too few arguments, or nested too deeply
        raise make_refusal(f"the query ({type(error).__name__})") from error
    return replace(question, sql=translated, parameters=())


def check_wording(sql: str) -> None:
    """Raise `DuckDeclined` if the parsers of DuckDB and Spark could read the text differently.

    DuckDB parses the query, and Spark may read the same text in another way: `"x"` is a name to one and a text to the
    other, a backslash is a letter or an escape, `1L` is a number or a number with an alias. So the text is checked
    before DuckDB's tree is used:

    1. The text consists of words, plain names in backticks, numbers, texts in single quotes, and the signs in `_TOKEN`.
       Any other character (double quotes, backslashes, comments, braces, letters beyond ASCII outside of texts) is
       refused.
    2. A text occurs only where a value may occur: not after another text, nor after a word that would turn it into a
       type or an escape.
    3. No word that is a keyword to only one of the parsers occurs anywhere (`_KEYWORDS`).
    """
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
