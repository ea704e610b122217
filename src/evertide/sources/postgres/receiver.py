"""The receiving thread of a source: creates slot and snapshot, follows the stream, and reconnects after every failure.

A *session* is the lifetime of one connection. It continues from the end of the queue, not from the bound position, so
that the server does not send queued input again (`evertide.sources.postgres.session`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg

from evertide.errors import EvertideError, InvalidInput, SourceAway, SourceFailed
from evertide.postgres import TableName
from evertide.problem import ComponentState, Problem
from evertide.runtime import Runtime
from evertide.sources.contract import StagingStore, TableDeclaration, to_problem
from evertide.sources.postgres.catalog import UpstreamTable, check_server, check_tables, has_older_rows
from evertide.sources.postgres.messages import UnknownMessage, format_lsn
from evertide.sources.postgres.partitions import compare_partitions, find_newly_attached, pack, unpack
from evertide.sources.postgres.positions import PostgresPosition, ReadStage
from evertide.sources.postgres.ready_queue import Entry, ReadyQueue
from evertide.sources.postgres.server import READ_AGAIN, SourceServer, check_slot, find_slot
from evertide.sources.postgres.session import ReceiverOptions, Replication, ReplicationSession, SessionEnded
from evertide.sources.postgres.slot_monitor import SlotMonitor
from evertide.sources.postgres.snapshot import create_slot, ensure_publication, read_chunks
from evertide.sources.postgres.transactions import Columns, CompleteTransactions, TransactionAssembler
from evertide.threads.outage_log import OutageLog
from evertide.threads.watched import WatchedThread

logger = logging.getLogger(__name__)

_MAKING_S = 5.0
"""`problem` reports a slot whose creation takes longer: the server waits for open transactions."""
_BACKOFF_S = (0.05, 5.0)
_REMEDY_PARTITION = (
    f"Compare the rows. If the partition was truncated, {READ_AGAIN}. If it was only rewritten, run once with"
    " the option partitions 'keep'."
)
_REMEDY_ATTACHED = (
    f"If rows are missing, {READ_AGAIN}; otherwise run once with the option partitions 'keep'. Rows that are written"
    " through the table into a partition that was attached empty are replicated."
)
_UNMEASURED = 1 << 64
"""Larger than any position."""


class Receiver:
    """Receives the changes of a PostgreSQL server in a thread, and stages them."""

    def __init__(  # noqa: PLR0917
        self,
        server: SourceServer,
        tables: Sequence[tuple[TableDeclaration, TableName]],
        options: ReceiverOptions,
        queue: ReadyQueue,
        staging: StagingStore,
        runtime: Runtime,
    ) -> None:
        self._problem: SourceFailed | None = None
        self._since_s = runtime.wall_s()
        self._wait_s: float | None = None
        self._making_s: float | None = None
        self.slot_monitor = SlotMonitor(server, options.slot, runtime)
        self._partitions: dict[str, str] = {}
        """The files of each table's partitions as of the last check of the catalog, for later positions."""
        self._attached: dict[str, str] = {}
        self._truncated: dict[str, int] = {}
        self._partition_names: dict[int, str] = {}
        self._partition_problems: tuple[Problem, ...] = ()
        self.is_following = False
        """Whether a replication stream is open."""
        self.sent = 0
        """The position up to which the server has sent everything, as the server reports it."""
        self._goals_set = 0
        self._measured_goal = (0, 0)
        """The last goal that was measured, and the server's position at that time."""
        self._server = server
        self._tables = tables
        self._options = options
        self._queue = queue
        self._staging = staging
        self._runtime = runtime
        self._epoch = 0
        self._failures = 0
        self._outage = OutageLog(logger, f"source {server.address.source!r} cannot be read, will retry", runtime)
        self._unreadable_lsn = 0
        """The commit position of a transaction that cannot be read. The problem lasts until the stream is beyond it."""
        self._thread: WatchedThread | None = None
        self._blocking: list[psycopg.Connection[Any]] = []

    @property
    def problem(self) -> SourceFailed | None:
        making_s = self._making_s
        if self._problem is None and making_s is not None and self._runtime.monotonic_s() - making_s > _MAKING_S:
            why = "the server creates the replication slot when all transactions that are open there have ended"
            return self._server.address.failure(f"{why}; pg_stat_activity lists them (xact_start)")
        return self._problem

    @property
    def problems(self) -> tuple[Problem, ...]:
        problem = self.problem
        own = () if problem is None else (to_problem(problem, self._since_s, self._wait_s),)
        return (*own, *self.slot_monitor.problems, *self._partition_problems)

    def set_problem(self, problem: SourceFailed, wait_s: float | None = None) -> None:
        """Set the problem. Its start is when the source became stalled or reconnecting."""
        if self._problem is None or isinstance(self._problem, SourceAway) != isinstance(problem, SourceAway):
            self._since_s = self._runtime.wall_s()
        self._problem, self._wait_s = problem, wait_s

    def set_goal(self) -> None:
        """Measure the server's position again: `goal` is the position at this time or later."""
        self._goals_set += 1

    @property
    def goal(self) -> int:
        """The server's position when the goal was last set; `_UNMEASURED` until it was measured."""
        count, reached = self._measured_goal
        return reached if count == self._goals_set else _UNMEASURED

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
                for connection in self._blocking:
                    connection.cancel()

    def check(self) -> list[UpstreamTable]:
        """Check server and tables. Raises `InvalidInput`, or `psycopg.Error` if the server is unreachable."""
        where = self._server.address.where
        with self._server.connect() as connection:
            check_server(connection, self._options.slot, where)
            found = check_tables(connection, self._tables, self._options.publication)
        try:
            with self._server.connect_for_replication() as connection:
                connection.execute("IDENTIFY_SYSTEM")
        except psycopg.Error as error:
            if not self._server.refuses(error):
                raise
            why = f"the server refuses replication: {self._server.address.explain(error)}"
            raise InvalidInput(where=where, why=f"{why}; run ALTER USER ... REPLICATION") from None
        return found

    # The thread

    def _run(self) -> None:
        while not self._queue.is_closed:
            try:
                self._epoch = self._queue.epoch
                self._blocking, self._making_s = [], None
                self._session()
            except SessionEnded:
                continue
            except psycopg.Error as error:
                self._report_and_wait(self._server.convert_error(error, was_connected=not self._failures))
            except InvalidInput as error:
                self._report_and_wait(
                    SourceFailed(source=self._server.address.source, where=error.where, why=error.why)
                )
            except UnknownMessage as error:
                self._report_and_wait(self._server.address.failure(f"the server, or a proxy before it, sent {error}"))
            except EvertideError as error:
                self._report_and_wait(error)
            except Exception as error:  # noqa: BLE001 - if the thread died, that would be a silent stall (I13)
                why = f"internal error: {type(error).__name__}; report it, with the log"
                self._report_and_wait(self._server.address.failure(why), bug=error)

    def _report_and_wait(self, error: EvertideError, *, bug: Exception | None = None) -> None:
        """Report an error and wait, longer after each failure. The traceback of a bug is logged once."""
        address = self._server.address
        first, most = _BACKOFF_S
        wait_s = min(most, first * 2**self._failures) * (0.5 + self._runtime.random() / 2)
        problem = error if isinstance(error, SourceFailed) else address.failure(str(error))
        if self._outage.note(problem) and bug is not None:
            logger.error("internal error in source %r", address.source, exc_info=bug)
        self.set_problem(problem, wait_s)
        self._failures = min(self._failures + 1, 20)
        deadline_s = self._runtime.monotonic_s() + wait_s
        while not self._queue.is_closed and self._runtime.monotonic_s() < deadline_s:
            self._queue.wait(min(wait_s, 0.5))

    def _session(self) -> None:
        if self._queue.last.at is ReadStage.START:
            self._announce_slot()
        if self._queue.last.at in (ReadStage.MAKING, ReadStage.SNAPSHOT):
            self._create_and_read_snapshot()
        self._follow()

    def note_sent(self, lsn: int) -> None:
        self.sent = max(self.sent, lsn)

    def clear_problem(self, beyond: int = 0) -> None:
        """Clear the problem: the source is connected, or has received everything up to `beyond`."""
        if not self._unreadable_lsn or beyond > self._unreadable_lsn:
            self._problem, self._failures, self._unreadable_lsn = None, 0, 0
            self._outage.end()

    def _check_epoch(self) -> None:
        if self._queue.is_closed or self._queue.epoch != self._epoch:
            raise SessionEnded

    def _put(self, entry: Entry) -> None:
        if not self._queue.put(entry, self._epoch):
            raise SessionEnded

    def _announce_slot(self) -> None:
        """Queue the intention before creating the slot: once it is bound, a slot of that name belongs to the source."""
        slot, address = self._options.slot, self._server.address
        self.check()
        with self._server.connect() as connection:
            found = find_slot(connection, slot)
        if found is not None and self._options.has_snapshot:
            why = f"replication slot {slot!r} already exists, and the content of the tables before it is unknown"
            remedy = f"run SELECT pg_drop_replication_slot('{slot}'), or set another slot"
            raise address.failure(f"{why}; {remedy}; with the option snapshot 'none' only later changes are read")
        self.clear_problem()
        if found is not None:
            check_slot(address, found, slot, found.confirmed)
            self._put(Entry(PostgresPosition(ReadStage.STREAM, format_lsn(found.confirmed))))
        else:
            self._put(Entry(PostgresPosition(ReadStage.MAKING)))

    def _create_and_read_snapshot(self) -> None:
        """Create slot and snapshot and read the snapshot, once the journal has the position that announces them."""
        wanted = self._queue.last
        while self._queue.bound.at not in (ReadStage.MAKING, ReadStage.SNAPSHOT):
            self._check_epoch()
            self._queue.wait(0.5, lambda: self._queue.bound == wanted)
        options = self._options
        with self._server.connect() as connection:
            ensure_publication(connection, options.publication, [name for _, name in self._tables])
        self._making_s = self._runtime.monotonic_s()
        with create_slot(self._server, options.slot, self._blocking) as snapshot:
            self._making_s = None
            upstreams = check_tables(snapshot.connection, self._tables, options.publication)
            self.clear_problem()
            columns: Columns = {
                str(upstream.name): {column.remote: column.signature for column in upstream.columns}
                for upstream in upstreams
            }
            self._partitions = {
                str(upstream.name): _pack_files(upstream) for upstream in upstreams if upstream.is_partitioned
            }
            self._attached = {
                str(upstream.name): _pack_attachments(upstream) for upstream in upstreams if upstream.is_partitioned
            }
            known = (columns, self._partitions, self._attached)
            at = PostgresPosition(ReadStage.SNAPSHOT, format_lsn(snapshot.lsn), wanted.done, *known)
            for upstream in upstreams if options.has_snapshot else ():
                for rows in read_chunks(snapshot, upstream, options.limits):
                    while not self._queue.has_room():
                        self._check_epoch()
                        self._queue.wait(0.5)
                    self._check_epoch()
                    staged = self._staging.stage(upstream.declaration.name, rows)
                    at = PostgresPosition(ReadStage.SNAPSHOT, at.lsn, at.done + 1, *known)
                    self._put(Entry(at, (staged,), staged.rows, staged.bytes))
        self._put(Entry(at.advance_to(snapshot.lsn), xids=snapshot.xids))

    def check_catalog(self) -> list[UpstreamTable]:
        """Check the slot, the tables and the publication as they are now, and return the tables."""
        options, last = self._options, self._queue.last
        with self._server.connect() as connection:
            check_server(connection, options.slot, self._server.address.where)
            slot = find_slot(connection, options.slot)
            upstreams = check_tables(connection, self._tables, options.publication)
            check_slot(self._server.address, slot, options.slot, self._queue.bound.confirmed or last.number)
            self._check_columns(upstreams, last.columns)
            self._check_partitions(connection, upstreams, last)
        return upstreams

    def _follow(self) -> None:
        self._blocking = []
        options, upstreams, last = self._options, self.check_catalog(), self._queue.last
        transactions = TransactionAssembler(
            self._server.address,
            upstreams,
            self._staging,
            self._queue_transactions,
            after=last.number,
            columns=last.columns,
            limits=options.limits,
        )
        stream = Replication(self._server, options.slot, options.publication, last.number)
        try:
            self.clear_problem()
            self.is_following = True
            ReplicationSession(self, stream, transactions, self._queue, self._runtime, options).run()
        except SourceFailed:
            self._unreadable_lsn = transactions.commit_lsn
            transactions.flush_whole()
            raise
        finally:
            self.is_following = False
            self.slot_monitor.close()
            transactions.drop()
            stream.close()

    def measure(self) -> None:
        count = self._goals_set
        if self._measured_goal[0] == count:
            self.slot_monitor.measure_if_due(self.sent)
        elif (reached := self.slot_monitor.measure(self.sent)) > 0:
            self._measured_goal = (count, reached)

    def _check_columns(self, upstreams: Sequence[UpstreamTable], known: Columns) -> None:
        """Compare with the columns that were read last: a table may have been added, or a type changed."""
        address = self._server.address
        for upstream in upstreams if known else ():
            columns = known.get(str(upstream.name))
            if columns is None:
                why = f"table {upstream.name} was added to a slot that is in use, so its existing rows are not read"
                raise address.failure(f"{why}; give the table a slot of its own in the script")
            for column in upstream.columns:
                if columns.get(column.remote, column.signature) != column.signature:
                    why = f"table {upstream.name}: the type of column {column.remote!r} was changed upstream"
                    raise address.failure(f"{why}; undo that, or {READ_AGAIN}")

    def advance_to(self, lsn: int, columns: Columns | None = None) -> PostgresPosition:
        last = self._queue.last.advance_to(lsn, columns)
        return msgspec.structs.replace(
            last, partitions=self._partitions, attached=self._attached, truncated=self._truncated
        )

    def _check_partitions(
        self, connection: psycopg.Connection[Any], upstreams: Sequence[UpstreamTable], last: PostgresPosition
    ) -> None:
        """Compare with the partitions seen last, as the stream does not contain changes of a single partition."""
        address, made, rewritten = self._server.address, {}, []
        known, joined = {**last.partitions, **self._partitions}, {**last.attached, **self._attached}
        attached, older = {}, []
        for upstream in upstreams:
            name = str(upstream.name)
            if not upstream.is_partitioned:
                continue
            if (name not in known and name not in joined) or self._options.keeps_partitions:
                made[name], attached[name] = _pack_files(upstream), _pack_attachments(upstream)
                continue
            joins = unpack(joined[name]) if name in joined else None
            before = unpack(known[name]) if name in known else {}  # empty if the whole table was truncated
            truncated = None if name in known else self._truncated.get(name, last.truncated.get(name))
            found = compare_partitions(before, upstream.partitions, truncated)
            if found.gone:
                gone = ", ".join(self._partition_names.get(oid, f"with the oid {oid}") for oid in found.gone)
                why = f"table {name}: partition {gone} was detached or dropped upstream, but its rows are still here"
                raise address.failure(f"{why}; attach it, {READ_AGAIN}, or keep the rows (option partitions 'keep')")
            rewritten += [f"{one} of {name}" for one in found.rewritten]
            new = find_newly_attached(before or joins or {}, joins, upstream.partitions)
            doubtful = [one for one in new if has_older_rows(connection, one) is not False]
            older += [f"{one.name} of {name}" for one in doubtful]
            left = {one.oid for one in doubtful}  # checked again the next time
            made[name] = pack({oid: file for oid, file in found.known.items() if oid in before or oid not in left})
            now = {one.oid: one.attached for one in upstream.partitions if one.oid not in left}
            attached[name] = pack(now | {oid: xid for oid, xid in (joins or {}).items() if oid in left})
        self._partition_names |= {one.oid: one.name for upstream in upstreams for one in upstream.partitions}
        self._partitions, self._attached, self._truncated = made, attached, {}
        self._warn_of_partitions(rewritten, older)

    def _warn_of_partitions(self, rewritten: Sequence[str], older: Sequence[str]) -> None:
        where, found = self._server.address.where, []
        if rewritten:
            why = f"{where}: partition {', '.join(rewritten)} was truncated or rewritten upstream; the stream does not"
            why += " show which of both, and after a TRUNCATE its rows are still here"
            found.append(("partition_rewritten", why, _REMEDY_PARTITION))
        if older:
            why = f"{where}: partition {', '.join(older)} was attached upstream with rows that the server does not"
            why += " send, or the user may not read it to check that: those rows are missing here"
            found.append(("partition_attached", why, _REMEDY_ATTACHED))
        known = {problem.why: problem for problem in self._partition_problems}
        for _, why, _ in found:
            if why not in known:
                logger.warning("source %r: %s", self._server.address.source, why)
        self._partition_problems = tuple(
            known.get(why) or Problem(ComponentState.WARNING, code, why, remedy, self._runtime.wall_s())
            for code, why, remedy in found
        )

    def _queue_transactions(self, done: CompleteTransactions) -> None:
        self.clear_problem(done.end_lsn)
        if done.truncated:  # the files of its partitions have changed; the next check reads them
            self._truncated |= {name: xid for name, xid in done.truncated.items() if name in self._attached}
            self._partitions = {name: kept for name, kept in self._partitions.items() if name not in done.truncated}
        position = self.advance_to(done.end_lsn, done.columns)
        self._put(Entry(position, done.fragments, done.rows, done.bytes, done.commit_s, done.xids))


def _pack_files(upstream: UpstreamTable) -> str:
    return pack({one.oid: one.file for one in upstream.partitions})


def _pack_attachments(upstream: UpstreamTable) -> str:
    return pack({one.oid: one.attached for one in upstream.partitions})
