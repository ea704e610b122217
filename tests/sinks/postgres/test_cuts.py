"""I9 and I14: fenced sessions, cut connections, restarting servers. Each transaction is in the table once, or not at
all, and the stored number says which.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from evertide.errors import SinkFailed
from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from tests.pipeline.kit import VIEWS, rows_of, storage
from tests.pipeline.sink_kit import Points, delivery_threads_of, sink, with_sink
from tests.pipeline.test_delivery_kill import LONG, OURS, Life
from tests.sinks.postgres.kit import Place, items
from tests.sources.postgres.server import running_logical

LIMIT_S = 20.0
ONE = (1, "a", 1.0, 1)


@pytest.fixture
def small_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("evertide.sinks.postgres.sink._SMALL_ROWS", request.param)
    return int(request.param)


@contextmanager
def in_thread(act: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run `act` in a thread. After the block, its result or its error is in the list."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(act())
        except SinkFailed as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def wait_until_waiting(place: Place, runtime: SystemRuntime, event: str = "Lock", count: int = 1) -> None:
    """Wait until `count` other sessions wait for that event."""
    query = f"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = '{event}' AND pid <> pg_backend_pid()"
    deadline_s = runtime.monotonic_s() + LIMIT_S
    while place.value(f"{query} AND application_name = 'evertide lake'") < count:
        assert runtime.monotonic_s() < deadline_s
        runtime.sleep_s(0.01)


def ids_and_number(place: Place) -> tuple[list[int], int]:
    return [row[0] for row in place.rows("SELECT id FROM target ORDER BY id")], place.mark()[0]


@pytest.mark.parametrize("small_rows", [1000, 0], indirect=True)
@pytest.mark.parametrize("key", [(), ("id",)])
def test_i9_a_predecessor_that_resumes_late_changes_nothing(
    place: Place, key: tuple[str, ...], small_rows: int
) -> None:
    """Neither a transaction that its successor wrote, nor a later one: without the epoch the second write would
    succeed.
    """
    late, after = place.open(key=key), place.open(key=key)
    after.write(0, items(ONE))
    for time in 0, 1:
        with pytest.raises(SinkFailed, match="another process has opened the sink"):
            late.write(time, items((2, "b", 1.0, 1)))
    assert ids_and_number(place) == ([1], 0)
    after.write(1, items((2, "b", 1.0, 1)))
    assert ids_and_number(place) == ([1, 2], 1)


@pytest.mark.parametrize("small_rows", [1000, 0], indirect=True)
def test_a_predecessor_that_is_fenced_during_its_write_changes_nothing(
    place: Place, small_rows: int, runtime: SystemRuntime
) -> None:
    """Its statement waits for the row that its successor is changing. It must check the epoch again once it has the
    row.
    """
    late = place.open()
    with psycopg.connect(place.dsn) as successor:
        successor.execute(f"UPDATE {place.schema}.evertide_sinks SET epoch = epoch + 1")
        with in_thread(lambda: late.write(0, items(ONE))) as found:
            wait_until_waiting(place, runtime)
            successor.commit()
    assert isinstance(found[0], SinkFailed)
    assert ids_and_number(place) == ([], -1)


def test_opening_waits_for_the_write_of_a_predecessor(place: Place, runtime: SystemRuntime) -> None:
    """Then the committed number counts: the transaction is not written again."""
    place.open()
    with psycopg.connect(place.dsn) as before:
        before.execute(f"INSERT INTO {place.schema}.target VALUES (1, 'a', 1)")
        before.execute(f"UPDATE {place.schema}.evertide_sinks SET time = 5")
        with in_thread(place.open) as found:
            wait_until_waiting(place, runtime)
            before.commit()
    assert found[0].last() == 5
    found[0].write(5, items(ONE))
    assert ids_and_number(place) == ([1], 5)


def test_two_sinks_opened_at_once_create_one_table(place: Place) -> None:
    """Without a lock both would create the table."""
    with in_thread(place.open) as first, in_thread(place.open) as second:
        pass
    epochs = sorted(each._epoch for each in (*first, *second))
    assert epochs == [1, 2]
    assert place.mark() == (-1, 2)


def test_a_lock_of_another_session_is_named(place: Place) -> None:
    """The error names the lock; the sink does not wait silently."""
    sink = place.open()
    sink._connection.execute("SET lock_timeout = '100ms'")
    with psycopg.connect(place.dsn) as other:
        other.execute(f"LOCK TABLE {place.schema}.target")
        with pytest.raises(SinkFailed, match="another session holds a lock"):
            sink.write(0, items(ONE))
    sink.write(0, items(ONE))
    assert ids_and_number(place) == ([1], 0)


def test_the_session_limits_how_long_it_waits(place: Place) -> None:
    shown = place.open()._connection.execute("SHOW lock_timeout").fetchone()
    assert shown == ("20s",)


def test_a_connection_cut_between_two_transactions_is_replaced(place: Place) -> None:
    sink = place.open()
    sink.write(0, items(ONE))
    place.cut(sink)
    with pytest.raises(SinkFailed, match="terminating connection"):
        sink.write(1, items(ONE))
    again = place.open()
    assert again.last() == 0
    again.write(1, items(ONE))
    assert ids_and_number(place) == ([1, 1], 1)


@pytest.mark.parametrize("small_rows", [1000, 0], indirect=True)
@pytest.mark.parametrize("key", [(), ("id",)])
def test_a_connection_cut_during_a_write_leaves_nothing(
    place: Place, key: tuple[str, ...], small_rows: int, runtime: SystemRuntime
) -> None:
    """The server ends its backend while the statement waits in the middle of its rows: none of them stay."""
    place.run("CREATE TABLE gate ()")
    place.run(
        f"CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF new.id = 2 THEN"
        f" LOCK TABLE {place.schema}.gate; END IF; RETURN new; END $$"
    )
    sink = place.open(key=key)
    place.run("CREATE TRIGGER wait BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION wait()")
    with psycopg.connect(place.dsn) as other:
        other.execute(f"LOCK TABLE {place.schema}.gate")
        with in_thread(lambda: sink.write(0, items(ONE, (2, "b", 1.0, 1), (3, "c", 1.0, 1)))) as found:
            wait_until_waiting(place, runtime)
            place.cut(sink)
    assert isinstance(found[0], SinkFailed)
    assert ids_and_number(place) == ([], -1)
    again = place.open(key=key)
    assert again.last() is None
    again.write(0, items(ONE, (2, "b", 1.0, 1), (3, "c", 1.0, 1)))
    assert ids_and_number(place) == ([1, 2, 3], 0)


@pytest.mark.parametrize("small_rows", [1000, 0], indirect=True)
def test_a_connection_cut_during_its_commit_is_settled(place: Place, small_rows: int, runtime: SystemRuntime) -> None:
    """All rows are written, the number has advanced, and the server is at the very end of its transaction."""
    place.run("CREATE TABLE gate ()")
    place.run(
        f"CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN LOCK TABLE {place.schema}.gate;"
        f" RETURN new; END $$"
    )
    sink = place.open()
    place.run(
        "CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON target DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION wait()"
    )
    with psycopg.connect(place.dsn) as other:
        other.execute(f"LOCK TABLE {place.schema}.gate")
        with in_thread(lambda: sink.write(0, items(ONE))) as found:
            wait_until_waiting(place, runtime)
            place.cut(sink)
    assert isinstance(found[0], SinkFailed)
    again = place.open()
    assert again.last() is None
    again.write(0, items(ONE))
    assert ids_and_number(place) == ([1], 0)


@pytest.mark.parametrize("small_rows", [1000, 0], indirect=True)
def test_i14_a_commit_whose_answer_is_lost_is_read_back(
    place: Place, small_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server committed, and the client does not know. Without the number it would write twice."""
    sink = place.open()
    wait = psycopg.Connection.wait
    is_done = False

    def lost(self: Any, *given: Any, **named: Any) -> Any:
        """As if the connection ended after the server executed the last message of the transaction."""
        nonlocal is_done
        found = wait(self, *given, **named)
        if self is sink._connection and place.mark()[0] == 0:
            is_done = True
            self.close()
            raise psycopg.OperationalError("consuming input failed: server closed the connection unexpectedly")
        return found

    monkeypatch.setattr(psycopg.Connection, "wait", lost)
    with pytest.raises(SinkFailed, match="server closed the connection"):
        sink.write(0, items(ONE))
    monkeypatch.undo()
    assert is_done
    again = place.open()
    assert again.last() == 0
    again.write(0, items(ONE))
    assert ids_and_number(place) == ([1], 0)


def test_a_server_restart_loses_and_doubles_nothing(runtime: SystemRuntime) -> None:
    """An immediate restart, in the middle of a session's work: no acknowledged row is lost, and none is written
    twice.
    """
    with running_logical(fsync="on") as server:
        place = Place(server.dsn(), "shop")
        sink = place.open()
        sink.write(0, items(ONE))
        server.stop(signal.SIGQUIT)
        with pytest.raises(SinkFailed):
            sink.write(1, items(ONE))
        with pytest.raises(SinkFailed, match="connection"):
            place.open()
        server.start(fsync="on")
        place.connection.close()
        place.connection = psycopg.connect(place.dsn, autocommit=True)
        place.run("SET search_path = shop")
        again = place.open()
        assert again.last() == 0
        again.write(1, items(ONE))
        assert ids_and_number(place) == ([1, 1], 1)
        place.close()


class Lives(Life):
    def survives(self, act: Callable[[Pipeline], object]) -> None:
        dead = self.p
        super().survives(act)
        if self.p is not dead:
            delivery_threads_of(
                dead
            ).stop()  # its connection stays open until now, as that of a process that only hangs


def run_with_deaths(points: Points, place: Place, table: str, key: str) -> int:
    """Run a pipeline that dies at a chosen point of its delivery. Returns how often it died."""
    options = {"url": place.dsn, "table": f"{place.schema}.{table}"} | ({"key": key} if key else {})
    life = Lives(storage(), with_sink(VIEWS["revenue"], sink("lake", "postgres", **options)))
    with points.around(*OURS[:1], "psycopg.Connection.wait"):
        for step in LONG[:3]:
            life.step(step)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(points, "tick", lambda: None)
                found = place.rows(f"SELECT customer, amount FROM {table}")
            assert sorted(found, key=repr) == rows_of(life.p, "revenue")
    [status] = life.p.status().sinks
    assert (status.state, status.behind) == ("running", 0)
    life.p.close()
    return life.deaths


@pytest.mark.parametrize(
    ("small_rows", "key"), [(1000, ""), (0, "customer")], ids=["one statement", "copied"], indirect=["small_rows"]
)
def test_i9_the_table_equals_the_view_after_a_crash_at_any_point(place: Place, small_rows: int, key: str) -> None:
    """Before and after each message to the server, COMMIT included, and each record of the storage."""
    points = Points()
    assert run_with_deaths(points, place, "t0", key) == 0
    assert points.passed >= 40
    for chosen in range(1, points.passed + 1):
        assert run_with_deaths(Points(chosen), place, f"t{chosen}", key) == 1
