"""Opens the sources of a pipeline: those of the tables' connectors, and the one for pushed rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from evertide.errors import InvalidInput
from evertide.journal.journal import Journal
from evertide.journal.records import Staged
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.input.pushes import PUSH, Pushes
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.sources.contract import Source, TableDeclaration
from evertide.sources.executors import Distributed, Executors
from evertide.sources.registry import open_sources
from evertide.store.writers import Writer


@dataclass(frozen=True, slots=True)
class _SourceStaging:
    source: str
    journal: Journal
    writer: Writer

    def stage(self, table: str, rows: pa.Table) -> Staged:
        return self.journal.stage(self.source, table, rows, self.writer)

    def load(self, fragment: Staged) -> pa.Table:
        return self.journal.load(fragment)

    def drop(self, fragments: Sequence[Staged]) -> None:
        self.journal.drop(fragments, self.writer)


def open_declared_sources(  # noqa: PLR0917
    tables: Mapping[str, DeclaredTable],
    journal: Journal,
    writer: Writer,
    base: Path,
    runtime: Runtime,
    settings: Settings,
    executors: Executors | None = None,
) -> tuple[Pushes, dict[str, Source]]:
    """All sources by name, pushes first. Relative paths in options are relative to `base`.

    Sources that can distribute their work (`Distributed`) receive the executors, if given.
    """
    declared = {
        name: TableDeclaration(
            name, table.schema, table.key, table.connector, table.options, table.where, table.defaults
        )
        for name, table in tables.items()
    }
    for table in tables.values():
        _check_deletable(table)
    opened = open_sources(
        list(declared.values()),
        runtime=runtime,
        base=base,
        staging=lambda source: _SourceStaging(source, journal, writer),
    )
    for source in opened:
        if executors is not None and isinstance(source, Distributed):
            source.distribute(executors)
    fed = {table for source in opened for table in source.tables}
    pushed = {name: one for name, one in declared.items() if name not in fed}
    pushes = Pushes(pushed, journal, writer, settings, [name for name in pushed if not tables[name].can_delete])
    return pushes, {PUSH: pushes, **{source.name: source for source in opened}}


def _check_deletable(table: DeclaredTable) -> None:
    """A delete from upstream needs a key or the stored rows."""
    if table.connector.lower() == "postgres" and not table.can_delete:
        why = (
            "a table without a key that is not kept cannot apply the source's deletes; declare a key, or keep the table"
        )
        raise InvalidInput(where=f"{table.where}, table {table.name!r}", why=why)
