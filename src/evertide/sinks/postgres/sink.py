"""The PostgreSQL sink: a table with the content of the collection, written exactly once.

    url or libpq's options (`evertide.postgres`), table 'schema.name', create 'true' | 'false'

Each transaction of the pipeline is one transaction of the server. It deletes, updates and inserts rows, and stores the
transaction number (`target` defines where, `statements` how).

1. *Open* creates what is missing and increments the epoch, in one transaction. A process that opened the sink earlier
   has an older epoch, so the server refuses its writes, however late they are. Open waits for a write in progress.
2. *Write* compares number and epoch while it holds the lock of the sink's row. Few rows are sent in one statement and
   one round trip. Many rows are first copied into a temporary table or, if all are additions, directly into the table.
   A large transaction is copied piece by piece.
3. Any error ends the session (`SinkFailed`). The next session reads the number back, so a COMMIT whose answer was lost
   is recognized (I14).
4. A committed transaction is on disk: if `synchronous_commit` is off, the session sets it to on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import errors
from pyarrow import csv

from evertide.errors import InvalidInput, SinkFailed
from evertide.postgres import PostgresAddress, PostgresServer, TableName, read_address
from evertide.rows.utf8 import replace_invalid_utf8
from evertide.secrets import Secrets
from evertide.sinks.contract import Changes, Prepared, SinkDeclaration
from evertide.sinks.postgres.statements import (
    CHANGES,
    RowsToSend,
    Summary,
    make_apply_statement,
    make_counted_rows,
    make_keyed_rows,
    make_number_update,
    quote,
)
from evertide.sinks.postgres.target import LACKING, NUMBERS_TABLE, TargetTable, UnusableTarget
from evertide.sinks.postgres.types import choose_column_type

_SMALL_ROWS = 1_000
_NAME_BYTES = 63
_SYSTEM = ("ctid", "cmax", "cmin", "tableoid", "xmax", "xmin")
_SESSION = (
    "-c lock_timeout=20s -c default_transaction_isolation=read\\ committed -c tcp_keepalives_idle=30"
    " -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"
)
"""A lock of another session becomes an error and a retry; a vanished client does not keep its lock for hours."""
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
_CSV = csv.WriteOptions(include_header=False, quoting_style="all_valid")
_NOT_UNIQUE = "the key ({key}) has several rows; set the option 'key' to columns that identify a row"
_HINTS: tuple[tuple[type[psycopg.Error], str], ...] = (
    (errors.LockNotAvailable, "another session holds a lock on the table; pg_locks shows which"),
    (errors.CharacterNotInRepertoire, "PostgreSQL texts cannot contain U+0000; remove it in the view with replace"),
    (errors.UntranslatableCharacter, "PostgreSQL texts cannot contain U+0000; remove it in the view with replace"),
    (errors.InsufficientPrivilege, "GRANT the missing privilege to the user"),
    (errors.UndefinedTable, "restore the table, or give the sink another name and table"),
)


def prepare_postgres(declaration: SinkDeclaration) -> Prepared:
    secrets = Secrets(declaration.base)
    options = declaration.read_options(secrets)
    parts = read_address(options)
    text = options.require("table", "public.revenue")
    may_create = options.boolean("create", default=True)
    options.check_unknown()
    name = TableName.parse(text)
    if name is None or name.table == NUMBERS_TABLE:
        raise options.refusal("table", f"is {text!r}: expected a table, for example 'public.revenue'")
    for field in declaration.schema:
        _check_column(field, options.where)
    address = PostgresAddress.of(parts, secrets.hide, declaration.name, options.where, _SESSION)
    target = TargetTable(
        declaration.name, declaration.collection, declaration.schema, declaration.key, name, may_create=may_create
    )
    return Prepared(
        lambda token: PostgresSink(PostgresServer(address), target, token),
        lambda: _probe(PostgresServer(address), target, options.where),
    )


def _check_column(field: pa.Field, where: str) -> None:
    if len(field.name.encode()) > _NAME_BYTES or field.name in _SYSTEM:
        why = f"a PostgreSQL table cannot have a column named {field.name!r}; rename the column with AS"
        raise InvalidInput(where=where, why=why)
    if choose_column_type(field.type) is None:
        why = f"column {field.name!r} is {field.type}, which a PostgreSQL table cannot store; cast the column"
        raise InvalidInput(where=where, why=why)


def _probe(server: PostgresServer, target: TargetTable, where: str) -> None:
    place = f"{where}, {server.address.where}"
    try:
        with server.connect() as connection:
            target.check(connection)
    except UnusableTarget as misfit:
        raise InvalidInput(where=place, why=server.address.hide(str(misfit))) from None
    except psycopg.Error as error:
        raise InvalidInput(where=place, why=server.address.explain(error)) from None


class PostgresSink:
    keeps_number = True

    def __init__(self, server: PostgresServer, target: TargetTable, token: str) -> None:
        self.name = target.sink
        self._address = server.address
        self._target = target
        self._token = token
        with self._convert_errors():
            self._connection = server.connect()
        try:
            with self._convert_errors():
                self._connection.execute(_DURABLE)
                with self._connection.transaction():
                    opened = target.open(self._connection, token)
        except BaseException:
            self._connection.close()
            raise
        self._columns = opened.columns
        self._epoch = opened.epoch
        self._last = opened.time

    def last(self) -> int | None:
        return None if self._last < 0 else self._last

    def write(self, time: int, changes: Changes) -> None:
        if time <= self._last:
            return
        with self._convert_errors():
            whole = None if changes.whole is None else self._rows_to_send(changes.whole)
            if whole is not None and whole.rows.num_rows <= _SMALL_ROWS:
                [rows] = whole.to_texts()
                self._apply(time, self._summarize([whole]), rows.to_pydict())
            else:
                with self._connection.transaction():
                    if self._may_write(time):
                        self._copy(time, changes)
        self._last = time

    def _rows_to_send(self, piece: pa.Table) -> RowsToSend:
        piece = replace_invalid_utf8(piece)  # before keys are compared: two may become equal
        sent = make_keyed_rows(piece, self._target.key) if self._target.key else make_counted_rows(piece)
        if sent is None:
            raise self._failure(_NOT_UNIQUE.format(key=", ".join(self._target.key)))
        return sent

    def _summarize(self, several: Iterable[RowsToSend]) -> Summary:
        summary = Summary()
        for sent in several:
            summary.add(sent, is_keyed=bool(self._target.key))
        return summary

    def close(self) -> None:
        self._connection.close()

    def _parameters(self, time: int, expected: int) -> dict[str, Any]:
        return {"token": self._token, "epoch": self._epoch, "time": time, "expected": expected}

    def _apply(self, time: int, summary: Summary, rows: Mapping[str, Any]) -> None:
        query = make_apply_statement(self._columns, summary, is_small=bool(rows))
        moved = self._connection.execute(query, {**self._parameters(time, summary.expected), **rows}).fetchone()
        if moved is None and self._may_write(time):
            raise self._failure("internal error: the transaction number was not updated; report it as a bug")

    def _copy(self, time: int, changes: Changes) -> None:
        """Copy piece by piece; directly into the table if no row is removed."""
        columns, rows_to_send = self._columns, map(self._rows_to_send, changes)
        if changes.is_addition:
            copied, expected = 0, 0
            for sent in rows_to_send:
                copied += self._copy_into(f"{columns.table} ({columns.listed})", sent.copies())
                expected += sent.expected
            self._connection.execute(make_number_update(columns, str(copied)), self._parameters(time, expected))
            return
        named = ", ".join(f"{quote(name)} AS c{at}" for at, name in enumerate(columns.names))
        empty_query = f"SELECT {named}, 0::bigint AS n, 0::bigint AS part FROM {columns.table} WITH NO DATA"
        self._connection.execute(f"CREATE TEMPORARY TABLE {CHANGES} ON COMMIT DROP AS {empty_query}", ())
        summary = self._summarize(self._copy_into_changes(rows_to_send))
        self._connection.execute(f"ANALYZE {CHANGES}")
        self._apply(time, summary, {})

    def _copy_into_changes(self, several: Iterable[RowsToSend]) -> Iterator[RowsToSend]:
        for sent in several:
            self._copy_into(CHANGES, sent.to_texts())
            yield sent

    def _copy_into(self, where: str, tables: Iterable[pa.Table]) -> int:
        with self._connection.cursor() as cursor:
            query = f"COPY {where} FROM STDIN (FORMAT csv)".replace("%%", "%")  # COPY has no parameters
            with cursor.copy(query) as copy:
                for rows in tables:
                    buffer = pa.BufferOutputStream()
                    csv.write_csv(rows, buffer, _CSV)
                    copy.write(buffer.getvalue())
            return cursor.rowcount

    def _may_write(self, time: int) -> bool:
        """False if the table already has the transaction. Locks the sink's row until the server's transaction ends."""
        query = f"SELECT time, epoch FROM {self._columns.numbers_table} WHERE token = %s FOR UPDATE"
        row = self._connection.execute(query, (self._token,)).fetchone()
        if row is None:
            why = (
                f"the sink's row in {self._target.numbers_table} is missing; restore it, or give the sink another name"
            )
            raise self._failure(why)
        if row[1] != self._epoch:
            raise self._failure("another process has opened the sink and continues; this process may no longer write")
        return bool(row[0] < time)

    def _failure(self, why: str) -> SinkFailed:
        where = f"{self._target.name} at {self._address.where}"
        return SinkFailed(sink=self.name, where=where, why=self._address.hide(why))

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            yield
        except UnusableTarget as misfit:
            raise self._failure(str(misfit)) from None
        except psycopg.Error as error:
            raise self._failure(self._explain(error)) from None  # the server's message may contain a secret
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise self._failure(f"a value cannot be written: {type(error).__name__}: {error}") from error

    def _explain(self, error: psycopg.Error) -> str:
        text = self._address.explain(error)
        if isinstance(error, errors.CheckViolation) and error.diag.constraint_name == LACKING:
            return "rows to be removed or updated are not in the table: another writer changed it"
        if isinstance(error, errors.UniqueViolation) and self._target.key:
            not_unique = _NOT_UNIQUE.format(key=", ".join(self._target.key))
            return f"{text}: another writer added the row, or {not_unique}"
        return next((f"{text}: {hint}" for kind, hint in _HINTS if isinstance(error, kind)), text)
