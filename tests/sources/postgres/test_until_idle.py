"""A run that is to end by itself: it takes what the server has when it begins, and waits for nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from evertide.pipeline.replicas.ownership import Role
from evertide.sources.postgres.gauge import Gauge
from evertide.sources.postgres.messages import parse_lsn
from evertide.testing.small_engine import SmallEngine
from tests.cli.kit import document, evertide
from tests.pipeline.kit import SETTINGS, open_pipeline
from tests.pipeline.test_replicas import shared
from tests.sources.postgres.kit import ORDERS_SQL, Feeding, table
from tests.sources.postgres.server import Database

LIMIT_S = 60.0
ORDERS = "SELECT id, customer, amount FROM orders"
FLUSHED = "SELECT pg_current_wal_flush_lsn()::text"
NEVER = "100000"
"""An interval in seconds within which no idle slot is moved on."""


def ends(f: Feeding, told: Callable[[int, float], None] | None = None) -> None:
    """Run until it is idle; that must come."""
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


def test_the_first_run_takes_the_first_content_and_each_further_one_what_came_since(db: Database) -> None:
    """Seen to fail without `is_waiting`: the first run ended before the slot was made, without a row; without the mark
    at each run, the third one ended at the goal of the first; without the goal in `Follower`, none ended."""
    db.run(ORDERS_SQL, "INSERT INTO orders SELECT i, 'a', i FROM generate_series(1, 500) i")
    with Feeding(db, table(db, idle_interval=NEVER, fragment_rows="100")) as f:
        ends(f)
        assert f.rows() == orders(f)
        ends(f)
        db.run("UPDATE orders SET amount = 0 WHERE id < 10", "DELETE FROM orders WHERE id > 490")
        db.run("CREATE TABLE others (id bigint)", "INSERT INTO others VALUES (1)")
        there = parse_lsn(db.value(FLUSHED))
        ends(f)
        assert f.rows() == orders(f)
        assert f.position.confirmed >= there, "the slot has moved on, also past what others wrote"
        f.again()
        db.run("INSERT INTO orders VALUES (1000, 'b', 1)")
        ends(f)
        assert f.rows() == orders(f)


def test_it_ends_though_others_write_without_end(db: Database) -> None:
    """Each transaction finds another one waiting. Seen to fail when a source that has more is never idle."""
    db.run(ORDERS_SQL, "INSERT INTO orders SELECT i, 'a', i FROM generate_series(1, 50) i")
    with Feeding(db, table(db, idle_interval=NEVER)) as f:
        before = orders(f)

        def one_more(time: int, _took_s: float) -> None:
            db.run(f"INSERT INTO orders VALUES ({1000 + time}, 'later', {time})")
            f.wait(lambda: not f.source._queue.is_empty)

        ends(f, one_more)
        assert set(before) <= set(f.rows()) < set(orders(f))


def test_a_transaction_that_is_open_when_it_begins_is_not_waited_for(db: Database) -> None:
    db.run(ORDERS_SQL)
    with Feeding(db, table(db, idle_interval=NEVER)) as f:
        ends(f)
        with psycopg.connect(db.dsn) as other:
            other.execute("INSERT INTO orders SELECT i, repeat('x', 100), 1 FROM generate_series(1, 3000) i")
            db.run("INSERT INTO orders VALUES (9000, 'b', 1)")
            ends(f)
            assert f.rows() == [(9000, "b", 1)]
        ends(f)
        assert len(f.rows()) == 3001


def test_a_server_that_is_away_is_told_of_and_not_waited_for(db: Database) -> None:
    db.run(ORDERS_SQL)
    with Feeding(db, table(db, url="postgresql://evertide@/none?host=/nowhere")) as f:
        ends(f)
        assert f.told.state == "reconnecting"


def test_a_server_that_does_not_say_where_it_is_is_told_of(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to fail with an answer that is only hoped for: nobody knew why the run did not end (I13)."""

    def too_many(_gauge: Gauge, _sent: int) -> int:
        raise psycopg.OperationalError("too many clients")

    monkeypatch.setattr(Gauge, "ask", too_many)
    db.run(ORDERS_SQL)
    with Feeding(db) as f:
        ends(f)
        assert "too many clients" in f.pipeline._input_reader.stalled[f.source.name].why


def test_a_replica_that_does_not_lead_leaves_the_server_to_the_one_that_does(db: Database) -> None:
    """Seen to fail without `is_started`: it waited for a stream that it never begins."""
    db.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'a', 1)")
    with Feeding(db, store=shared()) as f:
        ends(f)
        engine = SmallEngine(f.declared, [])
        with open_pipeline(f.store, engine, settings=SETTINGS, role=Role.READ_ONLY) as follower:
            thread = threading.Thread(target=follower.run, kwargs={"until_idle": True})
            thread.start()
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def test_the_command_loads_a_server_as_a_job(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    """What a scheduler runs: each ends by itself, with all that was committed before it began."""
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
