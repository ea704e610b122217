"""The connector `nexmark`: generates persons, auctions and bids of an auction house.

    CREATE TABLE bid (...) USING nexmark                                    or  OPTIONS (stream 'bid') for another name

| option | meaning |
|---|---|
| stream | person, auction or bid; by default the table's name |
| seed | the same seed gives the same events; 0 |
| events | the total number of events; endless if empty |
| events_per_transaction | the maximum number of events of a transaction; 10000 |
| rate | events per second; 0, the default, for no limit |

1. All tables of a script with the same seed are one source: a transaction ends at the same event in all streams.
2. All options except `stream` belong to the source: any of its tables may set them, without contradiction.
3. A position is the number of the next event, a fragment is a range of numbers.
   `evertide.sources.generated.nexmark_events` generates the events of a range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from evertide.errors import InvalidInput
from evertide.journal.records import Fragment
from evertide.runtime import Runtime
from evertide.sources.contract import OP, Rows, TableDeclaration, merge_options
from evertide.sources.generated.nexmark_events import SCHEMAS, Nexmark
from evertide.sources.generated.series import GeneratedSource, RowRange, Series
from evertide.sources.values.fit import make_rows_schema, make_upserts
from evertide.sources.values.kinds import sql_name

_STREAMS = ("person", "auction", "bid")
_SHARED = ("seed", "events", "events_per_transaction", "rate")
_BATCH_EVENTS = 50_000


@dataclass(frozen=True, slots=True)
class NexmarkSource(GeneratedSource):
    generator: Nexmark
    declarations: Mapping[str, TableDeclaration]
    """By table."""
    streams: Mapping[str, str]
    """By table."""

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(self.declarations)

    def read(self, fragment: Fragment) -> Iterator[Rows]:
        for part in self.series.decode_range(fragment).split(_BATCH_EVENTS):
            yield from self._rows(part)

    def _rows(self, part: RowRange) -> Iterator[Rows]:
        events = self.generator.events(part.first, part.count)
        for table, declaration in self.declarations.items():
            stream: pa.Table = getattr(events, self.streams[table])
            if stream.num_rows:
                made = [stream.column(_find_column(name, stream.schema)) for name in declaration.schema.names]
                ops = pa.array(make_upserts(stream.num_rows))
                yield Rows(table, pa.Table.from_arrays([*made, ops], schema=make_rows_schema(declaration)))


def name_nexmark_source(declaration: TableDeclaration) -> str:
    """The name of a table's source, determined by the seed alone."""
    seed = declaration.read_options().integer("seed", 0)
    return f"nexmark-{seed}" if seed else "nexmark"


def open_nexmark(name: str, tables: Sequence[TableDeclaration], runtime: Runtime, _base: Path) -> NexmarkSource:
    streams = {declaration.name: _stream(declaration) for declaration in tables}
    options = replace(tables[0], options=merge_options(tables, "stream")).read_options()
    generator = Nexmark(seed=options.integer("seed", 0))
    series = Series(
        source=name,
        count=options.integer("events", 0) if options.text("events") else None,
        per_transaction=options.integer("events_per_transaction", 10_000, least=1),
        rate=options.number("rate", 0),
        runtime=runtime,
    )
    return NexmarkSource(name, series, generator, {table.name: table for table in tables}, streams)


def _stream(declaration: TableDeclaration) -> str:
    options = declaration.read_options()
    name = declaration.name.lower()
    stream = options.choice("stream", _STREAMS, name) if options.text("stream") or name in _STREAMS else ""
    if not stream:
        raise options.refusal("stream", f"is missing: expected one of {', '.join(map(repr, _STREAMS))}")
    for option in _SHARED:
        options.text(option)
    options.check_unknown()
    _check_columns(declaration, SCHEMAS[stream], options.where)
    return stream


def _check_columns(declaration: TableDeclaration, stream: pa.Schema, where: str) -> None:
    for field in declaration.schema:
        name = _find_column(field.name, stream)
        if not name or field.name == OP:
            listed = ", ".join(f"{own.name} {sql_name(own.type)}" for own in stream)
            raise InvalidInput(where=where, why=f"the stream has no column {field.name!r}; it has {listed}")
        own = stream.field(name)
        if own.type != field.type:
            why = f"column {field.name!r} is {sql_name(field.type)}, expected {sql_name(own.type)}"
            raise InvalidInput(where=where, why=why)


def _find_column(name: str, stream: pa.Schema) -> str:
    return next((own for own in stream.names if own.lower() == name.lower()), "")
