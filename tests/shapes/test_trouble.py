"""Storage that does not answer, parts that are gone, faults of our own: told, and nobody waits for good."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from evertide.errors import BlobMissing, Unavailable
from evertide.shapes.options import ShapeOptions
from evertide.shard.shard import Shard
from tests.shapes.kit import Follower, operations, order, shop


def test_storage_that_does_not_answer_is_503_and_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with shop(follow=False) as s:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()

        def away(*_: Any) -> Any:
            raise Unavailable(path="there", why="it does not answer")

        monkeypatch.setattr(s.service.shapes.records, "ended", away)
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
        (Unavailable(path="there", why="it does not answer"), "shapes are not followed for the moment"),
        (ZeroDivisionError(), "the thread evertide-shapes failed, and tries again"),
    ],
)
def test_the_follower_goes_on_after_whatever_went_wrong(
    error: Exception, logged: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fails if its thread ends: the client then waits until its time is up, and nobody knows why."""
    with shop(options=ShapeOptions(long_poll_s=1000)) as s, ThreadPoolExecutor(1) as aside:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()
        shapes = s.service.shapes
        failures: list[Exception] = []
        look = shapes.look

        def failing() -> None:
            if len(failures) < 3:
                failures.append(error)
                raise error
            look()

        monkeypatch.setattr(shapes, "look", failing)
        while len(failures) < 3:
            s.push(rows=[order(0)])
        waiting = aside.submit(client.step, live=True)
        s.push(rows=[order(2, "ann", 1)])
        seen = operations(waiting.result(60).changes)
        while ("insert", "2") not in seen:
            seen += operations(client.step(live=True).changes)
    assert logged in caplog.text


def test_a_collection_that_cannot_be_read_stands_still_and_others_do_not(
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
        assert "the shapes of 'orders' stand still" in caplog.text
        answer = s.get(offset=broken.offset, handle=broken.handle)
        assert (answer.status, answer.body["error_code"]) == (500, "blob_missing")
        assert "parts/x" in answer.body["path"]
        assert len(sound.step().changes) == 1
        monkeypatch.undo()
        assert operations(broken.step().changes) == [("insert", "2")]
        assert broken.refetched == 0
