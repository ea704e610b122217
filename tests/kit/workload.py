"""`Workload`: tables and queries over them, read from the SQL files of a package.

`tables.sql` declares the tables. Each other `<name>.sql` has one query, for the materialized view of that name, so a
query can be read, copied and run alone. The folder `duckdb` has the queries that need another text for DuckDB."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Workload:
    tables: str
    """The `CREATE TABLE` statements."""
    queries: Mapping[str, str]
    """By view, in order."""
    duckdb: Mapping[str, str]
    """The queries in the dialect of DuckDB."""

    def script(self, names: Iterable[str] | None = None) -> str:
        """A script of the tables, and of all views or the named ones."""
        chosen = self.queries if names is None else list(names)
        views = [f"CREATE MATERIALIZED VIEW {name} AS\n{self.queries[name]};\n" for name in chosen]
        return "\n".join([self.tables, *views])


def read_workload(package: str) -> Workload:
    folder = resources.files(package)
    texts = _texts(folder)
    tables = texts.pop("tables")
    queries = {name: texts[name] for name in sorted(texts, key=_natural)}
    return Workload(tables, MappingProxyType(queries), MappingProxyType(queries | _texts(folder / "duckdb")))


def _texts(folder: Traversable) -> dict[str, str]:
    files = folder.iterdir() if folder.is_dir() else ()
    found = [file for file in files if file.name.endswith(".sql")]
    return {file.name.removesuffix(".sql"): _without_comment(file.read_text("utf-8")) for file in found}


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts q2 before q10."""
    return [(int(piece or 0), word) for word, piece in re.findall(r"(\D*)(\d*)", name)]


def _without_comment(text: str) -> str:
    """Remove the comment at the top of the file."""
    lines = text.strip().splitlines()
    while lines and lines[0].startswith("--"):
        del lines[0]
    return "\n".join(lines)
