"""References to modules and source files in docstrings, comments and pages resolve."""

from __future__ import annotations

import ast
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
LISTED = re.compile(r"^ *((?:\w+, )*\w+)  +\S", re.MULTILINE)
"""A line of the list of modules in a package's docstring: `sums, moments   counts, sums, averages`."""


def stale_references(text: str) -> Iterator[str]:
    """Return the backticked module names and the file names in a text that do not exist."""
    for quoted in re.findall(r"`([^`\n]+)`", text):
        if (found := MODULE.fullmatch(quoted)) and not resolves(found[0]):
            yield found[0]
    for path in FILE.findall(text):
        if not (ROOT / path).exists():
            yield path


def resolves(name: str) -> bool:
    """Whether the name is a module, a name in one, or a quoted key such as that of a table property."""
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


def wrong_entries(docstring: str, modules: set[str]) -> set[str]:
    """Return the listed names that are no modules, and the modules that the list lacks; nothing without a list."""
    listed = {name for names in LISTED.findall(docstring) for name in names.split(", ")}
    return listed ^ modules if listed else set()


@pytest.mark.parametrize("path", sorted(SRC.rglob("__init__.py")), ids=lambda path: path.parent.name)
def test_a_package_lists_its_modules(path: Path) -> None:
    modules = {found.stem for found in path.parent.glob("*.py") if not found.stem.startswith("__")}
    modules |= {found.parent.name for found in path.parent.glob("*/__init__.py")}
    assert wrong_entries(ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "", modules) == set()


def test_a_wrong_list_of_modules_is_detected() -> None:
    assert wrong_entries("Text.\n\na, b  text\nc  text", {"a", "b", "d"}) == {"c", "d"}


def test_a_stale_reference_is_detected() -> None:
    text = "see `evertide.shard.nothing`, `evertide.shard.shard.Nothing` and src/evertide/nothing.py"
    assert list(stale_references(text)) == [
        "evertide.shard.nothing",
        "evertide.shard.shard.Nothing",
        "src/evertide/nothing.py",
    ]
    assert list(stale_references("`evertide.shard.shard.Shard`, `evertide.threads`, src/evertide/types.py")) == []
