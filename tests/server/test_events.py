"""Server-sent events of a running pipeline."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from evertide.errors import SourceFailed
from evertide.server import server as serving
from evertide.server.access import Access, ListenOptions, Role, Token
from evertide.server.app import make_app
from evertide.server.endpoints import events
from evertide.server.server import Server
from tests.kit.runtime import ManualRuntime
from tests.pipeline.kit import ScriptedSource, open_pipeline, storage, with_sources
from tests.server.kit import Client, order, served, shop, until

ROWS = "/v1/tables/orders/rows"


class EventStream:
    """The events that a stream has sent so far."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.text = b""
        self.is_over = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while piece := self._connection.recv(65536):
                self.text += piece
        except OSError:
            pass
        self.is_over = True

    def events(self) -> list[tuple[str, Any]]:
        lines = [line.strip() for line in self.text.replace(b"\r\n", b"\n").split(b"\n")]
        names = [line.removeprefix(b"event: ").decode() for line in lines if line.startswith(b"event: ")]
        facts = [json.loads(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: ")]
        return list(zip(names, facts, strict=False))

    def named(self, name: str) -> list[Any]:
        return [facts for found, facts in self.events() if found == name]


@contextmanager
def listening(client: Client) -> Iterator[EventStream]:
    with socket.create_connection((client.host, client.port)) as connection:
        token = f"Authorization: Bearer {client.token}\r\n" if client.token else ""
        head = f"GET /v1/events HTTP/1.1\r\nHost: {client.host}:{client.port}\r\n{token}\r\n"
        connection.sendall(head.encode())
        stream = EventStream(connection)
        until(lambda: stream.named("state"))
        yield stream
        connection.shutdown(socket.SHUT_RDWR)


def test_transactions_states_checkpoints_and_problems_are_sent() -> None:
    source = ScriptedSource("files", ("notes",))
    with with_sources(source), open_pipeline(storage()) as p, served(p) as client, listening(client) as stream:
        assert stream.named("state")[0]["state"] == "running"
        assert stream.text.startswith(b"HTTP/1.1 200")
        assert b"text/event-stream" in stream.text
        client.post(ROWS, [order(1), order(2)])
        until(lambda: stream.named("transaction"))
        [made] = stream.named("transaction")
        assert (made["time"], made["rows_in"]) == (1, 2)
        p.checkpoint()
        until(lambda: stream.named("checkpoint"))
        assert stream.named("checkpoint")[-1]["time"] == 2
        source.error = SourceFailed(source="files", where="/in", why="no such directory")
        p.advance()
        until(lambda: stream.named("problem"))
        assert "no such directory" in stream.named("problem")[0]["why"]
        until(lambda: stream.named("state")[-1]["state"] == "stalled")


def test_a_server_that_stops_ends_its_streams_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails without `drain`: the server would wait for a stream that has no end, up to its limit."""
    monkeypatch.setattr(serving, "_STOP_LIMIT_S", 600)
    with open_pipeline(storage()) as p:
        server = Server().start(make_app(p))
        with listening(Client(server.host, server.port)) as stream:
            stopping = threading.Thread(target=server.stop, daemon=True)
            stopping.start()
            until(lambda: stream.is_over and not stopping.is_alive())
            assert not [one for one in threading.enumerate() if one.name == "evertide-events"]


def test_a_client_that_does_not_read_is_disconnected() -> None:
    """Fails if events for a slow client are kept without a limit."""
    listener: asyncio.Queue[bytes | None] = asyncio.Queue(2)
    for piece in (b"a", b"b", b"c"):
        events._enqueue(listener, piece)
    assert listener.get_nowait() is None
    assert listener.empty()


def test_the_number_of_listeners_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_LISTENERS_MAX", 1)
    with shop() as (_, client):
        with listening(client):
            assert client.get("/v1/events").status == 503
        until(lambda: client.get("/v1/health").status == 200)


def test_a_comment_keeps_the_connection_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_COMMENT_EVERY_S", 0.05)
    with shop() as (_, client), listening(client) as stream:
        until(lambda: b": still here" in stream.text)


def test_a_stream_ends_when_its_token_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream of an expired token ends; other streams continue. Fails if the token is checked only at the start."""
    monkeypatch.setattr(events, "_COMMENT_EVERY_S", 0.02)
    runtime = ManualRuntime()
    texts = "short-token-0123456789", "long-token-0123456789"
    short, long = (Token.of(text, Role.READ, text) for text in texts)
    access = Access(
        (
            replace(short, ends_at_s=runtime.wall_s() + 10),
            long,
        )
    )
    with open_pipeline(storage()) as p, Server(listening=ListenOptions(access=access)) as server:
        server.start(make_app(p, access=access, runtime=runtime))
        first, second = (Client(server.host, server.port, token=text) for text in texts)
        with listening(first) as ending, listening(second) as going:
            until(lambda: b": still here" in ending.text)
            runtime.jump_wall_s(10)
            until(lambda: ending.text.endswith(b"0\r\n\r\n"))  # the end of a chunked answer: nothing was cut off
            p.push("orders", [order(1)])
            p.commit()
            until(lambda: going.named("transaction"))
            assert not ending.named("transaction")
        assert first.get("/v1/status").status == 401


def test_head_is_answered_at_once_without_a_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a stream is started for it: it would never end."""
    monkeypatch.setattr(events, "_LISTENERS_MAX", 0)
    with shop() as (_, client):
        connection = http.client.HTTPConnection(client.host, client.port, timeout=60)
        connection.request("HEAD", "/v1/events")
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("content-type")) == (200, "text/event-stream; charset=utf-8")
        assert answer.read() == b""
        connection.request("GET", "/v1/health")
        assert connection.getresponse().status == 200
        connection.close()
        assert client.get("/v1/events").body["error_code"] == "busy"
