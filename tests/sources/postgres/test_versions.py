"""The supported servers besides the one of all other tests: 14, 15, 17 and 18.

The tests are those of the other files here, by the same functions: the snapshot and the stream, all types, truncates,
changes of keys, large values that an update does not change, large transactions that are streamed while they are open
and rolled back, a restart of the server, a lost slot. Only the server differs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.postgres_versions import VERSIONS
from tests.sources.postgres.server import Database, LogicalServer, running_logical
from tests.sources.postgres.test_reconnect import test_a_server_restart_loses_nothing
from tests.sources.postgres.test_schema import (
    test_a_column_added_upstream_is_ignored_until_it_is_declared,
    test_a_slot_that_the_server_invalidated_stalls_the_source,
)
from tests.sources.postgres.test_stream import (
    test_large_values_are_taken_from_the_whole_old_row,
    test_large_values_that_an_update_does_not_change_are_kept,
    test_partitions_and_a_subset_of_columns_in_any_case,
    test_the_snapshot_is_followed_by_changes,
    test_truncate_empties_the_table_in_the_middle_of_a_transaction,
)
from tests.sources.postgres.test_transactions import (
    seen,
    test_t7_interleaved_streamed_transactions_and_late_aborts,
    test_t7_rolled_back_subtransactions_are_dropped,
)
from tests.sources.postgres.test_types import test_all_types_from_snapshot_and_stream

__all__ = [
    "seen",
    "test_a_column_added_upstream_is_ignored_until_it_is_declared",
    "test_a_server_restart_loses_nothing",
    "test_a_slot_that_the_server_invalidated_stalls_the_source",
    "test_all_types_from_snapshot_and_stream",
    "test_large_values_are_taken_from_the_whole_old_row",
    "test_large_values_that_an_update_does_not_change_are_kept",
    "test_partitions_and_a_subset_of_columns_in_any_case",
    "test_t7_interleaved_streamed_transactions_and_late_aborts",
    "test_t7_rolled_back_subtransactions_are_dropped",
    "test_the_snapshot_is_followed_by_changes",
    "test_truncate_empties_the_table_in_the_middle_of_a_transaction",
]


@pytest.fixture(scope="module", params=VERSIONS)
def logical_server(request: pytest.FixtureRequest) -> Iterator[LogicalServer]:
    """Replaces the server of all other files."""
    with running_logical(request.param, wal_sender_timeout="2s") as server:
        yield server


@pytest.fixture(scope="module")
def own_server(logical_server: LogicalServer) -> LogicalServer:
    return logical_server


def test_the_server_has_the_requested_version(db: Database, request: pytest.FixtureRequest) -> None:
    version = request.node.callspec.params["logical_server"]
    assert str(db.value("SHOW server_version_num")).startswith(version)
