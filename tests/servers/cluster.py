"""A real Spark cluster for tests: a master and workers, each a process of its own, on free loopback ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from tests.servers.spark import QUICK_JAVA

START_LIMIT_S = 120.0
_HOME = Path(pyspark.__file__).parent
_PORT = re.compile(r"Successfully started service 'sparkMaster' on port ([0-9]+)")
_REGISTERED = re.compile(r"(Successfully registered with master)")
_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.authenticate": "true",
    "spark.authenticate.secret": "a-secret-of-the-tests",
    "spark.network.crypto.enabled": "true",
}
_SMALL = ("-Xmx256m", *QUICK_JAVA.split())


class _Daemon:
    """A Spark process. It has started when it prints a given line."""

    def __init__(self, name: str, *arguments: str, says: re.Pattern[str], env: dict[str, str]) -> None:
        java = [_java(), "-cp", f"{_HOME / 'jars'}/*", *_SMALL]
        command = [*java, f"org.apache.spark.deploy.{name}", *arguments]
        self.process = subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        self.said = ""
        self._lines: list[str] = []
        self._has_said = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(says,), daemon=True)
        self._thread.start()
        if not self._has_said.wait(START_LIMIT_S) or not self.said:
            self.end()
            raise RuntimeError(f"{name} did not start: {self._lines[-5:]}")

    def _read(self, says: re.Pattern[str]) -> None:
        """Read to the end: a full pipe would block the process that writes to it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines = [*self._lines[-20:], line.strip()]
            if not self.said and (found := says.search(line)):
                self.said = found[1]
                self._has_said.set()
        self._has_said.set()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        if self.process.stderr is not None:
            self.process.stderr.close()


class SparkWorker(_Daemon):
    def executors(self) -> list[psutil.Process]:
        """The executors of all drivers. They are children of the worker, and outlive it for a while."""
        if self.process.poll() is not None:
            return []
        return [each for each in psutil.Process(self.process.pid).children() if _is_executor(each)]

    def kill(self) -> None:
        """Kill the worker and its executors at once, as if the machine failed."""
        executors = self.executors()
        self.end()
        for each in executors:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(executors, timeout=START_LIMIT_S)


@dataclass
class SparkCluster:
    master: str
    conf: Path
    """The directory with `spark-defaults.conf`."""
    scratch: Path
    workers: list[SparkWorker] = field(default_factory=list)

    def env(self, **conf: str) -> dict[str, str]:
        """The environment for a driver: its Spark finds this cluster's settings there, and these additional ones."""
        submit = [f"--conf spark.{name.replace('_', '.')}={value}" for name, value in conf.items()]
        return {
            **_clean(),
            "SPARK_CONF_DIR": str(self.conf),
            "PYSPARK_SUBMIT_ARGS": " ".join([*submit, "pyspark-shell"]),
        }

    def add_worker(self) -> SparkWorker:
        """One core, and memory for the executors of two drivers."""
        work = self.scratch / f"work-{len(self.workers)}"
        place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", "--work-dir", str(work)]
        env = {**_clean(), "SPARK_CONF_DIR": str(self.conf)}
        made = SparkWorker(
            "worker.Worker", *place, "--cores", "1", "--memory", "1g", self.master, says=_REGISTERED, env=env
        )
        self.workers.append(made)
        return made


@contextmanager
def running_cluster(scratch: Path, settings: Mapping[str, str], workers: int = 2) -> Iterator[SparkCluster]:
    """`settings` are Spark's, for all drivers."""
    conf = scratch / "conf"
    conf.mkdir()
    lines = [f"{name} {value}\n" for name, value in {**_DEFAULTS, **settings}.items()]
    (conf / "spark-defaults.conf").write_text("".join(lines))
    place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    env = {**_clean(), "SPARK_CONF_DIR": str(conf)}
    master = _Daemon("master.Master", *place, says=_PORT, env=env)
    cluster = SparkCluster(f"spark://127.0.0.1:{master.said}", conf, scratch)
    try:
        for _ in range(workers):
            cluster.add_worker()
        yield cluster
    finally:
        for worker in cluster.workers:
            worker.kill()
        master.end()


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _clean() -> dict[str, str]:
    """The environment without the variables that this process's Spark set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {
        **kept,
        "SPARK_HOME": str(_HOME),
        "SPARK_SCALA_VERSION": next((_HOME / "jars").glob("spark-core_*.jar")).name.split("_")[1].split("-")[0],
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
