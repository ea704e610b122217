"""Fixtures for all tests: settings with short waits, and real servers, each started once and only if a test
needs it.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from tests.servers.kafka import KafkaBroker, running_kafka
from tests.servers.postgres import PostgresServer, running_postgres
from tests.servers.s3 import S3Server, running_s3
from tests.servers.spark import quick_sparks, running_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["tests.soak.rounds"]

LONG = (
    "test_bench_replicas.py",
    "flow/test_operators.py",
    "cluster/test_cluster.py",
    "flow/test_tpch.py",
    "cluster/test_wide.py",
    "flow/test_wide.py",
    "docs/test_pages.py",
    "test_bench.py",
    "cli/test_processes.py",
    "flow/test_nexmark.py",
    "console/test_demo.py",
    "flow/test_algebra.py",
    "datasource/test_processes.py",
    "pipeline/test_kill.py",
    "pipeline/test_wide_failures.py",
    "pipeline/test_char_types.py",
    "flow/test_queries.py",
    "pipeline/test_replica_processes.py",
    "flow/test_circuit.py",
    "pipeline/test_everything.py",
    "test_readme.py",
    "sources/postgres/test_versions.py",
    "sources/postgres/test_kill.py",
    "shard/test_processes.py",
    "soak/test_pipeline_soak.py",
)
"""The slowest files. They run first, so that no worker process ends with one of them alone. Files that start many
processes alternate with files that do not."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path, len(LONG)))


IN_MEMORY = Path("/dev/shm")
IN_MEMORY_BYTES_MIN = 4 << 30


def pytest_configure(config: pytest.Config) -> None:
    _use_memory_for_storages(config)
    _accept_ctrl_c()


def _use_memory_for_storages(config: pytest.Config) -> None:
    """Put the storages of tests into memory if there is room: a sync of a disk takes milliseconds, and tests make very
    many. Simulated disks test what is synced, and when. `TMPDIR=/tmp` puts storages on a disk.

    What pytest keeps of failed tests stays; the leftovers of killed processes are deleted with the session.
    """
    if "TMPDIR" in os.environ or not IN_MEMORY.is_dir() or not os.access(IN_MEMORY, os.W_OK | os.X_OK):
        return
    if shutil.disk_usage(IN_MEMORY).free < IN_MEMORY_BYTES_MIN:
        return
    made = tempfile.mkdtemp(prefix="evertide-tests-", dir=IN_MEMORY)
    Path(made).chmod(0o1777)  # servers run as another user
    os.environ["TMPDIR"] = made  # also for the processes that tests start
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))
    tempfile.tempdir = None
    config.add_cleanup(partial(shutil.rmtree, made, ignore_errors=True))


def _accept_ctrl_c() -> None:
    """A process that a shell starts in the background ignores Ctrl-C, and its children inherit that. Tests end
    processes by it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _quick_sparks() -> Iterator[None]:
    with quick_sparks():
        yield


@pytest.fixture(scope="session")
def runtime() -> SystemRuntime:
    return SystemRuntime()


@pytest.fixture(scope="session")
def settings() -> Settings:
    return Settings(poll_interval_s=0.01, retry_wait_s=0.001, retry_wait_max_s=0.01, retry_limit_s=20.0)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    with running_kafka() as broker:
        yield broker


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with running_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session
