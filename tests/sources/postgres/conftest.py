"""A server for logical replication, started once, and a database of it for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evertide.runtime import SystemRuntime
from tests.sources.postgres.server import Database, LogicalServer, running_logical


@pytest.fixture(scope="session")
def logical_server() -> Iterator[LogicalServer]:
    with running_logical() as server:
        yield server


@pytest.fixture
def db(logical_server: LogicalServer, runtime: SystemRuntime) -> Iterator[Database]:
    database = Database(logical_server, f"t{runtime.new_id()}")
    yield database
    database.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[LogicalServer]:
    """A server that a test may stop."""
    with running_logical(wal_sender_timeout="2s") as server:
        yield server


@pytest.fixture
def own(own_server: LogicalServer, runtime: SystemRuntime) -> Iterator[Database]:
    database = Database(own_server, f"t{runtime.new_id()}")
    yield database
    database.close()
