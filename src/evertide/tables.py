"""`TextTable`: rows of texts, rendered for a terminal, as plain text, or as HTML for notebooks.

Every cell is escaped in HTML, and never interpreted as markup in a terminal: rows of users may contain anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_WIDTH = 1000
"""Wide enough that plain text is not wrapped."""


@dataclass(frozen=True, slots=True)
class TextTable:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """A cell is a text, or anything with a text; `Text` of rich has a colour, too."""
    right: Sequence[str] = ()
    """The columns that are aligned to the right."""

    def to_rich(self) -> Table:
        from rich.table import Table  # noqa: PLC0415 - slow to import, and no executor needs it
        from rich.text import Text  # noqa: PLC0415

        table = Table(
            title=self.title or None,
            title_justify="left",
            title_style="bold",
            header_style="bold",
            box=None,
            pad_edge=False,
        )
        for column in self.columns:
            table.add_column(Text(column), justify="right" if column in self.right else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
        return table

    def to_html(self) -> str:
        align = ["right" if column in self.right else "left" for column in self.columns]
        head = _render_row("th", self.columns, align)
        body = "".join(_render_row("td", row, align) for row in self.rows)
        caption = f'<caption style="text-align: left">{escape(self.title)}</caption>' if self.title else ""
        return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table>"


def _render_row(tag: str, cells: Iterable[Any], align: Sequence[str]) -> str:
    inner = "".join(
        f'<{tag} style="text-align: {side}">{escape(str(cell))}</{tag}>'
        for cell, side in zip(cells, align, strict=True)
    )
    return f"<tr>{inner}</tr>"


def render_text(parts: Iterable[TextTable | Text | str]) -> str:
    """Tables and lines as plain text."""
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    out = StringIO()
    console = Console(file=out, width=_WIDTH, color_system=None, highlight=False, force_jupyter=False)
    for part in parts:
        console.print(part.to_rich() if isinstance(part, TextTable) else Text(str(part)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def render_html_lines(parts: Iterable[TextTable | Text | str]) -> str:
    """Tables and lines as HTML."""
    return "".join(
        part.to_html() if isinstance(part, TextTable) else f"<div>{escape(str(part))}</div>" for part in parts
    )
