"""References to modules and source files in docstrings, comments and pages resolve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
MODULE = re.compile(r"(?<![\w./@-])evertide(?:\.[a-z_]\w*)+(?:\.[A-Z]\w*)?")
FILE = re.compile(r"(?<![\w./])(?:src/evertide|tests|bench)/[\w/]+\.py\b")
DOCS = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
TEXTS = [*SRC.rglob("*.py"), *DOCS]


def stale_references(text: str) -> Iterator[str]:
    """The backticked module names and the file names in a text that name nothing."""
    for quoted in re.findall(r"`([^`\n]+)`", text):
        if (found := MODULE.fullmatch(quoted)) and not resolves(found[0]):
            yield found[0]
    for path in FILE.findall(text):
        if not (ROOT / path).exists():
            yield path


def resolves(name: str) -> bool:
    """Whether it is a module, or a name in one, or a quoted key such as that of a table property."""
    place = SRC.joinpath(*name.split("."))
    if place.is_dir() or place.with_suffix(".py").exists():
        return True
    for module in (place.parent.with_suffix(".py"), place.parent / "__init__.py"):
        if module.exists() and place.parent != SRC / "evertide":
            return re.search(rf"\b{place.name}\b", module.read_text("utf-8")) is not None
    return any(f'"{name}"' in path.read_text("utf-8") for path in SRC.rglob("*.py"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_references_resolve(path: Path) -> None:
    assert list(stale_references(path.read_text("utf-8"))) == []


def test_a_stale_reference_is_found() -> None:
    text = "see `evertide.shard.nothing`, `evertide.shard.shard.Nothing` and src/evertide/nothing.py"
    assert list(stale_references(text)) == [
        "evertide.shard.nothing",
        "evertide.shard.shard.Nothing",
        "src/evertide/nothing.py",
    ]
    assert list(stale_references("`evertide.shard.shard.Shard`, `evertide.threads`, src/evertide/types.py")) == []
