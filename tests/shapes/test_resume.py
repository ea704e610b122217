"""Shapes outlive processes and end when they must: restarts, several processes, rotation, and holds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evertide.errors import TimeCompacted
from evertide.pipeline.reading.reader import StorageReader
from evertide.problem import ComponentState
from evertide.runtime import SystemRuntime
from evertide.server.server import Server
from evertide.server.shapes_app import make_shapes_app
from evertide.settings import Settings
from evertide.shapes.log.follower import enforce_limits
from evertide.shapes.log.live_shape import LiveShape, LogSpan
from evertide.shapes.log.record import HOLD
from evertide.shapes.log.stretch import Stretch
from evertide.shapes.options import ShapeOptions
from evertide.shapes.protocol.offsets import Offset
from evertide.shapes.protocol.requests import parse_request
from evertide.shapes.service import ShapeService
from evertide.store.open import Storage, open_storage
from tests.pipeline.kit import SETTINGS, storage
from tests.pipeline.kit import VIEWS as SMALL
from tests.shapes.kit import OPTIONS, VIEWS, Follower, Shop, doubled, engine, operations, order, shop

LONG = replace(OPTIONS, long_poll_s=30)


def read_hold(s: Shop, collection: str = "orders") -> int | None:
    return s.pipeline.collections.members().open_collection(collection).holds.get(HOLD)


def at(path: Path) -> Storage:
    return open_storage(path, runtime=SystemRuntime(), settings=SETTINGS)


@contextmanager
def beside(path: Path, options: ShapeOptions = OPTIONS) -> Iterator[Shop]:
    """Simulates another process: it shares only the storage."""
    with (
        StorageReader.open(path, settings=replace(SETTINGS, poll_interval_s=0.01)) as reader,
        Server() as server,
        ShapeService(reader.collections, options) as service,
    ):
        server.start(make_shapes_app(reader, service))
        yield Shop(None, service, server.host, server.port)  # type: ignore[arg-type]
        service.drain()
        server.stop()


def test_after_a_restart_handles_offsets_and_bytes_are_the_same(tmp_path: Path) -> None:
    tables = ("orders", "revenue", "buyers", "notes")
    told: dict[str, tuple[bytes, bytes]] = {}
    clients: dict[str, Follower] = {}
    with shop(at(tmp_path / "s")) as s:
        s.push(rows=[order(number) for number in range(5)])
        s.push("notes", [{"text": "a"}, {"text": "a"}])
        for table in tables:
            clients[table] = Follower(s, {"table": table}).caught_up()
        for number in range(6):
            s.push(rows=[order(number, "bob", number)], deletes=[number + 1])
            s.push("notes", [{"text": "a"}])
        for table, client in clients.items():
            told[table] = (s.get(table).content, s.get(table, "0_inf", handle=client.handle).content)
            client.step()
        s.pipeline.checkpoint()
    for _ in range(2):
        with shop(at(tmp_path / "s")) as s:
            s.push(rows=[order(9)])
            for table, client in clients.items():
                snapshot, log = told[table]
                assert (s.get(table).handle, s.get(table).content) == (client.handle, snapshot)
                again = s.get(table, "0_inf", handle=client.handle)
                assert again.content.startswith(log.partition(b',{"headers":{"control"')[0])
                assert again.changes[:-1] or table == "notes"
                client.shop = s
                client.caught_up()
                assert client.refetched == 0
            assert len(clients["buyers"].rows) == len(s.pipeline.view("buyers").to_arrow())


def test_a_snapshot_continues_in_a_process_with_other_options(tmp_path: Path) -> None:
    """Fails if chunks are cut by the serving process's options: rows would be missing or repeated."""
    with shop(at(tmp_path / "s"), replace(OPTIONS, chunk_bytes=900)) as s:
        s.push(rows=[order(number) for number in range(40)])
        client = Follower(s, {"table": "orders"})
        client.step()
        client.step()
    with shop(at(tmp_path / "s"), replace(OPTIONS, chunk_bytes=2500)) as s:
        client.shop = s
        assert len(client.caught_up().rows) == 40


def test_several_processes_serve_the_same_shapes(tmp_path: Path) -> None:
    with shop(at(tmp_path / "s"), follow=False) as s:
        s.push(rows=[order(1)])
        here = Follower(s, {"table": "orders"}).caught_up()
        with beside(tmp_path / "s", LONG) as other, beside(tmp_path / "s") as third, ThreadPoolExecutor(2) as aside:
            there = Follower(other, {"table": "orders"}).caught_up()
            assert there.handle == here.handle
            new = Follower(third, {"table": "revenue"}).caught_up()
            assert Follower(s, {"table": "revenue"}).caught_up().handle == new.handle
            waiting = aside.submit(there.step, live=True)
            while not any(shape.waiters for shape in other.service.shapes.live()):
                threading.Event().wait(0.01)
            s.push(rows=[order(2)])
            assert waiting.result(30).changes == here.step().changes
            # A client may continue with any process, also with one that is behind.
            s.push(rows=[order(3)])
            here.step()
            here.shop = third
            here.step()
            assert here.content("id") == [("1",), ("2",), ("3",)]
            # Every process knows when another ends a shape.
            there.step()
            waiting = aside.submit(there.step, live=True)
            while not any(shape.waiters for shape in other.service.shapes.live()):
                threading.Event().wait(0.01)
            assert third.ask("DELETE", handle=here.handle).status == 202
            ended = waiting.result(30)
            assert (ended.status, ended.handle != here.handle) == (409, True)
            assert (
                s.get().handle == ended.handle
            )  # also a process without a notification: it checks before it returns a handle
            assert s.get(offset=here.offset, handle=here.handle).status == 409


def test_concurrent_requests_for_a_shape_get_the_same_shape(tmp_path: Path) -> None:
    """Fails if the record is not written together with the hold: two processes would each create a shape."""
    with shop(at(tmp_path / "s")) as s:
        s.push(rows=[order(1)])
        with beside(tmp_path / "s") as b, beside(tmp_path / "s") as c, ThreadPoolExecutor(12) as aside:
            for number in range(8):
                barrier = threading.Barrier(12)

                def ask(one: Shop, barrier: threading.Barrier = barrier, number: int = number) -> str:
                    barrier.wait()
                    return one.get(where=f"id = {number}").handle

                asked = [aside.submit(ask, one) for one in (s, b, c) * 4]
                assert len({one.result(30) for one in asked}) == 1
        assert len(s.service.shapes.records.all()) == 8


def test_times_that_a_shape_needs_are_held_until_it_ends(tmp_path: Path) -> None:
    """Fails if no hold is taken: a checkpoint would compact the times of the log."""
    with shop(at(tmp_path / "s"), follow=False) as s:
        began = s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()
        other = Follower(s, {"table": "orders", "where": "id > 0"}).caught_up()
        assert read_hold(s) == began
        for number in range(2, 9):
            s.push(rows=[order(number)])
            s.pipeline.checkpoint()
        assert s.pipeline.collections.members().open_collection("orders").since <= began
        assert s.pipeline.collections.members().open_collection("revenue").since > began
        for shape in s.service.shapes.live():
            s.service.shapes._feeds[shape.record.shard].drop_tail(shape)
        s.service.shapes.snapshots.forget(client.handle)
        late = Follower(s, {"table": "orders"}).caught_up()
        assert (late.handle, late.content()) == (client.handle, client.caught_up().content())
        s.ask("DELETE", handle=client.handle)
        enforce_limits(s.service.shapes)
        assert read_hold(s) == began  # the other shape needs it
        s.ask("DELETE", handle=other.handle)
        enforce_limits(s.service.shapes)
        assert read_hold(s) is None
        s.push(rows=[order(9)])
        s.pipeline.checkpoint()
        s.push(rows=[order(10)])
        s.pipeline.checkpoint()
        with pytest.raises(TimeCompacted):
            s.pipeline.collections.members().open_collection("orders").snapshot(began)


def test_a_hold_moves_with_the_oldest_shape_and_never_past_a_new_one() -> None:
    with shop(follow=False) as s:
        first = s.push(rows=[order(1)])
        one = s.get().handle
        second = s.push(rows=[order(2)])
        s.get(where="id = 1")
        assert read_hold(s) == first
        s.ask("DELETE", handle=one)
        records = s.service.shapes.records
        shard = s.pipeline.collections.members().open_collection("orders")
        looked = records.all

        def list_then_create() -> list[object]:
            """A process creates a shape after another has listed the shapes."""
            found = looked()
            records.all = looked  # type: ignore[method-assign]
            s.get(where="id = 2")
            return [*found]

        s.push(rows=[order(3)])
        records.all = list_then_create  # type: ignore[assignment]
        records.move_hold(shard)
        assert read_hold(s) == second


def test_a_log_that_grows_too_long_ends_its_shape_and_wakes_waiting_clients() -> None:
    settings = Settings(heartbeat_interval_s=0.05, retry_limit_s=1)
    with shop(options=replace(LONG, log_rows_max=20), settings=settings) as s, ThreadPoolExecutor(1) as aside:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders", "where": "id = 1"}).caught_up()
        waiting = aside.submit(client.step, live=True)
        for number in range(30):
            s.push(rows=[order(2, "ann", number)])
        ended = waiting.result(30)
        assert (ended.status, client.refetched) == (409, 1)
        assert ended.handle != client.handle
        assert client.caught_up().content("id") == [("1",)]
        assert read_hold(s) is not None


def test_too_many_shapes_end_the_least_recently_used() -> None:
    with shop(options=replace(OPTIONS, shapes_max=3), follow=False) as s:
        s.push(rows=[order(1)])
        clients = [Follower(s, {"table": "orders", "where": f"id = {number}"}).caught_up() for number in range(5)]
        clients[0].step()
        enforce_limits(s.service.shapes)
        assert [client.step().status for client in clients] == [200, 409, 409, 200, 200]


def test_a_recomputed_view_ends_its_shapes() -> None:
    store = storage()
    with shop(store) as s:
        s.push(rows=[order(1, "ann", 5)])
        view = Follower(s, {"table": "buyers"}).caught_up()
        table = Follower(s, {"table": "orders"}).caught_up()
        store = Storage(s.pipeline.storage.blob, s.pipeline.storage.meta, "memory")
    changed = replace(VIEWS[1], version=2, function=lambda tables: doubled(tables) * 2)
    with shop(store, made=engine(VIEWS[0], changed)) as s:
        view.shop = table.shop = s
        answer = view.step()
        assert answer.status == 409
        assert view.caught_up().content() == [("ann",), ("ann",)]
        assert table.step().status == 200
        enforce_limits(s.service.shapes)
        assert len(s.service.shapes.records.all()) == 2


def test_shapes_of_a_failed_view_are_served_until_the_view_recovers() -> None:
    with shop(options=LONG, made=engine(SMALL["share"])) as s, ThreadPoolExecutor(1) as aside:
        s.push(rows=[order(1, "ann", 5)])
        client = Follower(s, {"table": "share"}).caught_up()
        s.push(rows=[order(2, "ann", 0)])
        assert s.pipeline.definition.list_away(ComponentState.FAILED) == ["share"]
        assert client.step().changes == []
        assert Follower(s, {"table": "share"}).caught_up().content() == client.content() == [("1", "20")]
        waiting = aside.submit(client.step, live=True)
        while not any(shape.waiters for shape in s.service.shapes.live()):
            threading.Event().wait(0.01)
        s.push(rows=[order(2, "ann", 10)])
        assert waiting.result(30).status == 409
        assert client.caught_up().content() == [("1", "20"), ("2", "10")]


def test_a_request_right_after_a_view_was_replaced_gets_the_new_one() -> None:
    """Fails if the current shards are not read again: the old one has ended and has no content."""
    with shop(made=engine(SMALL["share"]), follow=False) as s:
        s.push(rows=[order(1, "ann", 5)])
        client = Follower(s, {"table": "share"}).caught_up()
        for amount in (0, 10):
            s.push(rows=[order(2, "ann", amount)])
        assert s.get("share").status == 200
        assert client.step().status == 409
        assert client.caught_up().content() == [("1", "20"), ("2", "10")]


def test_a_key_declared_later_makes_a_new_shape() -> None:
    store = storage()
    keyless = replace(VIEWS[0], key=())
    with shop(store, made=engine(keyless)) as s:
        s.push(rows=[order(1, "ann", 5)])
        client = Follower(s, {"table": "revenue"}).caught_up()
        assert [*client.rows] == ['"public"."revenue"/"5"/"ann"']
        store = Storage(s.pipeline.storage.blob, s.pipeline.storage.meta, "memory")
    with shop(store, made=engine(VIEWS[0])) as s:
        client.shop = s
        assert client.step().status == 409
        assert [*client.caught_up().rows] == ['"public"."revenue"/"ann"']


def test_an_idle_shape_is_dropped_and_loaded_again() -> None:
    with shop(options=replace(OPTIONS, idle_s=1e-9), follow=False) as s:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()
        s.service.shapes.release_idle()
        assert s.service.shapes.live() == []
        assert s.service.shapes._feeds == {}
        s.push(rows=[order(2)])
        client.step()
        assert (client.refetched, client.content("id")) == (0, [("1",), ("2",)])


def test_a_shape_that_is_dropped_during_a_request_is_not_answered_from_stale_memory() -> None:
    """Fails without the check that the shape is still followed: the client would miss a change."""
    with shop(options=replace(OPTIONS, idle_s=1e-9), follow=False) as s:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()
        shapes = s.service.shapes
        known = shapes.span_known

        def late(shape: LiveShape, after: Offset) -> LogSpan | None:
            """Drop the shape between finding and reading it, and follow others."""
            shapes.span_known = known  # type: ignore[method-assign]
            shapes.release_idle()
            s.push(rows=[order(2)])
            shapes.find_or_create(
                shapes.find_definition(parse_request({"table": "orders", "offset": "-1", "where": "id > 0"}))
            )
            return known(shape, after)

        shapes.span_known = late  # type: ignore[method-assign]
        answer = s.get(offset=client.offset, handle=client.handle)
        assert (answer.status, operations(answer.changes)) == (200, [("insert", "2")])  # the shape is loaded again
        assert client.step().changes
        assert client.refetched == 0

        def always(shape: LiveShape, after: Offset) -> LogSpan | None:
            shapes.release_idle()
            return known(shape, after)

        shapes.span_known = always  # type: ignore[method-assign]
        answer = s.get(offset=client.offset, handle=client.handle)
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")  # never 409 with the client's own handle


def test_memory_is_bounded_and_dropped_entries_are_read_again() -> None:
    with shop(options=replace(OPTIONS, memory_bytes=6000), follow=False) as s:
        s.push(rows=[order(1)])
        clients = [Follower(s, {"table": "orders", "where": f"id <> {n + 100}"}).caught_up() for n in range(4)]
        for number in range(2, 10):
            s.push(rows=[order(number)])
            for client in clients:
                client.step()
        s.service.shapes.release_idle()
        assert sum(shape.bytes for shape in s.service.shapes.live()) <= 2000
        for client in clients:
            assert len(s.get(offset="0_inf", handle=client.handle, where=client.query["where"]).changes) == 8
            assert len(client.caught_up().rows) == 9


def test_a_transaction_too_large_for_memory_comes_from_the_shard_in_chunks() -> None:
    with shop(options=replace(LONG, memory_bytes=8000, chunk_bytes=1500), follow=False) as s:
        s.push(rows=[order(1)])
        clients = [Follower(s, {"table": table}).caught_up() for table in ("orders", "buyers")]
        s.push(rows=[order(number) for number in range(100)])
        for client in clients:
            client.caught_up()
            assert len(client.rows) == 100
        assert all(not shape.tail.entries for shape in s.service.shapes.live())
        s.push(rows=[order(number, "bob") for number in range(0, 100, 20)])
        orders, buyers = (client.caught_up() for client in clients)
        assert buyers.content() == sorted(orders.content("customer"))
        assert buyers.content().count(("bob",)) == 5
        assert s.get(offset="now").offset == clients[0].offset


def test_an_error_within_a_transaction_leaves_no_half_of_it_in_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if entries from before the fault are kept: they would be sent again, and copies counted twice."""
    with shop(follow=False) as s:
        s.push(rows=[order(1)])
        clients = [Follower(s, {"table": table}).caught_up() for table in ("orders", "buyers")]
        clients += [Follower(s, {"table": "orders", "where": "id > 0"}).caught_up()]
        s.push(rows=[order(2)])
        entries, calls = Stretch.entries, []

        def failing(*arguments: Any) -> Any:
            calls.append(arguments)
            if len(calls) > 1:
                raise MemoryError
            return entries(*arguments)

        for client in clients[:2]:
            calls[:] = [] if client.query["table"] == "orders" else [()]
            monkeypatch.setattr(Stretch, "entries", failing)
            assert client.shop.get(**client.query, offset=client.offset, handle=client.handle).status == 500
            monkeypatch.undo()
        for client in clients:
            assert len(client.step().changes) == 1
            assert len(client.rows) == 2
