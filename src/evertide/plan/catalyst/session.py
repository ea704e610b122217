"""The Spark session of a pipeline: a given one, or a new one.

A new one can be quiet: what the JVM prints goes to a file without a name. If Spark does not start, the error has the
last lines.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from py4j.clientserver import ClientServer  # type: ignore[import-untyped]
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession

from evertide.errors import NotAllowedNow, SetupIncomplete
from evertide.plan.catalyst.failure import describe_error
from evertide.plan.catalyst.network import REMEDY, bind_to_loopback, find_exposure, make_network_settings
from evertide.scratch import using_scratch

__all__ = ["RULE_OF_LIMIT", "SETTINGS", "TOP_SETTINGS", "DataFrame", "Session", "SparkSession", "open_session"]

logger = logging.getLogger(__name__)

_EXIT_WAIT_S = 10.0
_LINES_MAX = 3
"""How many of the last lines of Spark's output an error has."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.codegen.cache.maxEntries": "4000",
    "spark.sql.timeType.enabled": "true",
    "spark.executor.killOnFatalError.depth": "0",
    "spark.scheduler.mode": "FAIR",
}
"""For thousands of small jobs: a large cache of generated code, and no UI. Columns of type TIME, which Spark refuses by
default. A row that needs more memory than there is
fails its task, and so a view; by default it would end the JVM, again after every restart. Pools share the cores
(`evertide.plan.catalyst.driver`); by default a job waits for all tasks of earlier jobs."""
TOP_SETTINGS = {"spark.sql.execution.topKSortFallbackThreshold": "1000000"}
"""For sessions that run queries of users. For ORDER BY ... LIMIT k, each task of Spark allocates an array of 2 * k rows
even if there are few rows. From this k on, Spark sorts instead. By default it does so from 2,147,483,632 on."""
RULE_OF_LIMIT = "org.apache.spark.sql.catalyst.optimizer.PushProjectionThroughLimitAndOffset"
"""A rule of Spark's optimizer that gives wrong results, which Evertide excludes. It moves the columns of an outer
SELECT below the LIMIT or OFFSET of a subquery. If they have a correlated subquery, that becomes a join between LIMIT
and ORDER BY, and the rows of a join have no order."""
_NO_SECRET = "secret key must be specified"  # noqa: S105 - Spark's message for a missing secret


@dataclass(frozen=True, slots=True)
class Session:
    spark: SparkSession
    is_own: bool

    def cancel(self) -> None:
        """Cancel all running jobs; called by another thread than theirs."""
        self.spark.sparkContext.cancelAllJobs()

    def has_tasks(self) -> bool:
        """Whether tasks are still running: a cancelled task runs until it checks for the cancellation."""
        executors = self.spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
        return any(executor.numRunningTasks() for executor in executors)

    def wait_for_jvm_exit(self) -> int | None:
        """The exit code of the JVM; None if it has not ended after a short wait."""
        process = getattr(SparkContext._gateway, "proc", None)
        try:
            return None if process is None else int(process.wait(_EXIT_WAIT_S))
        except subprocess.TimeoutExpired:
            return None

    def find_exposure(self) -> str | None:
        """Why other processes could control this Spark; None if they cannot."""
        return find_exposure(dict(self.spark.sparkContext.getConf().getAll()))

    def close(self) -> None:
        """An error of a JVM that has ended must not replace the error that reports the end."""
        if self.is_own:
            try:
                self.spark.stop()
            except (Py4JError, OSError) as error:
                logger.warning("Spark had ended before it was stopped: %s", describe_error(error))


def open_session(
    spark: SparkSession | None = None,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    is_quiet: bool = False,
) -> Session:
    """Return the given session, or the active one, or a new one at `master` (by default all cores of this machine).

    `settings` are for a new session. They appear on a command line, so they must not contain secrets.
    If `is_quiet`, a JVM that this call starts does not print to this process's standard error.
    """
    existing = spark or SparkSession.getActiveSession()
    if existing is not None:
        if master is not None and existing.sparkContext.master != master:
            why = f"this process already has an active Spark session at {existing.sparkContext.master!r}; stop it first"
            raise NotAllowedNow(where=f"master {master!r}", why=why)
        return _check(Session(existing, is_own=False))
    _check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = master or os.environ.get("SPARK_MASTER", "local[*]")
    launched = {**SETTINGS, **(settings or {})}
    if not is_quiet:
        return _start(chosen, launched, None)
    with using_scratch():
        printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    with printed:
        return _start(chosen, launched, printed)


def _start(master: str, settings: Mapping[str, str], printed: IO[bytes] | None) -> Session:
    """Start Spark; the JVM prints to `printed`, or to standard error."""
    try:
        spark_session = _create(master, settings, printed)
    except (PySparkException, Py4JJavaError, RuntimeError) as error:
        why = f"Spark did not start: {' / '.join([describe_error(error), *_read_last_lines(printed)])}"
        if _NO_SECRET in why:
            why = f"{why}. {REMEDY}"
        raise SetupIncomplete(where=f"master {master!r}", why=why) from error
    spark_session.sparkContext.setLogLevel("ERROR")
    return _check(Session(spark_session, is_own=True))


def _read_last_lines(printed: IO[bytes] | None) -> list[str]:
    if printed is None:
        return []
    printed.seek(0)
    lines = [line.strip() for line in printed.read().decode(errors="replace").splitlines()]
    return [line for line in lines if line][-_LINES_MAX:]


def _create(master: str, settings: Mapping[str, str], printed: IO[bytes] | None) -> SparkSession:
    """Start the JVM with these settings. Network settings are passed to it later, not on a command line."""
    launched = {"spark.app.name": "evertide", "spark.master": master, **settings}
    with bind_to_loopback(master):
        conf = SparkConf(loadDefaults=False).setAll([*launched.items()])
        is_running = printed is None or SparkContext._gateway is not None  # a JVM outlives its sessions
        SparkContext._ensure_initialized(
            gateway=None if is_running else launch_gateway(conf, {"stderr": printed}), conf=conf
        )
    builder = SparkSession.builder
    for name, value in {**launched, **make_network_settings(SparkContext._jvm, master)}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _check(session: Session) -> Session:
    _check_threads(session.spark)
    if (why := session.find_exposure()) is not None:
        logger.warning("%s. %s", why, REMEDY)
    return session


def _check_threads(session: SparkSession) -> None:
    """Backfills and transactions run concurrently, and Spark keeps the active session and task per JVM thread, so each
    Python thread needs its own JVM thread."""
    if not isinstance(session.sparkContext._gateway, ClientServer):
        why = "Python threads of this session share JVM threads; set PYSPARK_PIN_THREAD=true before Spark starts"
        raise SetupIncomplete(where="the Spark session", why=why)


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and shutil.which("java", path=f"{home}/bin")):
        raise SetupIncomplete(
            where="Java", why="Spark needs Java 17 or newer, and no Java was found; install it or set JAVA_HOME"
        )
