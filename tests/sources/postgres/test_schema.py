"""What changes upstream under the source: an added column is none of its business; all else stalls it, loudly."""

from __future__ import annotations

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from tests.sources.postgres.kit import ID, ORDERS, ORDERS_SQL, Feeding, table
from tests.sources.postgres.server import Database, LogicalServer


def started(db: Database) -> Feeding:
    db.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2)")
    f = Feeding(db)
    f.until_equal()
    f.until_streaming()
    return f


def test_a_column_that_is_added_upstream_is_left_out_until_it_is_declared(db: Database) -> None:
    with started(db) as f:
        db.run("ALTER TABLE orders ADD extra text DEFAULT 'x'", "INSERT INTO orders VALUES (3, 'c', 3, 'y')")
        f.until_equal()
        f.crash()
        db.run("INSERT INTO orders VALUES (4, 'd', 4, 'z')")
        f.declared = (table(db, pa.schema([*ORDERS, ("extra", pa.string())])),)
        f.pipeline = f._opened()
        f.until(lambda: (4, "d", 4, "z") in f.rows())
        assert (3, "c", 3, None) in f.rows()
        assert '"extra"' in f.position.text


def test_a_column_declared_before_the_stream_reaches_it_is_null_until_then(db: Database) -> None:
    with started(db) as f:
        f.crash()
        db.run("INSERT INTO orders VALUES (3, 'c', 3)", "ALTER TABLE orders ADD extra text")
        db.run("INSERT INTO orders VALUES (4, 'd', 4, 'z')")
        f.declared = (table(db, pa.schema([*ORDERS, ("extra", pa.string())])),)
        f.pipeline = f._opened()
        f.until_equal("SELECT id, customer, amount, extra FROM orders")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ALTER TABLE orders DROP COLUMN customer", ("'customer' was dropped or renamed", "another slot")),
        ("ALTER TABLE orders RENAME customer TO client", ("'customer' was dropped or renamed",)),
        ("ALTER TABLE orders ALTER amount TYPE text", ("type of the column 'amount' was changed",)),
        ("ALTER TABLE orders ALTER amount TYPE int USING -amount", ("type of the column 'amount' was changed",)),
        ("ALTER TABLE orders REPLICA IDENTITY NOTHING", ("REPLICA IDENTITY FULL",)),
    ],
)
def test_any_other_change_stalls_the_source(db: Database, change: str, words: tuple[str, ...]) -> None:
    """What came before is taken, what comes after is not; the other tables, and other sources, go on."""
    with started(db) as f:
        with db.connection.transaction():
            db.run("INSERT INTO orders (id) VALUES (3)")
        db.run(change, "INSERT INTO orders (id) VALUES (4)")
        f.until_stalled(*words)
        assert [row[0] for row in f.rows()] == [1, 2, 3]
        for _ in range(50):  # and it stays so, however often it is tried again
            assert f.pipeline.advance() is None
            assert f.pipeline.status().state == "stalled"
            f.runtime.sleep_s(0.02)
        assert [row[0] for row in f.rows()] == [1, 2, 3]


def test_a_source_that_is_stuck_says_so_all_the_time(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The type is as it was, and the stream has rows of another: each attempt gets that far, and no further.

    If the connection alone ended the problem, the status would say `running` in between.
    """
    monkeypatch.setattr("evertide.sources.postgres.feed._BACKOFF_S", (0.001, 0.002))
    with started(db) as f:
        with db.connection.transaction():
            db.run("ALTER TABLE orders ALTER amount TYPE int", "INSERT INTO orders VALUES (3, 'c', 3)")
        db.run("ALTER TABLE orders ALTER amount TYPE bigint", "INSERT INTO orders VALUES (4, 'd', 4)")
        f.until_stalled("type of the column 'amount' was changed")
        for _ in range(300):
            assert f.pipeline.advance() is None
            assert f.pipeline.status().state == "stalled"
            f.runtime.sleep_s(0.002)
        assert len(f.rows()) == 2


def test_a_type_that_was_changed_while_nobody_looked_stalls_as_well(db: Database) -> None:
    """The types fit after the restart, too: without those in the position, rewritten rows would go unnoticed."""
    with started(db) as f:
        f.crash()
        db.run("ALTER TABLE orders ALTER amount TYPE int USING -amount", "INSERT INTO orders VALUES (3, 'c', 3)")
        f.pipeline = f._opened()
        f.until_stalled("type of the column 'amount' was changed")
        assert len(f.rows()) == 2


def test_a_change_that_is_rolled_back_in_a_streamed_transaction_is_none(db: Database) -> None:
    with started(db) as f:
        with db.connection.transaction(force_rollback=True):
            db.run("ALTER TABLE orders ALTER amount TYPE text")
            db.run("INSERT INTO orders SELECT i, repeat('x', 100), i FROM generate_series(100, 5000) i")
        db.run("INSERT INTO orders VALUES (3, 'c', 3)")
        f.until_equal()


def test_a_table_that_is_added_to_a_slot_in_use(db: Database) -> None:
    """Its first content would be missing."""
    with started(db) as f:
        f.crash()
        db.run("CREATE TABLE lines (id bigint PRIMARY KEY)", f"ALTER PUBLICATION {db.slot} ADD TABLE lines")
        f.declared = (table(db), table(db, pa.schema([ID]), "lines"))
        f.pipeline = f._opened()
        f.until_stalled("public.lines was added to a slot that is in use", "a slot of its own")
        f.crash()
        f.declared = (table(db), table(db, pa.schema([ID]), "lines", slot=f"{db.slot}_lines"))
        db.run("INSERT INTO lines VALUES (7)", "INSERT INTO orders VALUES (9, 'i', 9)")
        f.pipeline = f._opened()
        f.until(lambda: f.rows("lines") == [(7,)])
        f.until_equal()


def test_a_slot_that_is_gone_is_never_made_anew_in_silence(db: Database) -> None:
    with started(db) as f:
        f.crash()
        db.run(f"SELECT pg_drop_replication_slot('{db.slot}')", "INSERT INTO orders VALUES (3, 'c', 3)")
        f.pipeline = f._opened()
        f.until_stalled("is gone", "another slot")
        assert db.rows(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{db.slot}'") == []
        assert f.pipeline.status().problems[0].error_code == "source_changed"
        assert len(f.rows()) == 2


@pytest.mark.parametrize("how", ["made anew", "advanced"])
def test_a_slot_that_somebody_else_moved(db: Database, how: str) -> None:
    """It has lost what was committed meanwhile. Without the comparison with what is bound, nobody would notice."""
    with started(db) as f:
        f.crash()
        db.run("INSERT INTO orders VALUES (3, 'c', 3)")
        if how == "made anew":
            db.run(f"SELECT pg_drop_replication_slot('{db.slot}')")
            db.run(f"SELECT pg_create_logical_replication_slot('{db.slot}', 'pgoutput')")
        else:
            db.run(f"SELECT pg_replication_slot_advance('{db.slot}', pg_current_wal_lsn())")
        f.pipeline = f._opened()
        f.until_stalled("beyond what is bound", "another slot")


def test_a_slot_that_the_server_invalidated(own: Database) -> None:
    """It keeps too little of its log, on purpose."""
    for name, size in (("max_slot_wal_keep_size", "1MB"), ("min_wal_size", "32MB"), ("max_wal_size", "32MB")):
        own.run(f"ALTER SYSTEM SET {name} = '{size}'")
    own.run("SELECT pg_reload_conf()")
    with started(own) as f:
        f.crash()
        own.run("CREATE TABLE filler (x text)")
        for _ in range(4):
            own.run("INSERT INTO filler VALUES ('x')", "SELECT pg_switch_wal()")
        own.run("CHECKPOINT")
        f.pipeline = f._opened()
        f.until_stalled("is invalid", "max_slot_wal_keep_size")
    own.run("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")


def test_a_table_that_is_gone_after_a_restart(db: Database, logical_server: LogicalServer) -> None:
    with started(db) as f:
        f.crash()
        db.run("DROP TABLE orders")
        with pytest.raises(InvalidInput, match=r"no table public\.orders"):
            f._opened()
