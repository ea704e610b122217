"""Peers that are not among our own packages, each in an environment of its own below a cache directory.

They come from PyPI and Maven Central, at the versions named here, and are installed once. `EVERTIDE_BENCH_CACHE` says
where; by default `~/.cache/evertide-bench`. The Hadoop classes that Flink's
Parquet reader wants are those that PySpark brings.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pyspark

__all__ = ["FLINK_VERSION", "Flink", "set_up_flink"]

FLINK_VERSION = "2.3.0"
_PARQUET = f"org.apache.flink:flink-sql-parquet:{FLINK_VERSION}"


@dataclass(frozen=True, slots=True)
class Flink:
    python: Path
    jars: tuple[str, ...]


def set_up_flink() -> Flink:
    """Made if it is not there: some minutes, and some 500 MB."""
    home = _cache() / f"flink-{FLINK_VERSION}"
    python, done = home / "bin" / "python", home / ".installed"
    if not done.exists():
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        _run([*install, f"apache-flink=={FLINK_VERSION}"])
        _run(["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={_PARQUET}", f"-DoutputDirectory={home / 'jars'}"])
        done.touch()
    hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
    return Flink(python, tuple(map(str, [*sorted((home / "jars").glob("*.jar")), *hadoop])))


def _cache() -> Path:
    return Path(os.environ.get("EVERTIDE_BENCH_CACHE") or Path.home() / ".cache" / "evertide-bench")


def _run(command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        sys.exit(f"bench: {command[0]} is needed to set up Flink and was not found; install it, or leave out flink")
    subprocess.run(command, check=True)
