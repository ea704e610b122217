"""Positions in scripts and queries, and the line at a position with a mark below it.

A position is `name:line:column`, from 1, wherever a message means a place in a text. The name is a file, or `query`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from evertide.errors import InvalidInput

QUERY = "query"
"""The name of the text of a query."""
_POSITION = re.compile(r"(?P<path>.+?):(?P<line>\d+)(?::(?P<column>\d+))?(?=, |$)")
_SHOWN_MAX = 160
"""Characters of a line; a longer line is cut around the position."""


def find_position(text: str, offset: int) -> tuple[int, int]:
    """The line and the column of a character, from 1."""
    before = text[:offset]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def locate_in_query(text: str, offset: int | None) -> str:
    """The position of a character of a query; only `query` if it is unknown."""
    return QUERY if offset is None else ":".join(map(str, (QUERY, *find_position(text, offset))))


def is_position(where: str) -> bool:
    return _POSITION.match(where) is not None


def mark_line(where: str, texts: Mapping[str, str]) -> list[str]:
    """The line at a position, and a line with a caret; empty if the text cannot be read, or has changed.

    `texts` are the texts that are not files, by name.
    """
    position = _POSITION.match(where)
    if position is None:
        return []
    path, number = position["path"], int(position["line"])
    try:
        text = texts[path] if path in texts else Path(path).read_text()
    except (OSError, ValueError):
        return []
    lines = text.split("\n")
    if not 0 < number <= len(lines):
        return []
    line = lines[number - 1].rstrip().replace("\t", " ")
    column = int(position["column"] or len(line) - len(line.lstrip()) + 1)
    start = max(0, column - _SHOWN_MAX // 2) if len(line) > _SHOWN_MAX else 0
    head = f"  {number} | "
    caret = f"{' ' * (len(head) - 2)}| {' ' * (column - 1 - start)}^"
    return [f"{head}{line[start : start + _SHOWN_MAX]}", caret]


@contextmanager
def marking_text(text: object, name: str = QUERY) -> Iterator[None]:
    """Let Python print the line of a query or script below an error in it, and of a project the line of its file."""
    try:
        yield
    except InvalidInput as error:
        texts = {name: text} if isinstance(text, str) else {}
        errors = getattr(error, "errors", ()) or (error,)  # of `ScriptErrors`
        for each in errors:
            if len(errors) > 1:
                error.add_note(each.message)
            for line in mark_line(each.where, texts):
                error.add_note(line)
        raise
