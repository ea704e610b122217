"""Check that a server can feed the declared tables, before the pipeline starts and at each connection.

1. The server has version 14 or newer, `wal_level` logical, and a user that may replicate.
2. The table exists, is ordinary or partitioned, and is logged; it has every declared column, with a type that fits. The
   key is unique, and part of the replica identity, so that deletes contain it. A table without a key needs all columns
   in the identity.
3. The publication, if it exists, has the whole table and publishes all operations. If not, the user may create it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from evertide.errors import InvalidInput
from evertide.postgres import OLDEST_VERSION, TableName, UniqueIndex, find_unique_indexes, match_name
from evertide.sources.contract import TableDeclaration
from evertide.sources.postgres.partitions import TablePartition
from evertide.sources.postgres.server import find_slot
from evertide.sources.postgres.types import PgType, can_convert
from evertide.sources.values.kinds import sql_name

_UNLIKE_ARRAYS = ("int2vector", "oidvector")
_COLUMNS = (
    "SELECT attname, atttypid::bigint, atttypmod, attgenerated FROM pg_attribute"
    " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
_TYPE = (
    "SELECT typname, typtype, typbasetype::bigint, typelem::bigint, typcategory, typdelim, format_type(oid, NULL)"
    " FROM pg_type WHERE oid = %s"
)
_PARTITIONS = (
    "WITH tree AS (SELECT relid, isleaf FROM pg_partition_tree(%(table)s::oid::regclass) WHERE relid <> %(table)s::oid)"
    " SELECT c.oid::bigint, c.relfilenode::bigint, c.oid::regclass::text,"
    " (SELECT i.xmin::text::bigint FROM pg_inherits i JOIN tree ON tree.relid = i.inhrelid"
    " WHERE i.inhrelid IN (SELECT pg_partition_ancestors(c.oid)) ORDER BY age(i.xmin) LIMIT 1), c.xmin::text::bigint"
    " FROM tree t JOIN pg_class c ON c.oid = t.relid WHERE t.isleaf"
)
_MAY_READ = "SELECT has_table_privilege(%s::oid, 'SELECT')"
_OLDER = (
    "SELECT EXISTS (SELECT FROM ONLY {partition} r WHERE ctid < '(1024,0)'"
    " AND (age(r.xmin) > age('{xid}'::xid) OR (r.xmin = '{xid}'::xid AND r.cmin::text::bigint <"
    " (SELECT max(cmin::text::bigint) FROM pg_inherits WHERE inhrelid = {oid} AND xmin = '{xid}'::xid))))"
)
"""Whether a partition has rows older than its attachment; such rows lie at the beginning of its file."""
_TABLE = (
    "SELECT c.oid::bigint, c.relkind, c.relpersistence, c.relreplident,"
    " has_table_privilege(c.oid, 'SELECT') OR has_any_column_privilege(c.oid, 'SELECT'),"
    " pg_has_role(c.relowner, 'USAGE')"
    " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"
)


@dataclass(frozen=True, slots=True)
class RemoteColumn:
    """A declared column and the upstream column that it is read from."""

    name: str
    remote: str
    kind: Any
    type: PgType
    signature: str
    """Type and modifier as the stream has them; a different signature means a different column."""
    is_key: bool
    is_nullable: bool


@dataclass(frozen=True, slots=True)
class UpstreamTable:
    declaration: TableDeclaration
    name: TableName
    columns: tuple[RemoteColumn, ...]
    is_partitioned: bool
    partitions: tuple[TablePartition, ...] = ()
    """The leaf partitions."""


@dataclass(frozen=True, slots=True)
class _CatalogTable:
    oid: int
    is_partitioned: bool
    identity: str
    is_owned: bool


def check_server(connection: psycopg.Connection[Any], slot: str, where: str) -> None:
    if connection.info.server_version < OLDEST_VERSION:
        version = connection.info.server_version // 10_000
        raise InvalidInput(where=where, why=f"the server runs PostgreSQL {version}; version 14 or newer is required")
    level = _fetch_row(connection, "SHOW wal_level")[0]
    if level != "logical":
        why = f"wal_level is {level!r}; run ALTER SYSTEM SET wal_level = 'logical' and restart the server"
        raise InvalidInput(where=where, why=why)
    encoding = _fetch_row(connection, "SHOW server_encoding")[0]
    if encoding == "SQL_ASCII":
        why = (
            "the database has the encoding SQL_ASCII, which does not define characters; use one with UTF8, for example"
        )
        raise InvalidInput(where=where, why=why)
    found = find_slot(connection, slot)
    database = _fetch_row(connection, "SELECT current_database()")[0]
    if found is not None and (found.plugin != "pgoutput" or found.database != database):
        why = f"replication slot {slot!r} belongs to plugin {found.plugin!r} in database {found.database!r}"
        raise InvalidInput(where=where, why=f"{why}; set the option 'slot' to another name")


def check_tables(
    connection: psycopg.Connection[Any],
    tables: Sequence[tuple[TableDeclaration, TableName]],
    publication: str,
) -> list[UpstreamTable]:
    """Raises `InvalidInput`, which says what to do."""
    upstreams = []
    for declaration, name in tables:
        where = declaration.place
        table = _read_table(connection, name, where)
        columns = _read_columns(connection, declaration, table, name, where)
        _check_identity(connection, declaration, table, name, columns, where)
        _check_publication(connection, publication, table, name, columns, where)
        asked = {"table": table.oid}
        found = connection.execute(_PARTITIONS, asked).fetchall() if table.is_partitioned else ()
        partitions = tuple(TablePartition(*row) for row in found)
        upstreams.append(UpstreamTable(declaration, name, columns, table.is_partitioned, partitions))
    return upstreams


def has_older_rows(connection: psycopg.Connection[Any], partition: TablePartition) -> bool | None:
    """Whether a partition has rows that were written before it was attached; None if the user may not read it."""
    if not _fetch_row(connection, _MAY_READ, (partition.oid,))[0]:
        return None
    query = _OLDER.format(partition=partition.name, xid=partition.attached, oid=partition.oid)
    row = connection.execute(query.encode()).fetchone()
    return row is not None and bool(row[0])


def _fetch_row(connection: psycopg.Connection[Any], query: str, values: Sequence[Any] = ()) -> Any:
    row = connection.execute(query, values or None).fetchone()
    return row or (None,)


def _read_table(connection: psycopg.Connection[Any], name: TableName, where: str) -> _CatalogTable:
    row = connection.execute(_TABLE, (name.schema, name.table)).fetchone()
    if row is None:
        raise InvalidInput(where=where, why=f"the server has no table {name}; create it, or correct the option 'table'")
    oid, relation_kind, persistence, identity, is_readable, is_owned = row
    if relation_kind not in ("r", "p") or persistence != "p":
        why = f"PostgreSQL does not replicate {name}, as it is a view, or a foreign, temporary or unlogged table"
        raise InvalidInput(where=where, why=why)
    if not is_readable:
        raise InvalidInput(where=where, why=f"the user may not read {name}; run GRANT SELECT ON {name} TO the user")
    return _CatalogTable(oid, relation_kind == "p", identity, is_owned)


def _read_columns(
    connection: psycopg.Connection[Any],
    declaration: TableDeclaration,
    table: _CatalogTable,
    name: TableName,
    where: str,
) -> tuple[RemoteColumn, ...]:
    rows = connection.execute(_COLUMNS, (table.oid,)).fetchall()
    there = {row[0]: row for row in rows}
    found = []
    for field in declaration.schema:
        remote = match_name(field.name, there)
        if remote is None:
            listed = ", ".join(there)
            raise InvalidInput(where=where, why=f"{name} has no column {field.name!r}; it has {listed}")
        _, oid, modifier, generated = there[remote]
        if generated:
            why = (
                f"PostgreSQL does not replicate the generated column {field.name!r}; omit it, and compute it in a view"
            )
            raise InvalidInput(where=where, why=why)
        made = _read_type(connection, oid)
        if not can_convert(made, field.type):
            why = f"column {field.name!r} of {name} is {made.shown}, which {sql_name(field.type)} cannot hold"
            raise InvalidInput(where=where, why=f"{why}; STRING holds any type")
        is_key = field.name in declaration.key
        found.append(
            RemoteColumn(
                field.name, remote, field.type, made, f"{oid}:{modifier}", is_key, field.nullable and not is_key
            )
        )
    return tuple(found)


def _read_type(connection: psycopg.Connection[Any], oid: int) -> PgType:
    name, kind, base, element, category, delimiter, shown = _fetch_row(connection, _TYPE, (oid,))
    if kind == "d":
        return _read_type(connection, base)
    if category == "A" and element and name not in _UNLIKE_ARRAYS:
        inner = _read_type(connection, element)
        return PgType(name, shown, inner, _fetch_row(connection, _TYPE, (element,))[5])
    return PgType(name, shown, None, delimiter)


def _check_identity(  # noqa: PLR0917
    connection: psycopg.Connection[Any],
    declaration: TableDeclaration,
    table: _CatalogTable,
    name: TableName,
    columns: Sequence[RemoteColumn],
    where: str,
) -> None:
    key = {column.remote for column in columns if column.is_key}
    full = f"ALTER TABLE {name} REPLICA IDENTITY FULL"
    if not declaration.key:
        if table.identity != "f":
            why = "the table is declared without a PRIMARY KEY, so upstream deletes must contain whole rows"
            raise InvalidInput(where=where, why=f"{why}; run {full}, or declare the key")
        return
    indexes = find_unique_indexes(connection, table.oid)
    listed = ", ".join(sorted(key))
    if not any(set(index.columns) <= key for index in indexes):
        why = f"{name} has no primary key or unique index on ({listed}), so several rows may have the same key"
        raise InvalidInput(where=where, why=f"{why}; declare the key that {name} has, or create a unique index")
    identity = {name for names in _identity(table, indexes) for name in names}
    if table.identity != "f" and not key <= identity:
        why = f"the replica identity of {name} lacks the key ({listed}), so deletes would not contain the key"
        raise InvalidInput(where=where, why=f"{why}; run {full}, or REPLICA IDENTITY USING INDEX with an index on it")


def _identity(table: _CatalogTable, indexes: Sequence[UniqueIndex]) -> list[Sequence[str]]:
    if table.identity == "d":
        return [index.columns for index in indexes if index.is_primary]
    return [index.columns for index in indexes if index.is_identity] if table.identity == "i" else []


def _check_publication(  # noqa: PLR0917
    connection: psycopg.Connection[Any],
    publication: str,
    table: _CatalogTable,
    name: TableName,
    columns: Sequence[RemoteColumn],
    where: str,
) -> None:
    row = connection.execute(
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot FROM pg_publication"
        " WHERE pubname = %s",
        (publication,),
    ).fetchone()
    if row is None:
        _check_may_publish(connection, publication, table, name, where)
        return
    if not row[0]:
        setting = "publish = 'insert, update, delete, truncate'"
        why = f"publication {publication!r} does not publish all operations"
        raise InvalidInput(where=where, why=f"{why}; run ALTER PUBLICATION {publication} SET ({setting})")
    if table.is_partitioned and not row[1]:
        setting = "publish_via_partition_root = true"
        why = f"{name} is partitioned, and publication {publication!r} publishes its partitions separately"
        raise InvalidInput(where=where, why=f"{why}; run ALTER PUBLICATION {publication} SET ({setting})")
    has = connection.execute(
        "SELECT to_jsonb(t) -> 'attnames', to_jsonb(t) ->> 'rowfilter' FROM pg_publication_tables t"
        " WHERE pubname = %s AND schemaname = %s AND tablename = %s",
        (publication, name.schema, name.table),
    ).fetchone()
    if has is None:
        why = f"publication {publication!r} lacks {name}; run ALTER PUBLICATION {publication} ADD TABLE {name}"
        raise InvalidInput(where=where, why=why)
    missing = [column.remote for column in columns if has[0] is not None and column.remote not in has[0]]
    if missing or has[1] is not None:
        what = f"the columns {', '.join(missing)}" if missing else f"the rows without {has[1]}"
        why = f"publication {publication!r} omits {what} of {name}"
        raise InvalidInput(where=where, why=f"{why}; publish the whole table, or set the option 'publication'")


def _check_may_publish(
    connection: psycopg.Connection[Any], publication: str, table: _CatalogTable, name: TableName, where: str
) -> None:
    may = _fetch_row(connection, "SELECT has_database_privilege(current_database(), 'CREATE')")[0]
    if not may or not table.is_owned:
        why = f"publication {publication!r} does not exist, and the user may not create it for {name}"
        raise InvalidInput(
            where=where, why=f"{why}; let the owner run CREATE PUBLICATION {publication} FOR TABLE {name}"
        )
