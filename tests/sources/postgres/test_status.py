"""The status of a PostgreSQL source: its lag, reconnections, and a slot at risk.

The pipeline often waits here: then nothing is offered, and only the source knows its state.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from evertide.pipeline.records.source_record import SourceReporter
from evertide.pipeline.status.status import SourceStatus, read_status
from evertide.runtime import SystemRuntime
from evertide.shard.shard import Shards
from evertide.sources.contract import Lag, Monitored
from evertide.sources.postgres.slot_monitor import SlotMonitor
from tests.cli.kit import document, evertide
from tests.kit.runtime import ManualRuntime
from tests.sources.postgres.kit import ORDERS_SQL, Feeding, count_sessions, table, worker
from tests.sources.postgres.server import Database, running_logical


@pytest.fixture(autouse=True)
def poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evertide.sources.postgres.slot_monitor._INTERVAL_S", 0.05)


def read_status_elsewhere(f: Feeding) -> SourceStatus:
    """The status that another process reads from the storage."""
    shards = Shards(f.store.blob, f.store.meta, runtime=f.runtime, settings=f.settings)
    status = read_status(f.store, shards, f.pipeline._context.journal, f.pipeline._context.checkpoints)
    return next(one for one in status.sources if one.name == f.source.name)


def reporter_of(f: Feeding) -> SourceReporter:
    return f.pipeline._leader_tasks._reporter


def is_caught_up(f: Feeding) -> bool:
    return f.source_status.lag == Lag(bytes=0, seconds=0.0)


def test_lag_grows_with_unbound_input_and_returns_to_zero(db: Database) -> None:
    db.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'a', 1)")
    with Feeding(db) as f:
        assert f.source_status.lag == Lag(), "the lag is unknown before there is a stream"
        f.until_equal()
        f.until(lambda: is_caught_up(f))
        db.run("INSERT INTO orders SELECT i, repeat('x', 100), 1 FROM generate_series(2, 1001) i")
        f.wait(lambda: (f.source.lag.bytes or 0) > 100_000)
        f.wait(lambda: (f.source.lag.seconds or 0) > 0.5)
        before = f.source.lag.bytes or 0
        db.run("INSERT INTO orders SELECT i, repeat('x', 100), 1 FROM generate_series(1002, 2001) i")
        f.wait(lambda: (f.source.lag.bytes or 0) > before + 100_000)
        assert (f.source_status.state, f.source_status.problems) == ("running", ())
        f.until_equal()
        f.until(lambda: is_caught_up(f))


def test_lag_counts_input_that_the_server_has_not_sent(db: Database) -> None:
    """A full queue accepts nothing: by the received data alone, the lag would not grow."""
    db.run(ORDERS_SQL)
    with Feeding(db, table(db, fragment_rows="100")) as f:
        f.until_streaming()
        f.source._queue._rows_max = 100
        db.run("INSERT INTO orders SELECT i, repeat('x', 100), 1 FROM generate_series(1, 200) i")
        f.wait(lambda: not f.source._queue.has_room())
        for number in range(1, 11):
            first = number * 1000
            db.run(f"INSERT INTO orders SELECT i, repeat('x', 100), 1 FROM generate_series({first}, {first + 999}) i")
        f.wait(lambda: (f.source.lag.bytes or 0) > 1_000_000)
        assert f.source._receiver.sent - f.source._queue.bound.confirmed < 1_000_000
        f.source._queue._rows_max = 100_000
        f.until_equal()


def test_a_lost_connection_is_reported_and_reopened(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the pipeline waits, and for another process. Without this the problem showed only with the
    next offer.
    """
    db.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'a', 1)")
    with Feeding(db) as f:
        f.until_equal()
        f.until(lambda: is_caught_up(f))
        assert isinstance(f.source, Monitored)
        reporter_of(f).write_if_changed()
        assert (read_status_elsewhere(f).state, read_status_elsewhere(f).tables) == ("running", ("orders",))
        f.pipeline.pause()
        monkeypatch.setattr("evertide.sources.postgres.receiver._BACKOFF_S", (2.0, 2.0))
        before_s = f.runtime.wall_s()
        db.cut()
        f.wait(lambda: f.source_status.state == "reconnecting")
        [problem] = f.source_status.problems
        assert (problem.state, problem.error_code) == ("reconnecting", "source_away")
        assert problem.error_code == "source_away"
        assert "Evertide reconnects" in problem.remedy
        assert before_s <= problem.since_s <= f.runtime.wall_s()
        assert problem.wait_s is not None
        assert 1.0 <= problem.wait_s <= 2.0
        assert f.source_status.lag == Lag(), "the lag is unknown without a connection"
        reporter_of(f).write_if_changed()
        there = read_status_elsewhere(f)
        assert there.state == "reconnecting"
        assert (there.problems[0].why, there.problems[0].wait_s) == (problem.why, None)
        assert there.told_at_s is not None
        db.run("INSERT INTO orders VALUES (2, 'b', 2)")
        f.wait(lambda: f.source_status.state == "running")
        f.wait(lambda: (f.source.lag.bytes or 0) > 0)
        reporter_of(f).write_if_changed()
        assert read_status_elsewhere(f).state == "running"
        f.pipeline.resume()
        f.until_equal()
        f.until(lambda: is_caught_up(f))
        assert f.pipeline.status().state == "running"


def test_status_of_another_process_shows_a_server_that_stops_and_restarts(
    own: Database, tmp_path: Path, runtime: SystemRuntime
) -> None:
    """Two processes, and the command itself: its output is at most a few seconds old."""
    own.run("CREATE TABLE notes (text text)", "ALTER TABLE notes REPLICA IDENTITY FULL")
    storage = tmp_path / "s"

    def read_status_by_command() -> dict[str, Any]:
        found: dict[str, Any] = document(evertide("status", "--storage", storage, "--json"))
        return next(one for one in found["sources"] if one["name"] == own.slot)

    def until(is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline_s = runtime.monotonic_s() + 40
        while not is_so(found := read_status_by_command()):
            assert runtime.monotonic_s() < deadline_s, found
            runtime.sleep_s(0.1)
        return found

    with worker(storage, own, "notes"):
        caught_up = until(lambda found: bool(found["lag"]) and found["lag"]["bytes"] == 0)
        assert (caught_up["state"], caught_up["tables"], caught_up["lag"]["seconds"]) == ("running", ["notes"], 0)
        own.connection.close()
        own.server.stop()
        away = until(lambda found: found["state"] == "reconnecting")
        assert away["problems"][0]["error_code"] == "source_away"
        assert away["problems"][0]["since_s"] <= away["told_at_s"] <= runtime.wall_s()
        own.server.start(wal_sender_timeout="2s")
        own.reconnect()
        own.run("INSERT INTO notes VALUES ('a')")
        until(lambda found: found["state"] == "running" and not found["problems"])
    until(lambda found: found["state"] == "stopped" and found["tables"] == ["notes"])  # the process was killed


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_server_restart_while_the_pipeline_waits_is_reported(own: Database, how: signal.Signals) -> None:
    own.run(ORDERS_SQL, "INSERT INTO orders VALUES (1, 'a', 1)")
    with Feeding(own) as f:
        f.until_equal()
        f.until(lambda: is_caught_up(f))
        f.pipeline.pause()
        own.connection.close()
        own.server.stop(how)
        f.wait(lambda: f.source_status.state == "reconnecting")
        since_s, tries = f.source_status.problems[0].since_s, f.source._receiver._failures
        f.wait(lambda: f.source._receiver._failures > tries + 1)
        assert f.source_status.problems[0].since_s == since_s, "it is the same outage"
        own.server.start(wal_sender_timeout="2s")
        own.reconnect()
        own.run("INSERT INTO orders VALUES (2, 'b', 2)")
        f.wait(lambda: f.source_status.state == "running")
        f.wait(lambda: (f.source.lag.seconds or 0) > 0)
        assert f.source_status.problems == ()
        f.pipeline.resume()
        f.until_equal()
        f.until(lambda: is_caught_up(f))


def test_a_server_that_refuses_is_not_reported_as_unreachable(db: Database) -> None:
    """It does not end by waiting: an operator has to act, and the state says so."""
    db.run(ORDERS_SQL)
    user = f"u_{db.name}"
    db.run(f"CREATE USER {user} SUPERUSER")
    try:
        with Feeding(db, table(db, user=user)) as f:
            f.until_streaming()
            db.run(f"ALTER USER {user} NOLOGIN")
            db.cut()
            f.wait(lambda: f.source_status.state == "stalled")
            [problem] = f.source_status.problems
            assert "not permitted to log in" in problem.why
            assert problem.error_code == "source_failed"
            db.run(f"ALTER USER {user} LOGIN")
            f.wait(lambda: f.source_status.state == "running")
    finally:
        db.run(f"DROP OWNED BY {user}", f"DROP USER {user}")


def test_a_table_that_was_dropped_is_named(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evertide.sources.postgres.session._CHECK_S", 0.1)
    db.run(ORDERS_SQL, "CREATE TABLE lines (id bigint PRIMARY KEY, customer text, amount bigint)")
    with Feeding(db, table(db), table(db, name="lines")) as f:
        f.until_streaming()
        assert f.source_status.tables == ("orders", "lines")
        f.pipeline.pause()
        db.run("DROP TABLE lines")
        f.wait(lambda: f.source_status.state == "stalled")
        assert "public.lines" in f.source_status.problems[0].why


def test_a_slot_at_risk_is_a_warning() -> None:
    with running_logical(max_slot_wal_keep_size="160MB", min_wal_size="32MB", max_wal_size="32MB") as server:
        db = Database(server, "risk")
        try:
            db.run(ORDERS_SQL)
            with Feeding(db) as f:
                f.until_streaming()
                f.until(lambda: is_caught_up(f))
                assert not f.source_status.problems
                db.run("INSERT INTO orders VALUES (1, 'a', 1)")  # not bound, so the slot does not advance
                for _ in range(4):
                    db.run("INSERT INTO orders SELECT max(id) + 1, 'b', 2 FROM orders", "SELECT pg_switch_wal()")
                f.wait(lambda: bool(f.source_status.problems))
                problem = f.source_status.problems[0]
                assert (problem.state, problem.error_code) == ("warning", "slot_at_risk")
                assert "replication slot 'risk' is " in problem.why
                assert "max_slot_wal_keep_size" in problem.remedy
                assert f.source_status.state == "running", "the source continues, for now"
                f.until_equal()
                db.run("SELECT pg_switch_wal()", "CHECKPOINT")
                f.until(lambda: f.source_status.problems == ())
        finally:
            db.close()


def test_the_stream_continues_if_the_slot_monitor_loses_its_connection(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = count_sessions(monkeypatch)
    db.run(ORDERS_SQL)
    with Feeding(db) as f:
        f.until_streaming()
        f.until(lambda: is_caught_up(f))
        f.until(lambda: f.source._receiver.slot_monitor.reached > 0)
        measuring = f.source._receiver.slot_monitor._connection
        assert measuring is not None
        db.run(f"SELECT pg_terminate_backend({measuring.info.backend_pid})")
        f.until(lambda: f.source._receiver.slot_monitor._connection not in (None, measuring))
        f.until(lambda: is_caught_up(f))
        assert len(sessions) == 1


def test_input_that_stays_unsent_counts_as_lag(db: Database) -> None:
    """While the server decodes, the source sees no commit whose age it could report."""
    db.run("SELECT pg_create_logical_replication_slot('" + db.slot + "', 'pgoutput')", ORDERS_SQL)
    with Feeding(db, table(db, snapshot="none")) as f:
        runtime = ManualRuntime()
        monitor = SlotMonitor(f.source._receiver._server, db.slot, runtime)
        try:
            monitor.measure_if_due(0)
            assert monitor.reached > 0
            assert monitor.behind_s(0) == 0, "it may be in flight"
            runtime.advance_s(10)
            monitor.measure_if_due(0)
            assert monitor.behind_s(0) == pytest.approx(10)
            assert monitor.behind_s(monitor.reached) == 0
        finally:
            monitor.close()
        assert monitor.reached == 0


def test_close_leaves_no_connection(db: Database) -> None:
    db.run(ORDERS_SQL)
    with Feeding(db) as f:
        f.until_streaming()
        f.until(lambda: is_caught_up(f))
    with psycopg.connect(db.server.dsn(), autocommit=True) as admin:
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'evertide%%' AND datname = %s"
        deadline_s = f.runtime.monotonic_s() + 10
        while admin.execute(query, (db.name,)).fetchone() != (0,):
            assert f.runtime.monotonic_s() < deadline_s
            f.runtime.sleep_s(0.05)
