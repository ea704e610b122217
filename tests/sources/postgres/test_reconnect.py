"""The network fails, the server restarts, the pipeline is slow: no data is lost, and the status reports the problem."""

from __future__ import annotations

import signal
import threading

import psycopg
import pytest

from tests.pipeline.kit import storage
from tests.sources.postgres.kit import ORDERS_SQL, Feeding, bound_lsn, check_confirmed, count_sessions, table
from tests.sources.postgres.server import Database, LogicalServer


def test_repeatedly_cut_connections_lose_nothing(db: Database) -> None:
    db.run(ORDERS_SQL)
    with Feeding(db, table(db, fragment_rows="100")) as f:
        for number in range(8):
            first = number * 500
            db.run(f"INSERT INTO orders SELECT i, 'x', {number} FROM generate_series({first}, {first + 300}) i")
            f.pipeline.advance()
            db.cut()
            f.pipeline.advance()
            check_confirmed(db, lambda: bound_lsn(f.pipeline._context.journal, db.slot))
        f.until_equal()
        assert f.source.problems == ()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_server_restart_loses_nothing(own: Database, how: signal.Signals) -> None:
    """A regular stop or a crash. A server that stops regularly waits until the client has confirmed all that it sent,
    so the client must confirm soon.
    """
    own.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'a', 1)")
    with Feeding(own, table(own, idle_interval="60")) as f:
        f.until_equal()
        own.run("INSERT INTO orders VALUES (2, 'b', 2)")
        f.until_equal()
        f.until_streaming()
        own.run("CREATE TABLE elsewhere (id int)", "INSERT INTO elsewhere SELECT generate_series(1, 1000)")
        own.connection.close()
        stopping = _stopping(own.server, how)
        f.until(lambda: not stopping.is_alive(), 15)
        f.until_stalled("PostgreSQL", state="reconnecting")
        assert f.source.problems
        own.server.start(wal_sender_timeout="2s")
        own.reconnect()
        own.run("INSERT INTO orders VALUES (3, 'c', 3)")
        f.until_equal()
        assert f.pipeline.status().state == "running"
        assert f.source.problems == ()


def _stopping(server: LogicalServer, how: signal.Signals) -> threading.Thread:
    thread = threading.Thread(target=server.stop, args=(how,))
    thread.start()
    return thread


def test_a_server_that_is_unreachable_at_the_start_stalls_only_this_source(
    own: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if each attempt to connect is logged."""
    own.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'a', 1)")
    own.connection.close()
    own.server.stop()
    with Feeding(own) as f:
        f.until_stalled(own.name, state="reconnecting")
        f.until(lambda: f.source._receiver._failures > 4)
        own.server.start(wal_sender_timeout="2s")
        own.reconnect()
        f.until_equal()
    logged = [record.getMessage() for record in caplog.records if record.name.endswith("postgres.receiver")]
    assert [message.split(": ")[0].split(" after ")[0] for message in logged] == [
        f"source '{f.source.name}' cannot be read, will retry",
        "recovered",
    ]


def test_a_pipeline_that_is_slow_does_not_lose_its_connection(own: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends connections that are silent for five seconds, and the pipeline reads nothing for longer than
    that.

    Without status updates while the queue is full, the stream would be restarted again and again.
    """
    sessions = count_sessions(monkeypatch)
    own.run(ORDERS_SQL, f'ALTER DATABASE "{own.name}" SET wal_sender_timeout = 5000')
    with Feeding(own, table(own, fragment_rows="100")) as f:
        f.until(lambda: f.position.at == "stream")
        f.source._queue._rows_max = 1000
        for number in range(15):
            first = number * 2000
            own.run(f"INSERT INTO orders SELECT i, repeat('x', 500), 1 FROM generate_series({first}, {first + 1999}) i")
        f.runtime.sleep_s(7)
        waiting = sum(entry.rows for entry in f.source._queue._entries)
        assert waiting <= 8000, "the queue is not bounded"  # several transactions may arrive in one batch
        f.until(lambda: len(f.rows()) == 30_000)
        assert len(sessions) == 1


def test_a_slot_that_waits_for_open_transactions_is_reported_and_does_not_delay_close(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits for a transaction that another client left open. Without the report the reason would be
    unknown.
    """
    monkeypatch.setattr("evertide.sources.postgres.receiver._MAKING_S", 0.2)
    db.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'a', 1)")
    with psycopg.connect(db.dsn) as other:
        other.execute("INSERT INTO orders VALUES (2, 'b', 2)")
        with Feeding(db) as f:
            f.until_stalled("when all transactions that are open")
            began_s = f.runtime.monotonic_s()
        assert f.runtime.monotonic_s() - began_s < 5
        with Feeding(db, store=storage()) as f:
            f.until_stalled("when all transactions that are open")
            other.commit()
            f.until_equal()


def test_a_table_removed_from_the_publication_is_detected(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream does not report it: without reading the catalog, its changes would be missing silently."""
    monkeypatch.setattr("evertide.sources.postgres.session._CHECK_S", 0.2)
    db.run(ORDERS_SQL, "CREATE TABLE lines (id bigint PRIMARY KEY, customer text, amount bigint)")
    with Feeding(db, table(db), table(db, name="lines")) as f:
        f.until_streaming()
        db.run(f"ALTER PUBLICATION {db.slot} DROP TABLE lines")
        f.until_stalled("lacks public.lines")
        db.run(f"ALTER PUBLICATION {db.slot} ADD TABLE lines", "INSERT INTO lines VALUES (1, 'a', 1)")
        f.until_equal("SELECT id, customer, amount FROM lines", "lines")
