"""A process that serves a shop, and kills itself right after a write to a connection that asks for it.

    python -m tests.server.kill_after_write STORAGE ROWS

The request header `X-Kill: N` asks for it, at the process's write number N to such connections, counted from 1. The
send buffers of its connections are as small as those of connections over Ethernet.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn

from evertide.runtime import SystemRuntime
from evertide.server import server as serving
from evertide.server.access.connections import make_protocol
from evertide.settings import Settings
from evertide.store.open import open_storage
from tests.shapes.kit import OPTIONS, order, shop

_SEND_BUFFER_BYTES = 32 * 1024


class Deadly:
    """A transport. The event loop of asyncio sends written bytes at once, as far as the socket accepts them."""

    writes = 0

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.kill_at = 0
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._transport.write(data)
        Deadly.writes += bool(self.kill_at)
        if self.kill_at and Deadly.writes >= self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def deadly(settings: Settings) -> type[asyncio.Protocol]:
    base: Any = make_protocol(settings)

    class Protocol(base):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(Deadly(transport))

        def on_header(self, name: bytes, value: bytes) -> None:
            super().on_header(name, value)
            if name.lower() == b"x-kill":
                self.transport.kill_at = int(value)

    return Protocol


def main(path: Path, rows: int) -> None:
    serving.make_protocol = deadly  # type: ignore[attr-defined]
    uvicorn.Config = functools.partial(uvicorn.Config, loop="asyncio")  # type: ignore[misc,assignment]
    store = open_storage(path, runtime=SystemRuntime(), settings=Settings())
    with shop(store, replace(OPTIONS, long_poll_s=20, sse_s=60)) as made:
        made.push(rows=[order(number) for number in range(rows)])
        print("running", made.host, made.port, flush=True)
        signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
