"""Serves shapes of any table of a PostgreSQL database, as Electric's server does: tests create tables while it runs.

Evertide's tables are declared by a script. So `GET /follow?table=NAME`, which the tests send when they have created a
table, or the first other request for it, starts a pipeline that follows it, without Spark and in memory.

Electric reads the database when a shape begins, while Evertide follows it: a request that begins a shape waits until
the pipeline has what was committed before. For that, each pipeline also follows the table `evertide_marks`, into which
the server then writes a row.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import anyio.to_thread
import psycopg
import pyarrow as pa
from psycopg import sql
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from evertide.pipeline.engine import DeclaredTable
from evertide.runtime import SystemRuntime
from evertide.server.app import make_app
from evertide.server.server import Server
from evertide.shapes.options import ShapeOptions
from evertide.shapes.service import ShapeService
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import SETTINGS, open_pipeline, storage

FOLLOW = "/follow"
MARKS = "evertide_marks"
QUICK = replace(SETTINGS, transaction_interval_s=0.01, poll_interval_s=0.01)
_TABLES_MAX = 6
"""The tests use one or two at a time."""
_CATCH_UP_S = 30
_CHUNK_BYTES = 10_000
"""As Electric's own server has it in these tests."""
_VARIANT = pa.struct(
    [pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), False, {"variant": "true"})]
)
_TYPES = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "json": _VARIANT,
    "jsonb": _VARIANT,
}
_COLUMNS = """
SELECT a.attname, a.attnotnull, a.attndims, coalesce(e.typname, t.typname) FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type e ON t.typcategory = 'A' AND e.oid = t.typelem
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
"""The type of an array is that of its elements. Domains and enums become texts, as Electric's clients get them."""
_KEY = """
SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
WHERE i.indrelid = %s AND i.indisprimary ORDER BY array_position(i.indkey, a.attnum)
"""


class FollowedTable:
    """A table of the database, and the app that serves its shapes."""

    def __init__(self, dsn: str, name: str, slot: str) -> None:
        self._dsn = dsn
        self._slot = slot
        self._undo = ExitStack()
        declarations = [_declare(dsn, one, slot) for one in {name, MARKS}]
        self.pipeline = self._undo.enter_context(
            open_pipeline(storage(), SmallEngine(declarations, []), settings=QUICK)
        )
        options = ShapeOptions(deletion=True, chunk_bytes=_CHUNK_BYTES)
        service = self._undo.enter_context(ShapeService(self.pipeline.collections, options))
        self._undo.callback(service.drain)
        self.pipeline.start()
        self.app = make_app(self.pipeline, shapes=service)
        # The first content of each table is read by itself; from then on, changes of all tables come in one order.
        _wait_until(lambda: '"at":"stream"' in str(self.pipeline._context.journal.positions()))

    def catch_up(self) -> None:
        """Wait until the pipeline has everything that was committed before."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            row = connection.execute(f"INSERT INTO {MARKS} DEFAULT VALUES RETURNING id").fetchone()
        assert row is not None
        _wait_until(lambda: row[0] in self.pipeline.view(MARKS).to_arrow()["id"].to_pylist())

    def close(self) -> None:
        self._undo.close()
        with psycopg.connect(self._dsn, autocommit=True) as connection, suppress(psycopg.Error):
            connection.execute("SELECT pg_drop_replication_slot(%s)", (self._slot,))


def _wait_until(condition: Callable[[], bool]) -> None:
    runtime = SystemRuntime()
    deadline_s = runtime.monotonic_s() + _CATCH_UP_S
    while not condition():
        assert runtime.monotonic_s() < deadline_s, "the pipeline does not follow the database"
        runtime.sleep_s(0.005)


def _declare(dsn: str, name: str, slot: str) -> DeclaredTable:
    with psycopg.connect(dsn) as connection:
        relation = sql.Identifier("public", name).as_string(connection)
        found = connection.execute("SELECT %s::regclass::oid", (relation,)).fetchone()
        assert found is not None
        columns = connection.execute(_COLUMNS, found).fetchall()
        key = tuple(row[0] for row in connection.execute(_KEY, found).fetchall())
    fields = []
    for column, is_required, dimensions, kind in columns:
        type_: Any = _TYPES.get(kind, pa.string())
        for _ in range(dimensions):
            type_ = pa.list_(type_)
        fields.append(pa.field(column, type_, nullable=not is_required))
    options = {"url": dsn, "slot": slot, "table": relation, "idle_interval": "3600"}
    return DeclaredTable(name, pa.schema(fields), key, "postgres", options, where="conformance:1")


class TablesApp:
    """The ASGI app: passes each request on to the app of its table."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.Lock()
        self._tables: OrderedDict[str, FollowedTable] = OrderedDict()
        self._names: dict[str, str] = {}
        """The table of each handle, for requests that name only a handle."""
        self._count = 0
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE {MARKS} (id bigserial PRIMARY KEY)")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/v1/health":
            await JSONResponse({"status": "active"})(scope, receive, send)
            return
        query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
        name = _read_name(query["table"]) if "table" in query else self._names.get(query.get("handle", ""), MARKS)
        table = await anyio.to_thread.run_sync(self._find, name)
        if scope["path"] == FOLLOW:
            await JSONResponse({"table": name})(scope, receive, send)
            return
        if scope["method"] == "GET" and (query.get("offset") in ("-1", "now") or "handle" not in query):
            await anyio.to_thread.run_sync(table.catch_up)

        async def note_handle(message: Any) -> None:
            if message["type"] == "http.response.start":
                handles = [value for key, value in message["headers"] if key.lower() == b"electric-handle"]
                self._names |= {handle.decode(): name for handle in handles}
            await send(message)

        await table.app(scope, receive, note_handle)

    def _find(self, name: str) -> FollowedTable:
        with self._lock:
            found = self._tables.get(name)
            if found is None:
                found = self._follow(name)
            self._tables.move_to_end(name)
            return found

    def _follow(self, name: str) -> FollowedTable:
        with psycopg.connect(self._dsn) as connection:
            relation = sql.Identifier("public", name).as_string(connection)
            row = connection.execute("SELECT to_regclass(%s)", (relation,)).fetchone()
        if row is None or row[0] is None:
            if name == MARKS:
                raise LookupError(MARKS)
            return self._tables.get(MARKS) or self._follow(MARKS)  # which answers that there is no such table
        self._count += 1
        made = self._tables[name] = FollowedTable(self._dsn, name, f"conformance_{self._count}")
        while len(self._tables) > _TABLES_MAX:
            self._tables.popitem(last=False)[1].close()
        return made

    def close(self) -> None:
        for table in self._tables.values():
            table.close()


def _read_name(table: str) -> str:
    """The name without its schema and quotes."""
    parts = re.findall(r'"((?:[^"]|"")*)"|([^".]+)', table)
    quoted, plain = parts[-1]
    return str(quoted).replace('""', '"') if quoted else str(plain).lower()


@contextmanager
def serving(dsn: str) -> Iterator[str]:
    app = TablesApp(dsn)
    with Server() as server:
        server.start(app)
        try:
            yield server.address
        finally:
            server.stop()
            app.close()
