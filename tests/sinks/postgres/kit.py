"""Tables of the server that tests share, in a schema of its own for each test, and sinks that write to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import psycopg
import pyarrow as pa

from evertide.rows.changes import DIFF
from evertide.sinks.contract import Prepared, SinkDeclaration
from evertide.sinks.postgres.sink import PostgresSink
from tests.sinks.kit import SCHEMA, declare, prepare

ITEMS = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("amount", pa.float64())])


class Place:
    def __init__(self, dsn: str, schema: str) -> None:
        self.dsn = dsn
        self.schema = schema
        self.connection: psycopg.Connection[Any] = psycopg.connect(dsn, autocommit=True)
        self.run(f"CREATE SCHEMA {schema}")
        self.run(f"SET search_path = {schema}")
        self.sinks: list[PostgresSink] = []

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query).fetchall()

    def value(self, query: str) -> Any:
        return self.rows(query)[0][0]

    def declare(self, schema: pa.Schema = ITEMS, key: tuple[str, ...] = (), **options: str) -> SinkDeclaration:
        given = {"url": self.dsn, "table": f"{self.schema}.target", **options}
        return declare(Path(), "postgres", schema=schema, key=key, options=given)

    def prepare(self, schema: pa.Schema = ITEMS, key: tuple[str, ...] = (), **options: str) -> Prepared:
        return prepare(self.declare(schema, key, **options))

    def open(
        self, schema: pa.Schema = ITEMS, key: tuple[str, ...] = (), token: str = "token", **options: str
    ) -> PostgresSink:
        sink = self.prepare(schema, key, **options).open(token)
        self.sinks.append(cast("PostgresSink", sink))
        return self.sinks[-1]

    def mark(self, token: str = "token") -> tuple[int, int]:
        [found] = self.rows(f"SELECT time, epoch FROM evertide_sinks WHERE token = '{token}'")
        return found[0], found[1]

    def cut(self, sink: PostgresSink) -> None:
        """End the sink's connection, and wait until the server has closed it."""
        assert self.value(f"SELECT pg_terminate_backend({sink._connection.info.backend_pid}, 5000)")

    @contextmanager
    def role(self, name: str, *grants: str) -> Iterator[str]:
        """Create a user, prefixed with the schema's name, and return its URL."""
        user = f"{self.schema}_{name}"
        self.run(f"CREATE ROLE {user} LOGIN PASSWORD 'hunter2'", f"GRANT USAGE ON SCHEMA {self.schema} TO {user}")
        self.run(*(grant.format(user=user, schema=self.schema) for grant in grants))
        try:
            yield self.dsn.replace("evertide@", f"{user}:hunter2@")
        finally:
            for sink in self.sinks:
                sink.close()
            self.run(f"DROP OWNED BY {user}", f"DROP ROLE {user}")

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()
        self.run(f"DROP SCHEMA {self.schema} CASCADE")
        self.connection.close()


def items(*rows: tuple[int | None, str | None, float | None, int]) -> pa.Table:
    """Changes of `ITEMS`, each with its diff at the end."""
    full = pa.schema([*ITEMS, pa.field(DIFF, pa.int64(), nullable=False)])
    return pa.Table.from_pylist([dict(zip(full.names, row, strict=True)) for row in rows], full)


def content(place: Place) -> pa.Table:
    """The content of the table, with the columns of `tests.sinks.kit.SCHEMA`."""
    listed = ", ".join(f'"{name}"' for name in SCHEMA.names)
    rows = [dict(zip(SCHEMA.names, row, strict=True)) for row in place.rows(f"SELECT {listed} FROM target")]
    for row in rows:
        row["tags"] = None if row["tags"] is None else [*row["tags"].items()]
    return pa.Table.from_pylist(rows, SCHEMA)
