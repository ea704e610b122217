"""The sources of a pipeline: those that tables name, and the one of all tables that are pushed to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evertide.journal.journal import Journal
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pushes import PUSH, Pushes
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.sources.contract import Source, TableDeclaration
from evertide.sources.registry import open_sources
from evertide.store.writers import Writer

__all__ = ["open_feeds"]


def open_feeds(  # noqa: PLR0917
    tables: Mapping[str, DeclaredTable],
    journal: Journal,
    writer: Writer,
    base: Path,
    runtime: Runtime,
    settings: Settings,
) -> tuple[Pushes, dict[str, Source]]:
    """All of them by name, that of pushes first. Relative paths in options are relative to `base`."""
    declared = {
        name: TableDeclaration(
            name, table.schema, table.key, table.connector, table.options, table.where, table.defaults
        )
        for name, table in tables.items()
    }
    opened = open_sources(list(declared.values()), runtime=runtime, base=base)
    fed = {table for source in opened for table in source.tables}
    pushed = {name: one for name, one in declared.items() if name not in fed}
    pushes = Pushes(pushed, journal, writer, settings, lambda: journal.upper)
    return pushes, {PUSH: pushes, **{source.name: source for source in opened}}
