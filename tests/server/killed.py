"""A process that serves a shop, and kills itself right after its first write to a connection that asks for it.

    python -m tests.server.killed STORAGE

A request with the header `X-Kill` asks for it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import uvicorn

from evertide.runtime import SystemRuntime
from evertide.server.access.connections import protocol_of
from evertide.server.http import server as serving
from evertide.settings import Settings
from evertide.store.open import open_storage
from tests.shapes.kit import order, shop


class Deadly:
    """A transport. The event loop of asyncio sends at once what is written, as far as the socket takes it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.is_armed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._transport.write(data)
        if self.is_armed:
            os.kill(os.getpid(), signal.SIGKILL)


def deadly(settings: Settings) -> type[asyncio.Protocol]:
    base: Any = protocol_of(settings)

    class Protocol(base):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(Deadly(transport))

        def on_header(self, name: bytes, value: bytes) -> None:
            super().on_header(name, value)
            self.transport.is_armed |= name.lower() == b"x-kill"

    return Protocol


def main(path: Path) -> None:
    serving.protocol_of = deadly  # type: ignore[attr-defined]
    uvicorn.Config = functools.partial(uvicorn.Config, loop="asyncio")  # type: ignore[misc,assignment]
    store = open_storage(path, runtime=SystemRuntime(), settings=Settings())
    with shop(store) as made:
        made.push(rows=[order(number) for number in range(200)])
        print("running", made.host, made.port, flush=True)
        signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
