"""I9 and I14: sessions that are shut out, connections that are cut, servers that restart. Each transaction is there
once, or not at all, and its number says which."""

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
    """What it came to, or failed with, is in the list after the block."""
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


def until_waiting(place: Place, runtime: SystemRuntime, event: str = "Lock", count: int = 1) -> None:
    """Until so many other sessions wait for that."""
    query = f"SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = '{event}' AND pid <> pg_backend_pid()"
    deadline_s = runtime.monotonic_s() + LIMIT_S
    while place.value(f"{query} AND application_name = 'evertide lake'") < count:
        assert runtime.monotonic_s() < deadline_s
        runtime.sleep_s(0.01)


def there(place: Place) -> tuple[list[int], int]:
    return [row[0] for row in place.rows("SELECT id FROM target ORDER BY id")], place.mark()[0]


@pytest.mark.parametrize("small_rows", [1000, 0], indirect=True)
@pytest.mark.parametrize("key", [(), ("id",)])
def test_i9_a_predecessor_that_wakes_late_changes_nothing(place: Place, key: tuple[str, ...], small_rows: int) -> None:
    """Neither what its successor has, nor what it has not: without the epoch the second write would go through."""
    late, after = place.open(key=key), place.open(key=key)
    after.write(0, items(ONE))
    for time in 0, 1:
        with pytest.raises(SinkFailed, match="another process has opened the sink"):
            late.write(time, items((2, "b", 1.0, 1)))
    assert there(place) == ([1], 0)
    after.write(1, items((2, "b", 1.0, 1)))
    assert there(place) == ([1, 2], 1)


@pytest.mark.parametrize("small_rows", [1000, 0], indirect=True)
def test_a_predecessor_that_has_begun_when_it_is_shut_out(
    place: Place, small_rows: int, runtime: SystemRuntime
) -> None:
    """Its statement waits for the row, which the successor is just changing. It must look again when it has it."""
    late = place.open()
    with psycopg.connect(place.dsn) as successor:
        successor.execute(f"UPDATE {place.schema}.evertide_sinks SET epoch = epoch + 1")
        with in_thread(lambda: late.write(0, items(ONE))) as found:
            until_waiting(place, runtime)
            successor.commit()
    assert isinstance(found[0], SinkFailed)
    assert there(place) == ([], -1)


def test_opening_waits_for_what_a_predecessor_has_begun(place: Place, runtime: SystemRuntime) -> None:
    """Then its number counts: what was committed is not written again."""
    place.open()
    with psycopg.connect(place.dsn) as before:
        before.execute(f"INSERT INTO {place.schema}.target VALUES (1, 'a', 1)")
        before.execute(f"UPDATE {place.schema}.evertide_sinks SET time = 5")
        with in_thread(place.open) as found:
            until_waiting(place, runtime)
            before.commit()
    assert found[0].last() == 5
    found[0].write(5, items(ONE))
    assert there(place) == ([1], 5)


def test_two_new_ones_at_once_are_one(place: Place) -> None:
    """Both make the table, if neither waits for the other."""
    with in_thread(place.open) as first, in_thread(place.open) as second:
        pass
    epochs = sorted(each._epoch for each in (*first, *second))
    assert epochs == [1, 2]
    assert place.mark() == (-1, 2)


def test_a_lock_of_somebody_else_is_told(place: Place) -> None:
    """And not waited for without a word."""
    sink = place.open()
    sink._connection.execute("SET lock_timeout = '100ms'")
    with psycopg.connect(place.dsn) as other:
        other.execute(f"LOCK TABLE {place.schema}.target")
        with pytest.raises(SinkFailed, match="another session holds a lock"):
            sink.write(0, items(ONE))
    sink.write(0, items(ONE))
    assert there(place) == ([1], 0)


def test_the_session_does_not_wait_for_ever(place: Place) -> None:
    shown = place.open()._connection.execute("SHOW lock_timeout").fetchone()
    assert shown == ("20s",)


def test_a_connection_that_is_cut_between_two_transactions(place: Place) -> None:
    sink = place.open()
    sink.write(0, items(ONE))
    place.cut(sink)
    with pytest.raises(SinkFailed, match="terminating connection"):
        sink.write(1, items(ONE))
    again = place.open()
    assert again.last() == 0
    again.write(1, items(ONE))
    assert there(place) == ([1, 1], 1)


@pytest.mark.parametrize("small_rows", [1000, 0], indirect=True)
@pytest.mark.parametrize("key", [(), ("id",)])
def test_a_connection_that_is_cut_in_mid_write(
    place: Place, key: tuple[str, ...], small_rows: int, runtime: SystemRuntime
) -> None:
    """Its backend is ended while the statement waits in the middle of its rows: nothing of it stays."""
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
            until_waiting(place, runtime)
            place.cut(sink)
    assert isinstance(found[0], SinkFailed)
    assert there(place) == ([], -1)
    again = place.open(key=key)
    assert again.last() is None
    again.write(0, items(ONE, (2, "b", 1.0, 1), (3, "c", 1.0, 1)))
    assert there(place) == ([1, 2, 3], 0)


@pytest.mark.parametrize("small_rows", [1000, 0], indirect=True)
def test_a_connection_that_is_cut_in_its_commit(place: Place, small_rows: int, runtime: SystemRuntime) -> None:
    """All rows are there, the number has moved, and the server is at the very end of its transaction."""
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
            until_waiting(place, runtime)
            place.cut(sink)
    assert isinstance(found[0], SinkFailed)
    again = place.open()
    assert again.last() is None
    again.write(0, items(ONE))
    assert there(place) == ([1], 0)


@pytest.mark.parametrize("small_rows", [1000, 0], indirect=True)
def test_i14_a_commit_whose_answer_is_lost_is_read_back(
    place: Place, small_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has it, and the client does not know. Without the number it would be written twice."""
    sink = place.open()
    wait = psycopg.Connection.wait
    is_done = False

    def lost(self: Any, *given: Any, **named: Any) -> Any:
        """As if the connection ended after the last message of the transaction was carried out."""
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
    assert there(place) == ([1], 0)


def test_a_server_that_restarts(runtime: SystemRuntime) -> None:
    """Hard, in the middle of what a session does: nothing that was answered is gone, and nothing is there twice."""
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
        assert there(place) == ([1, 1], 1)
        place.close()


class Lives(Life):
    def survives(self, act: Callable[[Pipeline], object]) -> None:
        dead = self.p
        super().survives(act)
        if self.p is not dead:
            delivery_threads_of(dead).stop()  # its connection is open until now, as that of a process that only hangs


def lived(points: Points, place: Place, table: str, key: str) -> int:
    """A pipeline that dies at a chosen point of its delivery; how often it died."""
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
def test_i9_the_table_holds_the_view_after_a_death_at_any_point(place: Place, small_rows: int, key: str) -> None:
    """Before and after each message to the server, COMMIT among them, and each record of ours."""
    points = Points()
    assert lived(points, place, "t0", key) == 0
    assert points.passed >= 40
    for chosen in range(1, points.passed + 1):
        assert lived(Points(chosen), place, f"t{chosen}", key) == 1
