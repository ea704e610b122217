"""T7: large transactions, streamed while they are open, interleaved with others; rolled back rows never arrive.

The server streams transactions above 64 kB here, and fragments are small, so that the tests cover all that happens with
gigabytes.
"""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from evertide.sources.postgres.transactions import TransactionAssembler
from tests.sources.postgres.kit import ORDERS_SQL, Feeding, table
from tests.sources.postgres.server import Database

BIG = "INSERT INTO orders SELECT i, repeat('x', 50), {mark} FROM generate_series({first}, {last}) i"


def big(first: int, mark: int, rows: int = 3000) -> str:
    return BIG.format(first=first, last=first + rows - 1, mark=mark)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The number of streamed blocks, the number of aborts, and the most rows in memory."""
    counts: dict[str, int] = {"blocks": 0, "aborts": 0, "bytes": 0}
    take = TransactionAssembler.take

    def counted(self: TransactionAssembler, content: bytes) -> None:
        counts["blocks"] += content[:1] == b"S"
        counts["aborts"] += content[:1] == b"A"
        take(self, content)
        several = [self._batch, *(one.rows for one in self._streamed.values())]
        counts["bytes"] = max(counts["bytes"], sum(one.bytes for one in several))

    monkeypatch.setattr(TransactionAssembler, "take", counted)
    return counts


def test_t7_interleaved_streamed_transactions_and_late_aborts(db: Database, seen: dict[str, int]) -> None:
    """Without the drop at the abort, or with rows published before their commit, rows would appear that never
    existed.
    """
    db.run(ORDERS_SQL)
    with Feeding(db, table(db, fragment_rows="500")) as f:
        f.until(lambda: f.position.at == "stream")
        with psycopg.connect(db.dsn) as first, psycopg.connect(db.dsn) as second, psycopg.connect(db.dsn) as third:
            for step in range(3):
                for number, connection in enumerate((first, second, third)):
                    connection.execute(big(100_000 * number + 10_000 * step, number))
                db.run(f"INSERT INTO orders VALUES ({-1 - step}, 'small', {step})")
                f.until(lambda step=step: len(f.rows()) == step + 1)  # type: ignore[misc]
            second.commit()
            first.rollback()
            third.execute("UPDATE orders SET amount = 77 WHERE amount = 2")
            third.commit()
        f.until_equal()
        assert len(f.rows()) == 3 + 2 * 9000
        assert seen["blocks"] > 20
        assert seen["aborts"] >= 1
        assert seen["bytes"] < 500_000, "the transaction was in memory, and not in fragments"


def test_t7_rolled_back_subtransactions_are_dropped(db: Database, seen: dict[str, int]) -> None:
    """Fragments have rows of several subtransactions; those of a rolled back one are removed from them."""
    db.run(ORDERS_SQL, "INSERT INTO orders SELECT i, 'old', 0 FROM generate_series(1, 100) i")
    with Feeding(db, table(db, fragment_rows="700")) as f:
        f.until_equal()
        with psycopg.connect(db.dsn) as connection:
            connection.execute(big(1000, 1))
            connection.execute("SAVEPOINT a")
            connection.execute(big(10_000, 2))
            connection.execute("UPDATE orders SET amount = -1 WHERE id <= 50")
            connection.execute("SAVEPOINT b")
            connection.execute("TRUNCATE orders")
            connection.execute(big(20_000, 3))
            connection.execute("ROLLBACK TO SAVEPOINT b")
            connection.execute(big(30_000, 4, 100))
            connection.execute("SAVEPOINT c")
            connection.execute(big(40_000, 5))
            connection.execute("RELEASE SAVEPOINT c")
            connection.execute("ROLLBACK TO SAVEPOINT a")
            connection.execute("SAVEPOINT d")
            connection.execute(big(50_000, 6))
            connection.execute("RELEASE SAVEPOINT d")
            connection.execute("DELETE FROM orders WHERE id <= 10")
        f.until_equal()
        assert len(f.rows()) == 90 + 2 * 3000
        assert seen["aborts"] >= 2


def test_t7_a_transaction_far_larger_than_the_buffers_needs_little_memory(db: Database, seen: dict[str, int]) -> None:
    """40,000 rows of a kilobyte, and never more than a fragment of them in memory."""
    db.run(ORDERS_SQL)
    with Feeding(db, table(db, fragment_rows="500", idle_interval="100")) as f:
        f.until(lambda: f.position.at == "stream")
        db.run("INSERT INTO orders SELECT i, repeat('x', 1000), i FROM generate_series(1, 40000) i")
        f.wait(lambda: not f.source._queue.is_empty)
        [entry] = f.source._queue._entries
        assert len(entry.fragments) >= 70
        assert entry.rows == 40_000
        assert seen["bytes"] < 1_000_000
        f.until(lambda: len(f.rows()) == 40_000)


def test_a_prepared_transaction_arrives_when_it_is_committed(db: Database) -> None:
    db.run(ORDERS_SQL)
    with Feeding(db) as f, psycopg.connect(db.dsn, autocommit=True) as other:
        f.until(lambda: f.position.at == "stream")
        other.execute("BEGIN")
        other.execute(big(1, 1))
        other.execute(f"PREPARE TRANSACTION '{db.name}'")
        db.run("INSERT INTO orders VALUES (-1, 'x', 0)")
        f.until(lambda: len(f.rows()) == 1)
        other.execute(f"COMMIT PREPARED '{db.name}'")
        f.until_equal()


def test_t7_a_crash_during_a_streamed_transaction_loses_and_doubles_nothing(db: Database) -> None:
    """Its staged fragments are unbound; the server streams it again. No row is missing or doubled."""
    db.run(ORDERS_SQL)
    with Feeding(db, table(db, fragment_rows="500")) as f:
        f.until(lambda: f.position.at == "stream")
        with psycopg.connect(db.dsn) as other:
            other.execute(big(1, 1))
            db.run("INSERT INTO orders VALUES (-1, 'x', 0)")
            f.until(lambda: len(f.rows()) == 1)
            f.restart()
            other.execute(big(10_000, 2))
            db.run("INSERT INTO orders VALUES (-2, 'x', 0)")
            f.until(lambda: len(f.rows()) == 2)
            db.cut_others(other)
            other.execute(big(20_000, 3))
        f.until_equal()
        assert len(f.rows()) == 2 + 9000


def test_concurrent_writers_give_the_same_content(db: Database) -> None:
    """Random transactions, some of them rolled back, on the same keys: at the end both sides are equal."""
    db.run(ORDERS_SQL)
    errors: list[Any] = []

    def write(seed: int) -> None:
        try:
            with psycopg.connect(db.dsn) as connection:
                for step in range(15):
                    first = (seed * 7 + step * 13) % 40 * 50
                    upsert = "ON CONFLICT (id) DO UPDATE SET amount = orders.amount + excluded.amount"
                    connection.execute(f"{big(first, seed, 400 if step % 3 else 5)} {upsert}")
                    connection.execute("SAVEPOINT s")
                    connection.execute(f"DELETE FROM orders WHERE id % 17 = {seed}")
                    if step % 2:
                        connection.execute("ROLLBACK TO SAVEPOINT s")
                    if step % 5 == 4:
                        connection.rollback()
                    else:
                        connection.commit()
        except psycopg.errors.DeadlockDetected:
            pass
        except psycopg.Error as error:
            errors.append(error)

    with Feeding(db, table(db, fragment_rows="300")) as f:
        f.until(lambda: f.position.at == "stream")
        threads = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        f.until(lambda: not any(thread.is_alive() for thread in threads))
        f.until_equal()
    assert errors == []
