"""Check, create and open the table that a sink writes to, and the table that stores the transaction numbers.

    <schema>.evertide_sinks
        token     text, the key        the sink token
        sink      text                 the names of the sink and the collection, for people
        target    regclass, unique     the table; a dump has its name, so that both can be restored together
        time      bigint               the last transaction that the table has; -1 before the first
        epoch     bigint               how often the sink was opened: only the latest epoch may write
        lacking   bigint, always 0     rows that a transaction did not find: the constraint refuses the transaction
        written   timestamptz          the time of the last write

It is in the schema of the target table. The first sink there creates it; it has one row per sink.

1. Opening is one transaction: it creates the table and the row and increments the epoch, or changes nothing.
2. An existing table is used if it is empty and belongs to no other sink. Its columns must hold every value exactly, the
   key must have a unique index, and additional columns must not require a value.
3. After that the table must stay the same: the sink does not write to another table of the same name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa

from evertide.postgres import OLDEST_VERSION, TableName, find_unique_indexes, match_name
from evertide.sinks.postgres.statements import TargetColumns, quote
from evertide.sinks.postgres.types import TargetColumn, can_hold, choose_column_type

NUMBERS_TABLE = "evertide_sinks"
LACKING = "evertide_sinks_lacking"
_NULLS_NOT_DISTINCT = 150_000
"""The first version with unique constraints that treat NULLs as equal."""

_CREATE_NUMBERS_TABLE = """
CREATE TABLE IF NOT EXISTS {numbers_table} (
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


class UnusableTarget(Exception):
    """The target cannot be used; the text has the reason and what to do."""


@dataclass(frozen=True, slots=True)
class OpenedTarget:
    """What a session needs to write."""

    columns: TargetColumns
    epoch: int
    time: int


@dataclass(frozen=True, slots=True)
class _TableInfo:
    oid: int
    is_partitioned: bool
    is_owned: bool
    columns: dict[str, TargetColumn]


Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class TargetTable:
    sink: str
    collection: str
    schema: pa.Schema
    key: tuple[str, ...]
    name: TableName
    may_create: bool

    @property
    def numbers_table(self) -> TableName:
        return TableName(self.name.schema, NUMBERS_TABLE)

    def check(self, connection: Connection) -> None:
        """Check that a new sink can write to the target. Changes nothing."""
        if connection.info.server_version < OLDEST_VERSION:
            version = connection.info.server_version // 10_000
            raise UnusableTarget(f"the server runs PostgreSQL {version}; version 14 or newer is required")
        is_read_only, may_temp, user, may_create = _fetch_row(connection, _SERVER, (self.name.schema,))
        if is_read_only:
            why = f"the server accepts no writes: it is a standby, or user {user} has default_transaction_read_only"
            raise UnusableTarget(
                f"{why}; name the primary, or run ALTER ROLE {user} SET default_transaction_read_only = off"
            )
        if may_create is None:
            raise UnusableTarget(f"schema {self.name.schema} does not exist; run CREATE SCHEMA {self.name.schema}")
        if not may_temp:
            why = f"user {user} may not create temporary tables"
            raise UnusableTarget(f"{why}; run GRANT TEMPORARY ON DATABASE ... TO {user}")
        grant = f"GRANT CREATE ON SCHEMA {self.name.schema} TO {user}"
        numbers_table = self._find_table(connection, self.numbers_table, "SELECT, INSERT, UPDATE", user)
        if numbers_table is None and not may_create:
            raise UnusableTarget(
                f"user {user} may not create {self.numbers_table}, which stores the transaction number; run {grant}"
            )
        table = self._find_table(connection, self.name, "SELECT, INSERT, UPDATE, DELETE", user)
        if table is None:
            if not self.may_create:
                raise UnusableTarget(
                    f"table {self.name} does not exist; create it, or set the option 'create' to 'true'"
                )
            if not may_create:
                raise UnusableTarget(f"user {user} may not create {self.name}; run {grant}")
            return
        self._check_free(connection, table, has_numbers_table=numbers_table is not None)
        self._match_columns(connection, table)

    def open(self, connection: Connection, token: str) -> OpenedTarget:
        """Create what is missing, and fence earlier processes of the sink. Runs inside a transaction."""
        numbers_table = quote(self.name.schema, NUMBERS_TABLE)
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"evertide {self.numbers_table}",))
        connection.execute(_CREATE_NUMBERS_TABLE.format(numbers_table=numbers_table, lacking=LACKING), ())
        recorded = connection.execute(
            f"SELECT target::oid::bigint, time, epoch FROM {numbers_table} WHERE token = %s FOR UPDATE", (token,)
        ).fetchone()
        table = self._find_table(connection, self.name)
        if recorded is None:
            table = self._claim(connection, table)
            named = f"{self.sink} of {self.collection}"
            connection.execute(
                f"INSERT INTO {numbers_table} (token, sink, target, time, epoch) VALUES (%s, %s, %s::oid, -1, 0)",
                (token, named, table.oid),
            )
            recorded = (table.oid, -1, 0)
        if table is None or table.oid != recorded[0]:
            what = "does not exist any more" if table is None else "is not the table that the sink wrote to"
            raise UnusableTarget(f"{self.name} {what}; restore it, or give the sink another name and another table")
        columns = self._match_columns(connection, self._add_columns(connection, table))
        connection.execute(f"UPDATE {numbers_table} SET epoch = epoch + 1 WHERE token = %s", (token,))
        return OpenedTarget(columns, recorded[2] + 1, recorded[1])

    def _claim(self, connection: Connection, table: _TableInfo | None) -> _TableInfo:
        if table is not None:
            self._check_free(connection, table, has_numbers_table=True)
            return table
        if not self.may_create:
            raise UnusableTarget(f"table {self.name} does not exist; create it, or set the option 'create' to 'true'")
        self._create_table(connection)
        return self._find_table(connection, self.name) or self._refuse_dropped()

    def _refuse_dropped(self) -> _TableInfo:
        raise UnusableTarget(f"{self.name} was dropped while the sink was opened")

    def _create_table(self, connection: Connection) -> None:
        columns = [f"{quote(field.name)} {choose_column_type(field.type)}" for field in self.schema]
        if self.key:
            listed = ", ".join(quote(name) for name in self.key)
            nulls_clause = " NULLS NOT DISTINCT" if connection.info.server_version >= _NULLS_NOT_DISTINCT else ""
            has_nulls = any(self.schema.field(name).nullable for name in self.key)
            columns.append(f"UNIQUE{nulls_clause} ({listed})" if has_nulls else f"PRIMARY KEY ({listed})")
        table = quote(self.name.schema, self.name.table)
        connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})", ())
        comment = f"kept by Evertide: the collection {self.collection}".replace("'", "''").replace("%", "%%")
        connection.execute(f"COMMENT ON TABLE {table} IS '{comment}'", ())

    def _find_table(
        self, connection: Connection, name: TableName, rights: str = "", user: str = ""
    ) -> _TableInfo | None:
        """None if there is no such table. `UnusableTarget` if it cannot be written, or a privilege is missing."""
        asked = {"schema": name.schema, "table": name.table, "rights": rights.split(", ") if rights else []}
        row = connection.execute(_TABLE, asked).fetchone()
        if row is None:
            return None
        oid, relation_kind, persistence, is_owned, lacking = row
        if relation_kind not in ("r", "p") or persistence != "p":
            raise UnusableTarget(
                f"{name} is a view, or a foreign, temporary or unlogged table, which a sink cannot write to"
            )
        if lacking:
            raise UnusableTarget(f"user {user} lacks privileges; run GRANT {', '.join(lacking)} ON {name} TO {user}")
        found = [TargetColumn(*column) for column in connection.execute(_COLUMNS, (oid,)).fetchall()]
        return _TableInfo(oid, relation_kind == "p", is_owned, {column.name: column for column in found})

    def _check_free(self, connection: Connection, table: _TableInfo, *, has_numbers_table: bool) -> None:
        """Refuse a table of another sink, or with rows that this sink did not write."""
        if has_numbers_table:
            numbers_table = quote(self.name.schema, NUMBERS_TABLE)
            owner = connection.execute(
                f"SELECT sink FROM {numbers_table} WHERE target = %s::oid", (table.oid,)
            ).fetchone()
            if owner is not None:
                why = f"{self.name} is already the target of another sink, {owner[0]!r}"
                raise UnusableTarget(f"{why}; name another table, or drop this one first if that sink has ended")
        if connection.execute(f"SELECT 1 FROM {quote(self.name.schema, self.name.table)} LIMIT 1", ()).fetchone():
            raise UnusableTarget(f"{self.name} has rows that this sink did not write; name another table, or empty it")

    def _add_columns(self, connection: Connection, table: _TableInfo) -> _TableInfo:
        """Add the columns that the collection has gained."""
        missing = [field for field in self.schema if match_name(field.name, table.columns) is None]
        if not missing or not self.may_create:
            return table
        added = ", ".join(f"ADD COLUMN {quote(field.name)} {choose_column_type(field.type)}" for field in missing)
        if not table.is_owned:
            raise UnusableTarget(
                f"the collection has new columns, and the user may not add them; run ALTER TABLE {self.name} {added}"
            )
        connection.execute(f"ALTER TABLE {quote(self.name.schema, self.name.table)} {added}", ())
        return self._find_table(connection, self.name) or self._refuse_dropped()

    def _match_columns(self, connection: Connection, table: _TableInfo) -> TargetColumns:
        """Match the collection's columns to the table's."""
        found = [self._match_column(field, table) for field in self.schema]
        names = tuple(column.name for column in found)
        if len(set(names)) < len(names):
            raise UnusableTarget(
                f"{self.name} has one column for two of the collection, whose names differ only in case"
            )
        for column in table.columns.values():
            if column.needs_value and column.name not in names:
                why = f"column {column.name!r} of {self.name} requires a value, but the collection has no such column"
                raise UnusableTarget(f"{why}; give it a default, or allow NULL")
        columns = TargetColumns(
            quote(self.name.schema, self.name.table),
            quote(self.name.schema, NUMBERS_TABLE),
            names,
            tuple(column.cast for column in found),
            tuple(self.schema.names.index(name) for name in self.key),
        )
        if self.key:
            self._check_key(connection, table, {names[at] for at in columns.key})
            return columns
        if table.is_partitioned:
            raise UnusableTarget(
                f"{self.name} is partitioned, and the collection has no key; set the option 'key' to its columns"
            )
        leading = connection.execute(_LEADING, (table.oid,)).fetchone()
        return replace(columns, index=names.index(leading[0])) if leading and leading[0] in names else columns

    def _match_column(self, field: pa.Field, table: _TableInfo) -> TargetColumn:
        name = match_name(field.name, table.columns)
        created_type = choose_column_type(field.type)
        if name is None:
            listed = ", ".join(table.columns)
            why = f"{self.name} has no column {field.name!r}; it has {listed}"
            raise UnusableTarget(f"{why}; run ALTER TABLE {self.name} ADD COLUMN {quote(field.name)} {created_type}")
        column = table.columns[name]
        if not can_hold(column, field.type):
            why = f"column {name!r} of {self.name} is {column.shown}, which cannot hold every value of {field.type}"
            raise UnusableTarget(f"{why}; change its type to {created_type}, or cast the column in the view")
        if column.is_computed:
            raise UnusableTarget(
                f"column {name!r} of {self.name} is computed by the server and cannot be written; rename it with AS"
            )
        return column

    def _check_key(self, connection: Connection, table: _TableInfo, key: set[str]) -> None:
        if any(set(index.columns) <= key for index in find_unique_indexes(connection, table.oid)):
            return
        listed = ", ".join(sorted(key))
        why = f"{self.name} has no primary key or unique index on ({listed}), so several rows may have the same key"
        remedy = f"run CREATE UNIQUE INDEX ON {self.name} ({listed}), or set the option 'key' to the key that it has"
        raise UnusableTarget(f"{why}; {remedy}")


def _fetch_row(connection: Connection, query: str, values: tuple[Any, ...]) -> Any:
    return connection.execute(query, values).fetchone() or (None,) * 4
