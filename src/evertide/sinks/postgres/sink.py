"""The PostgreSQL sink: a table that holds what the collection holds, exactly once.

    url or libpq's own options (`evertide.postgres`), table 'schema.name', create 'true' | 'false'

Each transaction is one transaction of the server, in which rows go, change and come, and our number moves with them
(`target` says where it lies, `statements` how).

1. *Open* makes what is missing and counts the epoch up, in one transaction. Whoever opened the sink before finds
   another epoch when it writes, and is refused by the server, however late it wakes. What it had begun is waited for.
2. *Write* compares number and epoch under the row's lock. Few rows are one statement, and one round trip. Many are
   copied into a temporary table first; if all are additions, into the table itself. A large transaction is copied
   piece by piece.
3. Whatever goes wrong ends the session (`SinkFailed`). The next one opens, and reads the number back: a COMMIT whose
   answer was lost is known by it (I14).
4. The server's answer means that it is on disk: where `synchronous_commit` is off, it is set to on.
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
from evertide.postgres import Address, Server, TableName, read_address
from evertide.secrets import Secrets
from evertide.sinks.contract import Changes, Prepared, SinkDeclaration
from evertide.sinks.postgres.statements import (
    CHANGES,
    Sent,
    Summary,
    apply_statement,
    by_copies,
    by_key,
    move_statement,
    quoted,
)
from evertide.sinks.postgres.target import LACKING, MARKS, Misfit, Target
from evertide.sinks.postgres.types import made_type

__all__ = ["PostgresSink", "prepare_postgres"]

_SMALL_ROWS = 1_000
_NAME_BYTES = 63
_SYSTEM = ("ctid", "cmax", "cmin", "tableoid", "xmax", "xmin")
_SESSION = (
    "-c lock_timeout=20s -c default_transaction_isolation=read\\ committed -c tcp_keepalives_idle=30"
    " -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"
)
"""What somebody else locks is told and tried again; a client that vanished does not hold the row for hours."""
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
_CSV = csv.WriteOptions(include_header=False, quoting_style="all_valid")
_NOT_APART = "the key ({key}) does not tell the rows apart: name other columns, or none"
_MEANINGS: tuple[tuple[type[psycopg.Error], str], ...] = (
    (errors.LockNotAvailable, "somebody else holds a lock there; pg_locks shows who"),
    (errors.CharacterNotInRepertoire, "PostgreSQL's texts have no U+0000: take it out in the view, by replace"),
    (errors.UntranslatableCharacter, "PostgreSQL's texts have no U+0000: take it out in the view, by replace"),
    (errors.InsufficientPrivilege, "GRANT the user what it lacks"),
    (errors.UndefinedTable, "bring it back; or give the sink another name, and another table"),
)


def prepare_postgres(declaration: SinkDeclaration) -> Prepared:
    secrets = Secrets(declaration.base)
    options = declaration.read_options(secrets)
    parts = read_address(options)
    text = options.required("table", "public.revenue")
    may_create = options.boolean("create", default=True)
    options.check_unknown()
    name = TableName.parse(text)
    if name is None or name.table == MARKS:
        raise options.refusal("table", f"is {text!r}: expected, say, 'public.revenue'")
    for field in declaration.schema:
        _check_column(field, options.where)
    address = Address.of(parts, secrets.hide, declaration.name, options.where, _SESSION)
    target = Target(
        declaration.name, declaration.collection, declaration.schema, declaration.key, name, may_create=may_create
    )
    return Prepared(
        lambda token: PostgresSink(Server(address), target, token),
        lambda: _probe(Server(address), target, options.where),
    )


def _check_column(field: pa.Field, where: str) -> None:
    if len(field.name.encode()) > _NAME_BYTES or field.name in _SYSTEM:
        why = f"the column {field.name!r} has a name that a PostgreSQL table cannot have: give it another by AS"
        raise InvalidInput(where=where, why=why)
    if made_type(field.type) is None:
        why = f"the column {field.name!r} is of type {field.type}, which a PostgreSQL table cannot hold: cast it"
        raise InvalidInput(where=where, why=why)


def _probe(server: Server, target: Target, where: str) -> None:
    place = f"{where}, {server.address.where}"
    try:
        with server.connect() as connection:
            target.check(connection)
    except Misfit as misfit:
        raise InvalidInput(where=place, why=server.address.hide(str(misfit))) from None
    except psycopg.Error as error:
        raise InvalidInput(where=place, why=server.address.explain(error)) from None


class PostgresSink:
    remembers = True

    def __init__(self, server: Server, target: Target, token: str) -> None:
        self.name = target.sink
        self._address = server.address
        self._target = target
        self._token = token
        with self._told():
            self._connection = server.connect()
        try:
            with self._told():
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
        with self._told():
            whole = None if changes.whole is None else self._sent(changes.whole)
            if whole is not None and whole.rows.num_rows <= _SMALL_ROWS:
                [rows] = whole.texts()
                self._apply(time, self._summary([whole]), rows.to_pydict())
            else:
                with self._connection.transaction():
                    if self._is_ours_to_write(time):
                        self._copy(time, changes)
        self._last = time

    def _sent(self, piece: pa.Table) -> Sent:
        sent = by_key(piece, self._target.key) if self._target.key else by_copies(piece)
        if sent is None:
            raise self._failed(_NOT_APART.format(key=", ".join(self._target.key)))
        return sent

    def _summary(self, several: Iterable[Sent]) -> Summary:
        made = Summary()
        for sent in several:
            made.take(sent, is_keyed=bool(self._target.key))
        return made

    def close(self) -> None:
        self._connection.close()

    def _given(self, time: int, expected: int) -> dict[str, Any]:
        return {"token": self._token, "epoch": self._epoch, "time": time, "expected": expected}

    def _apply(self, time: int, summary: Summary, rows: Mapping[str, Any]) -> None:
        query = apply_statement(self._columns, summary, is_small=bool(rows))
        moved = self._connection.execute(query, {**self._given(time, summary.expected), **rows}).fetchone()
        if moved is None and self._is_ours_to_write(time):
            raise self._failed("the number was not moved, and nobody else did: a bug")

    def _copy(self, time: int, changes: Changes) -> None:
        """Piece by piece. Rows go straight into the table if none is removed."""
        columns, sents = self._columns, map(self._sent, changes)
        if changes.is_addition:
            copied, expected = 0, 0
            for sent in sents:
                copied += self._copy_into(f"{columns.table} ({columns.listed})", sent.copies())
                expected += sent.expected
            self._connection.execute(move_statement(columns, str(copied)), self._given(time, expected))
            return
        named = ", ".join(f"{quoted(name)} AS c{at}" for at, name in enumerate(columns.names))
        alike = f"SELECT {named}, 0::bigint AS n, 0::bigint AS part FROM {columns.table} WITH NO DATA"
        self._connection.execute(f"CREATE TEMPORARY TABLE {CHANGES} ON COMMIT DROP AS {alike}", ())
        summary = self._summary(self._copied_into_changes(sents))
        self._connection.execute(f"ANALYZE {CHANGES}")
        self._apply(time, summary, {})

    def _copied_into_changes(self, several: Iterable[Sent]) -> Iterator[Sent]:
        for sent in several:
            self._copy_into(CHANGES, sent.texts())
            yield sent

    def _copy_into(self, where: str, tables: Iterable[pa.Table]) -> int:
        with self._connection.cursor() as cursor:
            query = f"COPY {where} FROM STDIN (FORMAT csv)".replace("%%", "%")  # it has no parameters
            with cursor.copy(query) as copy:
                for rows in tables:
                    buffer = pa.BufferOutputStream()
                    csv.write_csv(rows, buffer, _CSV)
                    copy.write(buffer.getvalue())
            return cursor.rowcount

    def _is_ours_to_write(self, time: int) -> bool:
        """False if the table has it. Nobody else can say so until our transaction ends."""
        query = f"SELECT time, epoch FROM {self._columns.marks} WHERE token = %s FOR UPDATE"
        row = self._connection.execute(query, (self._token,)).fetchone()
        if row is None:
            raise self._failed(
                f"its number in {self._target.marks} is gone: bring it back, or give the sink another name"
            )
        if row[1] != self._epoch:
            raise self._failed("it was opened by another process since, which goes on: this one may write no more")
        return bool(row[0] < time)

    def _failed(self, why: str) -> SinkFailed:
        where = f"{self._target.name} at {self._address.where}"
        return SinkFailed(sink=self.name, where=where, why=self._address.hide(why))

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except Misfit as misfit:
            raise self._failed(str(misfit)) from None
        except psycopg.Error as error:
            raise self._failed(self._meant(error)) from None  # what the server said may hold a secret
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise self._failed(f"a value cannot be written: {type(error).__name__}: {error}") from error

    def _meant(self, error: psycopg.Error) -> str:
        said = self._address.explain(error)
        if isinstance(error, errors.CheckViolation) and error.diag.constraint_name == LACKING:
            return "rows that are to be removed or changed are not in the table: somebody else changed it"
        if isinstance(error, errors.UniqueViolation) and self._target.key:
            apart = _NOT_APART.format(key=", ".join(self._target.key))
            return f"{said}: somebody else added the row, or {apart}"
        return next((f"{said}: {what}" for kind, what in _MEANINGS if isinstance(error, kind)), said)
