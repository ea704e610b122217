"""`evertide run` on the command line: JSON logs, metrics over HTTP, and `--traces` without OpenTelemetry."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.kit import SHOP, evertide, lines, one_error, order
from tests.metrics.test_metrics_endpoint import text
from tests.server.kit import Client
from tests.server.test_run import patient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sql"
    path.write_text(SHOP)
    return path


def test_a_run_logs_as_json_beside_its_output_and_serves_its_metrics(
    tmp_path: Path, script: Path, spark: SparkSession
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    client = Client("127.0.0.1", port)

    def ask() -> tuple[str, list[str]]:
        assert patient(client).status == 200
        content = text(client, "/metrics")[2]
        logged = [line["message"] for line in client.get("/v1/logs").body["logs"]]
        assert client.post("/v1/tables/orders/rows", [order(2)]).status == 200
        return content, logged

    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask)
        options = ("--listen", f":{port}", "--transactions", "2", "--json", "--log-format", "json")
        result = evertide("run", script, "--storage", tmp_path / "s", *options)
        content, logged = asked.result()
    assert 'evertide_source_rows_total{source="push"} 1.0' in content
    assert 'evertide_changes_total{collection="orders"} 1.0' in content
    assert any(message.startswith("the pipeline is open at time 0") for message in logged)
    assert [line["event"] for line in lines(result)][-1] == "stopped", "standard output has only its own lines"
    told = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    mine = [line for line in told if line["logger"].startswith("evertide.")]
    assert {line["pipeline"] for line in mine} == {str(tmp_path / "s")}
    assert any(line["message"].startswith("made checkpoint ") for line in mine)


def test_impossible_traces_are_refused_before_spark_starts(
    tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "pigeon")
    assert "pigeon" in one_error(evertide("run", script, "--storage", tmp_path / "s", "--traces"), 2)
    assert not (tmp_path / "s").exists()
