"""Which connectors there are, and the sources that a script's tables ask for.

A connector is one entry here: a name for the source of a table, and what opens a source for all tables of that name. A
source of one table has the table's name, so that it stays the same whatever is declared beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from evertide.errors import InvalidInput
from evertide.runtime import Runtime
from evertide.sources.contract import OP, Source, TableDeclaration
from evertide.sources.datagen import open_datagen
from evertide.sources.files import FORMATS, open_files
from evertide.sources.nexmark import nexmark_name, open_nexmark

__all__ = ["CONNECTORS", "PUSHED", "Connector", "open_sources"]

PUSHED = ("", "push")
"""Tables of these have no source here: their rows are pushed."""


@dataclass(frozen=True, slots=True)
class Connector:
    open: Callable[[str, Sequence[TableDeclaration], Runtime, Path], Source]
    """Given the source's name, its tables, and the directory that paths are relative to."""
    name: Callable[[TableDeclaration], str] = lambda declaration: declaration.name
    """Of the source that a table belongs to. Tables with the same one share it."""


CONNECTORS: Mapping[str, Connector] = MappingProxyType(
    {
        "datagen": Connector(open_datagen),
        "files": Connector(open_files),
        **dict.fromkeys(FORMATS, Connector(open_files)),
        "nexmark": Connector(open_nexmark, nexmark_name),
    }
)


def open_sources(declarations: Sequence[TableDeclaration], *, runtime: Runtime, base: Path) -> list[Source]:
    """In the order of their first tables. `base` is the script's directory."""
    groups: dict[str, list[TableDeclaration]] = {}
    for declaration in declarations:
        _check(declaration)
        if declaration.connector.lower() not in PUSHED:
            name = CONNECTORS[declaration.connector.lower()].name(declaration)
            groups.setdefault(name, []).append(declaration)
    for name, tables in groups.items():
        _check_shared(name, tables)
    return [
        CONNECTORS[tables[0].connector.lower()].open(name, tables, runtime, base) for name, tables in groups.items()
    ]


def _check(declaration: TableDeclaration) -> None:
    where = f"{declaration.where}, table {declaration.name!r}"
    connector = declaration.connector.lower()
    if connector not in CONNECTORS and connector not in PUSHED:
        listed = ", ".join(sorted([*CONNECTORS, "push"]))
        raise InvalidInput(where=where, why=f"{declaration.connector!r} is no connector; there are {listed}")
    if connector in PUSHED and declaration.options:
        option = next(iter(declaration.options))
        raise InvalidInput(where=where, why=f"{option!r}: a table whose rows are pushed has no options")
    if OP in declaration.schema.names:
        raise InvalidInput(where=where, why=f"a column cannot be named {OP!r}: Evertide has one of that name itself")


def _check_shared(name: str, tables: Sequence[TableDeclaration]) -> None:
    """A table may be named as a shared source is."""
    other = next((table for table in tables if table.connector.lower() != tables[0].connector.lower()), None)
    if other is not None:
        where = f"{other.where}, table {other.name!r}"
        raise InvalidInput(where=where, why=f"there is another source with the name {name!r}: rename the table")
