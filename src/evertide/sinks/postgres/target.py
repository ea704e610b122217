"""The table that a sink writes to, and where its number lies: looked at before anything starts, made, and opened.

    <schema>.evertide_sinks
        token     text, the key        of the sink
        sink      text                 its name, and the collection's, for people
        target    regclass, unique     the table; a dump names it, so that both can be brought back together
        time      bigint               the last transaction that the table has; -1 before the first
        epoch     bigint               how often the sink was opened: only the last may write
        lacking   bigint, always 0     rows that a transaction did not find: the constraint refuses it
        written   timestamptz          when

It lies in the schema of the table, is made by the first sink there, and has a row for each of them.

1. Opening is one transaction: table, row and epoch are all there, or nothing is.
2. A table that is there is taken if it is empty and no other sink's. Its columns must hold every value exactly; with a
   key, a unique index must be on it. Columns of its own must not need a value.
3. Once it is ours, the table must stay the same one: another of the same name is told, not written to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa

from evertide.postgres import OLDEST_VERSION, TableName, find_unique_indexes, match_name
from evertide.sinks.postgres.statements import Columns, quoted
from evertide.sinks.postgres.types import TargetColumn, holds, made_type

__all__ = ["LACKING", "MARKS", "Misfit", "Opened", "Target"]

MARKS = "evertide_sinks"
LACKING = "evertide_sinks_lacking"
_NULLS_ALIKE = 150_000
"""From this version on a unique constraint can take NULLs for equal."""

_MAKE_MARKS = """
CREATE TABLE IF NOT EXISTS {marks} (
    token text PRIMARY KEY, sink text NOT NULL, target regclass NOT NULL UNIQUE,
    time bigint NOT NULL, epoch bigint NOT NULL,
    lacking bigint NOT NULL DEFAULT 0 CONSTRAINT {lacking} CHECK (lacking = 0),
    written timestamptz)"""
_TABLE = """
SELECT c.oid::bigint, c.relkind::text, c.relpersistence::text, pg_has_role(c.relowner, 'USAGE'),
    ARRAY(SELECT p FROM unnest(%(rights)s::text[]) p WHERE NOT has_table_privilege(c.oid, p))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %(schema)s AND c.relname = %(table)s"""
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.atttypmod, coalesce(e.typname, t.typname), e.oid IS NOT NULL,
    t.typtype = 'd', a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
    a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_LEADING = """
SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = %s AND i.indisvalid AND i.indpred IS NULL ORDER BY i.indexrelid LIMIT 1"""
_SERVER = """
SELECT current_setting('transaction_read_only') = 'on', has_database_privilege(current_database(), 'TEMP'),
    current_user, (SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %s)"""


class Misfit(Exception):
    """The target cannot be used: why, and what to do."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What a session writes with."""

    columns: Columns
    epoch: int
    time: int


@dataclass(frozen=True, slots=True)
class _Table:
    oid: int
    is_partitioned: bool
    is_owned: bool
    columns: dict[str, TargetColumn]


Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Target:
    sink: str
    collection: str
    schema: pa.Schema
    key: tuple[str, ...]
    name: TableName
    may_create: bool

    @property
    def marks(self) -> TableName:
        return TableName(self.name.schema, MARKS)

    def check(self, connection: Connection) -> None:
        """Whether a sink that is new can write there. Nothing is changed."""
        if connection.info.server_version < OLDEST_VERSION:
            raise Misfit(f"the server is {connection.info.server_version}: 14 or newer is needed")
        is_read_only, may_temp, user, may_create = _one(connection, _SERVER, (self.name.schema,))
        if is_read_only:
            why = f"nothing can be written there: it is a standby, or {user} has default_transaction_read_only"
            raise Misfit(f"{why}: name the primary, or ALTER ROLE {user} SET default_transaction_read_only = off")
        if may_create is None:
            raise Misfit(f"there is no schema {self.name.schema}: CREATE SCHEMA {self.name.schema}")
        if not may_temp:
            raise Misfit(f"the user {user} may not make temporary tables: GRANT TEMPORARY ON DATABASE ... TO {user}")
        grant = f"GRANT CREATE ON SCHEMA {self.name.schema} TO {user}"
        marks = self._found(connection, self.marks, "SELECT, INSERT, UPDATE", user)
        if marks is None and not may_create:
            raise Misfit(f"the user {user} may not make {self.marks}, which keeps the number: {grant}")
        table = self._found(connection, self.name, "SELECT, INSERT, UPDATE, DELETE", user)
        if table is None:
            if not self.may_create:
                raise Misfit(f"there is no table {self.name}: create it, or set the option 'create' to 'true'")
            if not may_create:
                raise Misfit(f"the user {user} may not make {self.name}: {grant}")
            return
        self._check_free(connection, table, has_marks=marks is not None)
        self._fitted(connection, table)

    def open(self, connection: Connection, token: str) -> Opened:
        """Make what is missing, and shut out whoever opened it before. In a transaction."""
        marks = quoted(self.name.schema, MARKS)
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"evertide {self.marks}",))
        connection.execute(_MAKE_MARKS.format(marks=marks, lacking=LACKING), ())
        mark = connection.execute(
            f"SELECT target::oid::bigint, time, epoch FROM {marks} WHERE token = %s FOR UPDATE", (token,)
        ).fetchone()
        table = self._found(connection, self.name)
        if mark is None:
            table = self._new(connection, table)
            named = f"{self.sink} of {self.collection}"
            connection.execute(
                f"INSERT INTO {marks} (token, sink, target, time, epoch) VALUES (%s, %s, %s::oid, -1, 0)",
                (token, named, table.oid),
            )
            mark = (table.oid, -1, 0)
        if table is None or table.oid != mark[0]:
            what = "is gone" if table is None else "is another table than the one that was written to"
            raise Misfit(f"{self.name} {what}: bring it back; or give the sink another name, and another table")
        columns = self._fitted(connection, self._widened(connection, table))
        connection.execute(f"UPDATE {marks} SET epoch = epoch + 1 WHERE token = %s", (token,))
        return Opened(columns, mark[2] + 1, mark[1])

    def _new(self, connection: Connection, table: _Table | None) -> _Table:
        if table is not None:
            self._check_free(connection, table, has_marks=True)
            return table
        if not self.may_create:
            raise Misfit(f"there is no table {self.name}: create it, or set the option 'create' to 'true'")
        self._make(connection)
        return self._found(connection, self.name) or self._gone()

    def _gone(self) -> _Table:
        raise Misfit(f"{self.name} was dropped while it was made")

    def _make(self, connection: Connection) -> None:
        columns = [f"{quoted(field.name)} {made_type(field.type)}" for field in self.schema]
        if self.key:
            listed = ", ".join(quoted(name) for name in self.key)
            alike = " NULLS NOT DISTINCT" if connection.info.server_version >= _NULLS_ALIKE else ""
            has_nulls = any(self.schema.field(name).nullable for name in self.key)
            columns.append(f"UNIQUE{alike} ({listed})" if has_nulls else f"PRIMARY KEY ({listed})")
        table = quoted(self.name.schema, self.name.table)
        connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})", ())
        said = f"kept by Evertide: the collection {self.collection}".replace("'", "''").replace("%", "%%")
        connection.execute(f"COMMENT ON TABLE {table} IS '{said}'", ())

    def _found(self, connection: Connection, name: TableName, rights: str = "", user: str = "") -> _Table | None:
        """None if it is not there. `Misfit` if it is no table that can be written, or a right is missing."""
        asked = {"schema": name.schema, "table": name.table, "rights": rights.split(", ") if rights else []}
        row = connection.execute(_TABLE, asked).fetchone()
        if row is None:
            return None
        oid, relation_kind, persistence, is_owned, lacking = row
        if relation_kind not in ("r", "p") or persistence != "p":
            raise Misfit(f"{name} is no ordinary table: views, foreign, temporary and unlogged tables are not written")
        if lacking:
            raise Misfit(f"the user {user} lacks rights: GRANT {', '.join(lacking)} ON {name} TO {user}")
        found = [TargetColumn(*column) for column in connection.execute(_COLUMNS, (oid,)).fetchall()]
        return _Table(oid, relation_kind == "p", is_owned, {column.name: column for column in found})

    def _check_free(self, connection: Connection, table: _Table, *, has_marks: bool) -> None:
        """It never takes over what it did not write."""
        if has_marks:
            marks = quoted(self.name.schema, MARKS)
            owner = connection.execute(f"SELECT sink FROM {marks} WHERE target = %s::oid", (table.oid,)).fetchone()
            if owner is not None:
                why = f"{self.name} is the target of another sink already, {owner[0]!r}"
                raise Misfit(f"{why}: name a table of its own; if that one is given up, drop its table first")
        if connection.execute(f"SELECT 1 FROM {quoted(self.name.schema, self.name.table)} LIMIT 1", ()).fetchone():
            raise Misfit(f"{self.name} holds rows that this sink did not write: name a table of its own, or empty it")

    def _widened(self, connection: Connection, table: _Table) -> _Table:
        """With the columns that the collection got since."""
        missing = [field for field in self.schema if match_name(field.name, table.columns) is None]
        if not missing or not self.may_create:
            return table
        added = ", ".join(f"ADD COLUMN {quoted(field.name)} {made_type(field.type)}" for field in missing)
        if not table.is_owned:
            raise Misfit(
                f"the collection has new columns, and the user may not add them: ALTER TABLE {self.name} {added}"
            )
        connection.execute(f"ALTER TABLE {quoted(self.name.schema, self.name.table)} {added}", ())
        return self._found(connection, self.name) or self._gone()

    def _fitted(self, connection: Connection, table: _Table) -> Columns:
        """How the collection's columns are written."""
        found = [self._column(field, table) for field in self.schema]
        names = tuple(column.name for column in found)
        if len(set(names)) < len(names):
            raise Misfit(f"{self.name} has one column for two of the collection, whose names differ in case alone")
        for column in table.columns.values():
            if column.needs_value and column.name not in names:
                why = f"the column {column.name!r} of {self.name} needs a value, and the collection has none for it"
                raise Misfit(f"{why}: give it a default, or let it be NULL")
        columns = Columns(
            quoted(self.name.schema, self.name.table),
            quoted(self.name.schema, MARKS),
            names,
            tuple(column.cast for column in found),
            tuple(self.schema.names.index(name) for name in self.key),
        )
        if self.key:
            self._check_key(connection, table, {names[at] for at in columns.key})
            return columns
        if table.is_partitioned:
            raise Misfit(f"{self.name} is partitioned, and the collection has no key: name its columns as 'key'")
        leading = connection.execute(_LEADING, (table.oid,)).fetchone()
        return replace(columns, index=names.index(leading[0])) if leading and leading[0] in names else columns

    def _column(self, field: pa.Field, table: _Table) -> TargetColumn:
        name = match_name(field.name, table.columns)
        made = made_type(field.type)
        if name is None:
            listed = ", ".join(table.columns)
            why = f"{self.name} has no column {field.name!r}; its columns are {listed}"
            raise Misfit(f"{why}: ALTER TABLE {self.name} ADD COLUMN {quoted(field.name)} {made}")
        column = table.columns[name]
        if not holds(column, field.type):
            why = f"the column {name!r} of {self.name} is {column.shown}, which cannot hold every value of {field.type}"
            raise Misfit(f"{why}: it should be {made}; or cast it in the view")
        if column.is_computed:
            raise Misfit(f"the column {name!r} of {self.name} is computed by the server, and cannot be written")
        return column

    def _check_key(self, connection: Connection, table: _Table, key: set[str]) -> None:
        if any(set(index.columns) <= key for index in find_unique_indexes(connection, table.oid)):
            return
        listed = ", ".join(sorted(key))
        why = f"{self.name} has no primary key or unique index on ({listed}): its rows are not told apart by that"
        raise Misfit(f"{why}; CREATE UNIQUE INDEX ON {self.name} ({listed}), or name the key that it has as 'key'")


def _one(connection: Connection, query: str, values: tuple[Any, ...]) -> Any:
    return connection.execute(query, values).fetchone() or (None,) * 4
