"""One Spark for all tests: starting it costs seconds. Those that tests start as processes are made quick, too."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.spark_classes import shared_classes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["QUICK", "QUICK_JAVA", "quick_sparks", "running_spark"]

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""JVMs that compile little: what a test asks of Spark is over before more would pay. It halves the work of many.

Such a JVM has room for 48 MB of compiled code, which Spark fills in minutes: what it throws out then, it needs again.
"""
QUICK = {f"spark.{which}.extraJavaOptions": QUICK_JAVA for which in ("driver", "executor")}

_OPTIONS = "SPARK_SUBMIT_OPTS"
_ROOMY = "-Xms1g -Xmn512m"
"""For the one that lives long: plans die young, and are not copied about before."""
_SAFE = "-Djavax.xml.accessExternalDTD="
"""As in sessions that Evertide starts."""


@contextmanager
def quick_sparks() -> Iterator[None]:
    """For all processes that are started meanwhile: Spark finds it by the environment."""
    archive = shared_classes(QUICK_JAVA)
    # What a JVM has to say of an archive that it does not like would be among what a process says.
    mapped = f" -XX:SharedArchiveFile={archive} -Xlog:disable" if archive else ""
    before = os.environ.get(_OPTIONS)
    os.environ[_OPTIONS] = QUICK_JAVA + mapped
    try:
        yield
    finally:
        del os.environ[_OPTIONS]
        if before is not None:
            os.environ[_OPTIONS] = before


@contextmanager
def running_spark(scratch: Path) -> Iterator[SparkSession]:
    """Two threads, and four tries for a task, so that tests may let one fail."""
    from evertide.plan.catalyst.session import SETTINGS, SparkSession  # noqa: PLC0415 - costs a second

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("evertide-tests")
        .config(map=SETTINGS)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.codegen.cache.maxEntries", "5000")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"{QUICK_JAVA} {_ROOMY} {_SAFE} -Dderby.system.home={scratch}")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
