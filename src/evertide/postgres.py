"""Connect to a PostgreSQL server, for the source and the sink: options, address, table names, error texts.

    url 'postgresql://user@host:port/database'    instead or in addition: libpq's host, port, dbname, user,
    password '${ENV:PGPASSWORD}'                  password, sslmode, sslrootcert, sslcert, sslkey

1. Every error of a server is rendered by `PostgresAddress.explain`, which hides secrets and literal passwords.
2. Every session has the same output format, whatever the server's settings: ISO dates, times in UTC, exact floats, hex
   bytes. Row security is off, so that a policy that would hide rows is an error.
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

OLDEST_VERSION = 140_000
_LIBPQ = ("url", "host", "port", "dbname", "user", "password", "sslmode", "sslrootcert", "sslcert", "sslkey")
_SESSION = (
    "-c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC -c extra_float_digits=3 -c bytea_output=hex "
    "-c row_security=off -c statement_timeout=0 -c idle_in_transaction_session_timeout=0"
)
_DEFAULTS = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "tcp_user_timeout": 30_000}
"""These detect a server that has vanished."""
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
        """As in SQL: an unquoted name is lower-cased, and the default schema is `public`."""
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        return cls(_unquote(found[1] or "public"), _unquote(found[2]))

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.table)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


def _unquote(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else text.lower()


def read_address(options: Options) -> dict[str, str]:
    """The options that give the server's address."""
    return {part: value for part in _LIBPQ if (value := options.text(part))}


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """A server's address. `conninfo` may contain a password, and is never shown."""

    conninfo: str = field(repr=False)
    hide: Callable[[str], str] = field(repr=False)
    """Removes secrets from a text."""
    name: str
    """The name of the source or sink."""
    where: str
    """The server and its database, without secrets, for messages."""

    @classmethod
    def of(cls, parts: Mapping[str, str], hide: Callable[[str], str], name: str, where: str, session: str = "") -> Self:
        """`parts` are libpq's parameters, and `url`. `session` has further settings of the session."""
        try:
            known: dict[str, Any] = dict(conninfo_to_dict(parts.get("url", "")))
            known |= {part: value for part, value in parts.items() if part != "url" and value}
            hide = _make_hider(hide, [str(known[part]) for part in ("password", "sslpassword") if known.get(part)])
            for part, value in _DEFAULTS.items():
                known.setdefault(part, value)
            known.setdefault("application_name", f"evertide {name}")
            options = f"{known.pop('options', None) or ''} {_SESSION} {session}".strip()
            conninfo = make_conninfo(**known, options=options, client_encoding="UTF8")
        except psycopg.Error:  # libpq's message may contain a part of a password
            why = "the server's address is invalid: expected, for example, 'postgresql://user@host:5432/database', with"
            raise InvalidInput(where=where, why=f"{why} special characters percent-encoded") from None
        if not re.fullmatch(r"(\d*)(,\d*)*", str(known.get("port") or "")):
            raise InvalidInput(where=where, why="the port in the server's address is not a number")
        place = f"{known.get('host') or 'localhost'}:{known.get('port') or 5432}/{known.get('dbname') or ''}"
        return cls(conninfo, hide, name, f"PostgreSQL {hide(place)}")

    def explain(self, error: psycopg.Error) -> str:
        """The first line of the error, without secrets."""
        return self.hide(next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__))


def _make_hider(hide: Callable[[str], str], more: list[str]) -> Callable[[str], str]:
    def hide_all(text: str) -> str:
        for secret in more:
            if secret:
                text = text.replace(secret, "***")
        return hide(text)

    return hide_all


@dataclass(frozen=True, slots=True)
class PostgresServer:
    address: PostgresAddress

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.address.conninfo, autocommit=True)

    def is_up(self) -> bool:
        """Whether the server is up. If so, a connection fails for a reason that is not temporary."""
        return pq.PGconn.ping(self.address.conninfo.encode()) in (pq.Ping.OK, pq.Ping.NO_ATTEMPT)


class UniqueIndex(NamedTuple):
    is_primary: bool
    is_identity: bool
    """Whether the index is the table's replica identity."""
    columns: list[str]


def find_unique_indexes(connection: psycopg.Connection[Any], table: int) -> list[UniqueIndex]:
    """The indexes that identify rows of the table with this oid: complete, valid, and not deferrable."""
    return [UniqueIndex(*row) for row in connection.execute(_INDEXES, (table,)).fetchall()]


def match_name(name: str, columns: Mapping[str, Any]) -> str | None:
    """The server's spelling of a column: the same name, or the only one that differs just in case."""
    if name in columns:
        return name
    alike = [other for other in columns if other.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None
