"""What cannot work is refused before the pipeline starts, with the remedy; and no secret is shown."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path

import pyarrow as pa
import pytest

from evertide.errors import EvertideError, InvalidInput
from evertide.pipeline.engine import DeclaredTable
from evertide.store.memory import MemoryMeta
from tests.pipeline.kit import without_shard
from tests.sources.postgres.kit import ID, ORDERS, ORDERS_SQL, Feeding, table
from tests.sources.postgres.server import LOCKED, Database, running_logical

SECRET = "pa55/w@rd s3cret"


def check_refused(db: Database, *tables: DeclaredTable) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        Feeding(db, *tables)
    return caught.value


def make_options(db: Database, options: Mapping[str, str]) -> DeclaredTable:
    return DeclaredTable("orders", ORDERS, ("id",), "postgres", options, where="shop.sql:1")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"tabel": "public.orders"}, "has no option 'tabel'"),
        ({"slot": "Has-Dashes"}, "lower-case letters, digits"),
        ({"slot": "push"}, "lower-case letters, digits"),
        ({"snapshot": "sometimes"}, "'snapshot'"),
        ({"table": "a.b.c"}, "expected a table, for example 'public.orders'"),
        ({"table": "nowhere"}, "no table public.nowhere"),
        ({"table": "looks"}, "PostgreSQL does not replicate public."),
        ({"table": "unlogged"}, "PostgreSQL does not replicate public."),
        ({"table": "keyless"}, "no primary key or unique index on (id)"),
        ({"table": "silent"}, "ALTER TABLE public.silent REPLICA IDENTITY FULL"),
        ({"table": "otherkey"}, "lacks the key (id)"),
        ({"table": "computed"}, "the generated column"),
        ({"table": "narrow"}, "no column 'customer'"),
        ({"publication": "empty"}, "ALTER PUBLICATION empty ADD TABLE public.orders"),
        ({"publication": "inserts"}, "does not publish all"),
        ({"publication": "somerows"}, "omits the rows without"),
        ({"publication": "somecolumns"}, "omits the columns amount"),
        ({"url": "${ENV:NOT_THERE_AT_ALL}"}, "NOT_THERE_AT_ALL"),
        ({"url": "postgresql://h:notaport/x"}, "the port in the server's address is not a number"),
        ({"url": "postgres:/x y z"}, "the server's address is invalid"),
        ({"dbname": "no_such_database"}, "no_such_database"),
        ({"user": "nobody_at_all"}, "nobody_at_all"),
    ],
)
def test_refused_before_anything_starts(db: Database, options: dict[str, str], word: str) -> None:
    db.run(
        ORDERS_SQL, "CREATE VIEW looks AS TABLE orders", "CREATE UNLOGGED TABLE unlogged (LIKE orders INCLUDING ALL)"
    )
    db.run("CREATE TABLE keyless (id bigint, customer text, amount bigint)")
    db.run("CREATE TABLE silent (LIKE orders INCLUDING ALL)", "ALTER TABLE silent REPLICA IDENTITY NOTHING")
    db.run("CREATE TABLE otherkey (id bigint UNIQUE NOT NULL, customer text PRIMARY KEY, amount bigint)")
    db.run(
        "CREATE TABLE computed (id bigint PRIMARY KEY, customer text, amount bigint GENERATED ALWAYS AS (id) STORED)"
    )
    db.run("CREATE TABLE narrow (id bigint PRIMARY KEY, amount bigint)")
    db.run("CREATE PUBLICATION empty", "CREATE PUBLICATION inserts FOR TABLE orders WITH (publish = 'insert')")
    db.run("CREATE PUBLICATION somerows FOR TABLE orders WHERE (id > 1)")
    db.run("CREATE PUBLICATION somecolumns FOR TABLE orders (id, customer)")
    error = check_refused(db, make_options(db, {"url": db.dsn, "slot": db.slot, **options}))
    assert word in str(error)
    assert "shop.sql:1" in error.where
    assert db.rows(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{db.slot}'") == []


def test_options_of_one_slot_must_not_contradict(db: Database) -> None:
    db.run(ORDERS_SQL, "CREATE TABLE lines (id bigint PRIMARY KEY)")
    lines = table(db, pa.schema([ID]), "lines", password="other-secret")
    error = check_refused(db, table(db, password="one-secret"), lines)
    assert "'password' differs" in error.why
    assert "secret" not in str(error).replace("'password'", "")


def test_a_table_without_a_key_needs_the_whole_old_row(db: Database) -> None:
    db.run(ORDERS_SQL)
    assert "REPLICA IDENTITY FULL" in check_refused(db, table(db, key=())).why
    db.run("ALTER TABLE orders REPLICA IDENTITY FULL")
    assert "declare a key, or keep the table" in check_refused(db, without_shard(table(db, key=()))).why


def test_a_user_without_permissions_is_refused(db: Database) -> None:
    user = f"u_{db.name}"
    db.run(ORDERS_SQL, f"CREATE USER {user}")
    try:
        assert "GRANT SELECT ON public.orders" in check_refused(db, table(db, user=user)).why
        db.run(f"GRANT SELECT ON orders TO {user}")
        assert f"CREATE PUBLICATION {db.slot} FOR TABLE public.orders" in check_refused(db, table(db, user=user)).why
        db.run(f"CREATE PUBLICATION {db.slot} FOR TABLE orders")
        assert "replication" in check_refused(db, table(db, user=user)).why.lower()
        db.run(f"ALTER USER {user} REPLICATION")
        with Feeding(db, table(db, user=user)) as f:
            f.until(lambda: f.position.at == "stream")
    finally:
        db.run(f"DROP OWNED BY {user}", f"DROP USER {user}")


def test_a_server_with_a_lower_wal_level_is_refused() -> None:
    with running_logical(wal_level="replica") as server:
        db = Database(server, "plain")
        try:
            db.run(ORDERS_SQL)
            assert "ALTER SYSTEM SET wal_level = 'logical'" in check_refused(db).why
        finally:
            db.close()


def _stored_bytes(f: Feeding) -> str:
    meta = f.store.meta
    assert isinstance(meta, MemoryMeta)
    records = [record.data for key in meta.heads("") for record in meta.scan(key, 0)]
    return repr(records) + repr([f.store.blob.get(entry.key) for entry in f.store.blob.list("")])


def test_secrets_come_from_environment_and_files_and_are_never_shown(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in errors, log, status or storage; neither plain nor encoded as in a URL."""
    caplog.set_level(logging.DEBUG)
    if not db.rows(f"SELECT 1 FROM pg_roles WHERE rolname = '{LOCKED}'"):
        db.run(f"CREATE USER {LOCKED} SUPERUSER")
    db.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'a', 1)", f"ALTER USER {LOCKED} PASSWORD '{SECRET}'")
    (tmp_path / "password").write_text(f"{SECRET}\n")
    monkeypatch.setenv("EVERTIDE_TEST_PASSWORD", SECRET)
    monkeypatch.setenv("EVERTIDE_TEST_WRONG", f"wrong {SECRET}")
    said: list[str] = []
    good = {"url": db.dsn, "slot": db.slot, "user": LOCKED, "password": "${FILE:password}"}
    for password in ("${ENV:EVERTIDE_TEST_WRONG}", f"literal {SECRET}", ""):
        with pytest.raises(InvalidInput) as caught:
            Feeding(db, make_options(db, {**good, "password": password}), base=tmp_path)
        said += [str(caught.value), repr(caught.value)]
        assert "password" in said[-1]
    for options in ({"password": "${ENV:EVERTIDE_TEST_PASSWORD}"}, {}):
        with Feeding(
            db, make_options(db, {**good, **options, "slot": f"{db.slot}_{len(options)}"}), base=tmp_path
        ) as f:
            f.until_equal()
            f.until_streaming()
            db.run(f"ALTER USER {LOCKED} PASSWORD 'changed'")
            db.cut()
            f.wait(lambda: bool(f.source.problems))
            f.until_stalled("password")
            said += [
                repr(astuple(f.pipeline.status())),
                repr(f.source.problems),
                repr(vars(f.source)),
                _stored_bytes(f),
            ]
            db.run(f"ALTER USER {LOCKED} PASSWORD '{SECRET}'")
            db.run("INSERT INTO orders VALUES ((SELECT max(id) + 1 FROM orders), 'b', 2)")
            f.until_equal()
    with pytest.raises(EvertideError) as wrong:
        Feeding(db, make_options(db, {**good, "url": f"postgresql://u:{SECRET}@h:port/x"}), base=tmp_path)
    said.append(str(wrong.value))
    for text in [*said, caplog.text]:
        assert SECRET not in text
        assert "s3cret" not in text
