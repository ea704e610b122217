"""Installs the peers that are no dependencies of Evertide, each in a separate environment in a cache directory.

They are installed once, from PyPI and Maven Central, at the versions named here. `EVERTIDE_BENCH_CACHE` is the cache
directory, by default `~/.cache/evertide-bench`. Flink's Parquet reader uses PySpark's Hadoop classes.
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

FLINK_VERSION = "2.3.0"
PATHWAY_VERSION = "0.33.0"
_PARQUET = f"org.apache.flink:flink-sql-parquet:{FLINK_VERSION}"


@dataclass(frozen=True, slots=True)
class Flink:
    python: Path
    jars: tuple[str, ...]


def set_up_flink() -> Flink:
    """Install Flink if it is missing: some minutes, and about 500 MB."""
    jars = _home("flink", FLINK_VERSION) / "jars"
    copy = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={_PARQUET}", f"-DoutputDirectory={jars}"]
    python = _environment("flink", "apache-flink", FLINK_VERSION, copy)
    hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
    return Flink(python, tuple(map(str, [*sorted(jars.glob("*.jar")), *hadoop])))


def set_up_pathway() -> Path:
    """Install Pathway if it is missing (some minutes, about 1.5 GB), and return its Python."""
    return _environment("pathway", "pathway", PATHWAY_VERSION)


def _environment(engine: str, package: str, version: str, *also: list[str]) -> Path:
    """The Python of an environment with the package; `also` are further commands of the installation."""
    home = _home(engine, version)
    python, done = home / "bin" / "python", home / ".installed"
    if not done.exists():
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{package}=={version}"]
        for command in (install, *also):
            _run(engine, command)
        done.touch()
    return python


def _home(engine: str, version: str) -> Path:
    cache = Path(os.environ.get("EVERTIDE_BENCH_CACHE") or Path.home() / ".cache" / "evertide-bench")
    return cache / f"{engine}-{version}"


def _run(engine: str, command: list[str]) -> None:
    if shutil.which(command[0]) is None:
        sys.exit(
            f"bench: {command[0]} is needed to set up {engine} and was not found; install it, or leave {engine} out"
        )
    subprocess.run(command, check=True)
