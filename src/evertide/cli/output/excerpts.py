"""`render_error`: an error for people. An error in a script or query shows the line, and marks the place in it.

shop.sql:3:10: no column 'custmer' in 'orders'; did you mean 'customer'?
  3 | SELECT   custmer, sum(amount) AS amount
    |          ^
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from evertide.errors import EvertideError, InvalidInput
from evertide.json_values import join_lines
from evertide.plan.program.error_list import ScriptErrors

__all__ = ["render_error"]

_POSITION = re.compile(r"(?P<path>.+?):(?P<line>\d+)(?::(?P<column>\d+))?(?=, |$)")
_SHOWN_MAX = 160
"""Characters of a source line; a longer line is cut around the place."""


def render_error(error: EvertideError, texts: Mapping[str, str] | None = None) -> str:
    """`texts` are scripts and queries that are not files, by the name that positions have."""
    errors = (error.errors if isinstance(error, ScriptErrors) else ()) or (error,)
    blocks = [_render_one(each, texts or {}) for each in errors]
    if not blocks[0]:
        return f"evertide: {join_lines(str(error))}"
    count = f"{len(errors)} errors. " if len(errors) > 1 else ""
    lines = [line for each, block in zip(errors, blocks, strict=True) for line in block or [join_lines(each.message)]]
    return "\n".join([*lines, f"evertide: {count}{error.remedy}"])


def _render_one(error: EvertideError, texts: Mapping[str, str]) -> list[str]:
    """The message and the source line; nothing if the error is not at a position."""
    position = _POSITION.match(error.where) if isinstance(error, InvalidInput) else None
    return [] if position is None else [join_lines(error.message), *_show_line(position, texts)]


def _show_line(position: re.Match[str], texts: Mapping[str, str]) -> list[str]:
    """The source line and a line with a caret; none if the text cannot be read, or has changed."""
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
