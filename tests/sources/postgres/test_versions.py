"""The servers that are supported besides the one of all other tests: 14, 15, 17 and 18.

What is tested is what the other files here test, by the same functions: the first content and the stream, all types,
truncates, changes of keys, large values that an update leaves alone, big transactions that are streamed while they are
open and taken back, a restart of the server, a slot that is lost. Only the server is another one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.postgres_versions import VERSIONS
from tests.sources.postgres.server import Database, LogicalServer, running_logical
from tests.sources.postgres.test_reconnect import test_a_server_that_restarts
from tests.sources.postgres.test_schema import (
    test_a_column_that_is_added_upstream_is_left_out_until_it_is_declared,
    test_a_slot_that_the_server_invalidated,
)
from tests.sources.postgres.test_stream import (
    test_first_content_then_changes,
    test_large_values_that_an_update_leaves_alone,
    test_large_values_with_the_whole_old_row,
    test_partitions_and_a_subset_of_columns_whatever_their_case,
    test_truncate_empties_the_table_in_the_middle_of_a_transaction,
)
from tests.sources.postgres.test_transactions import (
    seen,
    test_t7_interleaved_streamed_transactions_and_late_aborts,
    test_t7_subtransactions_that_are_rolled_back,
)
from tests.sources.postgres.test_types import test_all_types_from_snapshot_and_stream

__all__ = [
    "seen",
    "test_a_column_that_is_added_upstream_is_left_out_until_it_is_declared",
    "test_a_server_that_restarts",
    "test_a_slot_that_the_server_invalidated",
    "test_all_types_from_snapshot_and_stream",
    "test_first_content_then_changes",
    "test_large_values_that_an_update_leaves_alone",
    "test_large_values_with_the_whole_old_row",
    "test_partitions_and_a_subset_of_columns_whatever_their_case",
    "test_t7_interleaved_streamed_transactions_and_late_aborts",
    "test_t7_subtransactions_that_are_rolled_back",
    "test_truncate_empties_the_table_in_the_middle_of_a_transaction",
]


@pytest.fixture(scope="module", params=VERSIONS)
def logical_server(request: pytest.FixtureRequest) -> Iterator[LogicalServer]:
    """In place of the one that all other files have."""
    with running_logical(request.param, wal_sender_timeout="2s") as server:
        yield server


@pytest.fixture(scope="module")
def own_server(logical_server: LogicalServer) -> LogicalServer:
    return logical_server


def test_it_is_that_version(db: Database, request: pytest.FixtureRequest) -> None:
    version = request.node.callspec.params["logical_server"]
    assert str(db.value("SHOW server_version_num")).startswith(version)
