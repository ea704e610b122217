"""Splits a script into SQL statements.

Spark's parser reads one statement at a time. A statement ends at a semicolon outside of strings, quoted names and
comments. Each statement has the line on which it starts, for error messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from evertide.errors import InvalidInput

__all__ = ["StatementText", "split_script"]

_TOKEN = re.compile(
    r"""
      (?P<line_comment> --[^\n]* )
    | (?P<open_comment> /\*      )
    | (?P<raw_string>   (?<!\w)[rR](?:'[^']*'|"[^"]*") )
    | (?P<string>       '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" )
    | (?P<name>         `(?:[^`]|``)*` )
    | (?P<unclosed>     ['"`]    )
    | (?P<end>          ;        )
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


@dataclass(frozen=True, slots=True)
class StatementText:
    """The text of one statement, without its semicolon, and its line in the script, from 1."""

    text: str
    line: int


def split_script(script: str, path: str) -> list[StatementText]:
    """The statements of a script, in order. Those that have only comments and space are left out."""
    return list(_find_statements(script, path))


def _find_statements(script: str, path: str) -> Iterator[StatementText]:
    start = position = 0
    is_blank = True
    while (found := _TOKEN.search(script, position)) is not None:
        is_blank = is_blank and not script[position : found.start()].strip()
        position = found.end()
        match found.lastgroup:
            case "open_comment":
                position = _find_comment_end(script, found.start(), path)
            case "unclosed":
                raise _make_unclosed_error(script, found.start(), path, f"the quote {found[0]}")
            case "end":
                if not is_blank:
                    yield _make_statement(script, start, found.start())
                start, is_blank = position, True
            case "raw_string" | "string" | "name":
                is_blank = False
    if not is_blank or script[position:].strip():
        yield _make_statement(script, start, len(script))


def _make_statement(script: str, start: int, end: int) -> StatementText:
    text = script[start:end]
    before = start + len(text) - len(text.lstrip())
    return StatementText(text.strip(), script.count("\n", 0, before) + 1)


def _find_comment_end(script: str, start: int, path: str) -> int:
    """The end of a bracketed comment; they nest in Spark."""
    depth, position = 1, start + 2
    while depth:
        edge = _COMMENT_EDGE.search(script, position)
        if edge is None:
            raise _make_unclosed_error(script, start, path, "the comment /*")
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    return position


def _make_unclosed_error(script: str, at: int, path: str, what: str) -> InvalidInput:
    line = script.count("\n", 0, at) + 1
    return InvalidInput(where=f"{path}, line {line}", why=f"{what} is not closed")
