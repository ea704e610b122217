"""The first content, joined to the stream without a gap or an overlap; interrupted, it begins again from empty."""

from __future__ import annotations

import threading
from dataclasses import replace

import pyarrow as pa
import pytest

from evertide.sources.postgres.feed import Feed
from evertide.sources.postgres.ready import Entry
from tests.pipeline.kit import SETTINGS
from tests.sources.postgres.kit import ORDERS_SQL, Feeding, table
from tests.sources.postgres.server import Database

MANY = "INSERT INTO orders SELECT i, 'first', i FROM generate_series(1, 5000) i"


def test_written_to_while_the_snapshot_is_taken(db: Database) -> None:
    """Unkeyed, so that a row from both sides would be there twice, and a row from none would be missing."""
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
        assert f.pipeline.time > 30, "the snapshot came in many transactions"


@pytest.mark.parametrize("entries", [0, 1, 2, 7])
def test_a_crash_in_the_middle_of_the_snapshot(db: Database, monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    """The snapshot is gone with its process. Rows that are deleted before the next one must not stay.

    Without the TRUNCATE at the beginning of each table, they would.
    """
    db.run(ORDERS_SQL, MANY)
    put = Feed._put
    count = 0

    def limited(self: Feed, entry: Entry) -> None:
        nonlocal count
        while count >= entries and not self._queue.is_closed:
            self._queue.wait(0.05)
        put(self, entry)
        count += 1

    monkeypatch.setattr(Feed, "_put", limited)
    with Feeding(db, table(db, fragment_rows="400")) as f:
        f.wait(lambda: f.pipeline.advance() is None and count >= entries)
        f.until(lambda: f.source._queue.is_empty)
        monkeypatch.setattr(Feed, "_put", put)
        first = f.position.at
        f.crash()
        db.run("DELETE FROM orders WHERE id % 2 = 0", "UPDATE orders SET amount = 0 WHERE id < 100")
        f.pipeline = f._opened()
        f.until(lambda: f.position.at == "stream")
        f.until_equal()
        assert first == {0: "start", 1: "making"}.get(entries, "snapshot")
        db.run("INSERT INTO orders VALUES (2, 'b', 2)")
        f.until_equal()


def test_a_connection_that_is_cut_in_the_middle_of_the_snapshot(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.run(ORDERS_SQL, MANY)
    put = Feed._put
    count = 0

    def cutting(self: Feed, entry: Entry) -> None:
        nonlocal count
        put(self, entry)
        count += 1
        if count in (3, 9):
            db.run(
                "DELETE FROM orders WHERE id % 5 = 0", "INSERT INTO orders VALUES (100000 + random() * 1000, 'n', 0)"
            )
            db.cut()

    monkeypatch.setattr(Feed, "_put", cutting)
    with Feeding(db, table(db, fragment_rows="400")) as f:
        f.until(lambda: f.position.at == "stream")
        f.until_equal()
        assert count > 12


def test_a_slot_that_is_there_already_is_not_taken_without_a_word(db: Database) -> None:
    db.run(ORDERS_SQL, MANY, f"SELECT pg_create_logical_replication_slot('{db.slot}', 'pgoutput')")
    with Feeding(db) as f:
        why = f.until_stalled("is there already", "pg_drop_replication_slot", "snapshot 'none'")
        assert db.slot in why
        db.run(f"SELECT pg_drop_replication_slot('{db.slot}')")
        f.until_equal()


def test_a_slot_and_a_publication_that_are_given(db: Database) -> None:
    db.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'before', 1)", "CREATE PUBLICATION mine FOR TABLE orders")
    db.run(f"SELECT pg_create_logical_replication_slot('{db.slot}', 'pgoutput')")
    db.run("INSERT INTO orders VALUES (2, 'after', 2)")
    with Feeding(db, table(db, publication="mine", snapshot="none")) as f:
        f.until(lambda: f.rows() == [(2, "after", 2)])
        f.again()
        db.run("INSERT INTO orders VALUES (3, 'more', 3)")
        f.until(lambda: len(f.rows()) == 2)
        assert db.rows("SELECT pubname FROM pg_publication") == [("mine",)]


def test_without_a_snapshot_and_without_a_slot(db: Database) -> None:
    db.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'before', 1)")
    with Feeding(db, table(db, snapshot="none")) as f:
        f.until(lambda: f.position.at == "stream")
        db.run("INSERT INTO orders VALUES (2, 'after', 2)")
        f.until(lambda: f.rows() == [(2, "after", 2)])


def test_another_slot_reads_the_tables_anew(db: Database) -> None:
    """That is the remedy for a slot that was lost: what the table held goes, what is there now comes."""
    db.run(ORDERS_SQL, MANY)
    with Feeding(db) as f:
        f.until_equal()
        f.crash()
        db.run("DELETE FROM orders WHERE id > 10", "INSERT INTO orders VALUES (-1, 'x', 1)")
        f.declared = (table(db, slot=f"{db.slot}_2"),)
        f.pipeline = f._opened()
        f.until_equal()


def test_a_restart_goes_on_and_does_not_read_anew(db: Database) -> None:
    db.run(ORDERS_SQL, MANY)
    with Feeding(db) as f:
        f.until_equal()
        for number in range(3):
            before = f.position
            f.again()
            assert f.position == before
            db.run(f"INSERT INTO orders VALUES ({-number}, 'x', 1)")
            f.until_equal()
