"""`PostgresSource`: the source that the pipeline sees. The thread of `feed` does the work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import psycopg

from evertide.errors import InvalidInput, Unexpected
from evertide.journal.records import Fragment, Staged
from evertide.options import Options
from evertide.postgres import TableName, read_address
from evertide.problem import Problem
from evertide.runtime import Runtime
from evertide.secrets import Secrets
from evertide.sources.contract import Lag, Limit, Offer, Rows, Staging, TableDeclaration
from evertide.sources.postgres.feed import Feed
from evertide.sources.postgres.follower import FeedOptions
from evertide.sources.postgres.positions import START, Position
from evertide.sources.postgres.ready import Queue
from evertide.sources.postgres.server import Address, Server
from evertide.sources.postgres.transactions import Room
from evertide.sources.staged import unpack_rows

__all__ = ["PostgresSource", "open_source"]

_QUEUE_ROWS = 2_000_000
_QUEUE_BYTES = 256 * 1024 * 1024
"""Limits of staged input, on disk. Beyond them the source stops receiving, and the server waits."""


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
    def has_xids(self) -> bool:
        return True

    @property
    def is_waiting(self) -> bool:
        """False if nothing was offered here, as another replica leads and its source is connected."""
        return self._feed.is_started and self._queue.bound.confirmed < self._feed.goal

    def mark(self) -> None:
        self._feed.mark()

    @property
    def start(self) -> str:
        return START.text

    @property
    def problems(self) -> tuple[Problem, ...]:
        return self._feed.problems

    @property
    def lag(self) -> Lag:
        """In bytes of the server's log, and by the oldest commit; without a stream only the age of queued input."""
        feed, oldest_s = self._feed, self._queue.oldest_s
        age_s = None if oldest_s is None else max(0.0, self._runtime.wall_s() - oldest_s)
        bound = self._queue.bound.confirmed if self._queue.is_reached else 0
        if not feed.is_following or not bound:
            return Lag(seconds=age_s)
        reached = max(feed.gauge.reached, feed.sent)
        behind = max(0, reached - bound) if reached else None
        return Lag(bytes=behind, seconds=max(age_s or 0.0, feed.gauge.behind_s(feed.sent)))

    def offer(self, position: str, limit: Limit) -> Offer | None:
        self._queue.reach(Position.of(position, self.name))
        self._feed.start()
        entries = self._queue.first(limit)
        if entries:
            fragments = tuple(fragment for entry in entries for fragment in entry.fragments)
            xids = tuple(xid for entry in entries for xid in entry.xids)
            return Offer(entries[-1].after.text, fragments, sum(entry.rows for entry in entries), xids)
        if self._feed.problem is not None:
            raise self._feed.problem
        return None

    def read(self, fragment: Fragment) -> Iterator[Rows]:
        if not isinstance(fragment, Staged):
            raise Unexpected(where=f"source {self.name!r}", why="a PostgreSQL source received a fragment not staged")
        yield unpack_rows(fragment.table, self._staging.load(fragment))

    def acknowledge(self, position: str) -> None:
        """The server may discard its log up to this position, as the journal has it."""
        self._queue.reach(Position.of(position, self.name))

    def close(self) -> None:
        self._queue.close()
        self._feed.stop()
        self._queue.give_up()


def open_source(  # noqa: PLR0917
    name: str,
    tables: Mapping[str, tuple[TableDeclaration, str]],
    options: Options,
    secrets: Secrets,
    runtime: Runtime,
    staging: Staging,
) -> PostgresSource:
    """Raises `InvalidInput` for invalid options or tables. An unreachable server is no error: the source retries."""
    parts = read_address(options)
    feed_options = FeedOptions(
        slot=options.text("slot", name),
        publication=options.text("publication", name),
        has_snapshot=options.choice("snapshot", ("initial", "none"), "initial") == "initial",
        idle_interval_s=options.number("idle_interval", 10.0),
        room=Room(rows=options.integer("fragment_rows", Room().rows, least=1)),
        keeps_partitions=options.choice("partitions", ("check", "keep"), "check") == "keep",
    )
    options.text("table")
    options.check_unknown()
    address = Address.of(parts, secrets.hide, name, options.where)
    named = [(declaration, _table_name(declaration, text)) for declaration, text in tables.values()]
    queue = Queue(staging, runtime, rows_max=_QUEUE_ROWS, bytes_max=_QUEUE_BYTES)
    feed = Feed(Server(address), named, feed_options, queue, staging, runtime)
    try:
        feed.check()
    except psycopg.Error as error:
        said = address.explain(error)
        if Server(address).refuses(error):
            raise InvalidInput(where=f"{options.where}, {address.where}", why=said) from None
        feed.troubled(address.away(said))
    return PostgresSource(name, tuple(tables), feed, queue, staging, runtime)


def _table_name(declaration: TableDeclaration, text: str) -> TableName:
    found = TableName.parse(text)
    if found is None:
        where = declaration.place
        raise InvalidInput(
            where=where, why=f"the option 'table' is {text!r}: expected a table, for example 'public.orders'"
        )
    return found
