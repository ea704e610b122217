"""Publishes a report in a page of the documentation, between two marks, with its plots in `images`."""

from __future__ import annotations

from pathlib import Path

from evertide.errors import InvalidInput

_BEGIN, _END = "<!-- report -->", "<!-- /report -->"


def publish(directory: Path, page: Path) -> None:
    """Write the report to the page. Plots of an earlier run (`peers-*.svg`) are deleted."""
    text = page.read_text()
    if text.count(_BEGIN) != 1 or text.count(_END) != 1:
        raise InvalidInput(
            where=str(page),
            why=f"the page needs one line {_BEGIN} and one line {_END}; the report replaces the text between them",
        )
    images = page.parent / "images"
    images.mkdir(exist_ok=True)
    for old in images.glob("peers-*.svg"):
        old.unlink()
    report = (directory / "report.md").read_text()
    for plot in sorted(directory.glob("*.svg")):
        name = f"peers-{plot.name}"
        (images / name).write_text(plot.read_text())
        report = report.replace(f"]({plot.name})", f"](images/{name})")
    head, _, rest = text.partition(_BEGIN)
    _, _, foot = rest.partition(_END)
    inner = report.replace("\n## ", "\n### ").replace("# What was measured", "## What was measured", 1)
    page.write_text(f"{head}{_BEGIN}\n\n{inner.strip()}\n\n{_END}{foot}")
