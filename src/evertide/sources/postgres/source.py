"""`PostgresSource`: what the pipeline sees of a PostgreSQL server. All work is done beside it (`feed`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psycopg

from evertide.errors import InvalidInput
from evertide.journal.records import Fragment, Staged
from evertide.options import Options
from evertide.runtime import Runtime
from evertide.secrets import Secrets
from evertide.sources.contract import Limit, Offer, Rows, Staging, TableDeclaration
from evertide.sources.postgres.feed import Feed
from evertide.sources.postgres.follower import FeedOptions
from evertide.sources.postgres.positions import START, Position
from evertide.sources.postgres.ready import Queue
from evertide.sources.postgres.server import Address, Server, TableName
from evertide.sources.postgres.transactions import Room
from evertide.sources.staged import unpacked

__all__ = ["Lag", "PostgresSource", "open_source"]

_QUEUE_ROWS = 2_000_000
_QUEUE_BYTES = 256 * 1024 * 1024
"""On disk, not in memory; beyond that the server has to wait."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far what is bound is behind the server: in bytes of its log, and by the age of the oldest commit."""

    bytes: int
    seconds: float


class PostgresSource:
    def __init__(  # noqa: PLR0917
        self, name: str, tables: tuple[str, ...], feed: Feed, queue: Queue, staging: Staging, runtime: Runtime
    ) -> None:
        self.name = name
        self.tables = tables
        self._feed = feed
        self._queue = queue
        self._staging = staging
        self._runtime = runtime

    @property
    def start(self) -> str:
        return START.text

    @property
    def problems(self) -> tuple[str, ...]:
        problem = self._feed.problem
        return () if problem is None else (problem.why,)

    @property
    def lag(self) -> Lag:
        oldest_s = self._queue.oldest_s
        behind = max(0, self._feed.sent - self._queue.bound.confirmed) if self._feed.sent else 0
        return Lag(behind, 0.0 if oldest_s is None else max(0.0, self._runtime.wall_s() - oldest_s))

    def offer(self, position: str, limit: Limit) -> Offer | None:
        self._queue.reach(Position.of(position, self.name))
        self._feed.start()
        entries = self._queue.first(limit)
        if entries:
            fragments = tuple(fragment for entry in entries for fragment in entry.fragments)
            return Offer(entries[-1].after.text, fragments, sum(entry.rows for entry in entries))
        if self._feed.problem is not None:
            raise self._feed.problem
        return None

    def read(self, fragment: Fragment) -> Iterator[Rows]:
        if not isinstance(fragment, Staged):
            raise InvalidInput(where=f"source {self.name!r}", why=f"{fragment} is not a fragment of it")
        yield unpacked(fragment.table, self._staging.load(fragment))

    def acknowledge(self, position: str) -> None:
        """From now on the server may be told so: the journal has it."""
        self._queue.reach(Position.of(position, self.name))

    def close(self) -> None:
        self._queue.close()
        self._feed.stop()
        self._queue.give_up()


def open_source(  # noqa: PLR0917
    name: str,
    tables: Mapping[str, tuple[TableDeclaration, str]],
    parts: dict[str, str],
    options: Options,
    secrets: Secrets,
    runtime: Runtime,
    staging: Staging,
) -> PostgresSource:
    """Refuses what cannot work. A server that is not there is no reason: it may come back."""
    feed_options = FeedOptions(
        slot=options.text("slot", name),
        publication=options.text("publication", name),
        has_snapshot=options.choice("snapshot", ("initial", "none"), "initial") == "initial",
        idle_interval_s=options.number("idle_interval", 10.0),
        room=Room(rows=options.integer("fragment_rows", Room().rows, least=1)),
    )
    options.text("table")
    options.end()
    address = Address.of(parts, secrets.hide, name, options.where)
    named = [(declaration, _table_name(declaration, text)) for declaration, text in tables.values()]
    queue = Queue(staging, runtime, rows_max=_QUEUE_ROWS, bytes_max=_QUEUE_BYTES)
    feed = Feed(Server(address), named, feed_options, queue, staging, runtime)
    try:
        feed.check()
    except psycopg.Error as error:
        said = address.said(error)
        if Server(address).answers():
            raise InvalidInput(where=f"{options.where}, {address.where}", why=said) from None
        feed.problem = address.failed(said)
    return PostgresSource(name, tuple(tables), feed, queue, staging, runtime)


def _table_name(declaration: TableDeclaration, text: str) -> TableName:
    found = TableName.parse(text)
    if found is None:
        where = f"{declaration.where}, table {declaration.name!r}"
        raise InvalidInput(where=where, why=f"the option 'table' is {text!r}: expected, say, 'public.orders'")
    return found
