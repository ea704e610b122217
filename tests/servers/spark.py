"""One Spark for all tests, because its start takes seconds. The Sparks of processes that tests start are configured to
start quickly.
"""

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

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""JVMs with the first compiler only: tests end before the second would pay off. It halves the work of many tests.

By default such a JVM has 48 MB for compiled code. Spark fills that in minutes, and would then compile code repeatedly.
"""
QUICK = {f"spark.{which}.extraJavaOptions": QUICK_JAVA for which in ("driver", "executor")}

_OPTIONS = "SPARK_SUBMIT_OPTS"
_ROOMY = "-Xms1g -Xmn512m"
"""For the long-lived session: plans are short-lived, and should not be promoted before they die."""
_SAFE = "-Djavax.xml.accessExternalDTD="
"""As in sessions that Evertide starts."""


@contextmanager
def quick_sparks() -> Iterator[None]:
    """For all processes that are started meanwhile: Spark finds the configuration by the environment."""
    archive = shared_classes(QUICK_JAVA)
    # A JVM's warning about an unsuitable archive would be in the output of the process.
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
    """Two threads, and four attempts per task, so that tests may let one fail."""
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
