"""Runs a SQL query in a local cluster of Apache Flink.

It runs in a separate Python environment, without Evertide and its dependencies.

As in Flink's own Nexmark, state is in RocksDB with incremental checkpoints, aggregates run in mini-batches, distinct
aggregates are split, and results are discarded (`blackhole`). Parallelism is 2.

The job is a JSON object, `bench.peers.jobs.Job`; the output is lines of JSON.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.peers.worker_output import keep_answer, tell

_SETTINGS = {
    "parallelism.default": "2",
    "state.backend.type": "rocksdb",
    "execution.checkpointing.incremental": "true",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "taskmanager.memory.managed.size": "1g",
    "table.local-time-zone": "UTC",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
}
_POLL_S = 0.05


def main(given: str) -> None:
    job = json.loads(given)
    port = _free_port()
    table_module = importlib.import_module("pyflink.table")
    env = table_module.TableEnvironment.create(table_module.EnvironmentSettings.in_streaming_mode())
    for name, value in _settings(job, port).items():
        env.get_config().set(name, value)
    run = {"sustained": _sustained, "recovery": _recovery}[job["measure"]]
    for query in job["queries"]:
        try:
            for name, statement in job["texts"][f"{query}.tables"].items():
                env.execute_sql(f"DROP TABLE IF EXISTS {name}")
                env.execute_sql(statement)
            run(job, query, env, table_module, port)
        except Exception as error:  # noqa: BLE001 - whatever it is, the report says so
            tell("failed", query=query, why=str(error))
    tell("over")


def _settings(job: dict[str, Any], port: int) -> dict[str, str]:
    made = {
        **_SETTINGS,
        "pipeline.jars": ";".join(Path(jar).as_uri() for jar in job["jars"]),
        "execution.checkpointing.interval": f"{job['checkpoint_s']} s",
        "execution.checkpointing.dir": (Path(job["place"]) / "checkpoints").as_uri(),
        "rest.bind-port": str(port),
        "rest.port": str(port),
    }
    if job["phase"] == "second":
        made["execution.state-recovery.path"] = _newest(Path(job["place"]) / "checkpoints").as_uri()
    return made


def _sustained(job: dict[str, Any], query: str, env: Any, table_module: Any, _port: int) -> None:
    tell("ready")
    begun = time.perf_counter()
    _start(job, query, env, table_module).wait()
    tell("done", seconds=time.perf_counter() - begun)
    if job["result"]:
        _keep(env.execute_sql(job["texts"][query]), Path(job["result"]) / f"{query}.parquet")


def _start(job: dict[str, Any], query: str, env: Any, table_module: Any) -> Any:
    sink = table_module.TableDescriptor.for_connector("blackhole").build()
    return env.sql_query(job["texts"][query]).execute_insert(sink)


def _recovery(job: dict[str, Any], query: str, env: Any, table_module: Any, port: int) -> None:
    """First: read all files, wait for a checkpoint with them, and run until killed. Second: start from it."""
    started = _start(job, query, env, table_module)
    cluster = _Cluster(port, str(started.get_job_client().get_job_id()))
    cluster.wait(cluster.is_running)
    tell("ready")
    if job["phase"] == "second":
        tell("first")
        return
    rows = sum(job["histories"])
    cluster.wait(lambda: cluster.rows_read() >= rows)
    after = cluster.checkpoints() + 2  # one may have begun before all rows were read
    cluster.wait(lambda: cluster.checkpoints() >= after)
    tell("loaded")
    threading.Event().wait()


class _Cluster:
    """The cluster's REST API for one job."""

    def __init__(self, port: int, job: str) -> None:
        self._pause = threading.Event()
        self._address = f"http://localhost:{port}/jobs/{job}"

    def is_running(self) -> bool:
        """Whether all tasks have restored their state."""
        found = self._ask("")
        return bool(found["vertices"]) and all(
            vertex["status"] in ("RUNNING", "FINISHED") for vertex in found["vertices"]
        )

    def rows_read(self) -> int:
        return sum(
            vertex["metrics"]["write-records"] for vertex in self._ask("")["vertices"] if "Source" in vertex["name"]
        )

    def checkpoints(self) -> int:
        return int(self._ask("/checkpoints")["counts"]["completed"])

    def wait(self, holds: Any) -> None:
        while True:
            try:
                if holds():
                    return
            except (OSError, KeyError):
                pass  # not started yet
            self._pause.wait(_POLL_S)

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(self._address + path, timeout=10) as answer:
            return json.loads(answer.read())


def _newest(path: Path) -> Path:
    return max(path.glob("*/chk-*/_metadata"), key=lambda found: found.stat().st_mtime).parent


def _keep(result: Any, path: Path) -> None:
    with result.collect() as rows:
        changes = ((tuple(row), row.get_row_kind().name in ("INSERT", "UPDATE_AFTER")) for row in rows)
        keep_answer(result.get_table_schema().get_field_names(), changes, path)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main(sys.argv[1])
