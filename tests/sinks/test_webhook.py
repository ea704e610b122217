"""The webhook sink, against a real server that fails, hangs, and loses its answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from evertide.errors import InvalidInput, SinkFailed
from evertide.sinks.contract import Sink
from tests.kit.runtime import ManualRuntime
from tests.sinks.kit import changes, declare, prepare, row, split_into_pieces, text_changes


class Receiver:
    """Answers as the script says, then with 200. `None`: it accepts the request and never answers."""

    def __init__(self) -> None:
        self.answers: list[int | None] = []
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.ended = threading.Event()
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator[Receiver]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                receiver.got.append((self.headers["idempotency-key"], body))
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                answer = receiver.answers.pop(0) if receiver.answers else 200
                if answer is None:
                    receiver.ended.wait(20)
                    return
                told = f"you said {self.headers.get('authorization')}".encode()
                self.send_response(answer)
                self.send_header("content-length", str(len(told)))
                self.send_header("location", "/elsewhere")
                self.end_headers()
                self.wfile.write(told)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}/hook?a=1"
        try:
            yield self
        finally:
            self.ended.set()
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver().serving() as found:
        yield found


def open_sink(receiver: Receiver, path: Path, **options: str) -> Sink:
    given = {"url": receiver.url, "timeout_s": "0.3", **options}
    return prepare(declare(path, "webhook", options=given, runtime=ManualRuntime())).open("token")


def test_a_transaction_is_a_request_with_its_number_as_key(receiver: Receiver, tmp_path: Path) -> None:
    sink = open_sink(receiver, tmp_path, **{"header.x-shop": "corner"})
    sink.write(7, changes((row(1, ratio=float("nan")), 1), (row(2), -2)))
    [(key, body)] = receiver.got
    assert key == "lake-token-7-1"
    assert receiver.headers[0]["x-shop"] == "corner"
    assert (body["sink"], body["collection"], body["transaction"], body["requests"]) == ("lake", "orders", 7, 1)
    first, second = body["changes"]
    assert (first["diff"], second["diff"]) == (1, -2)
    assert first["row"]["ratio"] == "nan"
    assert first["row"]["price"] == "12.30"
    assert first["row"]["at"] == "2024-02-29T12:30:01.000005+00:00"
    assert (first["row"]["raw"], first["row"]["tags"]) == ("AP8=", {"k": 1})


def test_a_large_transaction_is_several_requests(receiver: Receiver, tmp_path: Path) -> None:
    open_sink(receiver, tmp_path, rows="2").write(7, changes(*((row(number), 1) for number in range(5))))
    assert [key for key, _ in receiver.got] == ["lake-token-7-1-2", "lake-token-7-2-2", "lake-token-7-3-2"]
    assert [len(body["changes"]) for _, body in receiver.got] == [2, 2, 1]


@pytest.mark.parametrize(("before", "after"), [("3", "2"), ("3", "9"), ("9", "3"), ("9", "4"), ("3", "4")])
def test_x27_a_request_of_another_size_has_another_key(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    """A receiver answers 413 to the second request, so that `rows` is changed.
    With the keys of requests that it has, it would drop rows that it does not have."""
    monkeypatch.setattr("evertide.sinks.webhook._ROWS", 4)
    found = changes(*((row(number), 1) for number in range(8)))
    receiver.answers = [200, 413]
    with suppress(SinkFailed):
        open_sink(receiver, tmp_path, rows=before).write(7, found)
    first, receiver.got, receiver.answers = dict(receiver.got), [], []
    open_sink(receiver, tmp_path, rows=after).write(7, found)
    assert all(body["changes"] == first[key]["changes"] for key, body in receiver.got if key in first)


def test_pieces_are_split_into_requests_by_rows_alone(receiver: Receiver, tmp_path: Path) -> None:
    """The transaction number is in each of them, and all but the last are full, however many pieces there are."""
    sink = open_sink(receiver, tmp_path, rows="7")
    sink.write(2, split_into_pieces(changes(*((row(number), 1) for number in range(30))), 8))
    assert [(body["request"], body["requests"], len(body["changes"])) for _, body in receiver.got] == [
        (1, 5, 7),
        (2, 5, 7),
        (3, 5, 7),
        (4, 5, 7),
        (5, 5, 2),
    ]
    sent = sorted(change["row"]["id"] for _, body in receiver.got for change in body["changes"])
    assert sent == [*range(30)]


def test_temporary_failures_are_retried_with_the_same_key(receiver: Receiver, tmp_path: Path) -> None:
    """An error, an overload, and an answer that never comes: the receiver got the request four times, with the same
    key.
    """
    receiver.answers = [503, 429, None]
    open_sink(receiver, tmp_path).write(7, changes((row(1), 1)))
    assert len(receiver.got) == 4
    assert {key for key, _ in receiver.got} == {"lake-token-7-1"}
    assert all(body == receiver.got[0][1] for _, body in receiver.got)


@pytest.mark.parametrize("answer", [301, 400, 401])
def test_a_refused_request_fails_the_sink_at_once(receiver: Receiver, tmp_path: Path, answer: int) -> None:
    """A redirect as well: following it would turn the POST into a GET."""
    receiver.answers = [answer]
    with pytest.raises(SinkFailed, match=f"responded with status {answer}"):
        open_sink(receiver, tmp_path).write(7, changes((row(1), 1)))
    assert len(receiver.got) == 1


def test_an_unreachable_receiver_stalls_the_sink(tmp_path: Path) -> None:
    gone = Receiver()
    with gone.serving():
        pass
    with pytest.raises(SinkFailed, match="ConnectionRefusedError"):
        open_sink(gone, tmp_path).write(7, changes((row(1), 1)))


def test_secrets_are_sent_and_never_shown(receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if the receiver repeats them in its answer."""
    monkeypatch.setenv("HOOK_PASSWORD", "pa ss/word")
    receiver.answers = [403]
    sink = open_sink(receiver, tmp_path, **{"header.authorization": "Bearer ${ENV:HOOK_PASSWORD}"})
    with pytest.raises(SinkFailed, match=r"you said Bearer \*\*\*") as said:
        sink.write(7, changes((row(1), 1)))
    assert receiver.headers[0]["authorization"] == "Bearer pa ss/word"
    assert "pa ss" not in str(said.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "'url' is missing"),
        ({"url": "ftp://x/y"}, "expected http"),
        ({"url": "http://ann:pw@x/y"}, "contains a user name"),
        ({"url": "http://x/y", "header.a": "b\r\nc: d"}, "one line of text"),
        ({"url": "http://x/y", "rows": "0"}, "whole number of at least 1"),
        ({"url": "http://x/y", "header": "x"}, "connector 'webhook' has no option 'header'; it has"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidInput, match=f"shop.sql, line 3, sink 'lake'.*{why}") as said:
        prepare(declare(tmp_path, "webhook", options=options))
    assert "pw" not in str(said.value)


def test_v7_texts_that_are_not_valid_utf8_are_replaced(receiver: Receiver, tmp_path: Path) -> None:
    open_sink(receiver, tmp_path).write(7, text_changes((1, b"\xff\xfeabc", 1)))
    assert receiver.got[0][1]["changes"] == [{"diff": 1, "row": {"id": 1, "s": "\ufffd\ufffdabc"}}]
