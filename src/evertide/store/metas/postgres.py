"""`PostgresMeta`: the log in a PostgreSQL database, for processes on several hosts.

Layout (version 1, in `<schema>.format`): `<schema>.log(key, seqno, data)`, primary key `(key, seqno)`. The first
process that connects creates it. Keys compare by bytes (collation "C"), as everywhere else.

1. A commit locks its keys first, with advisory locks that end with the transaction: exclusive for keys that it writes,
   shared for keys that it only guards. Row locks would not do, because a key without a record has no row. All processes
   lock in the same order, so there is no deadlock; two keys with the same 64-bit hash merely wait for each other.
2. It reads the heads in a separate statement, after the locks. At READ COMMITTED that statement sees everything that
   earlier holders of the locks committed, because PostgreSQL publishes a transaction before it releases its locks.
3. Each transaction sets `synchronous_commit` to on, whatever the server's default is.
4. An error before COMMIT is sent means that nothing happened: `Unavailable`. Any later error is `OutcomeUnknown`. A
   broken connection closes the idle ones, too, and the next call reconnects.
5. A client gives up a silent server (`evertide.store.metas.timed_connection`), and the server a silent client: it ends
   a session that is silent in a transaction for `postgres_silence_s`. Otherwise a host that vanished in a commit would
   keep its locks until the server's operating system notices, by default after two hours.
6. The password is in no path, message or representation.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from evertide.errors import (
    EvertideError,
    InvalidInput,
    OutcomeUnknown,
    RecordDamaged,
    StorageForbidden,
    StorageFull,
    Unavailable,
    UnsupportedFormat,
)
from evertide.extras import import_extra
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Guard, Stale, Write
from evertide.store.metas.sql import SqlMeta
from evertide.types import SequenceNumber

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

_VERSION = 1
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_DEFAULTS = {
    "application_name": "evertide",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Defaults that detect a vanished server; parameters in the URL override them. Without `tcp_user_timeout` the operating
system repeats an unacknowledged request for about 15 minutes."""

_SQL = {
    "begin": """
        BEGIN ISOLATION LEVEL READ COMMITTED;
        SET LOCAL synchronous_commit = on;
        SET LOCAL lock_timeout = {limit_ms};
        SET LOCAL idle_in_transaction_session_timeout = {idle_ms};
    """,
    "lock": """
        SELECT CASE WHEN alone THEN pg_advisory_xact_lock(hash) ELSE pg_advisory_xact_lock_shared(hash) END
        FROM unnest(%s::bigint[], %s::boolean[]) AS wanted(hash, alone)
    """,
    "numbers": """
        SELECT wanted, (SELECT seqno FROM {log} WHERE key = wanted ORDER BY seqno DESC LIMIT 1)
        FROM unnest(%s::text[]) AS wanted
    """,
    "number": "SELECT seqno FROM {log} WHERE key = %(key)s ORDER BY seqno DESC LIMIT 1",
    "head": "SELECT seqno, data FROM {log} WHERE key = %(key)s ORDER BY seqno DESC LIMIT 1",
    "heads": """
        WITH RECURSIVE hop(key) AS (
            SELECT min(key) FROM {log} WHERE key >= %(start)s AND key < %(end)s
            UNION ALL
            SELECT (SELECT min(log.key) FROM {log} AS log WHERE log.key > hop.key AND log.key < %(end)s)
            FROM hop WHERE hop.key IS NOT NULL
        )
        SELECT hop.key, head.seqno, head.data FROM hop CROSS JOIN LATERAL (
            SELECT seqno, data FROM {log} AS log WHERE log.key = hop.key ORDER BY seqno DESC LIMIT 1
        ) AS head
        ORDER BY hop.key
    """,
    "scan": "SELECT seqno, data FROM {log} WHERE key = %(key)s AND seqno > %(after)s ORDER BY seqno LIMIT %(limit)s",
    "append": "INSERT INTO {log} (key, seqno, data) SELECT * FROM unnest(%s::text[], %s::bigint[], %s::bytea[])",
    "remove": "DELETE FROM {log} WHERE key = ANY(%s::text[])",
    "truncate": """
        DELETE FROM {log} WHERE key = %(key)s
        AND seqno < least(%(below)s, (SELECT max(seqno) FROM {log} WHERE key = %(key)s))
    """,
    "ready": "SELECT to_regclass('{schema}.format') IS NOT NULL",
    "version": "SELECT version FROM {schema}.format",
    "create": """
        CREATE TABLE IF NOT EXISTS {log} (
            key text COLLATE "C" NOT NULL, seqno bigint NOT NULL, data bytea NOT NULL, PRIMARY KEY (key, seqno)
        );
        CREATE TABLE IF NOT EXISTS {schema}.format (version integer NOT NULL);
        INSERT INTO {schema}.format SELECT {version} WHERE NOT EXISTS (SELECT FROM {schema}.format);
    """,
}

T = TypeVar("T")


class PostgresMeta(SqlMeta["Connection"]):
    def __init__(self, dsn: str, runtime: Runtime, settings: Settings, schema: str = "evertide") -> None:
        if not _SCHEMA.fullmatch(schema):
            raise InvalidInput(where=f"schema {schema!r}", why="expected 1 to 63 of a-z, 0-9 and _")
        self._psycopg = import_extra("psycopg", "postgres", "a PostgreSQL Meta")
        self._parameters = self._parse(dsn)
        self._password = str(self._parameters.get("password") or "")
        self._schema = schema
        self._clock_s = runtime.monotonic_s
        names = {"schema": schema, "log": f"{schema}.log", "version": _VERSION}
        limit_ms = {
            "limit_ms": int(settings.retry_limit_s * 1000),
            "idle_ms": max(1, int(settings.postgres_silence_s * 1000)),  # 0 would mean no limit
        }
        sql = {name: text.format(**names, **limit_ms).encode() for name, text in _SQL.items()}
        super().__init__(_describe_place(self._parameters, schema), sql, runtime, settings)
        try:
            self._prepare()
        except BaseException:
            self._pool.close()
            raise

    def _commit(self, connection: Connection, checks: Sequence[Write | Guard], writes: Sequence[Write]) -> Stale | None:
        locks = self._locks(checks)
        connection.execute(self._sql["lock"], (list(locks), list(locks.values())))
        numbers: dict[str, int | None] = dict(
            connection.execute(self._sql["numbers"], (list({check.key for check in checks}),)).fetchall()
        )
        for check in checks:
            found = numbers[check.key] or 0
            if found != check.expected:
                return Stale(check.key, check.expected, SequenceNumber(found))
        appended = [(write.key, write.expected + 1, write.data) for write in writes if write.data is not None]
        removed = [write.key for write in writes if write.data is None]
        if appended:
            connection.execute(self._sql["append"], [list(column) for column in zip(*appended, strict=True)])
        if removed:
            connection.execute(self._sql["remove"], (removed,))
        return None

    def _locks(self, checks: Sequence[Write | Guard]) -> dict[int, bool]:
        """The hash of each key, in the order in which all processes lock them, and whether the lock is exclusive."""
        locks: dict[int, bool] = {}
        for check in checks:
            hashed = _hash(self._schema, check.key)
            locks[hashed] = locks.get(hashed, False) or isinstance(check, Write)
        return dict(sorted(locks.items()))

    def _prepare(self) -> None:
        """Create only what is missing, so that a role without the right to create tables can use existing ones."""
        if not self._read("ready", {})[0][0]:
            self._write(self._create)
        version = self._read("version", {})[0][0]
        if version > _VERSION:
            raise UnsupportedFormat(path=self._place, found=version, supported=_VERSION)

    def _create(self, connection: Connection) -> None:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_hash(self._schema, ""),))
        there = connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", (self._schema,)).fetchone()
        if not (there and there[0]):
            connection.execute(f"CREATE SCHEMA {self._schema}".encode())
        connection.execute(self._sql["create"])

    def _read(self, name: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        with self._pool.use() as connection:
            try:
                return connection.execute(self._sql[name], values).fetchall()
            except self._psycopg.Error as error:
                raise self._convert_error(error, connection) from error

    def _write(self, body: Callable[[Connection], T]) -> T:
        """Run `body` in a transaction and commit, unless it returns a `Stale`."""
        with self._pool.use() as connection:
            try:
                connection.execute(self._sql["begin"])
                answer = body(connection)
                if isinstance(answer, Stale):
                    connection.execute("ROLLBACK")
                    return answer
            except self._psycopg.Error as error:
                with contextlib.suppress(self._psycopg.Error):
                    connection.execute("ROLLBACK")
                raise self._convert_error(error, connection) from error
            try:
                connection.execute("COMMIT")
            except self._psycopg.Error as error:
                self._pool.drop_idle()
                raise OutcomeUnknown(path=self._place, why=self._text(error)) from error
            return answer

    def _connect(self) -> Connection:
        from evertide.store.metas.timed_connection import TimedConnection  # noqa: PLC0415 - psycopg is optional

        try:
            connection = TimedConnection.connect(**self._parameters, autocommit=True)
        except self._psycopg.Error as error:
            why = self._text(error)
            kind = StorageForbidden if "authentication failed" in why else Unavailable
            raise kind(path=self._place, why=why) from None
        connection.clock_s = self._clock_s
        connection.limit_s = self._settings.retry_limit_s + self._settings.postgres_silence_s  # the first: for a lock
        return connection

    def _is_reusable(self, connection: Connection) -> bool:
        return bool(connection.info.transaction_status == self._psycopg.pq.TransactionStatus.IDLE)

    def _convert_error(self, error: psycopg.Error, connection: Connection) -> EvertideError:
        """Convert an error before COMMIT, or of a read, to the error for the caller."""
        if connection.broken:
            self._pool.drop_idle()
        why, state = self._text(error), error.sqlstate or ""
        if state == "53100":
            return StorageFull(path=self._place, why=why)
        if state in ("42501", "25006"):
            return StorageForbidden(path=self._place, why=why)
        if state in ("42P01", "42703", "3F000", "XX001", "XX002"):
            return RecordDamaged(path=self._place, why=why)
        return Unavailable(path=self._place, why=why)

    def _parse(self, dsn: str) -> dict[str, Any]:
        try:
            given = importlib.import_module("psycopg.conninfo").conninfo_to_dict(dsn)
        except self._psycopg.Error:
            raise InvalidInput(
                where="the URL of Meta", why="PostgreSQL cannot parse it; expected postgresql://user@host:port/database"
            ) from None
        return {**_DEFAULTS, **given}

    def _text(self, error: psycopg.Error) -> str:
        text = " ".join(str(error).split())
        return text.replace(self._password, "***") if self._password else text


def _describe_place(parameters: dict[str, Any], schema: str) -> str:
    user = f"{parameters['user']}@" if parameters.get("user") else ""
    port = f":{parameters['port']}" if parameters.get("port") else ""
    return f"postgresql://{user}{parameters.get('host', '')}{port}/{parameters.get('dbname', '')}#{schema}.log"


def _hash(schema: str, key: str) -> int:
    digest = hashlib.blake2b(f"{schema}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
