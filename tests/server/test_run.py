"""`evertide run --listen`, on the Spark that all tests share."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from evertide.cli.commands import run as running
from evertide.cli.running.open_pipeline import open_pipeline
from evertide.server.server import Server
from tests.cli.kit import SHOP, evertide, lines, one_error, order
from tests.server.kit import Answer, Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sql"
    path.write_text(SHOP)
    return path


def test_an_unavailable_address_is_refused_before_spark_starts(tmp_path: Path, script: Path) -> None:
    assert "HOST:PORT" in one_error(evertide("run", script, "--storage", tmp_path / "s", "--listen", "here"), 2)
    with Server() as taken:
        taken._socket.listen()
        listen = f"127.0.0.1:{taken.port}"
        line = one_error(evertide("run", script, "--storage", tmp_path / "s", "--listen", listen), 2)
        assert "choose another port" in line
    assert not (tmp_path / "s").exists()


def test_rows_pushed_over_http_are_transactions_of_the_run(
    tmp_path: Path, script: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests during opening get 503 with Retry-After. Fails if the server does not listen before the pipeline is
    open: then the client that waits here for that answer never gets it."""
    was_told = threading.Event()

    @contextmanager
    def slowly(*given: Any, **options: Any) -> Iterator[Any]:
        assert was_told.wait(120)
        with open_pipeline(*given, **options) as pipeline:
            yield pipeline

    monkeypatch.setattr(running, "open_pipeline", slowly)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(patient, Client("127.0.0.1", port), was_told)
        listen = ("--listen", f":{port}", "--transactions", "1", "--json")
        result = evertide("run", script, "--storage", tmp_path / "s", *listen)
        answer = asked.result()
    assert (answer.status, answer.body) == (200, {"time": 1, "rows": 1, "txid": 2})
    told = {line["event"]: line for line in lines(result)}
    assert list(told) == ["opened", "listening", "transaction", "stopped"]
    assert told["listening"]["address"] == f"http://127.0.0.1:{port}"
    assert (told["transaction"]["time"], told["transaction"]["rows"]) == (1, 1)
    assert told["stopped"]["checkpoint"]["time"] == 2
    found = lines(evertide("subscribe", "revenue", "--storage", tmp_path / "s", "--no-follow", "--json"))
    assert [line["row"] for line in found if "row" in line] == [{"customer": "ann", "amount": 10}]


def patient(client: Client, was_told: threading.Event | None = None) -> Answer:
    """Retry until the server listens and the pipeline is open."""
    for _ in range(1200):
        try:
            answer = client.post("/v1/tables/orders/rows", [order(1)])
            if answer.status != 503:
                return answer
            assert (answer.body["error_code"], answer.headers["retry-after"]) == ("starting", "2")
            if was_told is not None:
                was_told.set()
        except ConnectionRefusedError:
            pass
        threading.Event().wait(0.05)
    raise AssertionError("the server does not listen")
