"""Transactions that are begun, filled and ended by requests of their own; and pausing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from evertide.errors import OutcomeUnknown, Unavailable
from evertide.journal.journal import Journal
from evertide.pipeline.reading.reader import Reader
from evertide.runtime import SystemRuntime
from evertide.server.http.app import make_app
from evertide.server.http.server import Server
from evertide.settings import Settings
from evertide.store.open import open_storage
from evertide.testing.runtime import ManualRuntime
from tests.pipeline.kit import NOTES, ScriptedSource, batch, open_pipeline, rows_of, storage, with_sources
from tests.server.kit import Client, numbered, order, served, shop, until

AT = "/v1/transactions"


def begun(client: Client, headers: dict[str, str] | None = None) -> str:
    answer = client.post(f"{AT}/begin", headers=headers)
    assert answer.status == 200
    return f"{AT}/{answer.body['id']}"


def test_i4_nothing_shows_before_the_commit_and_all_of_it_after() -> None:
    with shop() as (p, client):
        at = begun(client)
        assert client.post(f"{at}/tables/orders/rows", [order(1), order(2)]).body["total"] == 2
        assert client.post(f"{at}/tables/notes/rows", b'text\n"a"\n', {"Content-Type": "text/csv"}).body["total"] == 3
        client.post("/v1/tables/notes/rows", [{"text": "beside"}])
        assert rows_of(p, "orders") == []
        assert client.get(at).body["state"] == "open"
        assert client.post(f"{at}/tables/orders/rows?deletes=true", [2]).body == pytest.approx(
            {"rows": 1, "total": 4, "expires_at_s": client.get(at).body["expires_at_s"]}
        )
        assert client.post(f"{at}/commit").body == {"time": 2, "rows": 4}
        assert [row[0] for row in rows_of(p, "orders")] == [1]
        assert rows_of(p, "notes") == [("a",), ("beside",)]


def test_a_commit_whose_answer_was_lost_is_answered_the_same_and_an_aborted_one_is_gone() -> None:
    with shop() as (p, client):
        at = begun(client)
        client.post(f"{at}/tables/orders/rows", [order(1)])
        client.post(f"{at}/commit")
        assert client.post(f"{at}/commit").body == {"time": 1, "rows": 1, "is_repeated": True}
        assert client.get(at).body | {"id": ""} == {"id": "", "state": "committed", "rows": 1, "bytes": 44, "time": 1}
        assert client.post(f"{at}/abort").status == 409
        other = begun(client)
        client.post(f"{other}/tables/orders/rows", [order(2)])
        assert client.post(f"{other}/abort").body["state"] == "aborted"
        assert client.post(f"{other}/abort").body["state"] == "aborted"
        assert client.post(f"{other}/commit").status == 409
        assert client.post(f"{other}/tables/orders/rows", [order(2)]).status == 409
        assert [row[0] for row in rows_of(p, "orders")] == [1]
        assert client.post(f"{begun(client)}/commit").body == {"time": 1, "rows": 0}, "there was nothing in it"


def test_a_row_that_does_not_fit_refuses_the_request_and_not_the_transaction() -> None:
    with shop() as (p, client):
        at = begun(client)
        client.post(f"{at}/tables/orders/rows", [order(1)])
        assert client.post(f"{at}/tables/orders/rows", [{"id": "x"}]).status == 400
        assert client.post(f"{at}/tables/nothing/rows", [order(1)]).status == 400
        assert client.post(f"{at}/tables/orders/rows", b"[", {"Content-Type": "text/html"}).status == 415
        assert client.post(f"{at}/commit").body == {"time": 1, "rows": 1}
        assert len(rows_of(p, "orders")) == 1


def test_j10_a_numbered_transaction_that_is_sent_again_is_taken_once() -> None:
    with shop() as (p, client):
        for is_repeated in (False, True):
            at = begun(client, numbered("till", 7))
            client.post(f"{at}/tables/notes/rows", [{"text": "a"}])
            assert client.post(f"{at}/commit").body.get("is_repeated", False) is is_repeated
        assert rows_of(p, "notes") == [("a",)]


def test_a_transaction_is_lost_with_its_process_and_that_is_said() -> None:
    store = storage()
    with shop(store) as (_, client):
        at = begun(client)
        client.post(f"{at}/tables/notes/rows", [{"text": "a"}])
    with shop(store) as (p, client):
        answer = client.post(f"{at}/commit")
        assert (answer.status, answer.body["error_code"]) == (404, "not_found")
        assert "lost when the process ends" in answer.body["message"]
        assert rows_of(p, "notes") == []
        assert not list(p.storage.blob.list("journal/")), "what was staged is gone"


def test_there_are_so_many_and_each_takes_so_many_bytes() -> None:
    with shop(settings=Settings(open_transactions_max=2, open_transaction_bytes_max=60)) as (_, client):
        at, _ = begun(client), begun(client)
        refused = client.post(f"{AT}/begin")
        assert (refused.status, refused.body["error_code"]) == (422, "limit_exceeded")
        client.post(f"{at}/tables/orders/rows", [order(1)])
        assert client.post(f"{at}/tables/orders/rows", [order(2)]).status == 422
        assert client.post(f"{at}/commit").body["rows"] == 1
        assert client.post(f"{AT}/begin").status == 200, "one was ended"


def test_one_that_nobody_is_heard_of_expires_and_its_rows_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Fails without `_sweep`: it would hold its staged rows, and its place, for ever."""
    runtime = ManualRuntime()
    settings = Settings(open_transaction_s=10, push_buffer_bytes=1)
    with open_pipeline(storage(), settings=settings) as p, Server() as server:
        server.start(make_app(p, runtime=runtime))
        client = Client(server.host, server.port)
        at = begun(client)
        client.post(f"{at}/tables/notes/rows", [{"text": "a"}])
        assert len(list(p.storage.blob.list("journal/"))) == 1
        runtime.advance_s(9)
        assert client.post(f"{at}/tables/notes/rows", [{"text": "b"}]).status == 200, "it was heard of"
        runtime.advance_s(11)
        assert client.get(at).body["state"] == "expired"
        assert client.post(f"{at}/commit").body["error_code"] == "not_allowed_now"
        assert not list(p.storage.blob.list("journal/"))
        assert "expired" in caplog.text


def test_what_nobody_knows_of_is_not_said_to_be_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if it is: its rows would be sent again, and be there twice."""

    def lost(*_: Any, **__: Any) -> None:
        raise OutcomeUnknown(path="journal", why="no answer")

    with shop() as (_, client):
        at = begun(client)
        client.post(f"{at}/tables/notes/rows", [{"text": "a"}])
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "bind", lost)
            assert client.post(f"{at}/commit").status == 504
        assert client.get(at).body["state"] == "unknown"
        assert client.post(f"{at}/commit").body["error_code"] == "outcome_unknown"


def test_what_could_not_be_bound_is_gone_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise Unavailable(path="journal", why="away")

    with shop() as (p, client):
        at = begun(client)
        client.post(f"{at}/tables/notes/rows", [{"text": "a"}])
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "bind", away)
            assert client.post(f"{at}/commit").status == 503
        assert client.get(at).body["state"] == "aborted"
        client.post("/v1/tables/orders/rows", [order(1)])
        assert rows_of(p, "notes") == []


def test_a_paused_pipeline_says_so_also_to_those_who_ask_the_storage(tmp_path: Path) -> None:
    """Fails if `pause` does not tell the storage."""
    store = open_storage(tmp_path / "s", runtime=SystemRuntime(), settings=Settings())
    with open_pipeline(store) as p, served(p) as client:
        assert client.post("/v1/pause").body == {"state": "paused", "time": 0}
        with Reader.open(tmp_path / "s") as reader:
            status = reader.status()
            assert (status.state, status.why) == ("paused", "somebody asked it to take no new transaction")
            assert client.post("/v1/tables/orders/rows", [order(1)]).status == 409
            assert client.get("/v1/health").body["status"] == "paused"
            assert client.post("/v1/resume").body == {"state": "running", "time": 0}
            assert reader.status().state == "running"
        assert client.post("/v1/tables/orders/rows", [order(1)]).body["time"] == 1


def test_a_running_pipeline_that_is_paused_takes_no_input_of_its_sources() -> None:
    """Fails if the loop goes on: what is offered would be taken."""
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
