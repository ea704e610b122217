"""A new client of a shape with a long log begins with a later snapshot; clients that follow the shape continue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from evertide.settings import Settings
from evertide.shapes.log import registry
from evertide.shapes.protocol.offsets import INF, Offset, SnapshotChunk, parse_offset
from evertide.sources.generated.seeded import RandomStream
from tests.pipeline.kit import SETTINGS, rows_of, storage
from tests.shapes.kit import OPTIONS, Follower, Shop, order, shop

SMALL = replace(OPTIONS, chunk_bytes=300)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FRESH_CHANGES", 20)


def busy(s: Shop, transactions: int, chance: RandomStream | None = None) -> None:
    """Write the same few rows repeatedly."""
    for number in range(transactions):
        customer = "ann" if chance is None else f"c{chance.below(3)}"
        s.push(rows=[order(row, customer, number) for row in range(5)])


def expected(s: Shop, table: str) -> list[tuple[str, ...]]:
    return sorted(tuple(str(value) for value in row) for row in rows_of(s.pipeline, table))


def content(client: Follower, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(client.content(*columns))


ORDERS = ("id", "customer", "amount")


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, inline_bytes_max=1)])
def test_a_new_client_gets_the_content_and_not_the_history(settings: Settings) -> None:
    """Fails if the client begins with the first snapshot: all changes since would follow."""
    with shop(settings=settings) as s:
        busy(s, 1)
        old = Follower(s, {"table": "orders"}).caught_up()
        busy(s, 30)
        old.caught_up()  # so that the server has read all of it, too
        new = Follower(s, {"table": "orders"})
        first = new.step()
        assert (len(first.changes), first.offset.startswith("0_")) == (5, True)
        second = new.step()
        assert (second.changes, second.is_up_to_date, second.handle) == ([], True, old.handle)
        busy(s, 3)
        for client in (old.caught_up(), new.caught_up(), Follower(s, {"table": "orders"}).caught_up()):
            assert content(client, *ORDERS) == expected(s, "orders")
            assert (client.handle, client.refetched) == (old.handle, 0)


def test_a_short_log_is_sent_and_a_large_collection_is_not_read_again() -> None:
    with shop() as s:
        s.push(rows=[order(row) for row in range(100)])
        begun = s.get()
        busy(s, 15)
        again = s.get()
        assert (again.offset, again.headers["etag"]) == ("0_0", begun.headers["etag"])


@pytest.mark.parametrize("table", ["orders", "revenue", "buyers"])
def test_chunks_of_a_later_snapshot_continue_in_another_process_during_changes(table: str) -> None:
    """Fails if a chunk depends on one process's memory, or the log begins at another offset than the snapshot.
    `buyers` has no key, so its rows are counted."""
    chance, store = RandomStream(7), storage()
    columns = {"orders": ORDERS, "revenue": ("customer", "amount"), "buyers": ("customer",)}[table]
    clients: list[Follower] = []

    def reconnect(s: Shop) -> Iterator[Follower]:
        """Connect the same clients to another server."""
        for client in clients:
            yield replace(client, shop=s)

    for _ in range(4):
        with shop(store, SMALL) as s:
            clients = [*reconnect(s)]
            busy(s, 1 + chance.below(20), chance)
            clients.append(Follower(s, {"table": table}))
            for client in clients:
                for _ in range(1 + chance.below(2)):
                    client.step()
                    busy(s, 1, chance)
    with shop(store, SMALL) as s:
        for client in reconnect(s):
            assert content(client.caught_up(), *columns) == expected(s, table)


def test_a_where_clause_holds_for_a_later_snapshot_too() -> None:
    with shop() as s:
        busy(s, 1)
        asked = {"table": "orders", "where": "amount > 5 AND id < 3"}
        old = Follower(s, asked).caught_up()
        busy(s, 30)
        new = Follower(s, asked)
        assert len(new.step().changes) == 3
        s.push(rows=[order(0, "ann", 0), order(1, "ann", 50)])
        assert content(new.caught_up(), *ORDERS) == content(old.caught_up(), *ORDERS)
        assert {row[0] for row in content(new, "id")} == {"1", "2"}


@pytest.mark.parametrize("offset", [SnapshotChunk(99, 0), SnapshotChunk(0, 0), SnapshotChunk(2**40, 3)])
def test_an_unknown_snapshot_is_refused(offset: SnapshotChunk) -> None:
    with shop() as s:
        busy(s, 1)
        begun = s.get()
        answer = s.get(offset=str(offset.offset), handle=begun.handle)
        assert (answer.status, answer.body["errors"]) == (400, {"offset": ["out of bounds for this shape"]})


@pytest.mark.parametrize("chunk", [SnapshotChunk(None, 0), SnapshotChunk(0, 0), SnapshotChunk(12345, 678)])
def test_an_offset_names_the_next_chunk(chunk: SnapshotChunk) -> None:
    assert parse_offset(str(chunk.offset)) == chunk.offset
    assert chunk.offset.next_chunk == chunk._replace(number=chunk.number + 1)
    assert chunk.log.next_chunk is None
    assert parse_offset("-1") == Offset(-1, 0)
    assert Offset(-1, 0).next_chunk == SnapshotChunk(None, 0)
    assert chunk.log.operation == INF
