"""Splits a script into SQL statements.

Spark's parser reads one statement at a time. A statement ends at a semicolon outside of strings, quoted names and
comments. Each statement has the position at which it starts, for error messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from evertide.errors import InvalidInput
from evertide.source_text import find_position

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
    """The text of one statement, without its semicolon, and its place in the script."""

    text: str
    path: str
    line: int
    column: int = 1

    @property
    def where(self) -> str:
        return self.locate(0)

    def locate(self, offset: int) -> str:
        """The position of a character of the text."""
        line, column = find_position(self.text, offset)
        return f"{self.path}:{self.line + line - 1}:{column + self.column - 1 if line == 1 else column}"


def split_script(script: str, path: str) -> list[StatementText]:
    """The statements of a script, in order. Those that have only comments and space are left out."""
    return list(_find_statements(script, path))


def _find_statements(script: str, path: str) -> Iterator[StatementText]:
    position = 0
    start: int | None = None
    """Where the statement starts, after comments and space; None before its first token."""
    while (found := _TOKEN.search(script, position)) is not None:
        start = _find_start(script, position, found.start()) if start is None else start
        position = found.end()
        match found.lastgroup:
            case "open_comment":
                position = _find_comment_end(script, found.start(), path)
            case "unclosed":
                raise _make_unclosed_error(script, found.start(), path, f"the quote {found[0]}")
            case "end":
                if start is not None:
                    yield _make_statement(script, path, start, found.start())
                start = None
            case "raw_string" | "string" | "name":
                start = found.start() if start is None else start
    start = _find_start(script, position, len(script)) if start is None else start
    if start is not None:
        yield _make_statement(script, path, start, len(script))


def _find_start(script: str, start: int, end: int) -> int | None:
    """The first character between two places that is not space."""
    text = script[start:end]
    return start + len(text) - len(text.lstrip()) if text.strip() else None


def _make_statement(script: str, path: str, start: int, end: int) -> StatementText:
    return StatementText(script[start:end].strip(), path, *find_position(script, start))


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
    line, column = find_position(script, at)
    return InvalidInput(where=f"{path}:{line}:{column}", why=f"{what} is not closed")
