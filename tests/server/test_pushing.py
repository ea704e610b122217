"""Rows over HTTP: every format, refused rows, repeats, and storage faults."""

from __future__ import annotations

import errno
import json
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import OutcomeUnknown, StorageFull, SystemRefused, Unavailable
from evertide.journal.journal import Journal
from evertide.pipeline.input.input_reader import InputReader
from evertide.pipeline.transaction.runner import Runner
from evertide.server.bodies.bodies import decode_json_body
from evertide.settings import Settings
from evertide.sources.generated.seeded import RandomStream
from tests.pipeline.kit import SETTINGS, crash, open_pipeline, rows_of, storage
from tests.server.kit import Client, numbered, order, served, shop

ROWS = "/v1/tables/orders/rows"
LINES = {"Content-Type": "application/x-ndjson"}
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
ALL = [(1, "ann", 10), (2, "bob", 20)]


def stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (json.dumps([order(1), order(2, "bob", 20)]).encode(), {"Content-Type": "application/json; charset=utf-8"}),
        (json.dumps({"rows": [order(1), order(2, "bob", 20)]}).encode(), {}),
        (b'{"id": 1, "customer": "ann", "amount": 10}\r\n\n{"id":2,"customer":"bob","amount":2e1}', LINES),
        (stream(pa.table({"id": [1, 2], "Amount": pa.array([10, 20], pa.int32()), "customer": ["ann", "bob"]})), ARROW),
    ],
    ids=["array", "object", "lines", "arrow"],
)
def test_rows_in_every_format_are_accepted(body: bytes, headers: dict[str, str]) -> None:
    with shop() as (p, client):
        answer = client.post(ROWS, body, headers)
        assert (answer.status, answer.body) == (200, {"time": 1, "rows": 2, "txid": 2})
        assert rows_of(p, "orders") == ALL
        assert rows_of(p, "revenue") == [("ann", 10), ("bob", 20)]


def test_deletes_are_accepted_with_rows_or_alone() -> None:
    with shop() as (p, client):
        client.post(ROWS, [order(1), order(2)])
        assert client.post(ROWS, {"rows": [order(3)], "deletes": [1, {"id": 9}]}).body == {
            "time": 2,
            "rows": 3,
            "txid": 3,
        }
        assert client.post(ROWS, {"deletes": [{"id": 2}]}).body == {"time": 3, "rows": 1, "txid": 4}
        assert rows_of(p, "orders") == [(3, "ann", 10)]


def test_several_tables_are_one_transaction() -> None:
    with shop() as (p, client):
        tables = {"orders": {"rows": [order(1)], "deletes": [7]}, "notes": [{"text": "a"}, {"text": "b"}]}
        assert client.post("/v1/transactions", {"tables": tables}).body == {"time": 1, "rows": 4, "txid": 2}
        assert rows_of(p, "counts") == [(1, 2)]
        bad = {"orders": {"rows": [order(2)]}, "notes": {"rows": [{"text": 5}]}}
        answer = client.post("/v1/transactions", {"tables": bad})
        assert (answer.status, answer.body["where"]) == (400, "table 'notes', row 1, column 'text'")
        assert rows_of(p, "counts") == [(1, 2)], "half of the transaction was committed"
        assert client.post("/v1/transactions", {"tables": {}}).body == {"time": 1, "rows": 0, "txid": None}


def test_no_rows_make_no_transaction() -> None:
    with shop() as (p, client):
        for body, headers in ((b"[]", {}), (b"{}", {}), (b"\n", LINES)):
            assert client.post(ROWS, body, headers).body == {"time": 0, "rows": 0, "txid": None}
        assert p.time == 0


@pytest.fixture(scope="module")
def unmoved() -> Iterator[Client]:
    """Check that none of the refused requests in the block makes a transaction."""
    with shop() as (p, client):
        yield client
        assert p.time == 0


@pytest.mark.parametrize(
    ("body", "headers", "where", "why"),
    [
        (b'[{"id": 1},\n {"id": }]', {}, "body, line 2, column 9", "invalid character"),
        (b'[{"id": 1}', {}, "body, line 1, column 11", "truncated"),
        (b"", {}, "body, line 1, column 1", "truncated"),
        (b'["\xff"]', {}, "body, line 1, column 3", "UTF-8"),
        (b"[" * 100_000, {}, "body, line 1", "nested"),
        (b'{"id": 1}\n{"id": 2}\n{"id"; 3}\n', LINES, "body, line 3, column 6", "expected ':'"),
        (b"nonsense" * 9, ARROW, "body", "not an Arrow stream"),
        (stream(pa.table({"id": [1, 2]}))[:-40], ARROW, "body", "not an Arrow stream"),
        (b'{"id": 1}', {}, "body", "expected a list of rows or"),
        (b'{"rows": 5}', {}, "table 'orders'", "not a list of rows"),
        (b"[5]", {}, "table 'orders', row 1", "not a mapping"),
        (b'[{"id": 1, "amount": 1, "amount": 2}]', {}, "body", "an object repeats the name 'amount'"),
        (b'\n \n  {"id": 1}\r\n   {"id"; 3}\n', LINES, "body, line 4, column 9", "expected ':'"),
        (b'{"id": 1}\n{"id": 2, "id": 3}', LINES, "body, line 2", "an object repeats the name 'id'"),
        (b'[{"id": 1}, {"id": "x"}]', {}, "table 'orders', row 2, column 'id'", "'x' is not a BIGINT"),
        (b'[{"id": 1.5}]', {}, "table 'orders', row 1, column 'id'", "'1.5' is not a BIGINT"),
        (b'[{"amount": 1}]', {}, "table 'orders', row 1, column 'id'", "NULL is not allowed: the column is in the key"),
        (b'[{"id": 1, "x": 1}]', {}, "table 'orders', row 1", "the table has no column 'x'"),
        (b"[]", {"Evertide-Producer": "a"}, "header Evertide-Sequence", "''"),
        (b"[]", {"Evertide-Sequence": "1"}, "header Evertide-Producer", "''"),
        (b"[]", numbered("a", -1), "header Evertide-Sequence", "'-1'"),
        (b"[]", numbered("a", 2**63), "header Evertide-Sequence", "2^63"),
        (b"[]", numbered("a" * 201, 1), "header Evertide-Producer", "200"),
    ],
)
def test_errors_name_the_place_of_the_wrong_value(
    unmoved: Client, body: bytes, headers: dict[str, str], where: str, why: str
) -> None:
    answer = unmoved.post(ROWS, body, headers)
    assert (answer.status, answer.body["error_code"], answer.body["where"]) == (400, "invalid_input", where)
    assert why in answer.body["why"]
    assert "Nothing was changed" in answer.body["remedy"]


def test_unknown_tables_and_bodies_of_wrong_types_are_refused() -> None:
    with shop() as (_, client):
        answer = client.post("/v1/tables/nope/rows", [order(1)])
        assert (answer.status, answer.body["where"]) == (400, "table 'nope'")
        for given in ({"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Type": ""}):
            answer = client.post(ROWS, [order(1)], given)
            assert (answer.status, answer.body["error_code"]) == (415, "unsupported_media_type")
        assert client.post("/v1/transactions", b"", LINES).status == 415
        bad: list[Any] = [[], {"tables": 5}, {"tables": {}, "more": 1}, {"tables": {"orders": {"rwos": []}}}]
        for body in bad:
            assert client.post("/v1/transactions", body).status == 400


def test_a_body_beyond_the_limit_is_refused_before_it_is_read() -> None:
    settings = Settings(request_bytes_max=1000)
    with shop(settings=settings) as (p, client):
        told = {"Content-Type": "application/json", "Content-Length": "1001"}
        answer = client.ask("POST", ROWS, headers=told)  # and nothing follows
        assert (answer.status, answer.body["error_code"]) == (413, "body_too_large")
        assert "1000" in answer.body["message"]
        assert "several requests" in answer.body["remedy"]
        chunks = (b" " * 600 for _ in range(2))  # without a length that could be checked
        answer = client.ask("POST", ROWS, chunks, {"Content-Type": "application/json"}, encode_chunked=True)
        assert answer.status == 413
        assert client.post(ROWS, [order(1)]).status == 200
        assert p.time == 1


def test_j10_a_repeated_request_is_answered_with_the_time_that_bound_it() -> None:
    """Fails if the headers are not passed on: the note would be there twice."""
    store = storage()
    with shop(store) as (p, client):
        notes = "/v1/tables/notes/rows"
        assert client.post(notes, [{"text": "a"}], numbered("till", 7)).body == {"time": 1, "rows": 1, "txid": 2}
        client.post(notes, [{"text": "b"}])
        again = client.post(notes, [{"text": "a"}], numbered("till", 7))
        assert (again.status, again.body) == (200, {"time": 1, "rows": 1, "txid": 2, "is_repeated": True})
        assert client.post(notes, [{"text": "a"}], numbered("other", 7)).body == {"time": 3, "rows": 1, "txid": 4}
        crash(p)
    with shop(store) as (p, client):
        assert client.post(notes, [{"text": "a"}], numbered("till", 7)).body["time"] == 1
        assert client.post(notes, [{"text": "c"}], numbered("till", 8)).body == {"time": 4, "rows": 1, "txid": 5}
        assert rows_of(p, "notes") == [("a",), ("a",), ("b",), ("c",)]


def test_j10_a_request_repeated_while_the_first_is_in_progress_is_applied_once() -> None:
    """Fails if only bound requests are checked: all four of them would be applied together."""
    with shop() as (p, client), ThreadPoolExecutor(4) as threads:
        with p._turn:  # a transaction is in progress
            asked = [
                threads.submit(client.post, "/v1/tables/notes/rows", [{"text": "a"}], numbered("till", 1))
                for _ in range(4)
            ]
            until(lambda: len(p._pushes._ready) == 4)
        answers = [each.result().body for each in asked]
        assert {answer["time"] for answer in answers} == {1}
        assert sorted(answer.get("is_repeated", False) for answer in answers) == [False, True, True, True]
        assert rows_of(p, "notes") == [("a",)]


def test_j10_a_repeat_of_a_request_that_could_not_be_bound_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a repeat of a request that is only offered counts as bound: it would be acknowledged and lost."""
    away = raising(Unavailable(path="journal", why="away"))
    with shop() as (p, client), ThreadPoolExecutor(2) as threads, monkeypatch.context() as patch:
        patch.setattr(Journal, "bind", away)
        with p._turn:
            asked = [
                threads.submit(client.post, "/v1/tables/notes/rows", [{"text": "a"}], numbered("till", 1))
                for _ in range(2)
            ]
            until(lambda: len(p._pushes._ready) == 2)
        assert [each.result().status for each in asked] == [503, 503]
        patch.undo()
        assert client.post("/v1/tables/notes/rows", [{"text": "a"}], numbered("till", 1)).body == {
            "time": 1,
            "rows": 1,
            "txid": 2,
        }


def test_requests_that_wait_for_the_same_turn_are_one_transaction() -> None:
    with shop() as (p, client), ThreadPoolExecutor(8) as threads:
        with p._turn:
            asked = [threads.submit(client.post, ROWS, [order(number)]) for number in range(8)]
            until(lambda: len(p._pushes._ready) == 8)
        assert {each.result().body["time"] for each in asked} == {1}
        assert len(rows_of(p, "orders")) == 8


def test_twenty_concurrent_producers_with_repeats_end_with_exact_rows() -> None:
    with shop() as (p, client), ThreadPoolExecutor(20) as threads:
        told = list(threads.map(lambda producer: producer_of(client, producer), range(20)))
        assert rows_of(p, "notes") == sorted([(f"{a}-{b}",) for a in range(20) for b in range(6)], key=repr)
        for times in told:
            assert times == sorted(times)
            assert times[-1] <= p.time


def producer_of(client: Client, producer: int) -> list[int]:
    chance, times = RandomStream(producer), []
    for sequence in range(6):
        rows, headers = [{"text": f"{producer}-{sequence}"}], numbered(f"till-{producer}", sequence)
        answers = [client.post("/v1/tables/notes/rows", rows, headers) for _ in range(1 + chance.below(2))]
        assert {answer.status for answer in answers} == {200}
        assert len({answer.body["time"] for answer in answers}) == 1
        times.append(answers[0].body["time"])
    return times


def test_an_answer_has_the_time_that_bound_it_while_a_pipeline_runs() -> None:
    """Fails if the number of the last transaction is returned: others commit meanwhile."""
    with shop() as (p, client), ThreadPoolExecutor(9) as threads:
        made: list[int] = []
        running = threads.submit(p.run, on_transaction=lambda time, _: made.append(time))
        answers = list(threads.map(lambda n: (n, client.post(ROWS, [order(n)]).body["time"]), range(40)))
        until(lambda: len(made) == p.time)
        p.stop()
        running.result()
        changes = p.view("orders").changes().to_pylist()
        assert {(row["id"], row["__time"]) for row in changes} == set(answers)
        assert made == list(range(1, p.time + 1)), "each answer has its own transaction"


@pytest.mark.parametrize(
    ("error", "status"),
    [(StorageFull(path="journal", why="full"), 507), (Unavailable(path="journal", why="away"), 503)],
)
def test_rows_that_could_not_be_bound_are_not_applied_later(
    error: Unavailable, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the rows stay with the pipeline: the client got an error, and sends them again."""
    with shop(settings=replace(SETTINGS, inline_bytes_max=1)) as (p, client):
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "bind", raising(error))
            answer = client.post("/v1/tables/notes/rows", [{"text": "a"}])
        assert (answer.status, answer.body["error_code"]) == (status, error.error_code)
        assert answer.headers["retry-after"] == "1"
        assert client.post("/v1/tables/notes/rows", [{"text": "a"}]).body == {"time": 1, "rows": 1, "txid": 2}
        assert rows_of(p, "notes") == [("a",)]
        assert len(list(p.storage.blob.list("journal/"))) == 1, "the staged rows of the first request are still there"


def test_i7_bound_rows_are_accepted_even_if_their_transaction_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a bound push is answered with an error: the client would repeat it, and the rows would be there
    twice."""
    with shop() as (p, client):
        with monkeypatch.context() as patch:
            patch.setattr(Runner, "complete", raising(Unavailable(path="parts", why="away")))
            answer = client.post("/v1/tables/notes/rows", [{"text": "a"}])
            assert (answer.status, answer.body["time"]) == (202, 1)
            assert answer.body["problem"]["error_code"] == "unavailable"
            again = client.post("/v1/tables/notes/rows", [{"text": "b"}], numbered("till", 1))
            assert again.status == 503, "the push could not be bound"
        assert client.post("/v1/tables/notes/rows", [{"text": "b"}], numbered("till", 1)).body == {
            "time": 2,
            "rows": 1,
            "txid": 3,
        }
        assert rows_of(p, "notes") == [("a",), ("b",)]


@pytest.mark.parametrize(("place", "method"), [(Runner, "complete"), (InputReader, "acknowledge")])
def test_x12_bound_rows_are_accepted_even_if_a_system_call_fails_afterwards(
    place: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the answer is 500, after which clients repeat rows that are there."""
    with shop() as (p, client):
        with monkeypatch.context() as patch:
            patch.setattr(place, method, raising(OSError(errno.ENOSPC, "No space left on device")))
            answer = client.post("/v1/tables/notes/rows", [{"text": "a"}])
            assert (answer.status, answer.body["time"], answer.body["rows"]) == (202, 1, 1)
            assert answer.body["problem"]["error_code"] == "system_refused"
        assert client.post("/v1/tables/notes/rows", [{"text": "b"}]).status == 200
        assert rows_of(p, "notes") == [("a",), ("b",)]


@pytest.mark.parametrize(("place", "method"), [(Runner, "complete"), (InputReader, "acknowledge")])
def test_x12_rows_that_wait_in_the_process_are_bound_once_if_a_system_call_fails(
    place: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shop() as (p, _):
        with monkeypatch.context() as patch:
            patch.setattr(place, method, raising(OSError(errno.ENOSPC, "No space left on device")))
            p.push("notes", [{"text": "a"}])
            with pytest.raises(SystemRefused):
                p.commit()
        p.push("notes", [{"text": "b"}])
        p.commit()
        assert rows_of(p, "notes") == [("a",), ("b",)]


def test_x12_pushes_are_refused_while_temporary_files_have_no_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Fails if the error of the file system is reported as a bug, with 500."""
    lines, kind = b"text\na\n", {"Content-Type": "text/csv"}
    with shop() as (p, client):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full"))
        answer = client.ask("POST", "/v1/tables/notes/rows", lines, kind)
        assert (answer.status, answer.body["error_code"]) == (503, "scratch_unavailable")
        assert answer.headers["retry-after"]
        monkeypatch.undo()
        assert client.ask("POST", "/v1/tables/notes/rows", lines, kind).status == 200
        assert rows_of(p, "notes") == [("a",)]


@pytest.mark.parametrize("is_readable", [True, False])
def test_an_unknown_outcome_is_reported_and_a_repeat_after_the_restart_is_applied_once(
    monkeypatch: pytest.MonkeyPatch, *, is_readable: bool
) -> None:
    """If the journal is readable, the outcome is known. Fails if the journal is not read, or if an unreadable journal
    counts as an answer."""
    store, bind = storage(), Journal.bind

    def bind_and_lose_the_answer(journal: Journal, *given: Any) -> Any:
        bind(journal, *given)
        if not is_readable:
            monkeypatch.setattr(Journal, "upper", property(raising(Unavailable(path="journal", why="away"))))
        raise OutcomeUnknown(path="journal", why="no answer")

    rows = [{"text": "a"}]
    with open_pipeline(store) as p, served(p) as client:
        monkeypatch.setattr(Journal, "bind", bind_and_lose_the_answer)
        answer = client.post("/v1/tables/notes/rows", rows, numbered("till", 1))
        told = answer.body["problem"] if is_readable else answer.body
        assert (answer.status, told["error_code"]) == (202 if is_readable else 504, "outcome_unknown")
        assert "same" in told["remedy"]
        assert client.get("/v1/health").status == (200 if is_readable else 503)
        monkeypatch.undo()
        crash(p)
    with shop(store) as (p, client):
        assert client.post("/v1/tables/notes/rows", rows, numbered("till", 1)).body["is_repeated"]
        assert rows_of(p, "notes") == [("a",)]


def test_a_paused_pipeline_refuses_pushes_and_commits_no_transaction_of_others() -> None:
    with shop() as (p, client):
        p.push("orders", [order(5)])
        assert client.post(ROWS, [order(1)]).body == {"time": 1, "rows": 1, "txid": 2}
        assert rows_of(p, "orders") == [(1, "ann", 10)], "a transaction of another process was committed"
        p.pause()
        answer = client.post(ROWS, [order(2)])
        assert (answer.status, answer.body["error_code"]) == (409, "not_allowed_now")
        p.resume()
        p.commit()
        assert rows_of(p, "orders") == [(1, "ann", 10), (5, "ann", 10)], "a refused push was applied"


def test_decimals_keep_every_digit() -> None:
    assert decode_json_body(b'[{"a": 0.1000000000000000055511151231257827}]') == [
        {"a": "0.1000000000000000055511151231257827"}
    ]


def raising(error: Exception) -> Any:
    def fail(*_: Any, **__: Any) -> Iterator[None]:
        raise error

    return fail


def until(condition: Any) -> None:
    waiting = threading.Event()
    for _ in range(1000):
        if condition():
            return
        waiting.wait(0.01)
    raise AssertionError("the condition did not become true")
