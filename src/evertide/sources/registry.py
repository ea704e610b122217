"""Which connectors there are, and the sources that a script's tables ask for.

A connector is one entry here: a name for the source of a table, and what opens a source for all tables of that name. A
source of one table has the table's name, so that it stays the same whatever is declared beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from evertide.errors import InvalidInput
from evertide.runtime import Runtime
from evertide.sources.contract import OP, Source, Staging, TableDeclaration
from evertide.sources.files.source import FORMATS, open_files
from evertide.sources.generated.datagen import open_datagen
from evertide.sources.generated.nexmark import nexmark_name, open_nexmark
from evertide.sources.postgres.connector import open_postgres, postgres_name

__all__ = ["CONNECTORS", "PUSHED", "Connector", "family", "open_sources"]

PUSHED = ("", "push")
"""Tables of these have no source here: their rows are pushed."""


@dataclass(frozen=True, slots=True)
class Connector:
    open: Callable[[str, Sequence[TableDeclaration], Runtime, Path], Source] | None
    """Given the source's name, its tables, and the directory that paths are relative to."""
    name: Callable[[TableDeclaration], str] = lambda declaration: declaration.name
    """Of the source that a table belongs to. Tables with the same one share it."""
    open_staging: Callable[[str, Sequence[TableDeclaration], Runtime, Path, Staging], Source] | None = None
    """Instead of `open`, for a source whose rows are there only once."""


def _extra(place: str, extra: str) -> Callable[[str, Sequence[TableDeclaration], Runtime, Path], Source]:
    """A connector whose packages may not be installed: `module:function`, imported when a table asks for it."""

    def opened(name: str, tables: Sequence[TableDeclaration], runtime: Runtime, base: Path) -> Source:
        module, _, function = place.partition(":")
        try:
            found: Callable[..., Source] = getattr(import_module(module), function)
        except ModuleNotFoundError as error:
            why = f"it needs the package {error.name!r}: pip install 'evertide[{extra}]'"
            raise InvalidInput(where=f"{tables[0].where}, table {tables[0].name!r}", why=why) from error
        return found(name, tables, runtime, base)

    return opened


CONNECTORS: Mapping[str, Connector] = MappingProxyType(
    {
        "datagen": Connector(open_datagen),
        "files": Connector(open_files),
        **dict.fromkeys(FORMATS, Connector(open_files)),
        "kafka": Connector(_extra("evertide.sources.kafka.source:open_kafka", "kafka")),
        "nexmark": Connector(open_nexmark, nexmark_name),
        "postgres": Connector(None, postgres_name, open_postgres),
    }
)


def family(connector: str) -> str:
    """The connectors whose positions mean the same have the same one; empty if rows are pushed."""
    name = connector.lower()
    return "" if name in PUSHED else "files" if name in FORMATS else name


def open_sources(
    declarations: Sequence[TableDeclaration],
    *,
    runtime: Runtime,
    base: Path,
    staging: Callable[[str], Staging] | None = None,
) -> list[Source]:
    """In the order of their first tables. `base` is the script's directory; `staging` is that of a source's name."""
    groups: dict[str, list[TableDeclaration]] = {}
    for declaration in declarations:
        _check(declaration)
        if declaration.connector.lower() not in PUSHED:
            name = CONNECTORS[declaration.connector.lower()].name(declaration)
            groups.setdefault(name, []).append(declaration)
    for name, tables in groups.items():
        _check_shared(name, tables)
    return [_opened(name, tables, runtime, base, staging) for name, tables in groups.items()]


def _opened(
    name: str,
    tables: Sequence[TableDeclaration],
    runtime: Runtime,
    base: Path,
    staging: Callable[[str], Staging] | None,
) -> Source:
    connector = CONNECTORS[tables[0].connector.lower()]
    if connector.open is not None:
        return connector.open(name, tables, runtime, base)
    if connector.open_staging is None or staging is None:
        raise InvalidInput(where=f"source {name!r}", why="its rows have to be staged, and there is no journal here")
    return connector.open_staging(name, tables, runtime, base, staging(name))


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
