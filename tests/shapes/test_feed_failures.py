"""Storage that does not answer, missing parts, internal errors: all are reported, and no client waits forever."""

from __future__ import annotations

import logging
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evertide.errors import BlobMissing, StorageForbidden, Unavailable
from evertide.metrics.samples import measure_shapes
from evertide.pipeline.status.status import read_status
from evertide.shapes.log import follower
from evertide.shapes.log.follower import LimitEnforcer
from evertide.shapes.options import ShapeOptions
from evertide.shard.shard import Shard
from tests.pipeline.kit import SETTINGS, storage
from tests.server.kit import until
from tests.shapes.kit import BLOBS, OPTIONS, Follower, Lossy, operations, order, shop


def away(*_: Any) -> Any:
    raise Unavailable(path="there", why="it does not answer")


def test_storage_that_does_not_answer_is_503_with_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    with shop(follow=False) as s:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()

        monkeypatch.setattr(s.service.shapes.records, "read_ended", away)
        answer = s.get(offset=client.offset, handle=client.handle)
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert (answer.body["error_code"], answer.headers["cache-control"]) == ("unavailable", "no-store")
        assert s.get(where="id = 7").status == 503
        monkeypatch.undo()
        assert client.step().status == 200
        assert client.refetched == 0


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (Unavailable(path="there", why="it does not answer"), "could not follow collections for shapes"),
        (ZeroDivisionError(), "the thread evertide-shapes failed, will retry"),
    ],
)
def test_the_follower_thread_continues_after_any_error(
    error: Exception, logged: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if the thread ends: clients would wait for their timeout without a reason."""
    with shop(options=ShapeOptions(long_poll_s=1000)) as s, ThreadPoolExecutor(1) as aside:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()
        shapes = s.service.shapes
        failures: list[Exception] = []
        look = shapes.refresh_collections

        def failing() -> None:
            if len(failures) < 3:
                failures.append(error)
                raise error
            look()

        monkeypatch.setattr(shapes, "refresh_collections", failing)
        while len(failures) < 3:
            s.push(rows=[order(0)])
        waiting = aside.submit(client.step, live=True)
        s.push(rows=[order(2, "ann", 1)])
        seen = operations(waiting.result(60).changes)
        while ("insert", "2") not in seen:
            seen += operations(client.step(live=True).changes)
    assert logged in caplog.text


def test_a_collection_that_cannot_be_read_stops_and_others_continue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with shop(follow=False) as s:
        s.push(rows=[order(1)])
        broken = Follower(s, {"table": "orders"}).caught_up()
        sound = Follower(s, {"table": "revenue"}).caught_up()
        changes = Shard.changes

        def missing(shard: Shard, *window: Any) -> Any:
            if shard.name.startswith("orders"):
                raise BlobMissing(path="parts/x", why="it is gone")
            return changes(shard, *window)

        monkeypatch.setattr(Shard, "changes", missing)
        s.push(rows=[order(2)])
        s.service.shapes.follow()
        assert "the feed of collection 'orders' is stalled" in caplog.text
        answer = s.get(offset=broken.offset, handle=broken.handle)
        assert (answer.status, answer.body["error_code"]) == (503, "blob_missing")
        assert "parts/x" in answer.body["path"]
        assert len(sound.step().changes) == 1
        assert measure_shapes(s.service.shapes).failed_feeds == 1
        monkeypatch.undo()
        assert operations(broken.step().changes) == [("insert", "2")]
        assert broken.refetched == 0


@pytest.mark.parametrize("way", ["live", "sse", "catching up"])
def test_x9_a_client_of_a_view_without_a_part_is_refused_and_continues_when_it_is_back(way: str) -> None:
    """Fails if a feed that cannot read its collection lets clients believe that they are up to date."""
    blob = Lossy()
    with shop(storage(blob=blob), settings=BLOBS) as s:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "revenue"}).caught_up()
        other = Follower(s, {"table": "orders"}).caught_up()
        with blob.losing("revenue"):
            s.push(rows=[order(2)])
        last = s.push(rows=[order(3)])
        until(lambda: s.pipeline.status().problems)
        before = (client.offset, client.handle)
        asked: dict[str, Any] = {"offset": client.offset, "handle": client.handle, "table": "revenue"}
        asked |= {"live": {"live": "true"}, "sse": {"live": "true", "live_sse": "true"}}.get(way, {})
        answer = s.ask(**asked)
        assert (answer.status, answer.headers["retry-after"], answer.body["error_code"]) == (503, "5", "blob_missing")
        assert (answer.headers["cache-control"], client.offset, client.handle) == ("no-store", *before)
        (found,) = s.pipeline.status().problems
        assert (found.state, found.error_code) == ("frozen", "blob_missing")
        assert "'revenue'" in found.why
        assert next(iter(blob.hidden)) in found.why
        assert other.caught_up().content("id") == [("1",), ("2",), ("3",)]  # other collections are not affected
        blob.bring_back()
        until(lambda: not s.pipeline.status().problems)
        client.caught_up()
        assert (client.refetched, int(client.offset.partition("_")[0])) == (0, last + 1)
        assert client.content("customer", "amount") == [("ann", "30")]


def test_x9_a_waiting_client_learns_at_once_that_a_part_is_missing() -> None:
    """Fails, by the test's timeout, if clients that wait when a feed stops are not woken."""
    blob = Lossy()
    with shop(storage(blob=blob), ShapeOptions(long_poll_s=1000), settings=BLOBS) as s, ThreadPoolExecutor(1) as aside:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "revenue"}).caught_up()
        asked: dict[str, Any] = {"offset": client.offset, "handle": client.handle, "live": "true"}
        waiting = aside.submit(s.get, "revenue", **asked)
        until(lambda: any(shape.waiters for shape in s.service.shapes.live()))
        with blob.losing("revenue"):
            s.push(rows=[order(2)])
        assert waiting.result(60).status == 503


def test_x12_a_snapshot_waits_while_temporary_files_have_no_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Fails if the file system's error is reported as a bug, or if the snapshot stays broken."""
    with shop(options=replace(OPTIONS, chunk_bytes=1000)) as s:
        s.push(rows=[order(number) for number in range(100)])
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full"))
        answer = s.get()
        assert (answer.status, answer.body["error_code"]) == (503, "scratch_unavailable")
        monkeypatch.undo()
        assert len(Follower(s, {"table": "orders"}).caught_up().rows) == 100


def test_x9_no_client_gets_up_to_date_during_an_outage_of_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if only read errors of a feed count, and not that the feed could not be followed."""
    options = replace(OPTIONS, stale_s=0.5, long_poll_s=2.0)
    with shop(options=options) as s:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()
        monkeypatch.setattr(s.service.shapes.meta, "head", away)
        answer = s.get(offset=client.offset, handle=client.handle, live="true")
        assert (answer.status, answer.body["error_code"]) == (503, "unavailable")
        assert "'orders'" in answer.body["message"]
        assert [(one.state, one.error_code) for one in s.service.problems()] == [("stalled", "unavailable")]
        monkeypatch.undo()
        until(lambda: not s.service.problems())
        s.push(rows=[order(2)])
        client.caught_up()
        assert (client.refetched, client.content("id")) == (0, [("1",), ("2",)])


def test_a_client_retries_if_snapshots_are_dropped_while_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dropped snapshot is not an outage of storage, but 503 makes the client request the same chunk again."""
    with shop(follow=False) as s:
        s.push(rows=[order(1)])
        shapes = s.service.shapes
        get = shapes.get_chunks

        def dropped(*of: Any) -> Any:
            chunks = get(*of)
            chunks.close()
            return chunks

        monkeypatch.setattr(shapes, "get_chunks", dropped)
        answer = s.get(offset="-1")
        assert (answer.status, answer.headers["retry-after"], answer.body["error_code"]) == (
            503,
            "5",
            "not_allowed_now",
        )


@pytest.mark.parametrize("is_serving", [True, False])
def test_limits_that_cannot_be_enforced_are_in_the_status(monkeypatch: pytest.MonkeyPatch, *, is_serving: bool) -> None:
    """Here and in storage. Otherwise the storage would silently keep all history from the oldest shape on."""

    def refuse(*_: Any, **__: Any) -> None:
        raise StorageForbidden(path="meta", why="it is read-only")

    store, settings = storage(), replace(SETTINGS, heartbeat_interval_s=0.001)
    with shop(store, settings=settings, follow=False) as s:
        p = s.pipeline
        monkeypatch.setattr(follower, "enforce_limits", refuse)
        made = s.service._follower if is_serving else LimitEnforcer(s.service.shapes)
        if isinstance(made, LimitEnforcer):  # otherwise the server has done it
            p.watch_feeds(made.list_failures)
        until(lambda: made.tick() is not False and bool(made.list_failures()))
        p._leader_tasks._reporter.tick()
        stored = read_status(store, p._context.shards, p._context.journal, p._context.checkpoints)
        for status in (p.status(), stored):
            [found] = [one for one in status.problems if one.error_code == "storage_forbidden"]
            assert (found.state, status.state) == ("warning", "running")
            assert "enforcing the limits of shapes fails" in found.why
        monkeypatch.undo()
        until(lambda: made.tick() is not False and not made.list_failures())
        assert p.status().problems == ()
