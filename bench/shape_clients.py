"""Thousands of shape clients in one process, without threads, for `bench.shapes`.

    python -m bench.shape_clients HOST PORT

Each line of its input is a command, a JSON object; each command is answered with a line:

    {"follow": [OWNER, ...]}                    starts a client per owner; answers when all wait for the next change
    {"expect": TRANSACTION, "clients": COUNT}   answers when COUNT clients have it: the first and last arrival
    {"sync": TABLE}                             reads a whole table: seconds, rows, bytes

Times are those of `time.perf_counter`, which is one clock for all processes of a machine.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

_AT_ONCE = 100
_LIMIT_S = 120.0
_MARK = b'"lsn":"'


def raise_file_limit() -> int:
    """Raise the limit of open files and connections of this process, and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, **query: str) -> None:
        self._writer.write(f"GET /v1/shape?{urlencode(query)} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await self._writer.drain()

    async def receive(self) -> _Answer:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        if "content-length" in headers:
            body = await self._reader.readexactly(int(headers["content-length"]))
        else:
            body = b"".join([block async for block in self._read_blocks()])
        return _Answer(int(head[0].split()[1]), headers, body)

    async def _read_blocks(self) -> Any:
        """The blocks of a chunked body."""
        while length := int(await self._reader.readline(), 16):
            yield await self._reader.readexactly(length)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)

    async def get(self, **query: str) -> _Answer:
        await self.send(**query)
        answer = await self.receive()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {answer.body[:200]!r}")
        return answer


@dataclass
class _Arrivals:
    """The times at which clients received a transaction."""

    moments: dict[int, list[float]] = field(default_factory=dict)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def add(self, transaction: int) -> None:
        now_s = time.perf_counter()
        async with self.changed:
            self.moments.setdefault(transaction, []).append(now_s)
            self.changed.notify_all()

    async def of(self, transaction: int, count: int) -> list[float]:
        async with asyncio.timeout(_LIMIT_S), self.changed:
            await self.changed.wait_for(lambda: len(self.moments.get(transaction, ())) >= count)
            return sorted(self.moments[transaction])


class _Clients:
    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._arrivals = _Arrivals()
        self._begin = asyncio.Semaphore(_AT_ONCE)
        self._following: list[asyncio.Task[None]] = []

    async def follow(self, owners: list[int]) -> dict[str, Any]:
        waiting = [asyncio.Event() for _ in owners]
        pairs = zip(owners, waiting, strict=True)
        self._following += [asyncio.create_task(self._one(owner, event)) for owner, event in pairs]
        all_wait = asyncio.create_task(_all(waiting))
        await asyncio.wait([all_wait, *self._following], return_when=asyncio.FIRST_COMPLETED)
        for task in self._following:
            if task.done():  # a task ends only by an error
                task.result()
        return {"waiting": len(owners)}

    async def _one(self, owner: int, waiting: asyncio.Event) -> None:
        query = {"table": "orders", "where": f"owner = {owner}"}
        async with self._begin:
            connection = await self._connection()
            answer = await connection.get(offset="-1", **query)
            while "electric-up-to-date" not in answer.headers:
                answer = await connection.get(**_next(answer), **query)
            await connection.send(live="true", **_next(answer), **query)
        waiting.set()
        while True:
            answer = await connection.receive()
            if _MARK in answer.body:
                last = answer.body.rindex(_MARK) + len(_MARK)
                await self._arrivals.add(int(answer.body[last : answer.body.index(b'"', last)]))
            await connection.send(live="true", **_next(answer), **query)

    async def expect(self, transaction: int, count: int) -> dict[str, Any]:
        found = await self._arrivals.of(transaction, count)
        return {"first_s": found[0], "median_s": found[len(found) // 2], "last_s": found[-1]}

    async def sync(self, table: str) -> dict[str, Any]:
        connection = await self._connection()
        begun_s, rows, size = time.perf_counter(), 0, 0
        answer = await connection.get(table=table, offset="-1")
        while True:
            rows += answer.body.count(b'"operation":"insert"')
            size += len(answer.body)
            if "electric-up-to-date" in answer.headers:
                return {"seconds": time.perf_counter() - begun_s, "rows": rows, "bytes": size}
            answer = await connection.get(table=table, **_next(answer))

    async def _connection(self) -> _Connection:
        return _Connection(*await asyncio.open_connection(self._host, self._port))


async def _all(events: list[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


def _next(answer: _Answer) -> dict[str, str]:
    return {"handle": answer.headers["electric-handle"], "offset": answer.headers["electric-offset"]}


async def _serve(host: str, port: int) -> None:
    clients = _Clients(host, port)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        if "follow" in command:
            found = await clients.follow(command["follow"])
        elif "expect" in command:
            found = await clients.expect(command["expect"], command["clients"])
        else:
            found = await clients.sync(command["sync"])
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    raise_file_limit()
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2])))
