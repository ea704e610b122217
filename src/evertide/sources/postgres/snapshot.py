"""Read the content of the tables at the time when the slot is created, without a gap or overlap to the stream.

The server creates the slot and a snapshot in one step: the snapshot has exactly the transactions that the slot does not
send. All tables are read in it, by COPY, in chunks. It lasts as long as the connections; if they end before all is
read, slot and snapshot are created again, and the tables start empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from evertide.postgres import TableName
from evertide.sources.contract import TRUNCATE, UPSERT
from evertide.sources.postgres.catalog import UpstreamTable
from evertide.sources.postgres.messages import parse_lsn
from evertide.sources.postgres.rows import make_staged_table
from evertide.sources.postgres.server import SourceServer
from evertide.sources.postgres.transactions import BufferLimits

_XIDS = 1 << 32
_LAST_XIDS = 64
_CSV = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)


@dataclass(frozen=True, slots=True)
class InitialSnapshot:
    lsn: int
    """The position from which the stream continues."""
    connection: psycopg.Connection[Any]
    """Sees the tables as of `lsn`."""
    xids: tuple[int, ...]
    """The last transactions that the snapshot contains, as clients may wait for them."""


def ensure_publication(connection: psycopg.Connection[Any], publication: str, tables: list[TableName]) -> None:
    found = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (publication,)).fetchone()
    if found is None:
        listed = sql.SQL(", ").join(table.identifier for table in tables)
        made = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)")
        connection.execute(made.format(sql.Identifier(publication), listed))


@contextmanager
def create_slot(server: SourceServer, slot: str, busy: list[psycopg.Connection[Any]]) -> Iterator[InitialSnapshot]:
    """Create the slot, replacing an existing one: the journal says that it is the source's, and that nothing was read.

    The server first waits for all open transactions. `busy` gets the connections, so that `Receiver.stop` can cancel.
    """
    with server.connect_for_replication() as maker, server.connect() as reader:
        busy[:] = [maker, reader]
        if reader.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (slot,)).fetchone():
            reader.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        command = sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput EXPORT_SNAPSHOT").format(sql.Identifier(slot))
        made = maker.execute(command).fetchone()
        assert made is not None  # noqa: S101 - the command answers with one row, or fails
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        reader.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(made[2])))
        seen = reader.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert seen is not None  # noqa: S101
        yield InitialSnapshot(parse_lsn(made[1]), reader, _last_xids(seen[0]))


def _last_xids(snapshot: str) -> tuple[int, ...]:
    """The transactions before `xmax` that were not open, from `xmin:xmax:open,open`; in 32 bits, as in the stream."""
    _, xmax, listed = snapshot.split(":")
    is_open = {int(xid) for xid in listed.split(",") if xid}
    return tuple(xid % _XIDS for xid in range(max(0, int(xmax) - _LAST_XIDS), int(xmax)) if xid not in is_open)


def read_chunks(snapshot: InitialSnapshot, upstream: UpstreamTable, limits: BufferLimits) -> Iterator[pa.Table]:
    """Yield the rows of a table, ready to stage. The first chunk truncates the table."""
    names = sql.SQL(", ").join(sql.Identifier(column.remote) for column in upstream.columns)
    only = sql.SQL("" if upstream.is_partitioned else "ONLY ")  # a publication does not include inherited tables
    query = sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT (FORMAT csv)").format(names, only, upstream.name.identifier)
    is_first = True
    waiting: list[bytes] = []
    size = 0
    with snapshot.connection.cursor() as cursor, cursor.copy(query) as copy:
        for row in copy:
            waiting.append(bytes(row))
            size += len(waiting[-1])
            if len(waiting) >= limits.rows or size >= limits.bytes:
                yield _chunk(upstream, waiting, is_first=is_first)
                is_first, waiting, size = False, [], 0
    if waiting or is_first:
        yield _chunk(upstream, waiting, is_first=is_first)


def _chunk(upstream: UpstreamTable, rows: list[bytes], *, is_first: bool) -> pa.Table:
    texts = _texts(upstream, rows)
    ops = np.full(len(rows) + is_first, UPSERT, np.int8)
    if is_first:
        ops[0] = TRUNCATE
        texts = [pa.concat_arrays([pa.nulls(1, pa.string()), column]) for column in texts]
    return make_staged_table(upstream, texts, ops, {}, {}, "initial snapshot")


def _texts(upstream: UpstreamTable, rows: list[bytes]) -> list[Any]:
    """Parse the CSV. An empty text is quoted, NULL is not."""
    names = [str(at) for at in range(len(upstream.columns))]
    if not rows:
        return [pa.array([], pa.string()) for _ in names]
    content = b"".join(rows)
    read = csv.read_csv(
        pa.py_buffer(content),
        csv.ReadOptions(use_threads=False, column_names=names, block_size=len(content) + 1),
        _CSV,
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [column.combine_chunks() for column in read.columns]
