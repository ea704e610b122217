"""A replication connection: receives messages, sends status updates. No call waits longer than its limit.

`Replication` uses libpq directly. Replication drivers confirm positions on their own when the server requests a reply,
but only bound positions may be confirmed (I10).
"""

from __future__ import annotations

import select

import psycopg
from psycopg import pq, sql

from evertide.sources.postgres.messages import encode_status, format_lsn
from evertide.sources.postgres.server import SourceServer

__all__ = ["Replication"]


_BYTES_MAX = 4 * 1024 * 1024


class Replication:
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
