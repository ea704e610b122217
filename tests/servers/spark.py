"""One Spark for all tests: starting it costs seconds. Those that tests start as processes are made quick, too."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["QUICK", "QUICK_JAVA", "quick_sparks", "running_spark"]

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVMs that compile little: what a test asks of Spark is over before more would pay. It halves the work of many."""
QUICK = {f"spark.{which}.extraJavaOptions": QUICK_JAVA for which in ("driver", "executor")}


@contextmanager
def quick_sparks(scratch: Path) -> Iterator[None]:
    """For all processes that are started meanwhile: Spark finds it by the environment."""
    (scratch / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in QUICK.items()))
    before = os.environ.get("SPARK_CONF_DIR")
    os.environ["SPARK_CONF_DIR"] = str(scratch)
    try:
        yield
    finally:
        del os.environ["SPARK_CONF_DIR"]
        if before is not None:
            os.environ["SPARK_CONF_DIR"] = before


@contextmanager
def running_spark(scratch: Path) -> Iterator[SparkSession]:
    """Two threads, and four tries for a task, so that tests may let one fail."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - costs a second, and most tests need no Spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("evertide-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.codegen.cache.maxEntries", "5000")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"{QUICK_JAVA} -Dderby.system.home={scratch}")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
