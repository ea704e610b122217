"""The damage matrix of `test_damage` with PostgreSQL as Meta: a sample in each run, all cases in the soak form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from evertide.store.memory import MemoryMeta
from evertide.store.metas.postgres import PostgresMeta
from evertide.store.open import Storage
from tests.pipeline.kit import SETTINGS
from tests.pipeline.test_damage import KEYS, RECORDS, WAYS, check_repaired, make_damaged, template
from tests.servers.postgres import PostgresServer
from tests.soak.rounds import Soak

__all__ = ["template"]

SOME = [
    ("journal", "flipped"),
    ("journal", "gone"),
    ("committed", "short"),
    ("log of a table", "flipped"),
    ("log of a view", "gone"),
    ("holds of a table", "foreign"),
    ("catalog", "flipped"),
    ("definition", "short"),
    ("manifest", "gone"),
    ("all of Meta", "gone"),
]


class KeptMeta(PostgresMeta):
    """Outlives the pipelines that use it, as a `MemoryMeta` does."""

    def close(self) -> None:
        pass

    def close_at_last(self) -> None:
        super().close()


@contextmanager
def on_postgres(kept: Storage, server: PostgresServer) -> Iterator[Storage]:
    """Return the same storage with its records in PostgreSQL."""
    assert isinstance(kept.meta, MemoryMeta)
    schema = f"test_{SystemRuntime().new_id()}"
    meta = KeptMeta(server.dsn, SystemRuntime(), SETTINGS, schema)
    rows = [(key, each.seqno, each.data) for key, records in kept.meta._log.items() for each in records]
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        with admin.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {schema}.log VALUES (%s, %s, %s)".encode(), rows)
        try:
            yield Storage(kept.blob, meta, "memory")
        finally:
            meta.close_at_last()
            admin.execute(f"DROP SCHEMA {schema} CASCADE".encode())


@pytest.mark.parametrize(("kind", "way"), SOME)
def test_damage_with_postgresql_is_repaired_or_named(
    kind: str, way: str, template: tuple[Storage, Pipeline], postgres_server: PostgresServer
) -> None:
    with on_postgres(make_damaged(template, kind, way), postgres_server) as kept:
        check_repaired(kept, kind, way)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_all_damage_with_postgresql(
    soak: Soak, template: tuple[Storage, Pipeline], postgres_server: PostgresServer
) -> None:
    cases = [(kind, way) for kind in (*KEYS, *RECORDS) for way in WAYS]

    def run_round(seed: int) -> str:
        kind, way = cases[seed % len(cases)]
        with on_postgres(make_damaged(template, kind, way), postgres_server) as kept:
            check_repaired(kept, kind, way)
        return f"{kind}: {way}"

    soak.rounds("damage with PostgreSQL", run_round)
