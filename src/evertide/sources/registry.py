"""The connectors that read, and the sources of a script's tables.

A connector is one entry of `CONNECTORS`: the function that names the source of a table, and the function that opens a
source for all tables with the same source name. A source of one table has the table's name, so that its name does not
depend on the rest of the script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from evertide.errors import InvalidInput, Unexpected
from evertide.extras import import_extra
from evertide.runtime import Runtime
from evertide.sources.contract import OP, Source, StagingStore, TableDeclaration
from evertide.sources.files.source import FORMATS, open_files
from evertide.sources.generated.datagen import open_datagen
from evertide.sources.generated.nexmark import name_nexmark_source, open_nexmark
from evertide.sources.postgres.connector import name_postgres_source, open_postgres
from evertide.suggestions import suggest

PUSH_CONNECTORS = ("", "push")
"""Connectors of tables without a source: their rows are pushed."""


@dataclass(frozen=True, slots=True)
class Connector:
    open: Callable[[str, Sequence[TableDeclaration], Runtime, Path], Source] | None
    """Takes the source's name, its tables, and the directory that paths are relative to."""
    name: Callable[[TableDeclaration], str] = lambda declaration: declaration.name
    """The name of a table's source. Tables with the same source name share the source."""
    open_staging: Callable[[str, Sequence[TableDeclaration], Runtime, Path, StagingStore], Source] | None = None
    """Used instead of `open` for a source that cannot repeat its rows."""


def _open_lazily(module: str, function: str) -> Callable[[str, Sequence[TableDeclaration], Runtime, Path], Source]:
    """Import the module of a connector when a table uses it, as its packages may not be installed."""

    def open_source(name: str, tables: Sequence[TableDeclaration], runtime: Runtime, base: Path) -> Source:
        connector = tables[0].connector.lower()
        opener: Callable[..., Source] = getattr(import_extra(module, connector, tables[0].place), function)
        return opener(name, tables, runtime, base)

    return open_source


CONNECTORS: Mapping[str, Connector] = MappingProxyType(
    {
        "datagen": Connector(open_datagen),
        "files": Connector(open_files),
        **dict.fromkeys(FORMATS, Connector(open_files)),
        "kafka": Connector(_open_lazily("evertide.sources.kafka.source", "open_kafka")),
        "nexmark": Connector(open_nexmark, name_nexmark_source),
        "postgres": Connector(None, name_postgres_source, open_postgres),
    }
)


def find_family(connector: str) -> str:
    """Connectors of one family understand each other's positions. Empty if rows are pushed."""
    name = connector.lower()
    return "" if name in PUSH_CONNECTORS else "files" if name in FORMATS else name


def open_sources(
    declarations: Sequence[TableDeclaration],
    *,
    runtime: Runtime,
    base: Path,
    staging: Callable[[str], StagingStore] | None = None,
) -> list[Source]:
    """Open the sources in the order of their first tables. `base` is the script's directory; `staging` takes the name
    of a source."""
    groups: dict[str, list[TableDeclaration]] = {}
    for declaration in declarations:
        _check(declaration)
        if declaration.connector.lower() not in PUSH_CONNECTORS:
            name = CONNECTORS[declaration.connector.lower()].name(declaration)
            groups.setdefault(name, []).append(declaration)
    for name, tables in groups.items():
        _check_connector(name, tables)
    return [_open(name, tables, runtime, base, staging) for name, tables in groups.items()]


def _open(
    name: str,
    tables: Sequence[TableDeclaration],
    runtime: Runtime,
    base: Path,
    staging: Callable[[str], StagingStore] | None,
) -> Source:
    connector = CONNECTORS[tables[0].connector.lower()]
    if connector.open is not None:
        return connector.open(name, tables, runtime, base)
    if connector.open_staging is None or staging is None:
        raise Unexpected(where=f"source {name!r}", why="the source stages its rows, but was opened without staging")
    return connector.open_staging(name, tables, runtime, base, staging(name))


def _check(declaration: TableDeclaration) -> None:
    where = declaration.place
    connector = declaration.connector.lower()
    if connector not in CONNECTORS and connector not in PUSH_CONNECTORS:
        listed = ", ".join(sorted([*CONNECTORS, "push"]))
        hint = suggest(connector, [*CONNECTORS, "push"]) or f"; the connectors are {listed}"
        why = f"there is no connector {declaration.connector!r} for a table{hint}"
        raise InvalidInput(where=where, why=why)
    if connector in PUSH_CONNECTORS and declaration.options:
        option = next(iter(declaration.options))
        why = f"the option {option!r} is not allowed: a table whose rows are pushed has no options"
        raise InvalidInput(where=where, why=why)
    if OP in declaration.schema.names:
        raise InvalidInput(where=where, why=f"a column cannot be named {OP!r}: Evertide uses that name")


def _check_connector(name: str, tables: Sequence[TableDeclaration]) -> None:
    """Refuse a table that has the same name as a source of several tables."""
    other = next((table for table in tables if table.connector.lower() != tables[0].connector.lower()), None)
    if other is not None:
        raise InvalidInput(where=other.place, why=f"another source is already named {name!r}; rename the table")
