"""A shop behind a real socket, and a client: what the tests of the server share."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from evertide.pipeline.pipeline import Pipeline
from evertide.server.app import make_app
from evertide.server.serving import Server
from evertide.settings import Settings
from evertide.store.open import Storage
from tests.pipeline.kit import SETTINGS, open_pipeline, storage

__all__ = ["Answer", "Client", "numbered", "order", "served", "shop"]


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Client:
    """A connection for each request, so that threads may share it."""

    host: str
    port: int
    timeout_s: float = 30

    def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """A body that is not bytes goes as JSON."""
        given = {"Content-Type": "application/json", **(headers or {})}
        return self.ask("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), given)

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, **options: Any
    ) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)
        try:
            connection.request(method, path, body, dict(headers or {}), **options)
            answer = connection.getresponse()
            content = answer.read()
            return Answer(answer.status, json.loads(content) if content else None, dict(answer.getheaders()))
        finally:
            connection.close()


@contextmanager
def served(pipeline: Pipeline) -> Iterator[Client]:
    with Server() as server:
        server.start(make_app(pipeline))
        yield Client(server.host, server.port)


@contextmanager
def shop(store: Storage | None = None, settings: Settings = SETTINGS) -> Iterator[tuple[Pipeline, Client]]:
    """An open pipeline without Spark, and a client of it. It is not run beside: pushes make the transactions."""
    with open_pipeline(store or storage(), settings=settings) as pipeline, served(pipeline) as client:
        yield pipeline, client


def order(number: int, customer: str = "ann", amount: int = 10) -> dict[str, Any]:
    return {"id": number, "customer": customer, "amount": amount}


def numbered(producer: str, sequence: int) -> dict[str, str]:
    return {"Evertide-Producer": producer, "Evertide-Sequence": str(sequence)}
