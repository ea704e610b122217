"""A shop behind a real socket, and a client, shared by the tests of the server."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from evertide.server.app import make_app
from evertide.server.server import Server
from evertide.settings import Settings
from evertide.store.open import Storage, open_storage
from tests.pipeline.kit import SETTINGS, open_pipeline, storage


@dataclass(frozen=True)
class Raw:
    status: int
    content: bytes
    headers: Mapping[str, str]

    @property
    def media(self) -> str:
        return self.headers["content-type"].partition(";")[0]


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Client:
    """A client that opens a connection for each request, so that threads may share it."""

    host: str
    port: int
    timeout_s: float = 120
    token: str = ""

    def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a body; one that is not bytes is sent as JSON."""
        given = {"Content-Type": "application/json", **(headers or {})}
        return self.ask("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), given)

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **options: Any
    ) -> Answer:
        raw = self.raw(method, path, body, headers, **options)
        return Answer(raw.status, json.loads(raw.content) if raw.content else None, raw.headers)

    def raw(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **options: Any
    ) -> Raw:
        """Return an answer that need not be JSON."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)
        try:
            own = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            connection.request(method, path, body, {**own, **(headers or {})}, **options)
            answer = connection.getresponse()
            return Raw(answer.status, answer.read(), dict(answer.getheaders()))
        finally:
            connection.close()


@contextmanager
def served(pipeline: Pipeline) -> Iterator[Client]:
    with Server() as server:
        server.start(make_app(pipeline))
        yield Client(server.host, server.port)


@contextmanager
def shop(store: Storage | None = None, settings: Settings = SETTINGS) -> Iterator[tuple[Pipeline, Client]]:
    """Open a pipeline without Spark, and a client of it. No loop runs: pushes make the transactions."""
    with open_pipeline(store or storage(), settings=settings) as pipeline, served(pipeline) as client:
        yield pipeline, client


def stored(folder: Path) -> Storage:
    """Create the storage on disk, where worker processes can read it."""
    return open_storage(folder / "s", runtime=SystemRuntime(), settings=SETTINGS)


@contextmanager
def limited(pipeline: Pipeline, limit_s: float) -> Iterator[None]:
    """Limit the time of queries in the block, by the server's clock: it also applies to running workers."""
    before = pipeline.settings.query_limit_s
    object.__setattr__(pipeline.settings, "query_limit_s", limit_s)
    try:
        yield
    finally:
        object.__setattr__(pipeline.settings, "query_limit_s", before)


def order(number: int, customer: str = "ann", amount: int = 10) -> dict[str, Any]:
    return {"id": number, "customer": customer, "amount": amount}


def numbered(producer: str, sequence: int) -> dict[str, str]:
    return {"Evertide-Producer": producer, "Evertide-Sequence": str(sequence)}


def until(condition: Callable[[], Any]) -> None:
    """Wait until the condition holds, as long as a loaded machine needs."""
    waiting = threading.Event()
    for _ in range(6000):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("the condition did not become true")
