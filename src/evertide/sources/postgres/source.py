"""`PostgresSource`: the source that the pipeline sees. The thread of `receiver` does the work."""

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
from evertide.sources.contract import Lag, Limit, Offer, Rows, StagingStore, TableDeclaration
from evertide.sources.postgres.positions import START, PostgresPosition
from evertide.sources.postgres.ready_queue import ReadyQueue
from evertide.sources.postgres.receiver import Receiver
from evertide.sources.postgres.server import SourceAddress, SourceServer
from evertide.sources.postgres.session import ReceiverOptions
from evertide.sources.postgres.transactions import BufferLimits
from evertide.sources.staged import unpack_rows

_QUEUE_ROWS = 2_000_000
_QUEUE_BYTES = 256 * 1024 * 1024
"""Limits of staged input, on disk. Beyond them the source stops receiving, and the server waits."""


class PostgresSource:
    def __init__(  # noqa: PLR0917
        self,
        name: str,
        tables: tuple[str, ...],
        receiver: Receiver,
        queue: ReadyQueue,
        staging: StagingStore,
        runtime: Runtime,
    ) -> None:
        self.name = name
        self.tables = tables
        self._receiver = receiver
        self._queue = queue
        self._staging = staging
        self._runtime = runtime

    @property
    def has_xids(self) -> bool:
        return True

    @property
    def is_waiting(self) -> bool:
        """False if nothing was offered here, as another replica leads and its source is connected."""
        return self._receiver.is_started and self._queue.bound.confirmed < self._receiver.goal

    def set_goal(self) -> None:
        self._receiver.set_goal()

    @property
    def start(self) -> str:
        return START.text

    @property
    def problems(self) -> tuple[Problem, ...]:
        return self._receiver.problems

    @property
    def lag(self) -> Lag:
        """In bytes of the server's log, and by the oldest commit; without a stream only the age of queued input."""
        receiver, oldest_s = self._receiver, self._queue.oldest_s
        age_s = None if oldest_s is None else max(0.0, self._runtime.wall_s() - oldest_s)
        bound = self._queue.bound.confirmed if self._queue.is_reached else 0
        if not receiver.is_following or not bound:
            return Lag(seconds=age_s)
        reached = max(receiver.slot_monitor.reached, receiver.sent)
        behind = max(0, reached - bound) if reached else None
        return Lag(bytes=behind, seconds=max(age_s or 0.0, receiver.slot_monitor.behind_s(receiver.sent)))

    def offer(self, position: str, limit: Limit) -> Offer | None:
        self._queue.reach(PostgresPosition.of(position, self.name))
        self._receiver.start()
        entries = self._queue.first(limit)
        if entries:
            fragments = tuple(fragment for entry in entries for fragment in entry.fragments)
            xids = tuple(xid for entry in entries for xid in entry.xids)
            return Offer(entries[-1].after.text, fragments, sum(entry.rows for entry in entries), xids)
        if self._receiver.problem is not None:
            raise self._receiver.problem
        return None

    def read(self, fragment: Fragment) -> Iterator[Rows]:
        if not isinstance(fragment, Staged):
            raise Unexpected(
                where=f"source {self.name!r}", why="a PostgreSQL source received a fragment that is not staged"
            )
        yield unpack_rows(fragment.table, self._staging.load(fragment))

    def acknowledge(self, position: str) -> None:
        """The server may discard its log up to this position, as the journal has it."""
        self._queue.reach(PostgresPosition.of(position, self.name))

    def close(self) -> None:
        self._queue.close()
        self._receiver.stop()
        self._queue.drop_all()


def open_source(  # noqa: PLR0917
    name: str,
    tables: Mapping[str, tuple[TableDeclaration, str]],
    options: Options,
    secrets: Secrets,
    runtime: Runtime,
    staging: StagingStore,
) -> PostgresSource:
    """Raises `InvalidInput` for invalid options or tables. An unreachable server is no error: the source retries."""
    parts = read_address(options)
    receiver_options = ReceiverOptions(
        slot=options.text("slot", name),
        publication=options.text("publication", name),
        has_snapshot=options.choice("snapshot", ("initial", "none"), "initial") == "initial",
        idle_interval_s=options.number("idle_interval", 10.0),
        limits=BufferLimits(rows=options.integer("fragment_rows", BufferLimits().rows, least=1)),
        keeps_partitions=options.choice("partitions", ("check", "keep"), "check") == "keep",
    )
    options.text("table")
    options.check_unknown()
    address = SourceAddress.of(parts, secrets.hide, name, options.where)
    named = [(declaration, _table_name(declaration, text)) for declaration, text in tables.values()]
    queue = ReadyQueue(staging, runtime, rows_max=_QUEUE_ROWS, bytes_max=_QUEUE_BYTES)
    receiver = Receiver(SourceServer(address), named, receiver_options, queue, staging, runtime)
    try:
        receiver.check()
    except psycopg.Error as error:
        why = address.explain(error)
        if SourceServer(address).refuses(error):
            raise InvalidInput(where=f"{options.where}, {address.where}", why=why) from None
        receiver.set_problem(address.away_failure(why))
    return PostgresSource(name, tuple(tables), receiver, queue, staging, runtime)


def _table_name(declaration: TableDeclaration, text: str) -> TableName:
    found = TableName.parse(text)
    if found is None:
        where = declaration.place
        raise InvalidInput(
            where=where, why=f"the option 'table' is {text!r}: expected a table, for example 'public.orders'"
        )
    return found
