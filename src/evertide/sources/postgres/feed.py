"""The receiving thread of a source: creates slot and snapshot, follows the stream, and reconnects after every failure.

A *session* is the lifetime of one connection. It continues from the end of the queue, not from the bound position, so
that the server does not send queued input again (`evertide.sources.postgres.follower`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg

from evertide.errors import EvertideError, InvalidInput, SourceAway, SourceFailed
from evertide.postgres import TableName
from evertide.problem import Problem
from evertide.runtime import Runtime
from evertide.sources.contract import Staging, TableDeclaration, to_problem
from evertide.sources.postgres.catalog import Target, check_server, checked_tables, has_older_rows
from evertide.sources.postgres.follower import Anew, FeedOptions, Follower
from evertide.sources.postgres.gauge import Gauge
from evertide.sources.postgres.messages import lsn_text
from evertide.sources.postgres.partitions import compared, newly_attached, packed, unpacked
from evertide.sources.postgres.positions import Position
from evertide.sources.postgres.ready import Entry, Queue
from evertide.sources.postgres.server import Server, check_slot, find_slot
from evertide.sources.postgres.snapshot import chunks, ensure_publication, make_slot
from evertide.sources.postgres.stream import Replication
from evertide.sources.postgres.transactions import Columns, Done, Transactions
from evertide.threads.watched import WatchedThread

__all__ = ["Feed"]

logger = logging.getLogger(__name__)

_MAKING_S = 5.0
"""`problem` reports a slot whose creation takes longer: the server waits for open transactions."""
_BACKOFF_S = (0.05, 5.0)
_REMEDY_PARTITION = (
    "Compare the rows. If it was truncated, give the table another slot in the script to read it anew; if it was only"
    " rewritten, run once with the option partitions 'keep'."
)
_REMEDY_ATTACHED = (
    "Give the table another slot in the script to read it anew. If nothing is missing, run once with the option"
    " partitions 'keep'. A partition that is attached empty, and filled by way of the table, is sent."
)
_FAR = 1 << 64
"""Larger than any position."""


class Feed:
    def __init__(  # noqa: PLR0917
        self,
        server: Server,
        tables: Sequence[tuple[TableDeclaration, TableName]],
        options: FeedOptions,
        queue: Queue,
        staging: Staging,
        runtime: Runtime,
    ) -> None:
        self._problem: SourceFailed | None = None
        self._since_s = runtime.wall_s()
        self._wait_s: float | None = None
        self._making_s: float | None = None
        self.gauge = Gauge(server, options.slot, runtime)
        self._partitions: dict[str, str] = {}
        """The files of each table's partitions as of the last check of the catalog, for later positions."""
        self._attached: dict[str, str] = {}
        self._partition_names: dict[int, str] = {}
        self._partition_problems: tuple[Problem, ...] = ()
        self.is_following = False
        """Whether a replication stream is open."""
        self.sent = 0
        """The position up to which the server has sent everything, as the server reports it."""
        self._marks = 0
        self._marked = (0, 0)
        """The last mark that was measured, and the server's position at that time."""
        self._server = server
        self._tables = tables
        self._options = options
        self._queue = queue
        self._staging = staging
        self._runtime = runtime
        self._epoch = 0
        self._failures = 0
        self._stuck = 0
        """The commit position of a transaction that cannot be read. The problem lasts until the stream is beyond it."""
        self._thread: WatchedThread | None = None
        self._busy: list[psycopg.Connection[Any]] = []

    @property
    def problem(self) -> SourceFailed | None:
        making_s = self._making_s
        if self._problem is None and making_s is not None and self._runtime.monotonic_s() - making_s > _MAKING_S:
            why = "the server makes the replication slot, and waits for transactions that are open there: see"
            return self._server.address.failed(f"{why} xact_start in pg_stat_activity; it goes on by itself")
        return self._problem

    @property
    def problems(self) -> tuple[Problem, ...]:
        problem = self.problem
        own = () if problem is None else (to_problem(problem, self._since_s, self._wait_s),)
        return (*own, *self.gauge.problems, *self._partition_problems)

    def troubled(self, problem: SourceFailed, wait_s: float | None = None) -> None:
        """Set the problem. Its start is when the source became stalled or reconnecting."""
        if self._problem is None or isinstance(self._problem, SourceAway) != isinstance(problem, SourceAway):
            self._since_s = self._runtime.wall_s()
        self._problem, self._wait_s = problem, wait_s

    def mark(self) -> None:
        """Measure the server's position again: `goal` is the position at this time or later."""
        self._marks += 1

    @property
    def goal(self) -> int:
        """The server's position at the last mark; `_FAR` until it was measured."""
        marks, reached = self._marked
        return reached if marks == self._marks else _FAR

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        if self._thread is None:
            self._thread = WatchedThread("evertide-postgres", self._run)
            self._thread.start()

    def stop(self) -> None:
        """Wait for the thread to end, after the queue was closed. Cancels statements that block on the server."""
        thread = self._thread
        while thread is not None and thread.is_alive():
            thread.join(0.5)
            if thread.is_alive():
                for connection in self._busy:
                    connection.cancel()

    def check(self) -> list[Target]:
        """Check server and tables. Raises `InvalidInput`, or `psycopg.Error` if the server is unreachable."""
        where = self._server.address.where
        with self._server.connect() as connection:
            check_server(connection, self._options.slot, where)
            found = checked_tables(connection, self._tables, self._options.publication)
        try:
            with self._server.connect_for_replication() as connection:
                connection.execute("IDENTIFY_SYSTEM")
        except psycopg.Error as error:
            if not self._server.refuses(error):
                raise
            why = f"the server allows no replication: {self._server.address.explain(error)}"
            raise InvalidInput(where=where, why=f"{why}. ALTER USER ... REPLICATION lets a user do so") from None
        return found

    # The thread

    def _run(self) -> None:
        while not self._queue.is_closed:
            try:
                self._epoch = self._queue.epoch
                self._busy, self._making_s = [], None
                self._session()
            except Anew:
                continue
            except psycopg.Error as error:
                self._trouble(self._server.failed(error, was_connected=not self._failures))
            except InvalidInput as error:
                self._trouble(SourceFailed(source=self._server.address.source, where=error.where, why=error.why))
            except EvertideError as error:
                self._trouble(error)
            except Exception as error:  # the thread must not die silently: that would be a silent stall (I13)
                logger.exception("a bug in the source %r", self._server.address.source)
                self._trouble(self._server.address.failed(f"a bug: {type(error).__name__}; see the log"))

    def _trouble(self, error: EvertideError) -> None:
        """Report an error and wait, longer after each failure."""
        address = self._server.address
        first, most = _BACKOFF_S
        wait_s = min(most, first * 2**self._failures) * (0.5 + self._runtime.random() / 2)
        problem = error if isinstance(error, SourceFailed) else address.failed(str(error))
        logger.warning("source %r: %s", address.source, problem.why)
        self.troubled(problem, wait_s)
        self._failures = min(self._failures + 1, 20)
        deadline_s = self._runtime.monotonic_s() + wait_s
        while not self._queue.is_closed and self._runtime.monotonic_s() < deadline_s:
            self._queue.wait(min(wait_s, 0.5))

    def _session(self) -> None:
        if self._queue.last.at == "start":
            self._begin()
        if self._queue.last.at in ("making", "snapshot"):
            self._make()
        self._follow()

    def goes_on(self, beyond: int = 0) -> None:
        """Clear the problem: the source is connected, or has received everything up to `beyond`."""
        if not self._stuck or beyond > self._stuck:
            self._problem, self._failures, self._stuck = None, 0, 0

    def _check_epoch(self) -> None:
        if self._queue.is_closed or self._queue.epoch != self._epoch:
            raise Anew

    def _put(self, entry: Entry) -> None:
        if not self._queue.put(entry, self._epoch):
            raise Anew

    def _begin(self) -> None:
        """Queue the intention before creating the slot: once it is bound, a slot of that name belongs to the source."""
        slot, address = self._options.slot, self._server.address
        self.check()
        with self._server.connect() as connection:
            found = find_slot(connection, slot)
        if found is not None and self._options.has_snapshot:
            why = f"the replication slot {slot!r} is there already, and what the tables held before it is not known"
            anew = f"drop it with SELECT pg_drop_replication_slot('{slot}'), or give another slot"
            raise address.failed(f"{why}: {anew}; with the option snapshot 'none' only what it sends is taken")
        self.goes_on()
        if found is not None:
            check_slot(address, found, slot, found.confirmed)
            self._put(Entry(Position("stream", lsn_text(found.confirmed))))
        else:
            self._put(Entry(Position("making")))

    def _make(self) -> None:
        """Create slot and snapshot and read the snapshot, once the journal has the position that announces them."""
        wanted = self._queue.last
        while self._queue.bound.at not in ("making", "snapshot"):
            self._check_epoch()
            self._queue.wait(0.5, lambda: self._queue.bound == wanted)
        options = self._options
        with self._server.connect() as connection:
            ensure_publication(connection, options.publication, [name for _, name in self._tables])
        self._making_s = self._runtime.monotonic_s()
        with make_slot(self._server, options.slot, self._busy) as snapshot:
            self._making_s = None
            targets = checked_tables(snapshot.connection, self._tables, options.publication)
            self.goes_on()
            columns: Columns = {
                str(target.name): {column.remote: column.signature for column in target.columns} for target in targets
            }
            self._partitions = {str(target.name): _packed(target) for target in targets if target.is_partitioned}
            self._attached = {str(target.name): _attached(target) for target in targets if target.is_partitioned}
            known = (columns, self._partitions, self._attached)
            at = Position("snapshot", lsn_text(snapshot.lsn), wanted.done, *known)
            for target in targets if options.has_snapshot else ():
                for rows in chunks(snapshot, target, options.room):
                    while not self._queue.has_room():
                        self._check_epoch()
                        self._queue.wait(0.5)
                    self._check_epoch()
                    staged = self._staging.stage(target.declaration.name, rows)
                    at = Position("snapshot", at.lsn, at.done + 1, *known)
                    self._put(Entry(at, (staged,), staged.rows, staged.bytes))
        self._put(Entry(at.streamed(snapshot.lsn), xids=snapshot.xids))

    def looked_at(self) -> list[Target]:
        """Check the slot, the tables and the publication as they are now, and return the tables."""
        options, last = self._options, self._queue.last
        with self._server.connect() as connection:
            check_server(connection, options.slot, self._server.address.where)
            slot = find_slot(connection, options.slot)
            targets = checked_tables(connection, self._tables, options.publication)
            check_slot(self._server.address, slot, options.slot, self._queue.bound.confirmed or last.number)
            self._check_columns(targets, last.columns)
            self._check_partitions(connection, targets, last)
        return targets

    def _follow(self) -> None:
        self._busy = []
        options, targets, last = self._options, self.looked_at(), self._queue.last
        transactions = Transactions(
            self._server.address,
            targets,
            self._staging,
            self._done,
            after=last.number,
            columns=last.columns,
            room=options.room,
        )
        stream = Replication(self._server, options.slot, options.publication, last.number)
        try:
            self.goes_on()
            self.is_following = True
            Follower(self, stream, transactions, self._queue, self._runtime, options).run()
        except SourceFailed:
            self._stuck = transactions.commit_lsn
            transactions.flush_whole()
            raise
        finally:
            self.is_following = False
            self.gauge.close()
            transactions.drop()
            stream.close()

    def measure(self) -> None:
        marks = self._marks
        if self._marked[0] == marks:
            self.gauge.look(self.sent)
        elif (reached := self.gauge.ask(self.sent)) > 0:
            self._marked = (marks, reached)

    def _check_columns(self, targets: Sequence[Target], known: Columns) -> None:
        """Compare with the columns that were read last: a table may have been added, or a type changed."""
        address = self._server.address
        for target in targets if known else ():
            columns = known.get(str(target.name))
            if columns is None:
                why = f"the table {target.name} was added to a slot that is in use, and its first content is not read"
                raise address.failed(f"{why}: give it a slot of its own in the script")
            for column in target.columns:
                if columns.get(column.remote, column.signature) != column.signature:
                    why = f"table {target.name}: the type of the column {column.remote!r} was changed upstream"
                    anew = "undo it, or give the table another slot in the script to read it anew"
                    raise address.failed(f"{why}: {anew}")

    def streamed(self, lsn: int, columns: Columns | None = None) -> Position:
        last = self._queue.last.streamed(lsn, columns)
        return msgspec.structs.replace(last, partitions=self._partitions, attached=self._attached)

    def _check_partitions(self, connection: psycopg.Connection[Any], targets: Sequence[Target], last: Position) -> None:
        """Compare with the partitions seen last, as the stream does not contain changes of a single partition."""
        address, made, rewritten = self._server.address, {}, []
        known, joined = {**last.partitions, **self._partitions}, {**last.attached, **self._attached}
        attached, older = {}, []
        for target in targets:
            name = str(target.name)
            if not target.is_partitioned:
                continue
            if (name not in known and name not in joined) or self._options.keeps_partitions:
                made[name], attached[name] = _packed(target), _attached(target)
                continue
            joins = unpacked(joined[name]) if name in joined else None
            before = unpacked(known[name]) if name in known else {}  # empty if the whole table was truncated
            found = compared(before, target.partitions)
            if found.gone:
                gone = ", ".join(self._partition_names.get(oid, f"with the oid {oid}") for oid in found.gone)
                why = (
                    f"table {name}: its partition {gone} was detached or dropped upstream, and its rows are still here"
                )
                anew = "attach it again, or give the table another slot in the script to read it anew"
                raise address.failed(f"{why}: {anew}; with the option partitions 'keep' they stay")
            rewritten += [f"{one} of {name}" for one in found.rewritten]
            new = newly_attached(before or joins or {}, joins, target.partitions)
            doubtful = [one for one in new if has_older_rows(connection, one) is not False]
            older += [f"{one.name} of {name}" for one in doubtful]
            left = {one.oid for one in doubtful}  # checked again the next time
            made[name] = packed({oid: file for oid, file in found.known.items() if oid in before or oid not in left})
            now = {one.oid: one.attached for one in target.partitions if one.oid not in left}
            attached[name] = packed(now | {oid: xid for oid, xid in (joins or {}).items() if oid in left})
        self._partition_names |= {one.oid: one.name for target in targets for one in target.partitions}
        self._partitions, self._attached = made, attached
        self._warn_of_partitions(rewritten, older)

    def _warn_of_partitions(self, rewritten: Sequence[str], older: Sequence[str]) -> None:
        where, found = self._server.address.where, []
        if rewritten:
            why = f"{where}: the partition {', '.join(rewritten)} was truncated or rewritten upstream"
            why += "; the stream does not tell which, and of a TRUNCATE its rows are still here"
            found.append(("partition_rewritten", why, _REMEDY_PARTITION))
        if older:
            why = f"{where}: the partition {', '.join(older)} was attached upstream with rows that the server does not"
            why += " send, or this user may not read it to tell: those rows are missing here"
            found.append(("partition_attached", why, _REMEDY_ATTACHED))
        known = {problem.why: problem for problem in self._partition_problems}
        for _, why, _ in found:
            if why not in known:
                logger.warning("source %r: %s", self._server.address.source, why)
        self._partition_problems = tuple(
            known.get(why) or Problem("warning", code, why, remedy, self._runtime.wall_s())
            for code, why, remedy in found
        )

    def _done(self, done: Done) -> None:
        self.goes_on(done.end_lsn)
        if done.truncated:  # the files of its partitions have changed; the next check reads them
            self._partitions = {name: kept for name, kept in self._partitions.items() if name not in done.truncated}
        position = self.streamed(done.end_lsn, done.columns)
        self._put(Entry(position, done.fragments, done.rows, done.bytes, done.commit_s, done.xids))


def _packed(target: Target) -> str:
    return packed({one.oid: one.file for one in target.partitions})


def _attached(target: Target) -> str:
    return packed({one.oid: one.attached for one in target.partitions})
