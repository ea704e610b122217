"""A workload: tables and the queries over them, as SQL text that lies beside the code.

`tables.sql` declares the tables, and each other `<name>.sql` of the same package holds one query, which becomes the
materialized view of that name. So a query can be read, copied and run by itself, and a script is only put together.
What DuckDB has to be told in other words lies in the folder `duckdb`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType

__all__ = ["Workload", "read_workload"]


@dataclass(frozen=True, slots=True)
class Workload:
    tables: str
    """The `CREATE TABLE` statements."""
    queries: Mapping[str, str]
    """By view, in order."""
    duckdb: Mapping[str, str]
    """The same queries as DuckDB takes them."""

    def script(self, names: Iterable[str] | None = None) -> str:
        """Tables and views as a circuit takes them: all views, or those named."""
        chosen = self.queries if names is None else list(names)
        views = [f"CREATE MATERIALIZED VIEW {name} AS\n{self.queries[name]};\n" for name in chosen]
        return "\n".join([self.tables, *views])


def read_workload(package: str) -> Workload:
    """Of the package's own SQL files."""
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
    """q2 before q10."""
    return [(int(piece or 0), word) for word, piece in re.findall(r"(\D*)(\d*)", name)]


def _without_comment(text: str) -> str:
    """The lines at the top are for whoever opens the file."""
    lines = text.strip().splitlines()
    while lines and lines[0].startswith("--"):
        del lines[0]
    return "\n".join(lines)
