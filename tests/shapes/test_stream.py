"""Live answers as a stream of server-sent events."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from evertide.shapes.options import ShapeOptions
from tests.shapes.kit import OPTIONS, Follower, Shop, operations, order, shop


class Stream:
    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer
        self.status = answer.status
        self.headers = {name.lower(): value for name, value in answer.getheaders()}

    def __iter__(self) -> Iterator[Any]:
        """Each event as a message; keep-alive comments as text."""
        while line := self._answer.readline():
            text = line.decode().rstrip("\n")
            assert self._answer.readline() == b"\n"
            yield json.loads(text.removeprefix("data: ")) if text.startswith("data: ") else text

    def batch(self) -> list[Any]:
        """The messages up to the next up-to-date."""
        found = []
        for message in self:
            if message == ": keep-alive":
                continue
            found.append(message)
            if message["headers"].get("control") == "up-to-date":
                break
        return found


@contextmanager
def streaming(s: Shop, client: Follower, offset: str = "") -> Iterator[Stream]:
    asked = {**client.query, "handle": client.handle, "offset": offset or client.offset, "live": "true"}
    connection = http.client.HTTPConnection(s.host, s.port, timeout=60)
    try:
        connection.request("GET", f"/v1/shape?{urlencode({**asked, 'live_sse': 'true'})}")
        yield Stream(connection.getresponse())
    finally:
        connection.close()


def control(transaction: int) -> dict[str, Any]:
    return {"headers": {"control": "up-to-date", "global_last_seen_lsn": str(transaction)}}


def test_changes_come_as_events_each_transaction_with_its_end() -> None:
    with shop(options=ShapeOptions(sse_s=60)) as s:
        t = s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()
        with streaming(s, client) as stream:
            assert stream.status == 200
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.headers["cache-control"] == "public, max-age=59"
            assert stream.headers["electric-handle"] == client.handle
            assert stream.headers["electric-offset"] == client.offset
            assert "electric-cursor" in stream.headers
            assert "electric-schema" not in stream.headers
            for number in range(2, 5):
                t = s.push(rows=[order(number), order(number + 10)])
                *told, end = stream.batch()
                assert operations(told) == [("insert", str(number)), ("insert", str(number + 10))]
                assert end == control(t + 1)
        # A client continues from its last known transaction: its changes are sent again, except its begin.
        with streaming(s, client, offset=f"{t + 1}_0") as stream:
            assert operations(stream.batch()[:-1]) == [("insert", "14")]


def test_existing_changes_come_first_and_the_stream_continues() -> None:
    with shop(options=ShapeOptions(sse_s=60)) as s:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()
        s.push(rows=[order(2)])
        s.get(offset=client.offset, handle=client.handle)  # the feed has read it
        with streaming(s, client) as stream:
            assert operations(stream.batch()[:-1]) == [("insert", "2")]
            s.push(deletes=[1])
            assert operations(stream.batch()[:-1]) == [("delete", "1")]


def test_an_idle_stream_is_kept_alive_and_ends_after_its_limit() -> None:
    with shop(options=OPTIONS) as s:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()
        with streaming(s, client) as stream:
            told = [*stream]
        assert set(map(str, told)) == {": keep-alive"}
        assert len(told) >= 2


def test_the_end_of_a_shape_ends_its_streams_and_is_then_409() -> None:
    with shop(options=ShapeOptions(sse_s=60, deletion=True)) as s:
        s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()
        with streaming(s, client) as stream:
            s.push(rows=[order(2)])
            stream.batch()
            threading.Thread(target=s.ask, args=("DELETE",), kwargs={"handle": client.handle}).start()
            assert [*stream] == []
        with streaming(s, client) as stream:
            assert (stream.status, stream.headers["content-type"]) == (409, "application/json")


def test_a_stream_that_cannot_start_is_refused_in_json() -> None:
    with shop() as s:
        t = s.push(rows=[order(1)])
        client = Follower(s, {"table": "orders"}).caught_up()
        with streaming(s, client, offset=f"{t + 5}_0") as stream:
            assert (stream.status, stream.headers["content-type"]) == (400, "application/json")
