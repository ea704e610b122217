"""Measure the server's position and the state of the slot, periodically, over a separate connection.

The stream does not contain them: its positions are those that were sent, and the server is ahead while it decodes a
large transaction, or while the pipeline is behind. If the server does not answer, the values are unknown, and the
stream reports the error. Only `run --until-idle`, which reads up to the server's present position, needs an answer.
"""

from __future__ import annotations

from typing import Any

import psycopg

from evertide.problem import ComponentState, Problem
from evertide.runtime import Runtime
from evertide.sources.postgres.messages import parse_lsn
from evertide.sources.postgres.server import SourceServer

_INTERVAL_S = 2.0
_WARNING_SHARE = 0.25
"""Warn if less than this part of `max_slot_wal_keep_size` is left."""
_BEHIND_S = 5.0
"""A server that is not behind sends new input within this time."""
_WHERE = """
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END)::text,
    wal_status, safe_wal_size, pg_size_bytes(current_setting('max_slot_wal_keep_size'))
FROM pg_replication_slots WHERE slot_name = %s"""
_REMEDY = (
    "Let the pipeline catch up, or increase max_slot_wal_keep_size on the server: if the slot is lost, the tables must"
    " be read again from the start."
)
_REMEDY_FULL = "Let the pipeline catch up: until then the server keeps its WAL, which needs disk space."


class SlotMonitor:
    """Only the receiving thread calls the methods; any thread may read the results."""

    def __init__(self, server: SourceServer, slot: str, runtime: Runtime) -> None:
        self._server = server
        self._slot = slot
        self._runtime = runtime
        self._connection: psycopg.Connection[Any] | None = None
        self._measured_s = -1e9
        self._unsent: tuple[int, float] | None = None
        self.reached = 0
        """The server's position when last measured; 0 if unknown."""
        self.problems: tuple[Problem, ...] = ()

    def measure_if_due(self, sent: int) -> None:
        """Measure if `_INTERVAL_S` have passed. `sent` is the position up to which the server has sent everything."""
        if self._runtime.monotonic_s() - self._measured_s < _INTERVAL_S:
            return
        try:
            self.measure(sent)
        except psycopg.Error:
            self.close()

    def measure(self, sent: int) -> int:
        """Return the server's position; 0 if the slot does not exist. `psycopg.Error` if the server does not answer."""
        self._measured_s = self._runtime.monotonic_s()
        if self._connection is None:
            self._connection = self._server.connect()
        row = self._connection.execute(_WHERE, (self._slot,)).fetchone()
        if row is None:  # the check of the catalog reports the missing slot
            self.reached, self.problems = 0, ()
            return 0
        lsn, status, left, limit = row
        self.reached = parse_lsn(lsn or "0/0")
        if self._unsent is None or self._unsent[0] <= sent:
            self._unsent = (self.reached, self._measured_s)
        self._warn(status, left, limit)
        return self.reached

    def behind_s(self, sent: int) -> float:
        """For how long unsent input has existed; 0 if there is none, or for less than `_BEHIND_S`."""
        unsent = self._unsent
        if unsent is None or unsent[0] <= sent:
            return 0.0
        age_s = self._runtime.monotonic_s() - unsent[1]
        return age_s if age_s > _BEHIND_S else 0.0

    def close(self) -> None:
        """Disconnect; all values are unknown until the next measurement."""
        connection, self._connection = self._connection, None
        self._unsent, self.reached = None, 0
        if connection is not None:
            connection.close()

    def _warn(self, status: str | None, left: int | None, limit: int) -> None:
        why, remedy = "", _REMEDY
        slot = f"replication slot {self._slot!r}"
        if status == "unreserved":
            why = f"{slot} is about to be lost: the server removes WAL that it needs at the next checkpoint"
        elif left is not None and (status == "extended" or left < limit * _WARNING_SHARE):
            why = f"{slot} is lost when the server has written {max(0, int(left))} more bytes of WAL"
        elif status == "extended":
            why, remedy = f"the server keeps more WAL for {slot} than max_wal_size", _REMEDY_FULL
        if not why:
            self.problems = ()
            return
        since_s = self.problems[0].since_s if self.problems else self._runtime.wall_s()
        where = self._server.address.where
        self.problems = (Problem(ComponentState.WARNING, "slot_at_risk", f"{where}: {why}", remedy, since_s),)
