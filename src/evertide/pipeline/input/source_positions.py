"""Tables that leave their sources and come back: a source goes on where it stood when its table left.

The journal's newest record says where each source of the generation stands. A source whose tables are all taken out of
the script is not in the next record any more; so the table's own record says where it stood (`LastPosition`).

1. A table that comes back goes on from there, if its source was away meanwhile as well.
2. If its source went on without it, because it feeds other tables too, rows are missing that nobody can tell: refused.
3. A position means something to its own kind of connector only. A table that gets another kind is refused as long as
   the journal's newest record has its position; after a transaction without it, it is read from the beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from evertide.errors import InvalidInput
from evertide.journal.journal import Journal
from evertide.pipeline.definition import Definition, LastPosition, TableRecord
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.input.pushes import PUSH
from evertide.sources.contract import Source
from evertide.sources.registry import family

__all__ = ["fed_tables", "feeding", "is_fed_as_recorded", "read_positions"]

logger = logging.getLogger(__name__)


def feeding(sources: Mapping[str, Source]) -> dict[str, str]:
    """The name of the source of each table."""
    return {table: name for name, source in sources.items() for table in source.tables}


def is_fed_as_recorded(
    definition: Definition, declared: Mapping[str, DeclaredTable], sources: Mapping[str, Source]
) -> bool:
    fed, tables = feeding(sources), definition.tables
    return all(
        name in tables
        and tables[name].source == fed.get(name)
        and family(tables[name].connector) == family(table.connector)
        for name, table in declared.items()
    )


def read_positions(
    journal: Journal, definition: Definition, sources: Mapping[str, Source], upper: int | None = None
) -> dict[str, str]:
    """The position of each source after all bound transactions, or after all below `upper`.

    A new source is at its start, a returned one where it was when its tables left.
    """
    recorded = journal.read(upper - 1).inputs if upper else None
    known = journal.positions() if recorded is None else {name: one.after for name, one in recorded.items()}
    known = {**_left_positions(definition), **known}
    return {name: known.get(name, source.start) for name, source in sources.items()}


def _left_positions(definition: Definition) -> dict[str, str]:
    """By source that has returned, the position where it left."""
    back = [left for table in definition.tables.values() if (left := _left(table)) is not None]
    return {left.source: left.position for left in back}


def fed_tables(
    definition: Definition,
    declared: Mapping[str, DeclaredTable],
    sources: Mapping[str, Source],
    positions: Mapping[str, str],
) -> dict[str, TableRecord]:
    """The tables of the definition with the sources that feed them now. `positions` are the journal's newest.

    `InvalidInput` if one of them would miss rows, or a position means nothing to its connector.
    """
    fed, made = feeding(sources), {}
    came: list[str] = []
    for name, table in definition.tables.items():
        before = _source_before(name, table, definition)
        changes: dict[str, object] = {"is_declared": name in declared}
        if name in declared:
            if fed[name] in positions:
                _check_kind(declared[name], table, fed[name])
            changes |= {"source": fed[name], "connector": declared[name].connector}
        if before not in ("", PUSH, fed.get(name)) and before in positions:
            changes["left"] = LastPosition(before, family(table.connector), positions[before])
            logger.info("source %r stops feeding the table %r, at position %s", before, name, positions[before])
        made[name] = msgspec.structs.replace(table, **changes)
        if name in declared and before != fed[name]:
            came.append(name)
    for name in came:
        _check_gap(declared[name], made, positions)
    return made


def _source_before(name: str, table: TableRecord, definition: Definition) -> str:
    """The source that feeds it by the definition; empty if none does."""
    if not table.is_declared:
        return ""
    if isinstance(table.source, str):
        return table.source
    return name if name in definition.sources else ""  # an earlier version stored no source; most are named so


def _left(table: TableRecord) -> LastPosition | None:
    """Where the source that feeds it now stopped feeding it before."""
    left = table.left
    if isinstance(left, msgspec.UnsetType) or not table.is_declared:
        return None
    return left if (left.source, left.connector) == (table.source, family(table.connector)) else None


def _check_kind(table: DeclaredTable, known: TableRecord, source: str) -> None:
    """The newest record says where the source stands; it must mean something to the connector."""
    kinds = {known.source: family(known.connector)}
    if isinstance(known.source, msgspec.UnsetType):
        kinds = {table.name: family(known.connector)}
    if not isinstance(known.left, msgspec.UnsetType):
        kinds = {known.left.source: known.left.connector, **kinds}
    kind = kinds.get(source, family(table.connector))
    if kind and kind != family(table.connector):
        why = (
            f"the connector was {kind!r} and is now {table.connector!r}, which cannot continue there. Declare "
            "a table with another name; or remove this one from the script, run until a transaction is committed, and "
            "add it again: it keeps its rows and is read from the beginning"
        )
        raise InvalidInput(where=f"{table.where}, table {table.name!r}", why=why)


def _check_gap(table: DeclaredTable, tables: Mapping[str, TableRecord], positions: Mapping[str, str]) -> None:
    left = _left(tables[table.name])
    if left is None:
        return
    others = {
        name: one.position for name, other in tables.items() if (one := _left(other)) and one.source == left.source
    }
    stands = positions.get(left.source)
    other = next((name for name, position in others.items() if position != left.position), None)
    if (stands is None and other is None) or stands == left.position:
        return
    went = f"is at {stands} now" if stands is not None else f"fed the table {other!r} until {others[other or '']}"
    why = (
        f"the script did not have this table while its source {left.source!r} fed others: the table was fed until "
        f"{left.position}, the source {went}, and the changes between are missing. Declare a table with another name "
        "and a source of its own"
    )
    raise InvalidInput(where=f"{table.where}, table {table.name!r}", why=why)
