"""A schema for each test, on the server that all tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evertide.runtime import SystemRuntime
from tests.servers.postgres import PostgresServer
from tests.sinks.postgres.kit import Place


@pytest.fixture
def place(postgres_server: PostgresServer, runtime: SystemRuntime) -> Iterator[Place]:
    made = Place(postgres_server.dsn, f"t{runtime.new_id()}")
    yield made
    made.close()
