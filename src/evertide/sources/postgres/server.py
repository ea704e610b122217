"""A PostgreSQL server as a source sees it: how it is reached, and its slot and publication.

Every session writes values alike, whatever the server's settings: dates as ISO, times in UTC, floats in full, bytes as
hex; and row security is off, so that a policy that would hide rows is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from evertide.errors import InvalidInput, SourceChanged, SourceFailed
from evertide.sources.postgres.messages import lsn_text, parse_lsn

__all__ = ["OLDEST_VERSION", "Address", "Server", "Slot", "TableName", "check_slot", "find_slot"]

OLDEST_VERSION = 140_000
_SESSION = (
    "-c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC -c extra_float_digits=3 -c bytea_output=hex "
    "-c row_security=off -c statement_timeout=0 -c idle_in_transaction_session_timeout=0"
)
_DEFAULTS = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "tcp_user_timeout": 30_000}
"""So that a server that has vanished is noticed."""
_NAME = re.compile(r'\s*(?:("(?:[^"]|"")+"|[^".\s]+)\s*\.\s*)?("(?:[^"]|"")+"|[^".\s]+)\s*')


@dataclass(frozen=True, slots=True)
class TableName:
    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> TableName | None:
        """As in SQL: what is not in quotes is in small letters, and without a schema it is in `public`."""
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        return cls(_unquoted(found[1] or "public"), _unquoted(found[2]))

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


def _unquoted(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else text.lower()


@dataclass(frozen=True, slots=True)
class Address:
    """How the server is reached. Nothing here is ever shown as it is: `conninfo` may hold a password."""

    conninfo: str = field(repr=False)
    hide: Callable[[str], str] = field(repr=False)
    """Takes secrets out of a text."""
    source: str
    where: str
    """For messages: the server and its database, without secrets."""

    @classmethod
    def of(cls, parts: dict[str, str], hide: Callable[[str], str], source: str, where: str) -> Address:
        """`parts` are libpq's own; under `url` one that has several of them."""
        try:
            known: dict[str, Any] = dict(conninfo_to_dict(parts.get("url", "")))
            known |= {name: value for name, value in parts.items() if name != "url" and value}
            hidden = _hider(hide, [str(known[name]) for name in ("password", "sslpassword") if known.get(name)])
            for name, value in _DEFAULTS.items():
                known.setdefault(name, value)
            known.setdefault("application_name", f"evertide {source}")
            options = f"{known.pop('options', None) or ''} {_SESSION}".strip()
            conninfo = make_conninfo(**known, options=options, client_encoding="UTF8")
        except psycopg.Error:  # what libpq says of it may hold a part of a password
            why = "expected, say, 'postgresql://user@host:5432/database', with special characters written as in a URL"
            raise InvalidInput(where=where, why=f"the address of the server cannot be read: {why}") from None
        if not re.fullmatch(r"(\d*)(,\d*)*", str(known.get("port") or "")):
            raise InvalidInput(where=where, why="the address of the server has an invalid port: expected a number")
        place = f"{known.get('host') or 'localhost'}:{known.get('port') or 5432}/{known.get('dbname') or ''}"
        return cls(conninfo, hidden, source, f"PostgreSQL {hidden(place)}")

    def failed(self, why: str) -> SourceFailed:
        return SourceFailed(source=self.source, where=self.where, why=self.hide(why))

    def changed(self, why: str) -> SourceChanged:
        return SourceChanged(source=self.source, where=self.where, why=self.hide(why))

    def said(self, error: psycopg.Error) -> str:
        """What the server, or the way there, said."""
        return self.hide(_first_line(error))


def _hider(hide: Callable[[str], str], more: list[str]) -> Callable[[str], str]:
    def hidden(text: str) -> str:
        for secret in more:
            if secret:
                text = text.replace(secret, "***")
        return hide(text)

    return hidden


def _first_line(error: psycopg.Error) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@dataclass(frozen=True, slots=True)
class Server:
    address: Address

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.address.conninfo, autocommit=True)

    def connect_for_replication(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.address.conninfo, autocommit=True, replication="database")

    def answers(self) -> bool:
        """Whether it is there at all. If so, a connection that fails does so for a reason that waiting does not end."""
        return pq.PGconn.ping(self.address.conninfo.encode()) in (pq.Ping.OK, pq.Ping.NO_ATTEMPT)


@dataclass(frozen=True, slots=True)
class Slot:
    name: str
    plugin: str
    database: str
    confirmed: int
    is_active: bool
    lost: str
    """Why it is of no use any more; empty if it is."""


def find_slot(connection: psycopg.Connection[Any], name: str) -> Slot | None:
    """From 14 to 18 the view has different columns: what is lost is told by any of them."""
    row = connection.execute(
        "SELECT slot_name, plugin, database, confirmed_flush_lsn::text, active, wal_status,"
        " to_jsonb(s) ->> 'invalidation_reason' FROM pg_replication_slots s WHERE slot_name = %s",
        (name,),
    ).fetchone()
    if row is None:
        return None
    slot_name, plugin, database, confirmed, is_active, wal_status, reason = row
    lost = reason or ("its WAL was removed" if wal_status == "lost" else "")
    return Slot(slot_name, plugin or "", database or "", parse_lsn(confirmed or "0/0"), is_active, lost)


def check_slot(address: Address, slot: Slot | None, name: str, bound: int) -> Slot:
    """That the slot still has everything after `bound`. If not, rows are missing that nobody will send: never go on."""
    anew = "To read the tables anew, give them another slot in the script"
    since = f"what was committed since {lsn_text(bound)} cannot be had from it"
    if slot is None:
        raise address.changed(f"the replication slot {name!r} is gone, and {since}. {anew}")
    if slot.lost:
        why = f"the replication slot {name!r} is invalid ({slot.lost}), and {since}"
        raise address.changed(f"{why}. {anew}; a larger max_slot_wal_keep_size avoids it")
    if slot.confirmed > bound:
        why = f"the replication slot {name!r} stands at {lsn_text(slot.confirmed)}, beyond what is bound"
        raise address.changed(f"{why}: somebody else moved it or made it anew, and {since}. {anew}")
    return slot
