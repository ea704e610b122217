"""Follow one replication stream, from its start to its end.

1. The source confirms only the journal's bound position to the server (I10). It sends a status update each second,
   also while the pipeline is behind and the source does not read.
2. If all received input is bound, the source offers the server's position as a transaction without rows: every
   `idle_interval`, and at once if a client waits for it. So an idle slot advances, but never beyond the journal; a slot
   that is beyond the journal was moved by another program.
"""

from __future__ import annotations

import select
from dataclasses import dataclass
from typing import Protocol

import psycopg
from psycopg import pq, sql

from evertide.runtime import Runtime
from evertide.sources.postgres.catalog import UpstreamTable
from evertide.sources.postgres.messages import Keepalive, decode_keepalive, encode_status, format_lsn, is_data, read_lsn
from evertide.sources.postgres.positions import PostgresPosition
from evertide.sources.postgres.ready_queue import Entry, ReadyQueue
from evertide.sources.postgres.server import SourceServer
from evertide.sources.postgres.transactions import BufferLimits, TransactionAssembler

_POLL_S = 0.05
_STATUS_S = 1.0
_SILENT_S = 300.0
"""A server that does not answer for this long is considered dead; a busy server may take some time."""
_CHECK_S = 30.0
"""How often the catalog is checked: the stream does not show that a table left the publication."""
_REPLY_REQUESTS_MAX = 3
"""A server that requests replies at the same position this often is shutting down, and waits for the confirmation."""
_MESSAGES_MAX = 5_000
_BUSY_MESSAGES, _FULL_MESSAGES = 8, 2_000
"""From `_BUSY_MESSAGES` messages on, wait for more; from `_FULL_MESSAGES` on, process them at once."""
_PAUSES, _PAUSE_S = 5, 0.001

_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReceiverOptions:
    slot: str
    publication: str
    has_snapshot: bool
    idle_interval_s: float
    limits: BufferLimits
    keeps_partitions: bool = False
    """Whether rows of detached, dropped or truncated partitions are kept."""


class SessionEnded(Exception):
    """The session must end: the pipeline is closing, or is at another position."""


class SessionOwner(Protocol):
    """The receiver, as the session sees it."""

    @property
    def goal(self) -> int:
        """The position that a client waits for to be bound."""
        ...

    def note_sent(self, lsn: int) -> None:
        """Note that the server has sent everything up to `lsn`."""
        ...

    def clear_problem(self, beyond: int = 0) -> None: ...

    def measure(self) -> None:
        """Measure the server's position: periodically, and for a new goal."""
        ...

    def advance_to(self, lsn: int) -> PostgresPosition:
        """The position after reading everything before `lsn`."""
        ...

    def check_catalog(self) -> list[UpstreamTable]:
        """Check the catalog again; raises what is wrong."""
        ...


class ReplicationSession:
    def __init__(  # noqa: PLR0917
        self,
        receiver: SessionOwner,
        stream: Replication,
        transactions: TransactionAssembler,
        queue: ReadyQueue,
        runtime: Runtime,
        options: ReceiverOptions,
    ) -> None:
        self._receiver = receiver
        self._stream = stream
        self._transactions = transactions
        self._queue = queue
        self._runtime = runtime
        self._options = options
        self._epoch = queue.epoch
        self._received = queue.last.number
        self._safe = 0
        """Everything committed before this position was received."""
        self._reply_requests = 0
        self._must_reply = False
        now_s = runtime.monotonic_s()
        self._heard_s = self._idle_s = self._checked_s = now_s
        self._confirmed_s = -1e9
        self._confirmed = -1

    def run(self) -> None:
        while True:
            if self._queue.is_closed or self._queue.epoch != self._epoch:
                raise SessionEnded
            if self._queue.has_room():
                self._receive()
            else:
                self._queue.wait(_STATUS_S / 4)
                self._heard_s = self._runtime.monotonic_s()
            self._publish()
            self._send_status()
            self._receiver.measure()
            if self._runtime.monotonic_s() - self._checked_s >= _CHECK_S:
                self._receiver.check_catalog()
                self._checked_s = self._runtime.monotonic_s()

    def _receive(self) -> None:
        """Receive messages. Under load, wait a few milliseconds for more: large batches cost less per message."""
        messages = self._stream.receive(_POLL_S, _MESSAGES_MAX)
        for _ in range(_PAUSES if len(messages) >= _BUSY_MESSAGES else 0):
            if len(messages) >= _FULL_MESSAGES:
                break
            self._runtime.sleep_s(_PAUSE_S)
            messages += self._stream.receive(0.0, _MESSAGES_MAX)
        at = 0
        for place in [*(place for place, content in enumerate(messages) if not is_data(content)), len(messages)]:
            if at < place:
                self._transactions.take_all(messages[at:place])
                self._received = max(self._received, read_lsn(messages[place - 1]))
            if place < len(messages):
                self._keepalive(decode_keepalive(messages[place]))
            at = place + 1
        now_s = self._runtime.monotonic_s()
        if messages:
            self._heard_s = now_s
        elif now_s - self._heard_s > _SILENT_S:
            raise psycopg.OperationalError(f"the server has sent nothing for {_SILENT_S:g} s")

    def _keepalive(self, message: Keepalive) -> None:
        if not self._transactions.is_between:
            return
        self._reply_requests = self._reply_requests + message.wants_reply if message.wal_end == self._safe else 0
        self._safe = message.wal_end
        self._received = max(self._received, message.wal_end)
        self._receiver.note_sent(message.wal_end)
        self._receiver.clear_problem(message.wal_end)
        self._must_reply = self._must_reply or message.wants_reply

    def _publish(self) -> None:
        """Publish the batch when the queue is empty; without a batch, advance the position of an idle source."""
        if not self._queue.is_empty or not self._transactions.is_between:
            return
        if self._transactions.has_batch:
            self._transactions.flush()
            return
        ahead = max(self._safe, self._transactions.after)
        now_s = self._runtime.monotonic_s()
        last = self._queue.last
        is_due = now_s - self._idle_s >= self._options.idle_interval_s or self._reply_requests >= _REPLY_REQUESTS_MAX
        is_due = is_due or last.number < self._receiver.goal <= ahead
        if is_due and ahead > last.number and self._queue.bound == last:
            self._idle_s, self._reply_requests = now_s, 0
            if not self._queue.put(Entry(self._receiver.advance_to(ahead)), self._epoch):
                raise SessionEnded

    def _send_status(self) -> None:
        bound, now_s = self._queue.bound.confirmed, self._runtime.monotonic_s()
        is_due = now_s - self._confirmed_s >= _STATUS_S
        if is_due or self._must_reply or bound != self._confirmed:
            self._stream.send_status(self._received, bound, self._runtime.wall_s(), wants_reply=is_due)
            self._confirmed, self._must_reply = bound, False
            self._confirmed_s = now_s if is_due else self._confirmed_s


class Replication:
    """A replication connection: receives messages, sends status updates. No call waits longer than its limit.

    It uses libpq directly. Replication drivers confirm positions on their own when the server requests a reply, but
    only bound positions may be confirmed (I10).
    """

    def __init__(self, server: SourceServer, slot: str, publication: str, start: int) -> None:
        """Start replication after `start`. With streaming, the server sends large transactions before they commit."""
        self._connection = server.connect_for_replication()
        self._pq = self._connection.pgconn
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version '2', publication_names {}, streaming 'on')"
        )
        quoted = sql.Identifier(publication).as_string(self._connection)
        made = command.format(sql.Identifier(slot), sql.SQL(format_lsn(start)), sql.Literal(quoted))
        result = self._pq.exec_(made.as_bytes(self._connection))
        if result.status != pq.ExecStatus.COPY_BOTH:
            message = result.get_error_message()
            self.close()
            raise psycopg.OperationalError(message)
        self._pq.nonblocking = 1

    def receive(self, wait_s: float, most: int) -> list[bytes]:
        """Receive up to `most` messages and about `_BYTES_MAX` bytes; waits, at most `wait_s`, for the first only."""
        found: list[bytes] = []
        left = _BYTES_MAX
        while len(found) < most and left > 0:
            size, content = self._pq.get_copy_data(1)
            if size > 0:
                found.append(bytes(content))
                left -= size
                continue
            if size < 0:
                raise psycopg.OperationalError("the server ended the stream")
            self._pq.flush()
            ready, _, _ = select.select([self._pq.socket], [], [], 0 if found else wait_s)
            if not ready:
                break
            self._pq.consume_input()
        return found

    def send_status(self, received: int, bound: int, wall_s: float, *, wants_reply: bool) -> None:
        self._pq.put_copy_data(encode_status(received, bound, wall_s, wants_reply=wants_reply))
        self._pq.flush()

    def close(self) -> None:
        self._connection.close()
