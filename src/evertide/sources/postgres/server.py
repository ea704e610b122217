"""A PostgreSQL server as a source uses it: connections, the replication stream, the slot and the publication."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import psycopg

from evertide import postgres
from evertide.errors import SourceAway, SourceChanged, SourceFailed
from evertide.sources.postgres.messages import format_lsn, parse_lsn

READ_AGAIN = "give the table another slot in the script to read it from the start"
"""What to do if changes of a table are missing."""
_ENDED = ("08", "57P0")
"""Prefixes of SQLSTATEs: the connection is lost, or the server is starting or shutting down."""
_UNTRUSTED = re.compile("certificate|does not support SSL|private key", re.IGNORECASE)
"""Errors of libpq that occur before the server answers, and that a retry does not end."""
_IN_USE = ("53300", "55006")
"""SQLSTATEs: too many connections; the slot is still in use by the previous connection."""


@dataclass(frozen=True, slots=True)
class SourceAddress(postgres.PostgresAddress):
    """`name` is the name of the source."""

    @property
    def source(self) -> str:
        return self.name

    def failure(self, why: str) -> SourceFailed:
        return SourceFailed(source=self.source, where=self.where, why=self.hide(why))

    def away_failure(self, why: str) -> SourceAway:
        return SourceAway(source=self.source, where=self.where, why=self.hide(why))

    def make_changed_error(self, why: str) -> SourceChanged:
        return SourceChanged(source=self.source, where=self.where, why=self.hide(why))


@dataclass(frozen=True, slots=True)
class SourceServer(postgres.PostgresServer):
    address: SourceAddress

    def connect_for_replication(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.address.conninfo, autocommit=True, replication="database")

    def refuses(self, error: psycopg.Error) -> bool:
        """Whether the connection failed for a lasting reason: the server refused it, or TLS failed."""
        return bool(_UNTRUSTED.search(str(error))) or self.is_up()

    def convert_error(self, error: psycopg.Error, *, was_connected: bool) -> SourceFailed:
        """`SourceAway` if a retry may succeed, else `SourceFailed`: a person must act."""
        why = self.address.explain(error)
        if error.sqlstate is not None:
            is_away = error.sqlstate.startswith(_ENDED) or error.sqlstate in _IN_USE
        else:
            is_away = was_connected or not self.refuses(error)
        return self.address.away_failure(why) if is_away else self.address.failure(why)


@dataclass(frozen=True, slots=True)
class Slot:
    name: str
    plugin: str
    database: str
    confirmed: int
    is_active: bool
    lost: str
    """Why the slot is unusable; empty if it is usable."""


def find_slot(connection: psycopg.Connection[Any], name: str) -> Slot | None:
    """Find a slot on any version from 14 to 18, whose views have different columns."""
    row = connection.execute(
        "SELECT slot_name, plugin, database, confirmed_flush_lsn::text, active, wal_status,"
        " to_jsonb(s) ->> 'invalidation_reason' FROM pg_replication_slots s WHERE slot_name = %s",
        (name,),
    ).fetchone()
    if row is None:
        return None
    slot_name, plugin, database, confirmed, is_active, wal_status, reason = row
    lost = reason or ("the server removed its WAL" if wal_status == "lost" else "")
    return Slot(slot_name, plugin or "", database or "", parse_lsn(confirmed or "0/0"), is_active, lost)


def check_slot(address: SourceAddress, slot: Slot | None, name: str, bound: int) -> Slot:
    """Raise `SourceChanged` if the slot no longer has everything after `bound`: the missing rows would never arrive."""
    lost = f"so changes after {format_lsn(bound)} are missing; {READ_AGAIN}"
    if slot is None:
        raise address.make_changed_error(f"replication slot {name!r} does not exist any more, {lost}")
    if slot.lost:
        why = f"replication slot {name!r} is invalid ({slot.lost}), {lost}"
        raise address.make_changed_error(f"{why}; a larger max_slot_wal_keep_size prevents this")
    if slot.confirmed > bound:
        why = f"another program moved replication slot {name!r} to {format_lsn(slot.confirmed)}, or created it again"
        raise address.make_changed_error(f"{why}, {lost}")
    return slot
