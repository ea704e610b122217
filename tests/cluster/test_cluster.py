"""Pipelines on a real Spark cluster: a master and two workers. Workers are killed, and no row is lost or doubled.

It is not left to chance whether a transaction is in progress at the kill: the executor is stopped (SIGSTOP) before,
receives its task, cannot finish it, and is then killed. Spark does not count that as a failure of the task, not even
here, where it gives up at the first failure.

One process runs a pipeline through all tests, one after the other, because Spark takes long to start.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from tests.cli.kit import document, evertide
from tests.cluster.driver import SCRIPT, Shop, digests, push, settings
from tests.server.access.test_x16 import Listening, Run, check_listening, listening
from tests.server.kit import until
from tests.servers.cluster import SparkCluster, SparkWorker
from tests.servers.probe import has_endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0
TRIES = 12
pytestmark = pytest.mark.timeout(600)  # master, workers, executors: a dozen JVMs, on a machine that may be loaded


class Driver:
    """A process that executes commands; see `tests.cluster.driver`."""

    def __init__(self, cluster: SparkCluster, storage: Path, **conf: str) -> None:
        command = [sys.executable, "-m", "tests.cluster.driver", cluster.master, str(storage)]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=cluster.env(**conf),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running: dict[str, int] = {}

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def until(self, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The first line for which `holds` is true."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said: dict[str, Any] = json.loads(line)
            self.running = said.get("running", self.running)
            if holds(said):
                return said
        assert self.process.stderr is not None
        raise AssertionError(self.process.stderr.read()[-2000:])

    def answer(self) -> dict[str, Any]:
        return self.until(lambda said: "time" in said or "error" in said)

    def executor(self, worker: SparkWorker) -> tuple[psutil.Process, set[str]]:
        """This driver's executor at a worker, once Spark reports it, and its ports."""
        while True:
            for each in worker.executors():
                if (own := ports(each)) & set(self.running):
                    return each, own
            self.until(lambda said: "running" in said)


@contextmanager
def driving(cluster: SparkCluster, storage: Path, **conf: str) -> Iterator[Driver]:
    driver = Driver(cluster, storage, **conf)
    with driver.process:
        try:
            driver.until(lambda said: "opened" in said)
            driver.until(lambda said: len(said.get("running", ())) == 3)  # the driver itself, and two executors
            yield driver
            assert driver.process.stdin is not None
            driver.process.stdin.close()
            assert driver.process.wait(LIMIT_S) == 0
        finally:
            driver.process.kill()


@pytest.fixture(scope="module")
def driver(cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with driving(cluster, tmp_path_factory.mktemp("driver") / "s", task_maxFailures="1") as made:
        yield made


def ports(process: psutil.Process) -> set[str]:
    return {str(each.laddr.port) for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN}


def has_task(own: set[str], said: dict[str, Any]) -> bool:
    return any(running and port in own for port, running in said.get("running", {}).items())


def test_the_command_runs_a_script_on_the_cluster(cluster: SparkCluster, tmp_path: Path) -> None:
    """Before the fixture `driver`, whose process takes the whole cluster."""
    script, storage = tmp_path / "made.sql", tmp_path / "s"
    script.write_text("""
        CREATE TABLE bid (auction BIGINT NOT NULL, price BIGINT NOT NULL) USING nexmark
        OPTIONS (events '60000', events_per_transaction '60000');
        CREATE MATERIALIZED VIEW best AS SELECT auction, max(price) AS price FROM bid GROUP BY auction;
    """)
    command = ["run", script, "--storage", storage, "--master", cluster.master, "--until-idle", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "evertide.cli", *map(str, command)],
        cwd=ROOT,
        env=cluster.env(cores_max="1"),  # one executor is enough for this test
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "stopped"
    status = document(evertide("status", "--storage", storage, "--json"))
    assert (status["state"], status["time"]) == ("stopped", 1)


def test_a_transaction_does_not_wait_for_all_tasks_of_a_backfill_on_the_cluster(
    cluster: SparkCluster, tmp_path: Path
) -> None:
    """Fails without the pool of backfills, or if the session is not FAIR."""
    command = [sys.executable, "-m", "tests.cluster.fair", cluster.master, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=cluster.env(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_x16_a_pipeline_on_a_cluster_listens_for_what_is_documented(
    cluster: SparkCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """The driver as with a local master; an executor for its blocks only. None answers without the secret."""
    run = Run(tmp_path, SCRIPT, "--master", cluster.master, env=cluster.env())
    try:
        assert run.ask("POST", "/v1/tables/customers/rows", "write", [{"id": 1, "city": "a"}])[0] == 200
        drivers = [sockets for name, sockets in check_listening(run).values() if name == "jvm"]
        assert len(drivers) == 1
        until(lambda: len(sockets_of_executors(cluster)) == 2 and all(sockets_of_executors(cluster)))
        executors = sockets_of_executors(cluster)
        for sockets in executors:
            assert [(each.kind.rstrip("6"), each.address) for each in sockets] == [("tcp", "127.0.0.1")]
        for each in [socket for sockets in [*drivers, *executors] for socket in sockets]:
            assert not has_endpoint(spark, each.port, "BlockManagerMaster")
    finally:
        run.stop()


def sockets_of_executors(cluster: SparkCluster) -> list[list[Listening]]:
    """An executor that is still starting has none."""
    return [listening(each.pid) for worker in cluster.workers for each in worker.executors()]


def test_x16_a_cluster_refuses_clients_without_its_secret(cluster: SparkCluster, spark: SparkSession) -> None:
    """Fails without `spark.authenticate` in the configuration of the master."""
    assert not has_endpoint(spark, int(cluster.master.rpartition(":")[2]), "Master")
    [worker, *_] = cluster.workers
    found = ports(psutil.Process(worker.process.pid))
    assert found
    assert not any(has_endpoint(spark, int(port), "Worker") for port in found)


def test_a_transaction_whose_worker_is_killed_has_the_same_result(
    cluster: SparkCluster, driver: Driver, spark: SparkSession, tmp_path: Path
) -> None:
    told = ["small", "large", "changes", "large"]
    found = []
    for word in told[:-1]:
        driver.tell(word)
        found.append(driver.answer())
    victim = cluster.workers[-1]
    executor, own = driver.executor(victim)
    executor.send_signal(signal.SIGSTOP)
    driver.tell(told[-1])
    driver.until(partial(has_task, own))
    victim.kill()
    found.append(driver.answer())
    cluster.add_worker()
    assert [one["time"] for one in found] == [1, 2, 3, 4]
    assert all(one["failed"] == [] for one in found)
    large = [one["large"] for one in found]
    for name in ("named", "per_city", "placed"):
        assert [one[name] > 0 for one in large] == [False, True, True, True]
        assert large[3][name] > large[2][name]
    with Pipeline.open(SCRIPT, tmp_path / "local", spark=spark, settings=settings()) as p:
        shop = Shop()
        for time, word in enumerate(told, 1):
            push(p, shop, word)
            assert p.commit() == time
            assert digests(p, time) == found[time - 1]["digests"]


def test_x15_a_transaction_waits_while_executors_are_lost_and_fails_no_view(
    cluster: SparkCluster, driver: Driver
) -> None:
    """Every executor that gets a task is killed, so that the step fails each time it is computed. Spark gives up at the
    first failure here, but only if it knows that the task runs, which it learns a moment after it assigned the task: a
    transaction may complete nevertheless. The workers start other executors by themselves.
    """
    driver.tell("small")
    time = driver.answer()["time"]
    for at in range(TRIES):
        driver.tell("large")
        said, time = kill_executors_with_tasks(cluster, driver, 0.05 * 2 ** (at % 4)), time + 1
        if "error" in said:
            break
        assert (said["time"], said["failed"]) == (time, [])
    assert said.get("error") == "spark_away", said
    assert said["why"].count("\n") == 0
    while "error" in said:
        assert said["error"] == "spark_away", said
        driver.tell("advance")
        said = driver.answer()
    assert (said["time"], said["failed"]) == (time, [])
    driver.tell("changes")
    assert driver.answer()["time"] == time + 1


def kill_executors_with_tasks(cluster: SparkCluster, driver: Driver, after_s: float) -> dict[str, Any]:
    """Kill each executor this long after it got a task, until the driver answers."""
    runtime = SystemRuntime()

    def needs_kill(said: dict[str, Any]) -> bool:
        return "time" in said or "error" in said or any(said.get("running", {}).values())

    while "running" in (said := driver.until(needs_kill)):
        runtime.sleep_s(after_s)
        for executor in [executor for worker in cluster.workers for executor in worker.executors()]:
            with suppress(psutil.NoSuchProcess):
                if any(said["running"].get(port) for port in ports(executor)):
                    executor.kill()
    return said
