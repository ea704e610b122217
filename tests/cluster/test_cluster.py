"""Pipelines on a real Spark cluster: a master and two workers. Workers are killed, and nothing is lost or doubled.

Whether a transaction is under way where the blow falls is no matter of luck: the executor is stopped (SIGSTOP) before,
takes its task, cannot finish it, and is killed then. Spark does not count that as a failure of the task, however: not
even here, where it gives up at the first.

One process runs a pipeline through all of it, one test after the other: Spark takes long to start.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from evertide.pipeline.pipeline import Pipeline
from evertide.runtime import SystemRuntime
from tests.cli.kit import document, evertide
from tests.cluster.driver import SCRIPT, Shop, digests, push, settings
from tests.servers.cluster import SparkCluster, SparkWorker
from tests.servers.probe import has_endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0
TRIES = 12
pytestmark = pytest.mark.timeout(600)  # master, workers, executors: a dozen JVMs, on whatever else the machine does


class Driver:
    """A process that does as it is told; see `tests.cluster.driver`."""

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
        """The first line of which it holds."""
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
        """Of this driver at a worker, once it is known here, and its ports."""
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
    """The first test, as the process of the others takes the whole cluster."""
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
        env=cluster.env(cores_max="1"),  # one executor, which is enough to see that it has one
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["event"] == "stopped"
    status = document(evertide("status", "--storage", storage, "--json"))
    assert (status["state"], status["time"]) == ("stopped", 1)


def test_x16_a_cluster_refuses_who_does_not_know_its_secret(cluster: SparkCluster, spark: SparkSession) -> None:
    """Fails without `spark.authenticate` in the configuration of the master."""
    assert not has_endpoint(spark, int(cluster.master.rpartition(":")[2]), "Master")
    [worker, *_] = cluster.workers
    found = ports(psutil.Process(worker.process.pid))
    assert found
    assert not any(has_endpoint(spark, int(port), "Worker") for port in found)


def test_a_worker_is_killed_in_the_middle_and_the_transaction_is_as_if_it_were_not(
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


def test_x15_a_job_that_fails_for_lack_of_an_executor_fails_no_view_and_is_completed(
    cluster: SparkCluster, driver: Driver
) -> None:
    """Spark gives up at once here, if the task is known to run: a moment after it was given, whose length depends on
    the machine. The step is then computed once more; if that fails, too, the transaction waits. The worker starts
    another executor by itself.
    """
    runtime = SystemRuntime()
    driver.tell("small")
    said = driver.answer()
    first = time = said["time"]
    hit = 0
    while "error" not in said and hit < 3 and time < first + TRIES:
        executor, own = driver.executor(cluster.workers[-1])
        driver.tell("large")
        said = driver.until(lambda said, own=own: has_task(own, said) or "time" in said)  # type: ignore[misc]
        hit += "time" not in said
        runtime.sleep_s(0.05 * 2 ** ((time - first) % 6))
        executor.kill()
        said, time = said if "time" in said else driver.answer(), time + 1
    assert hit, "no executor was hit while it ran a task"
    while "error" in said:
        assert said["error"] == "spark_away", said
        assert said["why"].count("\n") == 0
        driver.tell("advance")
        said = driver.answer()
    assert (said["time"], said["failed"]) == (time, [])
    driver.tell("changes")
    assert driver.answer()["time"] == time + 1
