"""The way to a PostgreSQL server, which source and sink share: options, address, names of tables, and what it says.

    url 'postgresql://user@host:port/database'    or instead of it, or beside it, libpq's own: host, port, dbname,
    password '${ENV:PGPASSWORD}'                  user, password, sslmode, sslrootcert, sslcert, sslkey

1. Whatever a server says goes through `Address.said`, which hides secrets, and passwords that are written out.
2. Every session writes values alike, whatever the server's settings: dates as ISO, times in UTC, floats in full, bytes
   as hex; and row security is off, so that a policy that would hide rows is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from evertide.errors import InvalidInput
from evertide.options import Options

__all__ = [
    "OLDEST_VERSION",
    "Address",
    "Server",
    "TableName",
    "UniqueIndex",
    "find_unique_indexes",
    "match_name",
    "read_address",
]

OLDEST_VERSION = 140_000
_LIBPQ = ("url", "host", "port", "dbname", "user", "password", "sslmode", "sslrootcert", "sslcert", "sslkey")
_SESSION = (
    "-c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC -c extra_float_digits=3 -c bytea_output=hex "
    "-c row_security=off -c statement_timeout=0 -c idle_in_transaction_session_timeout=0"
)
_DEFAULTS = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "tcp_user_timeout": 30_000}
"""So that a server that has vanished is noticed."""
_NAME = re.compile(r'\s*(?:("(?:[^"]|"")+"|[^".\s]+)\s*\.\s*)?("(?:[^"]|"")+"|[^".\s]+)\s*')
_INDEXES = """
SELECT i.indisprimary, i.indisreplident, ARRAY(
    SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number WHERE k.place <= i.indnkeyatts)
FROM pg_index i WHERE i.indrelid = %s
AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL"""


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


def read_address(options: Options) -> dict[str, str]:
    """Those of the address that are given."""
    return {part: value for part in _LIBPQ if (value := options.text(part))}


@dataclass(frozen=True, slots=True)
class Address:
    """How the server is reached. Nothing here is ever shown as it is: `conninfo` may hold a password."""

    conninfo: str = field(repr=False)
    hide: Callable[[str], str] = field(repr=False)
    """Takes secrets out of a text."""
    name: str
    """Of the source or the sink."""
    where: str
    """For messages: the server and its database, without secrets."""

    @classmethod
    def of(cls, parts: Mapping[str, str], hide: Callable[[str], str], name: str, where: str, session: str = "") -> Self:
        """`parts` are libpq's own; under `url` one that has several of them. `session` has further settings of it."""
        try:
            known: dict[str, Any] = dict(conninfo_to_dict(parts.get("url", "")))
            known |= {part: value for part, value in parts.items() if part != "url" and value}
            hidden = _hider(hide, [str(known[part]) for part in ("password", "sslpassword") if known.get(part)])
            for part, value in _DEFAULTS.items():
                known.setdefault(part, value)
            known.setdefault("application_name", f"evertide {name}")
            options = f"{known.pop('options', None) or ''} {_SESSION} {session}".strip()
            conninfo = make_conninfo(**known, options=options, client_encoding="UTF8")
        except psycopg.Error:  # what libpq says of it may hold a part of a password
            why = "expected, say, 'postgresql://user@host:5432/database', with special characters written as in a URL"
            raise InvalidInput(where=where, why=f"the address of the server cannot be read: {why}") from None
        if not re.fullmatch(r"(\d*)(,\d*)*", str(known.get("port") or "")):
            raise InvalidInput(where=where, why="the address of the server has an invalid port: expected a number")
        place = f"{known.get('host') or 'localhost'}:{known.get('port') or 5432}/{known.get('dbname') or ''}"
        return cls(conninfo, hidden, name, f"PostgreSQL {hidden(place)}")

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

    def answers(self) -> bool:
        """Whether it is there at all. If so, a connection that fails does so for a reason that waiting does not end."""
        return pq.PGconn.ping(self.address.conninfo.encode()) in (pq.Ping.OK, pq.Ping.NO_ATTEMPT)


class UniqueIndex(NamedTuple):
    is_primary: bool
    is_identity: bool
    """Of the replica."""
    columns: list[str]


def find_unique_indexes(connection: psycopg.Connection[Any], table: int) -> list[UniqueIndex]:
    """Those of a table, by its oid, that tell its rows apart: whole, valid and checked at once."""
    return [UniqueIndex(*row) for row in connection.execute(_INDEXES, (table,)).fetchall()]


def match_name(name: str, there: Mapping[str, Any]) -> str | None:
    """A column as the server spells it: its own name, or the only one that differs in case alone."""
    if name in there:
        return name
    alike = [other for other in there if other.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None
