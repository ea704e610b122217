"""The memory of all request bodies together: acquired in steps, in turn, and never waited for without a limit."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import anyio
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from evertide.server.access import ListenOptions
from evertide.server.access.body_memory import BodyMemory, find_reservation
from evertide.server.app import make_app
from evertide.server.server import Server
from evertide.settings import Settings
from tests.pipeline.kit import open_pipeline, storage
from tests.server.kit import Client, order, until

ROWS = "/v1/tables/orders/rows"
BLOCK = 64 * 1024
LIMIT = 1024 * 1024


class Upload:
    """A request whose client sends its blocks one by one, when the test allows it."""

    def __init__(self, blocks: int, *, declared: int | None = None, decoded: int = 0) -> None:
        self.blocks = blocks
        self.decoded = decoded
        self.headers = [(b"transfer-encoding", b"chunked")] if declared is None else []
        self.headers += [] if declared is None else [(b"content-length", str(declared).encode())]
        self.may_send = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.sent = 0
        self.is_read = asyncio.Event()
        self.error: HTTPException | None = None

    def let(self) -> Upload:
        self.may_send.set()
        self.may_answer.set()
        return self

    async def go(self, memory: BodyMemory) -> None:
        scope = {"type": "http", "headers": self.headers, "upload": self}
        try:
            await memory(scope, self._receive, self._send)
        except HTTPException as error:
            self.error = error

    async def _receive(self) -> Message:
        await self.may_send.wait()
        await asyncio.sleep(0)
        self.sent += 1
        return {"type": "http.request", "body": b"x" * BLOCK, "more_body": self.sent < self.blocks}

    async def _send(self, message: Message) -> None:
        pass


async def read_then_answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, decode it, and answer when the test allows it."""
    upload, reservation = scope["upload"], find_reservation(scope)
    while (await receive())["more_body"]:
        pass
    assert reservation is not None
    if upload.decoded:
        await reservation.reserve(upload.decoded)
    upload.is_read.set()
    await upload.may_answer.wait()
    await Response()(scope, receive, send)


def run_limited(run: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        with anyio.fail_after(60):
            await run()

    anyio.run(limited)


def make_memory(wait_s: float = 60.0) -> BodyMemory:
    return BodyMemory(read_then_answer, LIMIT, wait_s)


def test_held_memory_is_at_most_the_limit_and_one_body_and_all_requests_finish() -> None:
    """Twenty requests come at once, each of half the limit, and each larger once it is decoded. Fails if no request may
    exceed the limit: each holds what the others wait for, and all are refused; and if nothing is counted."""

    async def run() -> None:
        memory = make_memory()
        most, acquire = 0, memory.acquire

        async def watched(*given: Any) -> None:
            nonlocal most
            await acquire(*given)
            most = max(most, memory.bytes)

        memory.acquire = watched  # type: ignore[method-assign,assignment]
        uploads = [Upload(8, declared=None if at % 2 else 8 * BLOCK, decoded=LIMIT // 2).let() for at in range(20)]
        async with anyio.create_task_group() as tasks:
            for upload in uploads:
                tasks.start_soon(upload.go, memory)
        assert not [upload.error for upload in uploads if upload.error]
        assert LIMIT // 2 < most <= LIMIT + 2 * LIMIT // 2 + 4 * BLOCK
        assert memory.bytes == 0

    run_limited(run)


def test_a_request_that_announces_a_large_body_and_sends_nothing_holds_little() -> None:
    """Fails if memory is acquired for the announced length: three such clients would keep out all others."""

    async def run() -> None:
        memory = make_memory()
        idle = [Upload(1, declared=1000 * LIMIT) for _ in range(3)]
        async with anyio.create_task_group() as tasks:
            for upload in idle:
                tasks.start_soon(upload.go, memory)
            await asyncio.sleep(0.01)
            with anyio.fail_after(30):
                await Upload(1).let().go(memory)
            for upload in idle:
                upload.let()
        assert memory.bytes == 0

    run_limited(run)


def test_a_request_that_waits_too_long_is_refused_and_the_next_is_served() -> None:
    """A client that disconnects while it waits holds nothing either."""

    async def run() -> None:
        memory = make_memory(wait_s=0.1)
        holders = [Upload(16), Upload(16)]
        for holder in holders:
            holder.may_send.set()
        async with anyio.create_task_group() as tasks:
            for holder in holders:
                tasks.start_soon(holder.go, memory)
                await holder.is_read.wait()
            assert (
                memory.bytes == 2 * LIMIT
            )  # the second may continue, as the first of the requests that find no memory
            late = Upload(1).let()
            await late.go(memory)
            assert late.error is not None
            assert (late.error.status_code, late.error.headers) == (503, {"Retry-After": "5", "Connection": "close"})
            assert str(LIMIT) in late.error.detail
            with anyio.move_on_after(0.02):
                await Upload(1).let().go(memory)
            assert memory.bytes == 2 * LIMIT
            for holder in holders:
                holder.may_answer.set()
        assert memory.bytes == 0
        after = Upload(20).let()
        await after.go(memory)
        assert after.error is None

    run_limited(run)


def test_a_client_that_disconnects_releases_its_memory() -> None:
    """Fails if memory is released only with answers."""

    async def leaving(_: Scope, receive: Receive, __: Send) -> None:
        await receive()
        raise ClientDisconnect

    async def run() -> None:
        memory = BodyMemory(leaving, LIMIT, 60.0)
        with pytest.raises(ClientDisconnect):
            await Upload(2).let().go(memory)
        assert memory.bytes == 0

    run_limited(run)


def test_a_request_without_body_does_not_wait() -> None:
    async def run() -> None:
        memory = make_memory(wait_s=0.1)
        holders = [Upload(16), Upload(16)]
        async with anyio.create_task_group() as tasks:
            for holder in holders:
                holder.may_send.set()
                tasks.start_soon(holder.go, memory)
                await holder.is_read.wait()
            looking = Upload(1, declared=0).let()
            await looking.go(memory)
            assert looking.error is None
            for holder in holders:
                holder.may_answer.set()

    run_limited(run)


def test_too_many_uploads_at_once_get_retry_after_and_other_requests_are_answered() -> None:
    """Over a socket: clients that send half of a body each, and then nothing. Fails if bodies are read without a limit
    for all of them together."""
    settings = Settings(bodies_bytes_max=LIMIT, bodies_wait_s=0.2)
    with open_pipeline(storage(), settings=settings) as p, Server(listening=ListenOptions(settings=settings)) as server:
        server.start(make_app(p))
        client = Client(server.host, server.port)
        head = f"POST {ROWS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with ExitStack() as stack:
            for _ in range(3):
                stuck = stack.enter_context(socket.create_connection((server.host, server.port)))
                stuck.sendall(f"{head}Content-Length: {4 * LIMIT}\r\n\r\n".encode() + b" " * LIMIT)
            until(lambda: client.post(ROWS, [order(1)]).status == 503)
            answer = client.post(ROWS, [order(1)])
            assert (answer.body["error_code"], answer.headers["retry-after"]) == ("busy", "5")
            assert client.get("/v1/status").status == 200
        until(lambda: client.post(ROWS, [order(1)]).status == 200)


@pytest.mark.parametrize("decoded", [True, False])
def test_a_request_larger_than_the_limit_is_served_alone(*, decoded: bool) -> None:
    async def run() -> None:
        memory = make_memory(wait_s=0.1)
        large = Upload(1 if decoded else 40, decoded=40 * LIMIT if decoded else 0).let()
        await large.go(memory)
        assert large.error is None
        assert memory.bytes == 0

    run_limited(run)
