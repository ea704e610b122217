"""Real processes: concurrent ones, and ones ended by Ctrl-C, SIGTERM and `kill -9`. Few tests, as each starts
a Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil

from tests.cli.kit import document, evertide, one_error, spawned
from tests.pipeline.test_replica_processes import stop
from tests.server.kit import Client
from tests.server.kit import until as until_true

SCRIPT = """
CREATE TABLE bid (auction BIGINT NOT NULL, price BIGINT NOT NULL) USING nexmark OPTIONS (rate '300');
CREATE MATERIALIZED VIEW best AS SELECT auction, max(price) AS price FROM bid GROUP BY auction;
"""


@contextmanager
def running(*args: str | Path) -> Iterator[subprocess.Popen[str]]:
    with spawned(*args) as process:
        try:
            yield process
        finally:
            process.kill()


def until(process: subprocess.Popen[str], event: str, time: int = 0) -> dict[str, Any]:
    """Return the first line of this kind, at that time or later."""
    assert process.stdout is not None
    for line in process.stdout:
        told: dict[str, Any] = json.loads(line)
        if told["event"] == event and told["time"] >= time:
            return told
    assert process.stderr is not None
    raise AssertionError(process.stderr.read())


def test_commands_read_a_running_pipeline_and_ctrl_c_ends_it_with_a_checkpoint(tmp_path: Path) -> None:
    script, storage = tmp_path / "made.sql", tmp_path / "s"
    script.write_text(SCRIPT)
    with running("run", script, "--storage", storage, "--json") as first:
        until(first, "transaction")
        status = document(evertide("status", "--storage", storage, "--json"))
        assert (status["state"], status["pid"]) == ("running", first.pid)
        refused = evertide("checkpoint", "--storage", storage, "--script", script)
        assert f"process {first.pid} on" in one_error(refused, 3)
        with running("subscribe", "best", "--storage", storage, "--json") as reader:
            assert reader.stdout is not None
            told = [json.loads(reader.stdout.readline()) for _ in range(40)]
            assert {line["diff"] for line in told if "diff" in line} >= {1}
            while "complete" not in told[-1] or told[-1]["complete"] < status["time"] + 2:
                told.append(json.loads(reader.stdout.readline()))  # the process follows
            reader.send_signal(signal.SIGINT)
            assert reader.wait(60) == 0
        first.send_signal(signal.SIGINT)
        stopped = until(first, "stopped")
        assert first.wait(120) == 0
    assert stopped["checkpoint"]["time"] == stopped["time"] + 1
    status = document(evertide("status", "--storage", storage, "--json"))
    assert (status["state"], status["why"], status["time"]) == (
        "stopped",
        "no process runs the pipeline",
        stopped["time"],
    )
    assert evertide("fsck", "--storage", storage).exit_code == 0


LONG = {
    "duckdb": "SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000)) AS n",
    "spark": "SELECT count(*) AS n FROM range(100000000000000) WHERE id % 7 = 3",
}
"""Queries that take hours."""


def test_ctrl_c_in_a_terminal_ends_a_process_with_running_queries(tmp_path: Path) -> None:
    """A terminal sends SIGINT to all processes of its foreground group."""
    script, storage = tmp_path / "made.sql", tmp_path / "s"
    script.write_text(SCRIPT)
    listen = ("--listen", "127.0.0.1:0", "--set", "query_limit_s=100000")
    with running("run", script, "--storage", storage, "--json", *listen) as process, ThreadPoolExecutor() as pool:
        address = urlsplit(until(process, "listening")["address"])
        client = Client(str(address.hostname), address.port or 0)
        until(process, "transaction")
        answers = []
        for engine, sql in LONG.items():
            assert client.post("/v1/query", {"sql": "SELECT 1 AS n", "engine": engine}).status == 200
            enough_s = _busy_s(process) + 1
            answers.append(pool.submit(client.post, "/v1/query", {"sql": sql, "engine": engine}))
            until_true(partial(_is_busy, process, enough_s))
        processes = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        for answer in answers:
            found = answer.result(60)
            assert (found.status, found.body["error_code"]) == (503, "query_ended"), found.body
            assert "the server is stopping" in found.body["message"]
        stopped = until(process, "stopped")
        assert process.wait(60) == 0
        assert process.stderr is not None
        told = process.stderr.read()
        assert "Traceback" not in told
        assert "SIGKILL" not in told  # the server ends its workers itself
        assert psutil.wait_procs(processes, 60)[1] == []
    assert len(processes) >= 4
    assert stopped["checkpoint"]["time"] == stopped["time"] + 1


def _is_busy(process: subprocess.Popen[str], enough_s: float) -> bool:
    return _busy_s(process) > enough_s


def _busy_s(process: subprocess.Popen[str]) -> float:
    """The CPU time that the workers of queries have used."""
    workers = [one for one in psutil.Process(process.pid).children() if "evertide.server.query.worker" in one.cmdline()]
    used = [one.cpu_times() for worker in workers for one in (worker, *worker.children(recursive=True))]
    return sum(times.user for times in used)


def test_the_demo_continues_after_kill_9_and_all_views_are_right(tmp_path: Path) -> None:
    storage = tmp_path / "demo.evertide"
    with running("demo", "--storage", storage, "--transactions", "5", "--rate", "0", "--json") as first:
        assert until(first, "opened")["time"] == 0
        address = until(first, "listening")["address"]
        with urlopen(f"{address}/", timeout=60) as page:  # the console
            assert b"console/app.js" in page.read()
        killed = until(first, "transaction", 2)["time"]
        first.kill()
        first.wait(60)
    status = document(evertide("status", "--storage", storage, "--json"))
    assert status["state"] == "stopped"
    assert f"process {first.pid} on" in status["why"]
    with running("demo", "--storage", storage, "--transactions", "2", "--rate", "100", "--json") as second:
        assert until(second, "opened")["time"] >= killed
        checked = until(second, "checked", killed + 2)
        assert second.wait(120) == 0
    assert len(checked["views"]) == 9
    assert all(view["is_same"] for view in checked["views"])
    assert all(view["rows"] > 0 for view in checked["views"])


def _replicas(storage: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document(evertide("status", "--storage", storage, "--json"))["replicas"]
    return found


def test_a_read_only_replica_is_promoted_and_the_old_leader_is_fenced(tmp_path: Path) -> None:
    script, storage = tmp_path / "made.sql", tmp_path / "s"
    script.write_text(SCRIPT)
    with running("run", script, "--storage", storage, "--json") as first:
        until(first, "transaction")
        with running("run", script, "--storage", storage, "--json", "--read-only") as second:
            assert until(second, "opened")["leads"] is False
            until(second, "transaction", 2)
            roles = {first.pid: "leads", second.pid: "read-only"}
            while roles != {one["pid"]: one["role"] for one in _replicas(storage)}:
                until(second, "transaction")  # it reports once a second
            assert "read-only" in evertide("status", "--storage", storage).stdout
            assert document(evertide("promote", "--storage", storage, "--json"))["pid"] == second.pid
            assert first.stdout is not None
            for _ in first.stdout:  # to the end of its output
                pass
            assert first.stderr is not None
            assert "fenced" in first.stderr.read()
            assert first.wait(120) == 4
            led = document(evertide("status", "--storage", storage, "--json"))["time"]
            until(second, "transaction", led + 3)
            second.send_signal(signal.SIGINT)
            stopped = until(second, "stopped")
            assert second.wait(120) == 0
    assert stopped["checkpoint"]["time"] == stopped["time"] + 1
    assert evertide("fsck", "--storage", storage).exit_code == 0


QUICK = (
    *("writer_ttl_s=8", "lease_ttl_s=8", "heartbeat_interval_s=0.5", "lead_interval_s=0.2"),
    *("maintenance_interval_s=0.2", "garbage_interval_s=0.6"),
)


def test_a_leader_that_resumes_after_another_took_over_says_so(tmp_path: Path) -> None:
    """The leases of the stopped process end as well, so the new leader may discard what the process reads next. Some
    runs fail with exit code 3, of a time that cannot be read, if `ProcessState.fail` does not look for a fence."""
    script, storage = tmp_path / "made.sql", tmp_path / "s"
    script.write_text(SCRIPT)
    settings = [word for setting in QUICK for word in ("--set", setting)]
    run: tuple[str | Path, ...] = (
        "run",
        script,
        "--storage",
        storage,
        "--json",
        "--checkpoint-every",
        "0.5",
        *settings,
    )
    with running(*run) as first:
        until(first, "transaction")
        with running(*run) as second:
            assert until(second, "opened")["leads"] is False
            until(first, "transaction", until(second, "transaction")["time"] + 2)
            stop(first, storage)
            while {one["pid"]: one["role"] for one in _replicas(storage)} != {second.pid: "leads"}:
                until(second, "transaction")
            until(second, "transaction", until(second, "transaction")["time"] + 20)
            first.send_signal(signal.SIGCONT)
            _, told = first.communicate(timeout=120)
            assert first.returncode == 4, told
            error = json.loads(told.splitlines()[-1])
            assert (error["error_code"], error["exit_code"]) == ("fenced", 4)
            assert "Traceback" not in told


def test_a_process_whose_spark_is_killed_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    """Fails with a trace of Python and exit code 1 if the end of a session that is gone is an error."""
    script, storage = tmp_path / "made.sql", tmp_path / "s"
    script.write_text(
        f"{SCRIPT}CREATE MATERIALIZED VIEW odd AS SELECT auction, -price AS p FROM bid WHERE price % 2 = 1;"
    )
    with running("run", script, "--storage", storage, "--json") as process:
        until(process, "transaction")
        [spark] = [one for one in psutil.Process(process.pid).children() if one.name() == "java"]
        spark.kill()
        _, told = process.communicate(timeout=120)
        assert process.returncode == 14, told
        error = json.loads(told.splitlines()[-1])
        assert (error["error_code"], error["exit_code"]) == ("spark_ended", 14)
        assert "Traceback" not in told
        assert len([line for line in told.splitlines() if "Spark had ended" in line]) == 1
    assert evertide("fsck", "--storage", storage).exit_code == 0
