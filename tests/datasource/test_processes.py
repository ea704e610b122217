"""Another Spark reads the storage while the pipeline runs: on a cluster, and on S3 and PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyspark

from tests.cli.kit import open_small, order
from tests.datasource.kit import History, grow, opened
from tests.servers.postgres import PostgresServer
from tests.servers.s3 import S3Server
from tests.servers.spark import QUICK_JAVA

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def asker(master: str, *where: str, **environment: str) -> Iterator[tuple[IO[str], IO[str]]]:
    """The process's input and output, once it is ready."""
    command = [sys.executable, "-m", "tests.datasource.other_spark", master, *where]
    home = str(Path(pyspark.__file__).parent)
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"SPARK_HOME": home, "JDK_JAVA_OPTIONS": QUICK_JAVA} | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:  # closes the pipes, even if one of them fails
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process.stdin, process.stdout
            process.stdin.close()
            assert process.wait(120) == 0
        finally:
            process.kill()


def ask(pipes: tuple[IO[str], IO[str]], time: int) -> None:
    pipes[0].write(f"{time}\n")
    pipes[0].flush()


def check(pipes: tuple[IO[str], IO[str]], history: History, time: int) -> None:
    found: dict[str, Any] = json.loads(pipes[1].readline())
    assert found == {"ids": sorted(row["id"] for row in history.at[time]["things"]), "fits": True}


def disturb(history: History, times: int) -> None:
    """Run a writer with its background work."""
    for _ in range(times):
        time = history.step()
        history.compact()
        history.forget(time - 6)
        history.collect_garbage()


def test_another_spark_on_a_cluster_reads_by_the_format_name_during_writes(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as p, asker("local-cluster[2,1,512]", str(tmp_path / "s")) as pipes:
        history = grow(p, 4, 8)
        for _ in range(2):
            time = max(history.at)
            ask(pipes, time)
            disturb(history, 5)
            check(pipes, history, time)
        ask(pipes, max(history.at) + 1)
        assert "is not committed yet; the last time is" in json.loads(pipes[1].readline())["error"]


def test_another_spark_reads_a_storage_on_s3_with_meta_in_postgres(
    s3_server: S3Server, postgres_server: PostgresServer
) -> None:
    where, meta = f"s3://{s3_server.bucket}/asked", f"{postgres_server.dsn}&application_name=asked"
    with environment(s3_server.environment()), opened(where, meta) as p:
        history = grow(p, 8, 6)
        with asker("local[1]", where, "${ENV:THE_META}", THE_META=meta) as pipes:
            ask(pipes, max(history.at))
            check(pipes, history, max(history.at))


def test_spark_shows_on_standard_error_that_a_view_failed(tmp_path: Path) -> None:
    """Fails if a second DataFrame over the view gets no warning: it is another read."""
    with open_small(tmp_path / "s", "revenue", "share") as p:
        for amount in (50, 0):
            p.push("orders", [order(amount, amount=amount)])
            p.commit()
    code = f"""
from tests.datasource.other_spark import session
spark = session("local[1]")
shop = spark.read.format("evertide").option("storage", {str(tmp_path / "s")!r})
print([shop.load(name).count() for name in ("share", "orders", "share")], shop.option("as_of", 1).load("share").count())
spark.stop()
"""
    command = [sys.executable, "-c", code]
    environment = os.environ | {"JDK_JAVA_OPTIONS": QUICK_JAVA}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[1, 2, 1] 1"
    shown = [line for line in found.stderr.splitlines() if "StaleViewWarning" in line]
    stale = "view 'share' is failed, and its content is that of transaction 1; its status says why"
    assert shown == [f"spark.read.format('evertide'):1: StaleViewWarning: {stale}"] * 2


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def test_an_executor_loads_no_terminal_and_no_jvm() -> None:
    """Nor does a worker that answers queries. Each task of a read may start in a new process."""
    modules = "evertide.datasource.task, evertide.server.query.duck_query"
    code = f"import sys, {modules}; print(sorted({{'pyspark', 'rich', 'typer', 'uvicorn'}} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
