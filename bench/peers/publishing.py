"""A run's report as part of a page of the documentation: between two marks, plots in `images` beside the page."""

from __future__ import annotations

from pathlib import Path

from evertide.errors import InvalidInput

__all__ = ["publish"]

_BEGIN, _END = "<!-- report -->", "<!-- /report -->"


def publish(directory: Path, page: Path) -> None:
    """Plots of an earlier run that this one does not have are deleted: only `peers-*.svg` are ours."""
    text = page.read_text()
    if text.count(_BEGIN) != 1 or text.count(_END) != 1:
        raise InvalidInput(
            where=str(page), why=f"it needs one line {_BEGIN} and one line {_END}, and what is between goes"
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
