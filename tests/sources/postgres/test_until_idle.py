"""A run with `until_idle`: it reads what the server has when the run begins, and waits for nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from evertide.pipeline.records.ownership import ProcessRole
from evertide.sources.postgres.messages import parse_lsn
from evertide.sources.postgres.slot_monitor import SlotMonitor
from tests.cli.kit import document, evertide
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import SETTINGS, open_pipeline
from tests.pipeline.replica_kit import shared
from tests.sources.postgres.kit import ORDERS_SQL, Feeding, table
from tests.sources.postgres.server import Database

LIMIT_S = 60.0
ORDERS = "SELECT id, customer, amount FROM orders"
FLUSHED = "SELECT pg_current_wal_flush_lsn()::text"
NEVER = "100000"
"""An interval in seconds within which no idle slot is advanced."""


def run_until_idle(f: Feeding, told: Callable[[int, float], None] | None = None) -> None:
    """Run until the pipeline is idle; the run must end."""
    thread = threading.Thread(target=f.pipeline.run, kwargs={"until_idle": True, "on_transaction": told})
    thread.start()
    try:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), f.pipeline.status()
    finally:
        f.pipeline.stop()
        thread.join()
        f.pipeline._stopping.clear()


def orders(f: Feeding) -> list[tuple[object, ...]]:
    return sorted(f.db.rows(ORDERS), key=repr)


def test_the_first_run_reads_the_snapshot_and_later_runs_the_changes_since(db: Database) -> None:
    """Fails without `is_waiting` (the first run ends before the slot is created, without a row), without the mark at
    each run (the third one ends at the goal of the first), and without the goal in `ReplicationSession` (no run
    ends).
    """
    db.run(ORDERS_SQL, "INSERT INTO orders SELECT i, 'a', i FROM generate_series(1, 500) i")
    with Feeding(db, table(db, idle_interval=NEVER, fragment_rows="100")) as f:
        run_until_idle(f)
        assert f.rows() == orders(f)
        run_until_idle(f)
        db.run("UPDATE orders SET amount = 0 WHERE id < 10", "DELETE FROM orders WHERE id > 490")
        db.run("CREATE TABLE others (id bigint)", "INSERT INTO others VALUES (1)")
        there = parse_lsn(db.value(FLUSHED))
        run_until_idle(f)
        assert f.rows() == orders(f)
        assert f.position.confirmed >= there, "the slot advanced, also past writes to other tables"
        f.restart()
        db.run("INSERT INTO orders VALUES (1000, 'b', 1)")
        run_until_idle(f)
        assert f.rows() == orders(f)


def test_a_run_ends_although_others_write_without_end(db: Database) -> None:
    """After each transaction another one waits. Fails if a source that has more input is never idle."""
    db.run(ORDERS_SQL, "INSERT INTO orders SELECT i, 'a', i FROM generate_series(1, 50) i")
    with Feeding(db, table(db, idle_interval=NEVER)) as f:
        before = orders(f)

        def one_more(time: int, _took_s: float) -> None:
            db.run(f"INSERT INTO orders VALUES ({1000 + time}, 'later', {time})")
            f.wait(lambda: not f.source._queue.is_empty)

        run_until_idle(f, one_more)
        assert set(before) <= set(f.rows()) < set(orders(f))


def test_a_run_does_not_wait_for_a_transaction_that_is_open_when_it_begins(db: Database) -> None:
    db.run(ORDERS_SQL)
    with Feeding(db, table(db, idle_interval=NEVER)) as f:
        run_until_idle(f)
        with psycopg.connect(db.dsn) as other:
            other.execute("INSERT INTO orders SELECT i, repeat('x', 100), 1 FROM generate_series(1, 3000) i")
            db.run("INSERT INTO orders VALUES (9000, 'b', 1)")
            run_until_idle(f)
            assert f.rows() == [(9000, "b", 1)]
        run_until_idle(f)
        assert len(f.rows()) == 3001


def test_an_unreachable_server_is_reported_and_ends_the_run(db: Database) -> None:
    db.run(ORDERS_SQL)
    with Feeding(db, table(db, url="postgresql://evertide@/none?host=/nowhere")) as f:
        run_until_idle(f)
        assert f.source_status.state == "reconnecting"


def test_a_server_without_a_position_is_reported(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the answer is taken for granted: nothing then reports why the run does not end (I13)."""

    def too_many(_monitor: SlotMonitor, _sent: int) -> int:
        raise psycopg.OperationalError("too many clients")

    monkeypatch.setattr(SlotMonitor, "measure", too_many)
    db.run(ORDERS_SQL)
    with Feeding(db) as f:
        run_until_idle(f)
        assert "too many clients" in f.pipeline._input_reader.stalled[f.source.name].why


def test_a_replica_that_does_not_lead_leaves_the_server_to_the_one_that_does(db: Database) -> None:
    """Fails without `is_started`: the replica waits for a stream that it never begins."""
    db.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'a', 1)")
    with Feeding(db, store=shared()) as f:
        run_until_idle(f)
        engine = SmallEngine(f.declared, [])
        with open_pipeline(f.store, engine, settings=SETTINGS, role=ProcessRole.READ_ONLY) as follower:
            thread = threading.Thread(target=follower.run, kwargs={"until_idle": True})
            thread.start()
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def test_the_command_loads_a_server_as_a_job(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    """As a scheduler runs it: each run ends by itself, with all that was committed before it began."""
    db.run(ORDERS_SQL, "INSERT INTO orders SELECT i, 'a', i FROM generate_series(1, 100) i")
    script = tmp_path / "shop.sql"
    script.write_text(
        f"""
        CREATE TABLE orders (id BIGINT NOT NULL, customer STRING, amount BIGINT, PRIMARY KEY (id))
        USING postgres OPTIONS (url '{db.dsn}', slot '{db.slot}');
        CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n, sum(amount) AS amount FROM orders;
        """
    )
    run = ("run", script, "--storage", tmp_path / "s", "--until-idle")

    def total() -> dict[str, int]:
        found = document(evertide("query", "SELECT * FROM total", "--storage", tmp_path / "s", "--json"))
        return dict(found["rows"][0])

    assert evertide(*run, "--quiet").exit_code == 0
    assert total() == {"n": 100, "amount": 5050}
    db.run("UPDATE orders SET amount = 0 WHERE id = 100", "DELETE FROM orders WHERE id = 1")
    assert evertide(*run, "--quiet").exit_code == 0
    assert total() == {"n": 99, "amount": 4949}
