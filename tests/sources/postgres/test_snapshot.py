"""The snapshot, joined to the stream without a gap or an overlap. After an interruption it begins again with empty
tables.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import pyarrow as pa
import pytest

from evertide.sources.postgres.ready_queue import Entry
from evertide.sources.postgres.receiver import Receiver
from tests.pipeline.kit import SETTINGS
from tests.sources.postgres.kit import ORDERS_SQL, Feeding, table
from tests.sources.postgres.server import Database

MANY = "INSERT INTO orders SELECT i, 'first', i FROM generate_series(1, 5000) i"


def test_writes_during_the_snapshot_are_read_once(db: Database) -> None:
    """Without a key, so that a row of both would occur twice, and a row of neither would be missing."""
    db.run("CREATE TABLE notes (text text)", "ALTER TABLE notes REPLICA IDENTITY FULL")
    db.run("INSERT INTO notes SELECT 'old ' || i FROM generate_series(1, 3000) i")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            with db.connection.transaction():
                db.run(f"INSERT INTO notes VALUES ('new {number}'), ('new {number}')")
                db.run(f"DELETE FROM notes WHERE text = 'old {number + 1}'")
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    notes = table(db, pa.schema([("text", pa.string())]), "notes", key=(), fragment_rows="100")
    with Feeding(db, notes, settings=replace(SETTINGS, transaction_rows_max=100)) as f:
        f.until(lambda: f.position.at == "stream")
        at_snapshot = len(f.rows("notes"))
        f.runtime.sleep_s(0.2)
        stop.set()
        writer.join()
        f.until_equal("SELECT text FROM notes", "notes")
        assert at_snapshot > 2000
        assert f.pipeline.time > 30, "the snapshot was split into many transactions"


@pytest.mark.parametrize("entries", [0, 1, 2, 7])
def test_a_crash_during_the_snapshot_restarts_it(db: Database, monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """The snapshot ends with its process. Rows that are deleted before the next one must not stay.

    Without the TRUNCATE at the beginning of each table, they would.
    """
    db.run(ORDERS_SQL, MANY)
    put = Receiver._put
    count = 0

    def put_until_limit(self: Receiver, entry: Entry) -> None:
        nonlocal count
        while count >= entries and not self._queue.is_closed:
            self._queue.wait(0.05)
        put(self, entry)
        count += 1

    monkeypatch.setattr(Receiver, "_put", put_until_limit)
    with Feeding(db, table(db, fragment_rows="400")) as f:
        f.wait(lambda: f.pipeline.advance() is None and count >= entries)
        f.until(lambda: f.source._queue.is_empty)
        monkeypatch.setattr(Receiver, "_put", put)
        first = f.position.at
        f.crash()
        db.run("DELETE FROM orders WHERE id % 2 = 0", "UPDATE orders SET amount = 0 WHERE id < 100")
        f.pipeline = f._open()
        f.until(lambda: f.position.at == "stream")
        f.until_equal()
        assert first == {0: "start", 1: "making"}.get(entries, "snapshot")
        db.run("INSERT INTO orders VALUES (2, 'b', 2)")
        f.until_equal()


def test_a_connection_cut_during_the_snapshot_restarts_it(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.run(ORDERS_SQL, MANY)
    put = Receiver._put
    count = 0

    def cutting(self: Receiver, entry: Entry) -> None:
        nonlocal count
        put(self, entry)
        count += 1
        if count in (3, 9):
            db.run(
                "DELETE FROM orders WHERE id % 5 = 0", "INSERT INTO orders VALUES (100000 + random() * 1000, 'n', 0)"
            )
            db.cut()

    monkeypatch.setattr(Receiver, "_put", cutting)
    with Feeding(db, table(db, fragment_rows="400")) as f:
        f.until(lambda: f.position.at == "stream")
        f.until_equal()
        assert count > 12


def test_an_existing_slot_is_refused_unless_no_snapshot_is_wanted(db: Database) -> None:
    db.run(ORDERS_SQL, MANY, f"SELECT pg_create_logical_replication_slot('{db.slot}', 'pgoutput')")
    with Feeding(db) as f:
        why = f.until_stalled("already exists", "pg_drop_replication_slot", "snapshot 'none'")
        assert db.slot in why
        db.run(f"SELECT pg_drop_replication_slot('{db.slot}')")
        f.until_equal()


def test_an_existing_slot_and_publication_are_used(db: Database) -> None:
    db.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'before', 1)", "CREATE PUBLICATION mine FOR TABLE orders")
    db.run(f"SELECT pg_create_logical_replication_slot('{db.slot}', 'pgoutput')")
    db.run("INSERT INTO orders VALUES (2, 'after', 2)")
    with Feeding(db, table(db, publication="mine", snapshot="none")) as f:
        f.until(lambda: f.rows() == [(2, "after", 2)])
        f.restart()
        db.run("INSERT INTO orders VALUES (3, 'more', 3)")
        f.until(lambda: len(f.rows()) == 2)
        assert db.rows("SELECT pubname FROM pg_publication") == [("mine",)]


def test_without_a_snapshot_and_without_a_slot(db: Database) -> None:
    db.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'before', 1)")
    with Feeding(db, table(db, snapshot="none")) as f:
        f.until(lambda: f.position.at == "stream")
        db.run("INSERT INTO orders VALUES (2, 'after', 2)")
        f.until(lambda: f.rows() == [(2, "after", 2)])


def test_another_slot_reads_the_tables_from_the_start(db: Database) -> None:
    """This is the remedy for a lost slot: the table's old content is replaced by the current one."""
    db.run(ORDERS_SQL, MANY)
    with Feeding(db) as f:
        f.until_equal()
        f.crash()
        db.run("DELETE FROM orders WHERE id > 10", "INSERT INTO orders VALUES (-1, 'x', 1)")
        f.declared = (table(db, slot=f"{db.slot}_2"),)
        f.pipeline = f._open()
        f.until_equal()


def test_a_restart_continues_without_a_new_snapshot(db: Database) -> None:
    db.run(ORDERS_SQL, MANY)
    with Feeding(db) as f:
        f.until_equal()
        for number in range(3):
            before = f.position
            f.restart()
            assert f.position == before
            db.run(f"INSERT INTO orders VALUES ({-number}, 'x', 1)")
            f.until_equal()
