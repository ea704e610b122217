"""Schema changes upstream: the source ignores an added column; any other change stalls it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from tests.sources.postgres.kit import ID, ORDERS, ORDERS_SQL, Feeding, table
from tests.sources.postgres.server import Database, LogicalServer


def start(db: Database) -> Feeding:
    db.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2)")
    f = Feeding(db)
    f.until_equal()
    f.until_streaming()
    return f


def test_a_column_added_upstream_is_ignored_until_it_is_declared(db: Database) -> None:
    with start(db) as f:
        db.run("ALTER TABLE orders ADD extra text DEFAULT 'x'", "INSERT INTO orders VALUES (3, 'c', 3, 'y')")
        f.until_equal()
        f.crash()
        db.run("INSERT INTO orders VALUES (4, 'd', 4, 'z')")
        f.declared = (table(db, pa.schema([*ORDERS, ("extra", pa.string())])),)
        f.pipeline = f._open()
        f.until(lambda: (4, "d", 4, "z") in f.rows())
        assert (3, "c", 3, None) in f.rows()
        assert '"extra"' in f.position.text


def test_a_column_declared_before_the_stream_reaches_it_is_null_until_then(db: Database) -> None:
    with start(db) as f:
        f.crash()
        db.run("INSERT INTO orders VALUES (3, 'c', 3)", "ALTER TABLE orders ADD extra text")
        db.run("INSERT INTO orders VALUES (4, 'd', 4, 'z')")
        f.declared = (table(db, pa.schema([*ORDERS, ("extra", pa.string())])),)
        f.pipeline = f._open()
        f.until_equal("SELECT id, customer, amount, extra FROM orders")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ALTER TABLE orders DROP COLUMN customer", ("'customer' was dropped or renamed", "another slot")),
        ("ALTER TABLE orders RENAME customer TO client", ("'customer' was dropped or renamed",)),
        ("ALTER TABLE orders ALTER amount TYPE text", ("type of column 'amount' was changed",)),
        ("ALTER TABLE orders ALTER amount TYPE int USING -amount", ("type of column 'amount' was changed",)),
        ("ALTER TABLE orders REPLICA IDENTITY NOTHING", ("REPLICA IDENTITY FULL",)),
    ],
)
def test_any_other_change_stalls_the_source(db: Database, change: str, words: tuple[str, ...]) -> None:
    """The rows before the change are read, those after it are not; other tables and other sources continue."""
    with start(db) as f:
        with db.connection.transaction():
            db.run("INSERT INTO orders (id) VALUES (3)")
        db.run(change, "INSERT INTO orders (id) VALUES (4)")
        f.until_stalled(*words)
        assert [row[0] for row in f.rows()] == [1, 2, 3]
        for _ in range(50):  # the source stays stalled, however often it retries
            assert f.pipeline.advance() is None
            assert f.pipeline.status().state == "stalled"
            f.runtime.sleep_s(0.02)
        assert [row[0] for row in f.rows()] == [1, 2, 3]


def test_a_source_that_fails_repeatedly_stays_stalled_in_status(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The type was changed and changed back, and the stream has rows of the other type: each attempt fails at them.

    If a new connection alone ended the problem, the status would be `running` in between.
    """
    monkeypatch.setattr("evertide.sources.postgres.receiver._BACKOFF_S", (0.001, 0.002))
    with start(db) as f:
        with db.connection.transaction():
            db.run("ALTER TABLE orders ALTER amount TYPE int", "INSERT INTO orders VALUES (3, 'c', 3)")
        db.run("ALTER TABLE orders ALTER amount TYPE bigint", "INSERT INTO orders VALUES (4, 'd', 4)")
        f.until_stalled("type of column 'amount' was changed")
        for _ in range(300):
            assert f.pipeline.advance() is None
            assert f.pipeline.status().state == "stalled"
            f.runtime.sleep_s(0.002)
        assert len(f.rows()) == 2


def test_a_type_changed_while_the_source_was_closed_stalls_it(db: Database) -> None:
    """The types fit after the restart, too: without those in the position, rewritten rows would go unnoticed."""
    with start(db) as f:
        f.crash()
        db.run("ALTER TABLE orders ALTER amount TYPE int USING -amount", "INSERT INTO orders VALUES (3, 'c', 3)")
        f.pipeline = f._open()
        f.until_stalled("type of column 'amount' was changed")
        assert len(f.rows()) == 2


def test_a_change_that_is_rolled_back_in_a_streamed_transaction_is_ignored(db: Database) -> None:
    with start(db) as f:
        with db.connection.transaction(force_rollback=True):
            db.run("ALTER TABLE orders ALTER amount TYPE text")
            db.run("INSERT INTO orders SELECT i, repeat('x', 100), i FROM generate_series(100, 5000) i")
        db.run("INSERT INTO orders VALUES (3, 'c', 3)")
        f.until_equal()


def test_a_table_added_to_a_slot_in_use_is_refused(db: Database) -> None:
    """Its initial content would be missing."""
    with start(db) as f:
        f.crash()
        db.run("CREATE TABLE lines (id bigint PRIMARY KEY)", f"ALTER PUBLICATION {db.slot} ADD TABLE lines")
        f.declared = (table(db), table(db, pa.schema([ID]), "lines"))
        f.pipeline = f._open()
        f.until_stalled("public.lines was added to a slot that is in use", "a slot of its own")
        f.crash()
        f.declared = (table(db), table(db, pa.schema([ID]), "lines", slot=f"{db.slot}_lines"))
        db.run("INSERT INTO lines VALUES (7)", "INSERT INTO orders VALUES (9, 'i', 9)")
        f.pipeline = f._open()
        f.until(lambda: f.rows("lines") == [(7,)])
        f.until_equal()


def test_a_missing_slot_stalls_the_source_and_is_not_created_again(db: Database) -> None:
    with start(db) as f:
        f.crash()
        db.run(f"SELECT pg_drop_replication_slot('{db.slot}')", "INSERT INTO orders VALUES (3, 'c', 3)")
        f.pipeline = f._open()
        f.until_stalled("does not exist any more", "another slot")
        assert db.rows(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{db.slot}'") == []
        assert f.pipeline.status().problems[0].error_code == "source_changed"
        assert len(f.rows()) == 2


@pytest.mark.parametrize("how", ["created again", "advanced"])
def test_a_slot_that_another_program_moved_stalls_the_source(db: Database, how: str) -> None:
    """The slot lost what was committed meanwhile. Without the comparison with the bound position this would go
    unnoticed.
    """
    with start(db) as f:
        f.crash()
        db.run("INSERT INTO orders VALUES (3, 'c', 3)")
        if how == "created again":
            db.run(f"SELECT pg_drop_replication_slot('{db.slot}')")
            db.run(f"SELECT pg_create_logical_replication_slot('{db.slot}', 'pgoutput')")
        else:
            db.run(f"SELECT pg_replication_slot_advance('{db.slot}', pg_current_wal_lsn())")
        f.pipeline = f._open()
        f.until_stalled("another program moved replication slot", "another slot")


def test_a_slot_that_the_server_invalidated_stalls_the_source(own: Database) -> None:
    """The server is configured to keep too little of its log."""
    for name, size in (("max_slot_wal_keep_size", "1MB"), ("min_wal_size", "32MB"), ("max_wal_size", "32MB")):
        own.run(f"ALTER SYSTEM SET {name} = '{size}'")
    own.run("SELECT pg_reload_conf()")
    with start(own) as f:
        f.crash()
        own.run("CREATE TABLE filler (x text)")
        for _ in range(4):
            own.run("INSERT INTO filler VALUES ('x')", "SELECT pg_switch_wal()")
        own.run("CHECKPOINT")
        f.pipeline = f._open()
        f.until_stalled("is invalid", "max_slot_wal_keep_size")
    own.run("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")


def test_a_table_that_is_missing_after_a_restart_stalls_the_source(db: Database, logical_server: LogicalServer) -> None:
    with start(db) as f:
        f.crash()
        db.run("DROP TABLE orders")
        with pytest.raises(InvalidInput, match=r"no table public\.orders"):
            f._open()
