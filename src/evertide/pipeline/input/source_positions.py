"""The positions of sources, also of those whose tables were removed from the script and declared again.

The journal's newest record has the position of each source of the generation. A source without declared tables is
missing in later records, so each table's record keeps the last position (`LastPosition`).

1. The source of a table that is declared again continues from that position, if it did not run meanwhile.
2. If the source fed other tables meanwhile, changes of this table are missing, and the script is refused.
3. Only the same kind of connector can interpret a position. A table with another kind is refused while the journal's
   newest record has the position; after a transaction without it, the table is read from the beginning.
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
from evertide.sources.registry import find_family

logger = logging.getLogger(__name__)


def map_tables_to_sources(sources: Mapping[str, Source]) -> dict[str, str]:
    """By table, the name of its source."""
    return {table: name for name, source in sources.items() for table in source.tables}


def is_fed_as_recorded(
    definition: Definition, declared: Mapping[str, DeclaredTable], sources: Mapping[str, Source]
) -> bool:
    fed, tables = map_tables_to_sources(sources), definition.tables
    return all(
        name in tables
        and tables[name].source == fed.get(name)
        and find_family(tables[name].connector) == find_family(table.connector)
        for name, table in declared.items()
    )


def read_positions(
    journal: Journal, definition: Definition, sources: Mapping[str, Source], upper: int | None = None
) -> dict[str, str]:
    """The position of each source after all bound transactions, or after all below `upper`.

    A new source is at its start, a returned one at the position where it stopped.
    """
    recorded = journal.read(upper - 1).inputs if upper else None
    known = journal.positions() if recorded is None else {name: one.after for name, one in recorded.items()}
    known = {**_find_last_positions(definition), **known}
    return {name: known.get(name, source.start) for name, source in sources.items()}


def _find_last_positions(definition: Definition) -> dict[str, str]:
    """By returned source, the position at which it stopped."""
    back = [left for table in definition.tables.values() if (left := _find_last_position(table)) is not None]
    return {left.source: left.position for left in back}


def assign_sources(
    definition: Definition,
    declared: Mapping[str, DeclaredTable],
    sources: Mapping[str, Source],
    positions: Mapping[str, str],
) -> dict[str, TableRecord]:
    """The tables of the definition with their current sources. `positions` are the journal's newest.

    `InvalidInput` if a table would miss rows, or its connector cannot interpret the position.
    """
    fed, records = map_tables_to_sources(sources), {}
    rejoined: list[str] = []
    for name, table in definition.tables.items():
        before = _find_previous_source(name, table, definition)
        changes: dict[str, object] = {"is_declared": name in declared}
        if name in declared:
            if fed[name] in positions:
                _check_kind(declared[name], table, fed[name])
            changes |= {"source": fed[name], "connector": declared[name].connector}
        if before not in ("", PUSH, fed.get(name)) and before in positions:
            changes["left"] = LastPosition(before, find_family(table.connector), positions[before])
            logger.info("source %r stops feeding the table %r, at position %s", before, name, positions[before])
        records[name] = msgspec.structs.replace(table, **changes)
        if name in declared and before != fed[name]:
            rejoined.append(name)
    for name in rejoined:
        _check_gap(declared[name], records, positions)
    return records


def _find_previous_source(name: str, table: TableRecord, definition: Definition) -> str:
    """The source of a table in the definition; empty if it has none."""
    if not table.is_declared:
        return ""
    if isinstance(table.source, str):
        return table.source
    return name if name in definition.sources else ""  # an earlier version stored no source; most have the table's name


def _find_last_position(table: TableRecord) -> LastPosition | None:
    """The position at which the table's current source stopped feeding it before."""
    left = table.left
    if isinstance(left, msgspec.UnsetType) or not table.is_declared:
        return None
    return left if (left.source, left.connector) == (table.source, find_family(table.connector)) else None


def _check_kind(table: DeclaredTable, known: TableRecord, source: str) -> None:
    """Refuse a connector that cannot interpret the source's recorded position."""
    kinds = {known.source: find_family(known.connector)}
    if isinstance(known.source, msgspec.UnsetType):
        kinds = {table.name: find_family(known.connector)}
    if not isinstance(known.left, msgspec.UnsetType):
        kinds = {known.left.source: known.left.connector, **kinds}
    kind = kinds.get(source, find_family(table.connector))
    if kind and kind != find_family(table.connector):
        why = (
            f"the connector was {kind!r} and is now {table.connector!r}, which cannot continue from its position. "
            "Declare a table with another name; or remove this one from the script, run until a transaction is "
            "committed, and add it again: it keeps its rows and is read from the beginning"
        )
        raise InvalidInput(where=f"{table.where}, table {table.name!r}", why=why)


def _check_gap(table: DeclaredTable, tables: Mapping[str, TableRecord], positions: Mapping[str, str]) -> None:
    left = _find_last_position(tables[table.name])
    if left is None:
        return
    others = {
        name: one.position
        for name, other in tables.items()
        if (one := _find_last_position(other)) and one.source == left.source
    }
    position_now = positions.get(left.source)
    other = next((name for name, position in others.items() if position != left.position), None)
    if (position_now is None and other is None) or position_now == left.position:
        return
    source_now = (
        f"is at {position_now} now"
        if position_now is not None
        else f"fed the table {other!r} until {others[other or '']}"
    )
    why = (
        f"the script did not have this table while its source {left.source!r} fed others: the table was fed until "
        f"{left.position}, the source {source_now}, and the changes between are missing. Declare a table with another "
        "name and a source of its own"
    )
    raise InvalidInput(where=f"{table.where}, table {table.name!r}", why=why)
