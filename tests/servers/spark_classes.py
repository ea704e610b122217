"""Spark's loaded classes in a file that other JVMs map, which halves the work of their start.

Java calls that an archive for class data sharing. It is in the user's cache, named after the Java and the jars that it
was made of, and is created if it is missing: that takes one Spark, and half a minute at most. A JVM that finds an
archive of other jars ignores it. If it cannot be created, an empty file records that, and tests take longer.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

MAKE_LIMIT_S = 240.0
KEPT = 3
"""The number of archives that are kept, for several clones and versions; the oldest are deleted."""

_RUN = """
import pyarrow as pa
from pyspark.sql import SparkSession
from evertide.flow import Circuit

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
circuit = Circuit(spark, '''
    CREATE TABLE t (a BIGINT, b STRING);
    CREATE MATERIALIZED VIEW v AS SELECT t.b, count(*) AS n, max(u.a) AS m FROM t JOIN t u ON t.a = u.a GROUP BY t.b;
''')
circuit.step({"t": pa.table({"a": [1, 2], "b": ["x", "y"], "__diff": [1, 1]})})
spark.range(100).selectExpr("id % 3 AS k").groupBy("k").count().orderBy("k").toArrow()
jvm = spark.sparkContext._gateway.proc
spark.stop()
jvm.stdin.close()
jvm.wait()  # it writes the archive when it ends
"""


def shared_classes(options: str) -> Path | None:
    """The archive for JVMs with these options; None if there can be none."""
    spec = find_spec("pyspark")  # not imported at the top: that would cost tests that need no Spark
    assert spec is not None
    assert spec.origin is not None
    jars = (Path(spec.origin).parent / "jars").resolve()
    java = _java()
    if java is None:
        return None
    made_of = [
        str(java.resolve()),
        str(java.stat().st_mtime_ns),
        str(jars),
        str(jars.stat().st_mtime_ns),
        options,
        _RUN,
    ]
    stamp = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evertide-tests"
    archive = cache / f"spark-{stamp}.jsa"
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "lock-spark").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.exists():
                _make(archive, options)
                _drop_old(cache)
    return archive if archive.exists() and archive.stat().st_size else None


def _java() -> Path | None:
    """The Java that Spark uses. If there is none, the tests that need it report that."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    return Path(found) if found else None


def _make(archive: Path, options: str) -> None:
    """Create the archive under another name and rename it, so that no JVM maps an incomplete file."""
    made = archive.with_suffix(".making")
    made.unlink(missing_ok=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    env |= {
        "SPARK_SUBMIT_OPTS": f"{options} -XX:ArchiveClassesAtExit={made}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [sys.executable, "-c", _RUN]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=MAKE_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:  # the machine is loaded: the next session tries again
        return
    if done.returncode:
        raise RuntimeError(f"the Spark that creates {archive} failed:\n{done.stderr[-2000:]}")
    if not made.exists():
        made.touch()
    made.rename(archive)


def _drop_old(cache: Path) -> None:
    """A process that has mapped one keeps it."""
    for old in sorted(cache.glob("spark-*.jsa"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        old.unlink(missing_ok=True)
