"""Transactions that clients begin, fill and end with separate requests; and pausing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evertide.errors import OutcomeUnknown, Unavailable
from evertide.journal.journal import Journal
from evertide.pipeline.reading.reader import StorageReader
from evertide.runtime import SystemRuntime
from evertide.server.app import make_app
from evertide.server.server import Server
from evertide.settings import Settings
from evertide.store.open import open_storage
from tests.kit.runtime import ManualRuntime
from tests.pipeline.kit import NOTES, ScriptedSource, batch, open_pipeline, rows_of, storage, with_sources
from tests.server.kit import Client, numbered, order, served, shop, until

AT = "/v1/transactions"


def begin(client: Client, headers: dict[str, str] | None = None) -> str:
    answer = client.post(f"{AT}/begin", headers=headers)
    assert answer.status == 200
    return f"{AT}/{answer.body['id']}"


def test_i4_no_row_is_visible_before_the_commit_and_all_are_after() -> None:
    with shop() as (p, client):
        at = begin(client)
        assert client.post(f"{at}/tables/orders/rows", [order(1), order(2)]).body["total"] == 2
        assert client.post(f"{at}/tables/notes/rows", b'text\n"a"\n', {"Content-Type": "text/csv"}).body["total"] == 3
        client.post("/v1/tables/notes/rows", [{"text": "beside"}])
        assert rows_of(p, "orders") == []
        assert client.get(at).body["state"] == "open"
        assert client.post(f"{at}/tables/orders/rows?deletes=true", [2]).body == pytest.approx(
            {"rows": 1, "total": 4, "expires_at_s": client.get(at).body["expires_at_s"]}
        )
        assert client.post(f"{at}/commit").body == {"time": 2, "rows": 4, "txid": 3}
        assert [row[0] for row in rows_of(p, "orders")] == [1]
        assert rows_of(p, "notes") == [("a",), ("beside",)]


def test_a_repeated_commit_gets_the_same_answer_and_an_aborted_transaction_is_gone() -> None:
    with shop() as (p, client):
        at = begin(client)
        client.post(f"{at}/tables/orders/rows", [order(1)])
        client.post(f"{at}/commit")
        assert client.post(f"{at}/commit").body == {"time": 1, "rows": 1, "txid": 2, "is_repeated": True}
        assert client.get(at).body | {"id": ""} == {"id": "", "state": "committed", "rows": 1, "bytes": 44, "time": 1}
        assert client.post(f"{at}/abort").status == 409
        other = begin(client)
        client.post(f"{other}/tables/orders/rows", [order(2)])
        assert client.post(f"{other}/abort").body["state"] == "aborted"
        assert client.post(f"{other}/abort").body["state"] == "aborted"
        assert client.post(f"{other}/commit").status == 409
        assert client.post(f"{other}/tables/orders/rows", [order(2)]).status == 409
        assert [row[0] for row in rows_of(p, "orders")] == [1]
        assert client.post(f"{begin(client)}/commit").body == {"time": 1, "rows": 0, "txid": None}, (
            "the transaction was empty"
        )


def test_a_row_that_does_not_fit_refuses_the_request_and_not_the_transaction() -> None:
    with shop() as (p, client):
        at = begin(client)
        client.post(f"{at}/tables/orders/rows", [order(1)])
        assert client.post(f"{at}/tables/orders/rows", [{"id": "x"}]).status == 400
        assert client.post(f"{at}/tables/nothing/rows", [order(1)]).status == 400
        assert client.post(f"{at}/tables/orders/rows", b"[", {"Content-Type": "text/html"}).status == 415
        assert client.post(f"{at}/commit").body == {"time": 1, "rows": 1, "txid": 2}
        assert len(rows_of(p, "orders")) == 1


def test_j10_a_repeated_numbered_transaction_is_applied_once() -> None:
    with shop() as (p, client):
        for is_repeated in (False, True):
            at = begin(client, numbered("till", 7))
            client.post(f"{at}/tables/notes/rows", [{"text": "a"}])
            assert client.post(f"{at}/commit").body.get("is_repeated", False) is is_repeated
        assert rows_of(p, "notes") == [("a",)]


def test_a_transaction_of_an_ended_process_is_reported_as_lost() -> None:
    store = storage()
    with shop(store) as (_, client):
        at = begin(client)
        client.post(f"{at}/tables/notes/rows", [{"text": "a"}])
    with shop(store) as (p, client):
        answer = client.post(f"{at}/commit")
        assert (answer.status, answer.body["error_code"]) == (404, "not_found")
        assert "lost when the process ends" in answer.body["message"]
        assert rows_of(p, "notes") == []
        assert not list(p.storage.blob.list("journal/")), "staged rows are gone"


def test_the_number_and_the_size_of_open_transactions_are_limited() -> None:
    with shop(settings=Settings(open_transactions_max=2, open_transaction_bytes_max=60)) as (_, client):
        at, _ = begin(client), begin(client)
        refused = client.post(f"{AT}/begin")
        assert (refused.status, refused.body["error_code"]) == (422, "limit_exceeded")
        client.post(f"{at}/tables/orders/rows", [order(1)])
        assert client.post(f"{at}/tables/orders/rows", [order(2)]).status == 422
        assert client.post(f"{at}/commit").body["rows"] == 1
        assert client.post(f"{AT}/begin").status == 200, "one transaction was ended"


def test_a_transaction_without_requests_expires_and_its_rows_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Fails without `_sweep`: the transaction would keep its staged rows and its place for ever."""
    runtime = ManualRuntime()
    settings = Settings(open_transaction_s=10, push_buffer_bytes=1, inline_bytes_max=1)
    with open_pipeline(storage(), settings=settings) as p, Server() as server:
        server.start(make_app(p, runtime=runtime))
        client = Client(server.host, server.port)
        at = begin(client)
        client.post(f"{at}/tables/notes/rows", [{"text": "a"}])
        assert len(list(p.storage.blob.list("journal/"))) == 1
        runtime.advance_s(9)
        assert client.post(f"{at}/tables/notes/rows", [{"text": "b"}]).status == 200, "the request renewed it"
        runtime.advance_s(11)
        assert client.get(at).body["state"] == "expired"
        assert client.post(f"{at}/commit").body["error_code"] == "not_allowed_now"
        assert not list(p.storage.blob.list("journal/"))
        assert "expired" in caplog.text


def test_a_transaction_with_unknown_outcome_is_not_reported_as_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if it is: the client would send its rows again, and they would be there twice."""

    def lost(*_: Any, **__: Any) -> None:
        raise OutcomeUnknown(path="journal", why="no answer")

    with shop() as (_, client):
        at = begin(client)
        client.post(f"{at}/tables/notes/rows", [{"text": "a"}])
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "bind", lost)
            assert client.post(f"{at}/commit").status == 504
        assert client.get(at).body["state"] == "unknown"
        assert client.post(f"{at}/commit").body["error_code"] == "outcome_unknown"


def test_a_transaction_that_could_not_be_bound_is_reported_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise Unavailable(path="journal", why="away")

    with shop() as (p, client):
        at = begin(client)
        client.post(f"{at}/tables/notes/rows", [{"text": "a"}])
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "bind", away)
            assert client.post(f"{at}/commit").status == 503
        assert client.get(at).body["state"] == "aborted"
        client.post("/v1/tables/orders/rows", [order(1)])
        assert rows_of(p, "notes") == []


def test_a_paused_pipeline_is_paused_in_the_stored_status_too(tmp_path: Path) -> None:
    """Fails if `pause` does not write to storage."""
    store = open_storage(tmp_path / "s", runtime=SystemRuntime(), settings=Settings())
    with open_pipeline(store) as p, served(p) as client:
        assert client.post("/v1/pause").body == {"state": "paused", "time": 0}
        with StorageReader.open(tmp_path / "s") as reader:
            status = reader.status()
            assert (status.state, status.why) == ("paused", "a client paused the pipeline")
            assert client.post("/v1/tables/orders/rows", [order(1)]).status == 409
            assert client.get("/v1/health").body["status"] == "paused"
            assert client.post("/v1/resume").body == {"state": "running", "time": 0}
            assert reader.status().state == "running"
        assert client.post("/v1/tables/orders/rows", [order(1)]).body["time"] == 1


def test_a_paused_pipeline_binds_no_input_of_its_sources() -> None:
    """Fails if the loop continues: it would bind the offered input."""
    source = ScriptedSource("files", ("notes",))
    with with_sources(source), open_pipeline(storage()) as p, served(p) as client, ThreadPoolExecutor(1) as threads:
        client.post("/v1/pause")
        running = threads.submit(p.run)
        source.batches.append(batch(NOTES, [{"text": "a"}]))
        assert client.get("/v1/health/ready").status == 200
        assert client.get("/v1/health/live").body["status"] == "alive"
        assert rows_of(p, "notes") == []
        client.post("/v1/resume")
        until(lambda: rows_of(p, "notes") == [("a",)])
        p.stop()
        running.result()
