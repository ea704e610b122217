"""`Client` against a real server: every request, and every error as the pipeline itself raises it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

from evertide.client import Client
from evertide.errors import (
    Diverged,
    EvertideError,
    InvalidInput,
    LimitExceeded,
    NotAllowedNow,
    OutcomeUnknown,
    TimeCompacted,
    Unavailable,
)
from evertide.journal.journal import Journal
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pipeline import Pipeline
from evertide.settings import Settings
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import open_pipeline, rows_of
from tests.server.kit import order, served, stored
from tests.server.test_errors import example, tree


@contextmanager
def shop(settings: Settings | None = None, engine: SmallEngine | None = None) -> Iterator[tuple[Pipeline, Client]]:
    with (
        TemporaryDirectory() as folder,
        open_pipeline(stored(Path(folder)), engine, settings=settings or Settings(retry_limit_s=0.5)) as p,
        served(p) as known,
        Client(f"http://{known.host}:{known.port}/") as client,
    ):
        yield p, client


def test_rows_are_pushed_and_read_and_all_facts_are_returned() -> None:
    with shop() as (p, client):
        assert client.push("orders", [order(1), order(2, "bob", 5)]) == {"time": 1, "rows": 2, "txid": 2}
        assert client.push("orders", deletes=[2]) == {"time": 2, "rows": 1, "txid": 3}
        arrow = pa.table({"id": [7], "customer": ["eve"], "amount": [3]})
        assert client.push("orders", arrow)["time"] == 3
        found = client.rows("REVENUE")
        assert found.to_pylist() == [{"customer": "ann", "amount": 10}, {"customer": "eve", "amount": 3}]
        assert found.schema.metadata == {b"evertide.time": b"3"}
        assert client.rows("orders", as_of=1, columns=["id"], where="amount < $1", params=["9"]).to_pylist() == [
            {"id": 2}
        ]
        assert sum(batch.num_rows for batch in client.batches("orders")) == 2
        answer = client.query("SELECT sum(amount) AS n FROM revenue WHERE customer <> ?", parameters=["eve"])
        assert (answer.time, answer.rows.to_pylist(), answer.engine) == (3, [{"n": 10}], "duckdb")
        assert client.query("SELECT * FROM range(9)", limit=2).is_truncated
        assert client.status()["time"] == 3
        assert client.health()["status"] == "active"
        assert client.collections()[0]["name"] == "orders"
        assert len(client.graph()["nodes"]) == 5
        assert [one["time"] for one in client.transactions(limit=2)] == [3, 2]
        assert [one["time"] for one in client.journal(before=2, limit=1)] == [1]
        assert client.errors()["count"] == 0
        made = client.checkpoint()
        assert client.checkpoints()[0]["number"] == made["number"]
        assert client.pause()["state"] == "paused"
        with pytest.raises(NotAllowedNow, match="resume it with"):
            client.push("orders", [order(9)])
        assert client.resume()["state"] == "running"
        with pytest.raises(NotAllowedNow, match="only a failed view"):
            client.retry("revenue")
        assert p.time == 3


def test_a_transaction_is_all_or_nothing() -> None:
    with shop() as (p, client):
        with client.transaction() as t:
            t.push("orders", [order(1)])
            t.push("notes", pa.table({"text": ["a", "b"]}))
            assert rows_of(p, "orders") == []
        assert (t.time, t.rows, t.txid) == (1, 3, 2)
        assert t.commit() == 1, "a repeated commit gets the same answer"
        with pytest.raises(InvalidInput, match="is not a BIGINT"), client.transaction() as t:
            t.push("orders", [order(2), {"id": "x"}])
        assert len(rows_of(p, "orders")) == 1
        with pytest.raises(NotAllowedNow, match="with block"):
            client.transaction().push("orders", [order(3)])


def test_python_values_of_all_types_are_stored_unchanged() -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("de", pa.decimal128(30, 10)),
            ("ts", pa.timestamp("us", "UTC")),
            ("du", pa.duration("us")),
            ("by", pa.binary()),
            ("d", pa.float64()),
        ]
    )
    row = {
        "id": 1,
        "de": Decimal("12345678901234567890.0123456789"),
        "ts": datetime(2026, 1, 2, 3, 4, 5, 678, UTC),
        "du": timedelta(days=-1, microseconds=5),
        "by": b"\x00\xff",
        "d": float("inf"),
    }
    with shop(engine=SmallEngine((DeclaredTable("kinds", schema, key=("id",)),), [])) as (_, client):
        client.push("kinds", [row])
        assert client.rows("kinds").to_pylist() == [row]
        assert client.query("SELECT * FROM kinds").rows.to_pylist() == [row]


def test_j10_a_repeated_push_is_applied_once() -> None:
    with shop() as (p, client):
        for is_repeated in (False, True):
            found = client.push("notes", [{"text": "a"}], producer="till", sequence=3)
            assert found.get("is_repeated", False) is is_repeated
        assert len(rows_of(p, "notes")) == 1


def test_subscribe_yields_all_rows_and_then_each_change() -> None:
    with shop() as (_, client), ThreadPoolExecutor(1) as threads:
        client.push("orders", [order(1)])
        feed = client.subscribe("revenue")
        upper, rows = next(feed)
        assert (upper, rows.to_pylist()) == (2, [{"customer": "ann", "amount": 10, "__time": 1, "__diff": 1}])
        waiting = threads.submit(next, feed)
        client.push("orders", [order(1, amount=11)])
        upper, changes = waiting.result()
        assert upper == 3
        assert [(row["__time"], row["__diff"], row["amount"]) for row in changes.to_pylist()] == [
            (2, -1, 10),
            (2, 1, 11),
        ]
        feed.close()
        [(upper, changes)] = client.subscribe("revenue", since=0, follow=False)
        assert (upper, changes.num_rows) == (3, 3)
        assert client.changes("revenue", 2)[1].num_rows == 0


def test_events_are_received_as_they_happen() -> None:
    with shop() as (_, client), ThreadPoolExecutor(1) as threads:
        feed = client.events()
        assert next(feed)[0] == "state"
        waiting = threads.submit(next, feed)
        client.push("orders", [order(1)])
        name, facts = waiting.result()
        assert (name, facts["time"]) == ("transaction", 1)
        feed.close()


@pytest.fixture(scope="module")
def kept() -> Iterator[Client]:
    """Shared by tests that change nothing."""
    with shop() as (_, client):
        yield client


@pytest.mark.parametrize("kind", list(tree()), ids=lambda kind: str(kind.error_code))
def test_an_error_is_raised_with_its_own_class(
    kind: type[EvertideError], kept: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the facts are not restored."""
    error = example(kind)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "status", fail)
        with pytest.raises(EvertideError) as raised:
            kept.status()
    assert type(raised.value) is kind
    told = {name: tuple(value) if isinstance(value, list) else value for name, value in raised.value.facts.items()}
    assert told == error.facts
    assert fields(raised.value) == fields(error)


def test_refused_requests_raise_their_own_errors() -> None:
    with shop(Settings(request_bytes_max=100, query_bytes_max=10)) as (p, client):
        for number in range(3):
            client.push("orders", [order(number)])
            p.checkpoint()
        with pytest.raises(InvalidInput, match="no such collection"):
            client.rows("nothing")
        with pytest.raises(InvalidInput, match="is not a BIGINT") as refused:
            client.push("orders", [{"id": "x"}])
        assert refused.value.where == "table 'orders', row 1, column 'id'"
        with pytest.raises(TimeCompacted) as compacted:
            client.rows("orders", as_of=0)
        assert compacted.value.since == 2
        with pytest.raises(InvalidInput, match="413"):
            client.push("orders", [order(number) for number in range(50)])
        with pytest.raises(LimitExceeded):
            client.query("SELECT * FROM range(1000)")
        with pytest.raises(InvalidInput, match="404"):
            client._get("/v1/nothing")
        with pytest.raises(InvalidInput, match="SELECT"):
            client.query("DROP VIEW orders", engine="duckdb")


def test_a_missing_server_is_unavailable_and_a_broken_connection_leaves_writes_unknown() -> None:
    """I14. Fails if both raise the same error: an unsent request may be repeated, a sent one may not."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]

        def hang_up() -> None:
            for _ in range(2):
                connection, _where = deaf.accept()
                connection.recv(10)
                connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with Client(f"http://127.0.0.1:{port}") as client:
            with pytest.raises(OutcomeUnknown, match="the connection broke"):
                client.push("orders", [order(1)])
            with pytest.raises(Unavailable, match="the connection broke"):
                client.status()
        thread.join()
    with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(Unavailable, match="no connection"):
        client.push("orders", [order(1)])
    with pytest.raises(InvalidInput), Client("no-url") as client:
        client.status()
    with pytest.raises(InvalidInput, match="certificate"):
        Client("https://127.0.0.1", tls="/no/such/file")


@pytest.mark.parametrize(
    ("status", "body", "is_known"),
    [
        (502, "Bad", False),
        (504, "Bad", False),
        (500, "Bad", False),
        (520, "Bad", False),
        (500, '{"error_code": "of_a_later_version", "message": "lost"}', False),
        (503, "Bad", True),
    ],
)
def test_a_proxy_without_its_server_leaves_writes_unknown(status: int, body: str, *, is_known: bool) -> None:
    """Fails if the error says that nothing happened: the proxy may have forwarded the rows."""
    answer = f"HTTP/1.1 {status} Bad\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def answered() -> None:
            for _ in range(3):
                connection, _where = proxy.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

        thread = threading.Thread(target=answered)
        thread.start()
        with Client(f"http://127.0.0.1:{proxy.getsockname()[1]}") as client:
            with pytest.raises(Unavailable if is_known else OutcomeUnknown, match=str(status)):
                client.pause()
            with pytest.raises(Unavailable, match=str(status)):
                client.status()
            with pytest.raises(Unavailable, match=str(status)):
                client.query("SELECT 1")
        thread.join()


def test_an_answer_that_takes_too_long_leaves_writes_unknown() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as deaf,
        Client(f"http://127.0.0.1:{deaf.getsockname()[1]}", timeout_s=0.25) as client,
    ):
        with pytest.raises(OutcomeUnknown, match=r"no answer within 0\.25 s"):
            client.push("orders", [order(1)])
        with pytest.raises(Unavailable, match=r"no answer within 0\.25 s"):
            client.status()


def test_clients_get_the_error_of_a_diverged_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise Diverged(where="source 'files'", time=7, expected="a", found="b")

    with shop() as (_, client), monkeypatch.context() as patch:
        patch.setattr(Journal, "bind", fail)
        with pytest.raises(Diverged) as raised:
            client.push("orders", [order(1)])
        assert (raised.value.time, raised.value.found) == (7, "b")
